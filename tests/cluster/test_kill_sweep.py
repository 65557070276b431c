"""The kill sweep itself: a few of its cases, and the table that it prints. `make chaos` runs many more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from cluster.kill_sweep import Case, Result, recorded, table
from leaks import leak_check

SWEEP = Path(__file__).with_name("kill_sweep.py")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    with leak_check():
        yield


@pytest.mark.parametrize(("victim", "name"), [("ps1", "ps1"), pytest.param("worker0", "chief", marks=pytest.mark.long)])
def test_a_task_is_killed_while_a_checkpoint_is_made(victim: str, name: str) -> None:
    parts = ["--training", "sync", "--ps", "2", "--load", "quiet", "--victims", victim, "--no-starts"]
    ran = subprocess.run(
        [sys.executable, str(SWEEP), *parts, "--count", "1"], capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"| sync | 2 | quiet | {name} | 1 | 1 | 0 | 0 | " in ran.stdout


def test_table(tmp_path: Path) -> None:
    case = Case(sync=True, ps=2, busy=True, victim="worker0", after="start", delay=0.1)
    good = [Result(case, recovery=seconds) for seconds in (1.0, 4.0, 2.0)]
    bad = [Result(case, "hangs: the workers do not go on", folder="/tmp/x"), Result(case, "ps0 ended with code 1")]
    head, line, row = table([*good, *bad]).splitlines()
    assert row == "| sync | 2 | busy | chief | 5 | 3 | 1 | 1 | 2.0 s | 4.0 s |"
    assert head.count("|") == line.count("|") == row.count("|")
    written = tmp_path / "results"
    written.write_text("".join(json.dumps(asdict(result)) + "\n" for result in [*good, *bad]))
    assert table(list(recorded(written))).splitlines()[-1] == row
    assert table(bad).splitlines()[-1] == "| sync | 2 | busy | chief | 2 | 0 | 1 | 1 |  |  |"
