"""Compressed gradients between processes: the bytes that travel, and a worker that is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster.gates import turns
from cluster.processes import Cluster
from leaks import leak_check

PROGRAM = Path(__file__).with_name("compressor.py")
# Bytes that a worker sends in a step, as a part of those that it sends with dense gradients: from, to.
PARTS = {"deep": (0.002, 0.01), "one_bit": (1 / 33, 1 / 30), "bfloat16": (0.5, 0.505), "float16": (0.5, 0.505)}
pytestmark = pytest.mark.timeout(180)


@pytest.mark.long
def test_bytes_and_a_worker_that_is_killed(tmp_path: Path) -> None:
    with leak_check(), Cluster(tmp_path, program=PROGRAM) as cluster:
        cluster.start("ps0", "worker0", "worker1")
        for name in ("worker0", "worker1"):
            sent = json.loads(cluster[name].wait_for("bytes (.*)")[1])
            assert sent["dense"] > 2000 * 100 * 4
            for method, (least, most) in PARTS.items():
                assert least <= sent[method] / sent["dense"] <= most, (method, sent)
            for method, (first, last) in json.loads(cluster[name].wait_for("losses (.*)")[1]).items():
                assert last < first, method
            assert float(cluster[name].wait_for("begins at .* with (.*)")[1]) == 0
            assert float(cluster[name].wait_for("ends with (.*)")[1]) > 0
        cluster.kill("worker1")
        cluster.start("worker1")
        begun = cluster["worker1"].wait_for(r"begins at (\d+) with (.*)")
        assert int(begun[1]) == 2 * 5 * 6 and float(begun[2]) == 0
        cluster["worker1"].wait_for("losses (.*)")
        for worker in range(2):
            cluster.probe(lambda worker=worker: turns(worker).enqueue(False))  # type: ignore[misc]
            assert cluster[f"worker{worker}"].end() == 0
