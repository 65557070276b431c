"""The command `penstock status`: shows the work and the resources of the tasks of a running cluster."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from penstock import errors

_WIDTH = 160  # if there is no terminal


def status(
    address: Annotated[
        str | None,
        typer.Argument(metavar="HOST:PORT", help="The address of any task.", show_default="the job launched here"),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds that rates are of, and between two views.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object; with --watch, one per line.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="How many variables, and other things, to list.")] = 20,
) -> None:
    """Show the tasks of a running cluster, how fast they go and what they hold: `penstock status localhost:2222`.

    Without an address it is the job that `penstock launch` runs on this machine for this user. Credentials are taken
    from the directory that PENSTOCK_CREDENTIALS names. The exit code is 1 if nothing answers.
    """
    from rich.console import Console  # start-up
    from rich.live import Live  # start-up

    from penstock.launch.cluster_screen import screen  # start-up
    from penstock.launch.watch import Watch  # start-up
    from penstock.wire.credentials import Credentials  # start-up

    address, of_job = _of_running_job() if address is None else (_checked(address), "")
    try:
        credentials = Credentials.from_environment() or (Credentials.load(of_job) if of_job else None)
        with Watch(address, credentials) as cluster:
            views = cluster.views(interval)
            if as_json:
                for view in views:
                    print(json.dumps(view.as_dict(), indent=None if watch else 2), flush=True)
                    if not watch:
                        return
            console = Console()
            if not console.is_terminal and "COLUMNS" not in os.environ:
                console = Console(width=_WIDTH)
            if not watch or not console.is_terminal:
                for view in views:
                    console.print(screen(view, limit))
                    if not watch:
                        return
                    console.print()
            with Live(console=console, auto_refresh=False) as live:
                for view in views:
                    live.update(screen(view, limit), refresh=True)
    except errors.OpError as error:
        typer.echo(f"penstock status: {error.message}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(0 if watch else 130) from None
    except BrokenPipeError:  # the reader is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(0) from None


def _of_running_job() -> tuple[str, str]:
    """The address of a task of this user's only running job, preferably one that answers, and its credentials."""
    from penstock.launch.running import running_jobs  # start-up
    from penstock.launch.watch import listens  # start-up

    jobs = [job for job in running_jobs() if job.addresses]
    if not jobs:
        raise typer.BadParameter(
            "no job of `penstock launch` is running here for this user. Give the address of any task of a cluster.",
            param_hint="HOST:PORT",
        )
    if len(jobs) > 1:
        known = ", ".join(f"{next(iter(job.addresses.values()))} ({job.script})" for job in jobs)
        raise typer.BadParameter(f"{len(jobs)} jobs are running: give one of {known}.", param_hint="HOST:PORT")
    addresses = [_checked(address) for address in jobs[0].addresses.values()]
    return next(filter(listens, addresses), addresses[0]), jobs[0].credentials


def _checked(address: str) -> str:
    address = address.removeprefix("grpc://")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise typer.BadParameter(
            f"'{address}' is no address of a task. Give a host and a port, such as localhost:2222.",
            param_hint="HOST:PORT",
        )
    return address
