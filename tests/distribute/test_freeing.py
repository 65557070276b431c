"""Resources on other tasks that the program has dropped are freed there, and none that is still used."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.processes import DEADLINE, Cluster
from leaks import leak_check

import penstock as tf
from penstock.eager.cluster import disconnect
from penstock.eager.runtime import runtime
from penstock.master.links import Links
from penstock.wire.control import ControlClient, messages

pytestmark = pytest.mark.timeout(180)
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with leak_check(), Cluster(tmp_path_factory.mktemp("cluster"), ps=1, workers=1) as found:
        found.start("ps0", "worker0", mode="join")
        yield found
        disconnect()


@pytest.fixture(scope="module")
def coordinator(cluster: Cluster) -> Any:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster.spec))
    found = tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))
    with found.strategy.scope():
        assert tf.Variable(1.0).numpy() == 1.0  # waits until the server is up
    found.schedule(tf.function(lambda: tf.constant(1))).fetch()
    until(lambda: held(cluster)[0], 0)
    return found


def status(cluster: Cluster, name: str = "ps0") -> Any:
    client = ControlClient(cluster.target(name).removeprefix("grpc://"))
    try:
        return client.get_status(details=True)
    finally:
        client.close()


def held(cluster: Cluster) -> tuple[int, int, int]:
    """The variables, their bytes, and the other resources of the parameter server."""
    found = status(cluster)
    return len(found.variables), sum(v.bytes for v in found.variables), len(found.resources)


def graphs(cluster: Cluster, name: str) -> int:
    return sum(session.graphs for session in status(cluster, name).sessions)


def until(found: Callable[[], Any], wanted: Any) -> None:
    """Waits until other tasks have heard what they can free."""
    end = time.monotonic() + DEADLINE
    while (last := found()) != wanted:
        assert time.monotonic() < end, f"{last}, not {wanted}"
        gc.collect()  # each time, since other threads may have had what was dropped when this began
        runtime.send_unused()
        time.sleep(0.01)


def test_variables_that_are_made_and_dropped(cluster: Cluster, coordinator: Any) -> None:
    before, graphs_before = held(cluster), graphs(cluster, "ps0")
    most = 0
    for i in range(100):
        with coordinator.strategy.scope():
            variable = tf.Variable(np.full(MEGABYTE // 4, i, np.float32))
        assert float(variable[0].numpy()) == i
        if i % 10 == 0:
            most = max(most, held(cluster)[1] - before[1])
    assert MEGABYTE <= most <= 3 * MEGABYTE
    del variable
    until(lambda: held(cluster), before)
    assert graphs(cluster, "ps0") <= graphs_before + 20


def test_queues_and_tables(cluster: Cluster, coordinator: Any) -> None:
    before = held(cluster)
    with tf.device("/job:ps/task:0"):
        queue = tf.queue.FIFOQueue(10, tf.int32)
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    queue.enqueue(1)
    table.insert([1], [2])
    assert held(cluster)[2] == before[2] + 2
    del queue, table
    until(lambda: held(cluster), before)


def test_a_variable_that_a_queued_function_uses_stays(cluster: Cluster, coordinator: Any) -> None:
    before, on_worker = held(cluster), graphs(cluster, "worker0")
    with tf.device("/job:ps/task:0"):
        gate = tf.queue.FIFOQueue(10, tf.int32)

    def scheduled(gate: Any) -> list[Any]:
        with coordinator.strategy.scope():
            variable = tf.Variable(1.0)

        @tf.function
        def step(x: Any) -> Any:
            return gate.dequeue(), variable.assign_add(x).read_value()

        return [coordinator.schedule(step, args=(tf.constant(1.0),)) for _ in range(8)]

    results = scheduled(gate)
    gc.collect()
    runtime.send_unused()
    for i in range(8):
        gate.enqueue(i)
    assert sorted(float(r.fetch()[1]) for r in results) == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    del results, gate
    until(lambda: held(cluster), before)
    until(lambda: graphs(cluster, "worker0") <= on_worker, True)


def test_a_lost_server_is_no_error(tmp_path: Path) -> None:
    with leak_check(), Cluster(tmp_path, ps=2, workers=1) as cluster:
        cluster.start("ps0", "ps1", "worker0", mode="join")
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster.spec))
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        with strategy.scope():
            first, second = tf.Variable(1.0), tf.Variable(2.0)
        cluster.kill("ps1")
        del second
        gc.collect()
        runtime.send_unused()
        assert float(first.assign_add(1.0).numpy()) == 2.0
        disconnect()


def test_a_server_knows_which_coordinators_are_connected() -> None:
    """It remembers what it has written for these, so that functions that run again write it once."""
    with leak_check(), tf.distribute.Server({"ps": ["localhost:0"]}, job_name="ps", task_index=0) as server:
        is_connected = server.worker.commits.is_connected
        links = Links("/job:chief/replica:0/task:0", 77, None, None)
        assert not is_connected(77)
        links.open(server.address, server.get_status(messages["StatusRequest"]()))
        until(lambda: is_connected(77), True)
        links.close()
        until(lambda: is_connected(77), False)


@pytest.mark.long
def test_variables_that_are_kept_for_a_recovery_stay(tmp_path: Path) -> None:
    with leak_check(), Cluster(tmp_path, ps=1, workers=1) as cluster:
        cluster.start("ps0", "worker0", mode="join")
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster.spec))

        def counted() -> float:
            strategy = tf.distribute.ParameterServerStrategy(resolver, ps_recovery=tmp_path / "state")
            with strategy.scope():
                variable = tf.Variable(0.0, name="count")
            return float(variable.assign_add(1.0).numpy())

        assert counted() == 1.0
        gc.collect()
        runtime.send_unused()
        assert counted() == 2.0  # of another strategy, which has found the value there
        disconnect()
