"""A parameter server needs little more memory than its variables, and a region in which they travel."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster.processes import Cluster
from leaks import leak_check

import penstock.v1 as tf

MB = 1 << 20
SIZE = 128 * MB
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from Linux"),
]


def resident(process: int, field: str) -> int:
    """Bytes of a process that are in memory now (VmRSS), or were at most (VmHWM)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def test_a_huge_variable(tmp_path: Path) -> None:
    with (
        leak_check(),
        tf.Graph().as_default(),
        Cluster(tmp_path, workers=1) as cluster,
        tf.train.Server(cluster.spec, "worker", 0) as server,
    ):
        cluster.start("ps0", mode="join")
        process = cluster["ps0"].pid
        with tf.device("/job:ps/cpu:0"):
            small = tf.Variable(1.0)
            huge = tf.get_variable("huge", [SIZE // 4], initializer=tf.zeros_initializer())
        with tf.device("/job:worker/cpu:0"):
            loss = tf.reduce_sum(tf.square(huge - 1.0))
            train = tf.train.GradientDescentOptimizer(0.25).minimize(loss, var_list=[huge])
        saver = tf.train.Saver([huge], sharded=True)
        with tf.Session(server.target) as session:
            session.run(small.initializer)
            before = resident(process, "VmRSS")
            session.run(huge.initializer)
            for _ in range(4):
                session.run(train)
            path = saver.save(session, str(tmp_path / "model"))
            trained = resident(process, "VmHWM") - before
            session.run(train)
            saver.restore(session, path)
            restored = resident(process, "VmHWM") - before
            session.run(train)
            assert session.run(huge[-1]) == 1 - 2.0**-5
    assert trained < 3 * SIZE, f"{trained / SIZE:.2f} times its size"
    # What was read comes in addition.
    assert restored < 4 * SIZE, f"{restored / SIZE:.2f} times its size"
