"""`penstock launch` shares the GPUs of a machine out among the tasks."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from launch.launching import DEADLINE, ROOT, TASK

from penstock.gpus import VISIBLE, visible_gpus
from penstock.launch.accelerators import FRACTION, OLD_FRACTION, described, shared_out, shares
from penstock.launch.cluster import LaunchError, Task

PS, W0, W1, W2, CHIEF = Task("ps", 0), Task("worker", 0), Task("worker", 1), Task("worker", 2), Task("chief", 0)
LISTED = ["GPU-1", "GPU-2"]


@pytest.mark.parametrize(
    ("tasks", "devices", "wanted"),
    [
        ([PS, W0, W1], [], {}),
        ([PS, W0, W1], ["a", "b"], {PS: {VISIBLE: ""}, W0: {VISIBLE: "a"}, W1: {VISIBLE: "b"}}),
        ([W0, W1], ["a", "b", "c", "d"], {W0: {VISIBLE: "a,c"}, W1: {VISIBLE: "b,d"}}),
        ([W0, W1], ["a"], {W0: {VISIBLE: "a", FRACTION: "0.450"}, W1: {VISIBLE: "a", FRACTION: "0.450"}}),
        (
            [CHIEF, W0, W1],
            ["a", "b"],
            {W0: {VISIBLE: "a", FRACTION: "0.450"}, W1: {VISIBLE: "b"}, CHIEF: {VISIBLE: "a", FRACTION: "0.450"}},
        ),
    ],
)
def test_shares(tasks, devices, wanted) -> None:
    assert shares(tasks, devices) == wanted


@given(st.integers(1, 12), st.integers(1, 12))
def test_everyone_has_a_gpu_and_nothing_is_given_twice(workers: int, devices: int) -> None:
    tasks = [PS, *(Task("worker", i) for i in range(workers))]
    found = shares(tasks, [str(i) for i in range(devices)])
    used = [0.0] * devices
    for task in tasks[1:]:
        for each in found[task][VISIBLE].split(","):
            used[int(each)] += float(found[task].get(FRACTION, 0.9))
    assert all(0 < part <= 0.9 + 0.001 * workers for part in used)
    assert found[PS] == {VISIBLE: ""}


@pytest.mark.parametrize(
    ("text", "wanted"), [("", []), ("0,1", ["0", "1"]), (" 3 , GPU-7", ["3", "GPU-7"]), ("2,-1,3", ["2"]), ("-1", [])]
)
def test_devices_that_the_launcher_sees(text: str, wanted: list[str]) -> None:
    assert visible_gpus({VISIBLE: text, "PATH": ""}) == wanted


def test_no_driver(tmp_path) -> None:
    assert visible_gpus({"PATH": str(tmp_path)}) == []


def _driver(folder, body: str) -> str:
    """A path with a program that answers as NVIDIA's does."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_a_driver_without_gpus(tmp_path) -> None:
    assert visible_gpus({"PATH": _driver(tmp_path, "echo 'No devices were found'; exit 6")}) == []


def test_a_driver_that_cannot_be_asked(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    _driver(tmp_path, "")
    (tmp_path / "nvidia-smi").write_bytes(b"\x7fELF of another machine")
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # a real one elsewhere would be asked
    with pytest.raises(LaunchError, match=r"cannot be listed: .*Set CUDA_VISIBLE_DEVICES, empty for none"):
        shared_out([W0])


@pytest.mark.parametrize("name", [FRACTION, OLD_FRACTION])
def test_a_fraction_of_the_user_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "5")
    monkeypatch.setenv(name, "0.2")
    assert shared_out([W0, W1]) == {W0: {VISIBLE: "5"}, W1: {VISIBLE: "5"}}


def test_described() -> None:
    assert described(shares([PS, W0, W1, W2], LISTED)) == (
        "GPUs: worker:0 has 45% of GPU-1, worker:1 has GPU-2, worker:2 has 45% of GPU-1"
    )
    assert described({}) == ""


def test_a_launched_cluster(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        f"{TASK}\nprint(me, index, 'sees', os.environ.get('{VISIBLE}'), os.environ.get('{FRACTION}'), flush=True)\n"
        "if me == 'ps': tell('seen'); wait()\n"
        "hear('seen')\n"
    )
    settings = {k: v for k, v in os.environ.items() if k not in (VISIBLE, FRACTION, OLD_FRACTION)}
    path = _driver(tmp_path, "echo GPU-1; echo GPU-2")
    launched = subprocess.run(
        [sys.executable, "-m", "penstock", "launch", "--workers", "3", str(script)],
        env={**settings, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert launched.returncode == 0, launched.stderr
    seen = sorted(line.split("] ", 1)[1] for line in launched.stdout.splitlines() if "sees" in line)
    assert seen == [
        "ps 0 sees  None",
        "worker 0 sees GPU-1 0.450",
        "worker 1 sees GPU-2 None",
        "worker 2 sees GPU-1 0.450",
    ]
    assert "GPUs: worker:0 has 45% of GPU-1, worker:1 has GPU-2, worker:2 has 45% of GPU-1" in launched.stderr
