"""A training that is scaled while it runs, on any engine, and the losses that it must have."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from launch.launching import DEADLINE, PATHS, ROOT, wait_until

PROGRAM = ROOT / "tests" / "cluster" / "elastic.py"


def scale(folder: Path, *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "scale", *map(str, args)]
    env = {**os.environ, "TMPDIR": str(folder), "XDG_RUNTIME_DIR": "", "PYTHONPATH": PATHS, "COLUMNS": "200"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE * 3, check=False)


def runs(folder: Path, pattern: str, log: str = "worker-0") -> None:
    """Waits until a task has printed something."""
    path = folder / "logs" / f"{log}.log"
    wait_until(lambda: path.exists() and re.search(pattern, path.read_text()))


def losses(log: Path) -> dict[int, float]:
    found = re.findall(r"^step (\d+) loss ([\d.]+)", log.read_text(), re.M)
    steps = [int(step) for step, _ in found]
    assert steps == list(range(len(steps)))  # each once
    return {int(step): float(loss) for step, loss in found}


def undisturbed(launch, folder: Path, steps: int) -> dict[int, float]:
    """The losses of a training with one parameter server and two workers, throughout."""
    folder.mkdir()
    (folder / "finish").write_text(str(steps))
    ended(trains(launch, folder, sync=True))
    return losses(folder / "logs" / "worker-0.log")


def alone(folder: Path, steps: int) -> dict[int, float]:
    """The losses of a training in one process."""
    env = {**os.environ, "ELASTIC": json.dumps({"alone": steps}), "PENSTOCK_TIER": "exact", "JAX_PLATFORMS": "cpu"}
    env["PYTHONPATH"] = PATHS
    with (folder / "alone.log").open("w") as log:
        subprocess.run([sys.executable, str(PROGRAM)], env=env, stdout=log, timeout=DEADLINE, check=True)
    return losses(folder / "alone.log")


def trains(launch, folder: Path, sync: bool):
    settings = json.dumps({"folder": str(folder), "sync": sync})
    # Compiled at once, so that both trainings round alike.
    env = {"ELASTIC": settings, "PENSTOCK_TIER": "exact", "JAX_PLATFORMS": "cpu"}
    options = ["--ps", 1, "--workers", 2, "--log-dir", folder / "logs"]
    # Nobody reads the many lines of the tasks while they run; they are in the logs.
    return launch(PROGRAM, options=options, env=env, stdout=subprocess.DEVNULL)


def ended(process) -> str:
    """Waits for the end of a training that ends well. Returns what the launcher has said."""
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err
    return err


def more_steps(folder: Path, *workers: int, count: int = 5) -> int:
    """Waits until workers have made some more steps. Returns the last one of the chief."""
    for worker in workers:
        path = folder / "logs" / f"worker-{worker}.log"
        seen = path.read_text().count("\nstep ") if path.exists() else 0
        wait_until(lambda path=path, seen=seen: path.exists() and path.read_text().count("\nstep ") >= seen + count)
    return max(map(int, re.findall(r"^step (\d+)", (folder / "logs" / "worker-0.log").read_text(), re.M)))


def finish_at(folder: Path, step: int) -> int:
    """Has a training end at a step, and returns it."""
    (folder / "aside").write_text(str(step))
    (folder / "aside").rename(folder / "finish")
    return step


def run_sequence(launch, tmp_path, sequence: list[tuple[int, int]], sync: bool) -> dict[int, float]:
    """Trains while the job is scaled to these numbers of parameter servers and workers. Returns the losses."""
    process = trains(launch, tmp_path, sync)
    more_steps(tmp_path, 0, 1)
    for ps, workers in sequence:
        found = scale(tmp_path, "--ps", ps, "--workers", workers)
        assert found.returncode == 0, found.stderr
        pause = float(re.search(r"held for ([\d.]+) of", found.stdout)[1])
        print(f"{ps} parameter servers and {workers} workers: {pause} s")
        last = more_steps(tmp_path, *range(workers))
    finish_at(tmp_path, last + 10)
    err = ended(process)
    assert "failed" not in err and "lost" not in err
    for worker in range(max(workers for _, workers in sequence)):
        assert "ended" in (tmp_path / "logs" / f"worker-{worker}.log").read_text()  # by itself
    return losses(tmp_path / "logs" / "worker-0.log") if sync else {}


def check_losses(found: dict[int, float], expected: dict[int, float]) -> None:
    assert len(expected) >= len(found) > 30
    for step, loss in found.items():
        assert abs(loss - expected[step]) <= 1e-6
