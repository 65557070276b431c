"""`penstock scale`: tasks join and leave a ClusterCoordinator while it schedules functions."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from launch.elastic_training import ended, runs, scale
from launch.launching import DEADLINE, ROOT, wait_until

PROGRAM = ROOT / "tests" / "cluster" / "elastic_coordinator.py"
pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def begin(launch, tmp_path):
    """Starts a coordinator, and waits until functions run."""

    def start(ps: int, workers: int, sync: bool = False, fit: bool = False) -> Any:
        settings = json.dumps({"folder": str(tmp_path), "sync": sync, "fit": fit})
        options = ["--chief", "--ps", ps, "--workers", workers, "--kill-after", 1, "--log-dir", tmp_path / "logs"]
        env = {"ELASTIC": settings, "JAX_PLATFORMS": "cpu"}
        process = launch(PROGRAM, options=options, env=env, stdout=subprocess.DEVNULL)
        runs(tmp_path, "epoch", "chief-0")
        return process

    return start


def lines(folder: Path) -> list[tuple[int, list[int]]]:
    """The number of workers, and how many functions each has run so far, after each epoch."""
    path = folder / "logs" / "chief-0.log"
    text = path.read_text() if path.exists() else ""
    found = re.findall(r"^epoch \d+ workers (\d+) used (.*)$", text, re.M)
    return [(int(workers), ast.literal_eval(used)) for workers, used in found]


def uses(folder: Path, workers: int) -> None:
    """Waits until exactly the first workers have run functions in an epoch."""

    def found() -> bool:
        (_, before), (count, after) = [(0, []), (0, []), *lines(folder)][-2:]
        ran = [n for n, (then, now) in enumerate(zip(before, after, strict=False)) if now > then]
        return count == workers and ran == list(range(workers))

    wait_until(found)


def scaled(folder: Path, workers: int) -> None:
    found = scale(folder, "--workers", workers)
    assert found.returncode == 0, found.stderr
    print(found.stdout)
    uses(folder, workers)


def visited_once(process: Any, folder: Path) -> dict[str, Any]:
    """Has a coordinator end, which must end well with every element visited once in each epoch."""
    found = finished(process, folder)
    assert found["visited"] == [found["epochs"]] * len(found["visited"])
    assert sum(found["used"]) == sum(found["visited"])
    return found


def finished(process: Any, folder: Path) -> dict[str, Any]:
    (folder / "finish").touch()
    ended(process)
    found: dict[str, Any] = json.loads(
        re.search(r"^ends (.*)$", (folder / "logs" / "chief-0.log").read_text(), re.M)[1]
    )
    return found


@pytest.mark.long
def test_workers_join_and_leave_while_functions_run(begin, tmp_path):
    process = begin(ps=1, workers=1)
    scaled(tmp_path, 2)
    scaled(tmp_path, 1)
    found = visited_once(process, tmp_path)
    assert found["pipelines"] == [1, 2]  # those that have joined are told how many there are


@pytest.mark.long
@pytest.mark.parametrize("sync", [False, True])
def test_a_longer_sequence(begin, tmp_path, sync):
    process = begin(ps=2, workers=2, sync=sync)
    scaled(tmp_path, 4)
    assert scale(tmp_path, "--ps", 3).returncode == 0
    uses(tmp_path, 4)
    scaled(tmp_path, 1)
    found = visited_once(process, tmp_path)
    assert found["pipelines"] == [2, 4]
    if sync:
        assert found["weight"] == -found["updates"]  # the mean of gradients that are all 1
        assert sum(found["visited"]) / 4 <= found["updates"] < sum(found["visited"])


@pytest.mark.long
def test_workers_are_killed_while_others_join_and_leave(begin, tmp_path):
    process = begin(ps=1, workers=2)
    scaling = threading.Thread(target=scale, args=(tmp_path, "--workers", 4))
    scaling.start()
    for worker in (1, 2):  # one that is there, and one that is about to join
        os.kill(process_of(tmp_path, worker), signal.SIGKILL)
    scaling.join(DEADLINE)
    assert not scaling.is_alive()
    wait_until(lambda: scale(tmp_path, "--workers", 4).returncode == 0)  # those that were to join may have to end first
    uses(tmp_path, 4)
    os.kill(process_of(tmp_path, 3), signal.SIGKILL)
    scaled(tmp_path, 2)
    visited_once(process, tmp_path)


def epochs_with(folder: Path, workers: int) -> int:
    return len(re.findall(rf"^epoch \d+ workers {workers}$", (folder / "logs" / "chief-0.log").read_text(), re.M))


@pytest.mark.long
def test_fit_goes_on(begin, tmp_path):
    process = begin(ps=1, workers=1, fit=True)
    for ps, workers in ((1, 3), (2, 3), (1, 2), (1, 1)):
        found = scale(tmp_path, "--ps", ps, "--workers", workers)
        assert found.returncode == 0, found.stderr
        seen = epochs_with(tmp_path, workers)
        wait_until(lambda seen=seen, workers=workers: epochs_with(tmp_path, workers) > seen + 1)
    found = finished(process, tmp_path)
    assert found["steps"] == 20 * found["epochs"]


def process_of(folder: Path, worker: int) -> int:
    runs(folder, r"(?m)^process \d+", f"worker-{worker}")
    return int(re.findall(r"^process (\d+)", (folder / "logs" / f"worker-{worker}.log").read_text(), re.M)[-1])
