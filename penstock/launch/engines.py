"""The engines by name, for `penstock launch --on NAME`. Each is imported when it is chosen."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import typer

from penstock.launch.cluster import LaunchError
from penstock.launch.engine import Place, Request
from penstock.launch.on import On


def engine_named(name: On) -> Place:
    """The function that places tasks on an engine. LaunchError says why one cannot be used, and what to do."""
    match name:
        case On.LOCAL:
            from penstock.launch.local import place  # start-up

            return place
        case On.KUBERNETES:
            from penstock.launch.kubernetes.engine import place  # start-up

            return place
        case On.SLURM:
            from penstock.launch.slurm import place  # start-up

            return place
        case On.RAY:
            from penstock.launch.ray_engine import place  # start-up

            return place


def submitted(name: On, options: str, request: Request, context: typer.Context, logs: Path | None) -> str:
    """Submits this command to an engine that has a queue; says what came of it."""
    if name is not On.SLURM:
        raise LaunchError(f"--submit is for --on slurm, which has a queue of jobs, received --on {name}.")
    from penstock.launch.slurm_submit import submit  # start-up

    return str(submit(options, request, _given(context, without=("submit", "log_dir")), logs))


def _given(context: typer.Context, without: Collection[str]) -> list[str]:
    """The options of a command as they were given."""
    found: list[str] = []
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.param_type_name != "option" or option.name in without or source is None:
            continue
        if source.name != "COMMANDLINE":  # by name: some versions of typer have a click of their own
            continue
        value = context.params[option.name or ""]
        if isinstance(value, bool):
            found.append((option.opts if value else option.secondary_opts)[0])
        else:
            found.append(f"{option.opts[0]}={value}")
    return found
