"""`penstock scale --ps`: parameter servers join and leave a ClusterCoordinator while it schedules functions."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cluster.elastic_servers import losses_alone
from launch.elastic_training import ended, runs, scale
from launch.launching import ROOT, wait_until

from penstock.eager.switch import eager_execution

PROGRAM = ROOT / "tests" / "cluster" / "elastic_servers.py"
pytestmark = pytest.mark.timeout(200)


@pytest.fixture
def begin(launch, tmp_path):
    """Starts a coordinator, and waits until functions run."""

    def start(ps: int, workers: int, sync: bool = False, recovery: bool = False) -> Any:
        settings = json.dumps({"folder": str(tmp_path), "sync": sync, "recovery": recovery})
        options = ["--chief", "--ps", ps, "--workers", workers, "--kill-after", 1, "--log-dir", tmp_path / "logs"]
        env = {"ELASTIC": settings, "JAX_PLATFORMS": "cpu"}
        process = launch(PROGRAM, options=options, env=env, stdout=subprocess.DEVNULL)
        runs(tmp_path, "functions", "chief-0")
        return process

    return start


def functions(folder: Path) -> int:
    """The number of functions that have run so far."""
    return int(re.findall(r"^functions (\d+)", (folder / "logs" / "chief-0.log").read_text(), re.M)[-1])


def scaled(folder: Path, **tasks: int) -> None:
    """Has a job scaled, with variables moved, and waits until more functions have run."""
    found = scale(folder, *(text for job, count in tasks.items() for text in (f"--{job}", count)))
    assert found.returncode == 0, found.stderr
    print(found.stdout)
    assert re.search(r"\d+ resources \([\d.]+ MB\) moved", found.stdout)
    goes_on(folder)


def goes_on(folder: Path) -> None:
    seen = functions(folder)
    wait_until(lambda: functions(folder) >= seen + 40)


def kill(folder: Path, task: str) -> None:
    """Kills a task, when it is up: it may have been killed before."""

    def is_up() -> int | None:
        found = re.findall(r"^process (\d+)", (folder / "logs" / f"{task}.log").read_text(), re.M)
        return int(found[-1]) if Path(f"/proc/{found[-1]}").exists() else None

    os.kill(wait_until(is_up), signal.SIGKILL)


def finished(process: Any, folder: Path, in_order: bool = True) -> dict[str, Any]:
    """Has a coordinator end, with each function counted once, and the losses that it must have.

    Functions of several workers that do not wait for each other are not in order, and have other losses each time.
    """
    (folder / "finish").touch()
    ended(process)
    log = (folder / "logs" / "chief-0.log").read_text()
    found: dict[str, Any] = json.loads(re.findall(r"^ends (.*)$", log, re.M)[-1])
    assert found["count"] == found["began"] + found["functions"]
    assert len(found["losses"]) > 5
    if in_order:
        with eager_execution(True):
            expected = losses_alone(found["updates"])
        for updates, loss in found["losses"]:
            assert abs(loss - expected[updates]) <= 1e-5 * expected[updates]
    return found


def test_servers_join_and_leave_while_functions_run(begin, tmp_path):
    process = begin(ps=1, workers=1)
    scaled(tmp_path, ps=2)
    scaled(tmp_path, ps=1)
    found = finished(process, tmp_path)
    assert found["updates"] == found["functions"]


@pytest.mark.long
@pytest.mark.parametrize("sync", [False, True])
def test_a_longer_sequence(begin, tmp_path, sync):
    process = begin(ps=1, workers=2, sync=sync)
    scaled(tmp_path, ps=3)
    scaled(tmp_path, ps=2)
    scaled(tmp_path, ps=1, workers=3)
    scaled(tmp_path, ps=3, workers=1)
    found = finished(process, tmp_path, in_order=sync)
    assert found["functions"] / 3 <= found["updates"] <= found["functions"]
    assert found["updates"] < found["functions"] or not sync


@pytest.mark.long
def test_workers_are_killed_while_servers_join_and_leave(begin, tmp_path):
    process = begin(ps=1, workers=2)
    for number, ps in enumerate((2, 1, 3, 1)):
        with ThreadPoolExecutor(1) as pool:
            scaling = pool.submit(scaled, tmp_path, ps=ps)
            if ps > 1:
                runs(tmp_path, r"is listening", f"ps-{ps - 1}")
            kill(tmp_path, f"worker-{number % 2}")
            scaling.result()
    finished(process, tmp_path, in_order=False)


@pytest.mark.long
def test_a_server_is_recovered_after_it_has_joined(begin, tmp_path):
    process = begin(ps=1, workers=1, recovery=True)
    scaled(tmp_path, ps=2)
    kill(tmp_path, "ps-1")
    wait_until(lambda: "will be restored" in (tmp_path / "logs" / "chief-0.log").read_text())
    goes_on(tmp_path)
    scaled(tmp_path, ps=1)
    finished(process, tmp_path)


@pytest.mark.long
def test_a_checkpoint_of_more_servers_is_restored_by_fewer(begin, tmp_path):
    process = begin(ps=1, workers=1)
    scaled(tmp_path, ps=2)
    before = finished(process, tmp_path)
    (tmp_path / "finish").unlink()
    (tmp_path / "logs" / "chief-0.log").unlink()
    after = finished(begin(ps=1, workers=1), tmp_path)
    assert after["began"] == before["count"]
    assert after["updates"] == before["updates"] + after["functions"]
