"""`penstock launch --on slurm --submit='--nodes=3' ...`: submits this command as a Slurm job, which runs it there.

The job may be requeued, by Slurm when its first node fails or by `scontrol requeue`: it starts anew, and programs
restore from their checkpoints. It survives the loss of any other node.
"""

from __future__ import annotations

import math
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.launch.cluster import LaunchError
from penstock.launch.engine import Request
from penstock.launch.slurm_nodes import require_commands, srun_environment

_ANSWER_WITHIN = 60.0


@dataclass(frozen=True)
class Submitted:
    """A job that waits for its nodes, or runs."""

    number: str
    logs: Path

    def __str__(self) -> str:
        return (
            f"submitted as Slurm job {self.number}; its output goes to {self.logs}/launch.log, that of each task to "
            f"a file beside it. `squeue --job {self.number}` shows its state, `scancel {self.number}` stops it"
        )


def submit(options: str, request: Request, given_to_launch: Sequence[str], logs: Path | None) -> Submitted:
    """Submits `penstock launch` with options for sbatch. Logs go to a new directory here if none is given."""
    require_commands("sbatch")
    try:
        given = shlex.split(options)
        logs = (logs or Path(tempfile.mkdtemp(prefix="penstock-", dir=Path.cwd()))).absolute()
        logs.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        raise LaunchError(f"the job cannot be submitted with --submit '{options}': {error}.") from error
    command = ["sbatch", "--parsable", *_defaults(request, logs), *given]
    program = request.commands.program
    done = subprocess.run(
        command,
        input=batch_script(given_to_launch, logs, [str(program.script), *program.args]),
        env=srun_environment(),
        capture_output=True,
        text=True,
        timeout=_ANSWER_WITHIN,
    )
    if done.returncode:
        raise LaunchError(
            f"sbatch refused the job: {done.stderr.strip()}. The options given to it were --submit '{options}'."
        )
    return Submitted(done.stdout.strip().partition(";")[0], logs)


def _defaults(request: Request, logs: Path) -> list[str]:
    """The options for sbatch; those of the user come after them, and win."""
    of_tasks = [request.needs.of(task) for task in request.size.tasks]
    cpus = max(math.ceil(each.cpus or 1) for each in of_tasks)
    found = [
        f"--job-name={request.commands.program.script.name}",
        f"--ntasks={len(of_tasks)}",
        f"--cpus-per-task={cpus}",
    ]
    if memory := max(each.memory or 0 for each in of_tasks):
        found.append(f"--mem-per-cpu={math.ceil(memory / cpus / (1 << 20))}M")
    if gpus := max(math.ceil(each.gpus or 0) for each in of_tasks):
        found.append(f"--gpus-per-task={gpus}")
    # The batch script becomes the launcher, which is told by SIGTERM that the job must end.
    return [*found, "--requeue", "--no-kill", "--open-mode=append", f"--output={logs / 'launch.log'}"]


def batch_script(given: Sequence[str], logs: Path, program: Sequence[str]) -> str:
    """The script of the job. After a requeue the logs of tasks go to a new directory, so that earlier ones stay.

    >>> print(batch_script(["--workers=2"], Path("/logs"), ["train.py"]).splitlines()[-1].partition(" -m ")[2])
    penstock launch --workers=2 --log-dir="$logs" train.py
    """
    command = shlex.join([sys.executable, "-m", "penstock", "launch", *given])
    return f"""#!/bin/sh
logs={shlex.quote(str(logs))}
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ]; then logs="$logs/requeue-$SLURM_RESTART_COUNT"; fi
exec {command} --log-dir="$logs" {shlex.join(program)}
"""
