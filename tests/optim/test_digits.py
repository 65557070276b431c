"""Training on the digits in a real cluster: averaging workers learn as well, and send as much less as they should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.processes import Cluster
from leaks import leak_check

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "digits_training.py"
PER_STEP, MODEL, ELASTIC = "async momentum", "ModelAverage, interval 20", "ElasticAverage, period 10"
STEPS = 160


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """The measurements of the two workers, by method."""
    methods = [PER_STEP, MODEL, ELASTIC]
    with leak_check(), Cluster(tmp_path_factory.mktemp("digits"), program=PROGRAM) as cluster:
        cluster.start("ps0", "worker0", "worker1", methods=json.dumps(methods), steps=STEPS)
        assert [cluster[f"worker{i}"].end() for i in range(2)] == [0, 0]
        found = [[json.loads(line[0]) for line in cluster[f"worker{i}"].find(r"^\{.*")] for i in range(2)]
    return {method: [worker[place] for worker in found] for place, method in enumerate(methods)}


@pytest.mark.parametrize("method", [PER_STEP, MODEL, ELASTIC])
def test_the_digits_are_learned(measured: dict[str, list[dict[str, Any]]], method: str) -> None:
    for worker in measured[method]:
        assert len(worker["losses"]) == STEPS
        assert np.mean(worker["losses"][-20:]) < 0.5 < np.mean(worker["losses"][:5])
    assert measured[method][0]["accuracy"] > 0.9


@pytest.mark.parametrize("method, period", [(MODEL, 20), (ELASTIC, 10)])
def test_workers_that_average_send_less(measured: dict[str, list[dict[str, Any]]], method: str, period: int) -> None:
    """Weights travel both ways in one step of `period`, instead of weights and gradients in each."""
    for averaging, per_step in zip(measured[method], measured[PER_STEP], strict=True):
        for way in ("sent", "received"):
            assert averaging[way] / per_step[way] == pytest.approx(1 / period, rel=0.1)
