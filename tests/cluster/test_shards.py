"""Shards in separate processes: each record is trained on once, though workers come late, are slow, and die."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.gates import turns
from cluster.processes import LOST, Cluster
from cluster.sharded import RECORDS, SHARDS, make_shards
from leaks import leak_check

import penstock.v1 as tf

PROGRAM = Path(__file__).with_name("shard_worker.py")
pytestmark = pytest.mark.timeout(180)
PER_SHARD = RECORDS // SHARDS
ENOUGH = 100  # steps, for all that a worker can have to do


@contextlib.contextmanager
def cluster_of(folder: Path, workers: int, **settings: str) -> Iterator[Cluster]:
    with leak_check(), Cluster(folder, workers=workers, program=PROGRAM, **settings) as cluster:
        yield cluster


def grant(cluster: Cluster, worker: int, steps: int) -> None:
    """Lets a worker make some steps."""
    cluster.probe(lambda: turns(worker).enqueue_many([[True] * steps]))


def progress(cluster: Cluster) -> tuple[int, int, int]:
    return tuple(map(int, cluster.probe(lambda: make_shards().progress())))  # type: ignore[return-value]


def trained(cluster: Cluster, name: str) -> list[int]:
    """The records of all steps of a worker, in all its lives."""
    return [int(r) for p in cluster.of(name) for found in p.find(r"^trained (.*)") for r in found[1].split()]


def visits(cluster: Cluster) -> list[int]:
    """How often each record was trained on, by what the parameter server counts."""

    def build() -> Any:
        return tf.get_variable("visits", initializer=np.zeros(RECORDS, np.int32), use_resource=True).read_value()

    return cluster.probe(build).tolist()  # type: ignore[no-any-return]


def test_each_record_once_with_workers_that_are_slow_and_late_and_killed(tmp_path: Path) -> None:
    with cluster_of(tmp_path, workers=3) as cluster:
        cluster.start("ps0", "worker0", "worker1", how="dataset")
        grant(cluster, 0, 7)
        cluster["worker0"].wait_for("trained", 7)  # two shards, and a third of the next
        grant(cluster, 1, 1)
        cluster["worker1"].wait_for("trained")
        cluster.start("worker2")
        grant(cluster, 2, ENOUGH)
        # It does all shards but those that the slow ones have.
        cluster["worker2"].wait_for("trained", 3 * (SHARDS - 4))
        cluster.until(lambda: make_shards().progress(), lambda found: list(found) == [0, SHARDS - 2, 2])
        assert [len(trained(cluster, f"worker{i}")) for i in range(3)] == [12, 2, PER_SHARD * (SHARDS - 4)]

        cluster.kill("worker1")
        lost = trained(cluster, "worker1")
        cluster["worker2"].wait_for("trained", 3 * (SHARDS - 3))  # the shard that went back, from its beginning
        assert cluster["worker2"].find("ended") == []  # since another shard may go back as well
        grant(cluster, 0, ENOUGH)
        assert [cluster[name].end() for name in ("worker0", "worker2")] == [0, 0]
        assert visits(cluster) == [2 if record in lost else 1 for record in range(RECORDS)]
        assert progress(cluster) == (1, SHARDS, 0)


@pytest.mark.long
def test_a_job_that_is_started_again_goes_on_in_its_epoch(tmp_path: Path) -> None:
    with cluster_of(tmp_path, workers=1) as cluster:
        cluster.start("ps0", "worker0", how="feeds")
        grant(cluster, 0, 7)
        cluster["worker0"].wait_for("trained", 7)  # each of these steps is saved
        cluster.kill("worker0")
        cluster.kill("ps0")
        again = trained(cluster, "worker0")[-2:]  # of the shard that was not done

        cluster.start("ps0", "worker0")
        grant(cluster, 0, ENOUGH)
        assert cluster["worker0"].end() == 0
        assert visits(cluster) == [2 if record in again else 1 for record in range(RECORDS)]
        assert progress(cluster) == (1, SHARDS, 0)


@pytest.mark.long
def test_a_parameter_server_that_is_killed_takes_the_leases_along(tmp_path: Path) -> None:
    with cluster_of(tmp_path, workers=2) as cluster:
        cluster.start("ps0", "worker0", "worker1", how="dataset")
        for worker in (0, 1):
            grant(cluster, worker, 7)
        for worker in (0, 1):
            cluster[f"worker{worker}"].wait_for("trained", 7)
        cluster.kill("ps0")
        cluster.start("ps0")
        for worker in (0, 1):
            grant(cluster, worker, ENOUGH)
        assert [cluster[name].end() for name in ("worker0", "worker1")] == [0, 0]
        assert set(visits(cluster)) == {1, 2}  # the shards that were in hand were trained on again
        assert progress(cluster) == (1, SHARDS, 0)


@pytest.mark.long
def test_a_frozen_worker_loses_its_shard_and_goes_on_when_it_thaws(tmp_path: Path) -> None:
    with cluster_of(tmp_path, workers=2, **LOST) as cluster:
        cluster.start("ps0", "worker0", "worker1", how="dataset")
        grant(cluster, 1, 1)
        cluster["worker1"].wait_for("trained")
        cluster.freeze("worker1")
        grant(cluster, 0, ENOUGH)
        assert cluster["worker0"].end() == 0
        assert progress(cluster) == (1, SHARDS, 0)
        cluster.thaw("worker1")
        grant(cluster, 1, ENOUGH)
        assert cluster["worker1"].end() == 0
        assert cluster["worker1"].find("does not count as done")
        again = trained(cluster, "worker1")
        assert len(again) == PER_SHARD
        assert visits(cluster) == [2 if record in again else 1 for record in range(RECORDS)]


def test_a_step_that_waits_on_a_server_gets_what_idle_sessions_have(tmp_path: Path) -> None:
    with cluster_of(tmp_path, workers=1) as cluster:
        cluster.start("ps0")
        with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
            shards = tf.data.Shards(2, 2, lease_secs=0.05)
            init = tf.global_variables_initializer()
            idle, busy = tf.Session(cluster.target("ps0")), tf.Session(cluster.target("ps0"))
            with idle, busy:
                idle.run(init)
                assert next(shards.taken(idle)).index == 0
                assert [shard.index for shard in shards.taken(busy)] == [1, 0]
