"""The `penstock` command.

    penstock run train.py --steps=100     run a TensorFlow script unmodified
    penstock version                      say which penstock this is
"""

from __future__ import annotations

import importlib.metadata
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="TensorFlow's graph, session and parameter-server API on JAX.",
    no_args_is_help=True,
    add_completion=False,
    # A program's traceback should look as it does under plain Python.
    pretty_exceptions_enable=False,
)


@dataclass(frozen=True)
class Program:
    """A script and the arguments it is to see."""

    script: Path
    args: tuple[str, ...]

    def run(self) -> None:
        """Run the script as `python script args` would, with `import tensorflow` giving penstock."""
        from penstock.compat import alias

        alias.install()
        sys.argv = [str(self.script), *self.args]
        # In front, not in place of the first entry: penstock itself may have been found through that one.
        sys.path.insert(0, str(self.script.resolve().parent))
        runpy.run_path(str(self.script), run_name="__main__")


@app.command(
    # Parsing stops at the script: all that follows is the script's own, --help included.
    context_settings={"allow_interspersed_args": False},
)
def run(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script that imports tensorflow.")],
    args: Annotated[list[str] | None, typer.Argument(help="Passed to the script untouched.")] = None,
) -> None:
    """Run a TensorFlow script unmodified: `penstock run train.py --steps=100`."""
    if not script.is_file():
        what = "is a directory" if script.is_dir() else "does not exist"
        typer.echo(f"penstock run: the script '{script}' {what}. Give the path of a Python file.", err=True)
        raise typer.Exit(2)
    context.obj.append(Program(script, tuple(args or ())))


@app.command()
def version() -> None:
    """Print the version of penstock."""
    try:
        typer.echo(f"penstock {importlib.metadata.version('penstock')}")
    except importlib.metadata.PackageNotFoundError:
        typer.echo("penstock, not installed: run from its source")


def main() -> None:
    """Entry point of the `penstock` command."""
    programs: list[Program] = []
    try:
        app(prog_name="penstock", obj=programs)
    except SystemExit as exit:
        if exit.code:
            raise
    # Only now: inside the command line's own machinery a program's KeyboardInterrupt or EOFError would be swallowed.
    for program in programs:
        program.run()
