"""The `penstock` command.

penstock run train.py --steps=100     run a TensorFlow script unmodified
penstock launch --workers=4 train.py  run it on a cluster, on this machine or where --on says
penstock status                       show what the tasks of a running cluster do and hold
penstock credentials create DIR       make what tasks on several machines need to trust each other
penstock version                      say which penstock this is
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import penstock
from penstock.launch import credentials, start, status
from penstock.launch.program import Program

app = typer.Typer(
    no_args_is_help=True,
    # A program's traceback should look the same as under plain Python.
    pretty_exceptions_enable=False,
)
app.add_typer(credentials.app, name="credentials")


# Parsing stops at the script: all following arguments, even --help, belong to the script.
_SCRIPT_ARGUMENTS = {"allow_interspersed_args": False}
app.command(context_settings=_SCRIPT_ARGUMENTS)(start.launch)
app.command()(status.status)


@app.command(context_settings=_SCRIPT_ARGUMENTS)
def run(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script that imports tensorflow.")],
    args: Annotated[list[str] | None, typer.Argument(help="Passed to the script untouched.")] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as for `python -m`.")] = False,
    api: Annotated[
        int | None,
        typer.Option(min=1, max=2, help="The TensorFlow that the script was written for; found out if not given."),
    ] = None,
) -> None:
    """Run a TensorFlow script unmodified: `penstock run train.py --steps=100`."""
    program = Program(script, tuple(args or ()), module, api)
    if problem := program.problem():
        typer.echo(f"penstock run: {problem}", err=True)
        raise typer.Exit(2)
    context.obj.append(program)


@app.command()
def version() -> None:
    """Print the version of penstock."""
    typer.echo(f"penstock {penstock.__version__}")


def _version_option(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version_option, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """TensorFlow's graph, session and parameter-server API on JAX."""


def main() -> None:
    """Entry point of the `penstock` command."""
    programs: list[Program] = []
    try:
        app(prog_name="penstock", obj=programs)
    except SystemExit as exit:
        if exit.code:
            raise
    # Runs only here: inside typer a program's KeyboardInterrupt or EOFError would be swallowed.
    for program in programs:
        program.run()
