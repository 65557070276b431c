"""`penstock credentials`: certificates and a token with which tasks on several machines trust each other.

penstock credentials create job_credentials --host ps0.example.org --days 30
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from penstock import errors

app = typer.Typer(help="Credentials with which the tasks of a job trust each other.", no_args_is_help=True)


@app.callback()
def credentials() -> None:
    """Credentials with which the tasks of a job trust each other."""
    # Without this, typer would make the only command the group itself.


@app.command()
def create(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write them: a new or empty directory.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name or address in the certificate; penstock needs none."),
    ] = None,
    days: Annotated[int, typer.Option(metavar="N", min=1, max=36500, help="For how long they are good.")] = 365,
) -> None:
    """Make a job's certificates and token: `penstock credentials create job_credentials`."""
    from penstock.wire.credentials import ENVIRONMENT_VARIABLE, create_credentials  # start-up

    try:
        made = create_credentials(directory, hosts=host or (), days=days)
    except errors.OpError as error:
        typer.echo(f"penstock credentials create: {error.message}", err=True)
        raise typer.Exit(1) from None
    folder = shlex.quote(str(made.directory))
    typer.echo(
        f"""Wrote to {made.directory}, good until {made.valid_until():%Y-%m-%d %H:%M} UTC:
  ca.pem     the job's certificate authority (its key is not kept)
  task.pem   the certificate of every task and client
  task.key   its private key
  token      the secret that every task and client sends

Next:
  1. Copy the directory to each machine of the job:  scp -rp {folder} MACHINE:{folder}
  2. Set this for every task and client:             export {ENVIRONMENT_VARIABLE}={folder}
Whoever can read task.key and token can use the job: keep them from others."""
    )
