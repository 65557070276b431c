"""Averaging optimizers in separate processes: every variable after each step of each worker is that of NumPy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cluster.averaging_reference import Reference
from cluster.gates import turns
from cluster.processes import Cluster
from leaks import leak_check

PROGRAM = Path(__file__).with_name("averager.py")
STEPS = 7
pytestmark = pytest.mark.timeout(180)


def _grant(cluster: Cluster, worker: int, turn: bool) -> None:
    cluster.probe(lambda: turns(worker).enqueue(turn))


def _agrees(cluster: Cluster, worker: int, step: int, reference: Reference) -> None:
    line = cluster[f"worker{worker}"].wait_for(rf"^step {step} (.*)$")
    found = json.loads(line[1])
    for name, value in reference.state(worker).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=f"{name} of {worker} at {step}")


@pytest.mark.parametrize(
    "kind, period",
    [
        pytest.param("model", 1, marks=pytest.mark.long),
        pytest.param("model", 3, marks=pytest.mark.long),
        ("elastic", 2),
        pytest.param("agn", 2, marks=pytest.mark.long),
    ],
)
def test_every_value_of_every_step(tmp_path: Path, kind: str, period: int) -> None:
    reference = Reference(kind, 2, period, moving_rate=0.3, rate=0.1, momentum=0.9)
    with leak_check(), Cluster(tmp_path, program=PROGRAM) as cluster:
        cluster.start("ps0", "worker0", "worker1", kind=kind, period=period, momentum=0.9)
        cluster["ps0"].wait_for("serves")
        for step in range(1, STEPS + 1):
            for worker in range(2):
                _grant(cluster, worker, True)
                reference.step(worker)
                if kind != "model":  # these meet the center when they come, so they come one after the other
                    _agrees(cluster, worker, step, reference)
            if kind == "model":
                for worker in range(2):
                    _agrees(cluster, worker, step, reference)
        for worker in range(2):
            _grant(cluster, worker, False)
            assert cluster[f"worker{worker}"].end() == 0
