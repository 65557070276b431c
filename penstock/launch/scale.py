"""The command `penstock scale`: changes the number of workers and parameter servers of a running job."""

from __future__ import annotations

from typing import Annotated

import typer


def scale(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="The process number or script of the job.", show_default="the only one"),
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Workers.", show_default="as many as now")] = None,
    ps: Annotated[int | None, typer.Option("--ps", help="Parameter servers.", show_default="as many as now")] = None,
) -> None:
    """Change the number of tasks of a job that runs here: `penstock scale train.py --workers 6 --ps 2`.

    Workers join and leave, and parameter servers join and leave with their variables moved over, while training goes
    on. The exit code is 0 if the job has these numbers now, and 1 if it is as it was.
    """
    from penstock.launch.doorbell import ask  # start-up
    from penstock.launch.running import beside  # start-up

    if workers is None and ps is None:
        raise typer.BadParameter("give --workers, --ps or both.", param_hint="--workers")
    pid = _found(job)
    code = 1
    try:
        for text, found in ask(beside(pid, "sock"), ps, workers):
            typer.echo(f"penstock scale: {text}", err=bool(found))
            code = found or 0
    except OSError as error:
        typer.echo(f"penstock scale: the launcher (process {pid}) does not answer: {error}", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(code)


def _found(job: str | None) -> int:
    """The process of the launcher that is meant."""
    from penstock.launch.running import running_jobs  # start-up

    jobs = running_jobs()
    meant = [each for each in jobs if job in (None, str(each.pid), each.script)]
    if len(meant) == 1:
        return meant[0].pid
    known = ", ".join(f"{each.pid} ({each.script})" for each in meant or jobs)
    if not jobs:
        text = "no job of `penstock launch` is running here for this user."
    elif not meant:
        text = f"there is no job '{job}': give one of {known}."
    else:
        text = f"{len(meant)} jobs are running: give one of {known}."
    raise typer.BadParameter(text, param_hint="JOB")
