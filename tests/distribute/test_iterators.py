"""Iterators on the workers of a cluster of real processes: the dataset travels, elements are taken where they are."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cluster.processes import Process
from leaks import leak_check
from loopback import free_addresses

import penstock as tf
from penstock.eager.cluster import connect, disconnect
from penstock.eager.iterators import placed_iterator

TASK = """
import json, sys
import penstock.v1 as tf
server = tf.train.Server(json.loads(sys.argv[1]), job_name=sys.argv[2], task_index=int(sys.argv[3]))
print("listens", flush=True)
server.join()
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """A cluster of a parameter server and two workers, each a process of its own."""
    folder = tmp_path_factory.mktemp("tasks")
    with leak_check():
        addresses = free_addresses(3)
        spec = {"ps": addresses[:1], "worker": addresses[1:]}
        names = [(job, str(number)) for job, known in spec.items() for number in range(len(known))]
        started = [
            Process(f"{job}{n}", [sys.executable, "-c", TASK, json.dumps(spec), job, n], folder / f"{job}{n}")
            for job, n in names
        ]
        try:
            for process in started:
                process.wait_for("listens")
            yield spec
        finally:
            for process in started:
                process.close()


@pytest.fixture
def cluster(tasks: dict[str, list[str]]) -> Iterator[dict[str, list[str]]]:
    with leak_check():
        yield tasks
        disconnect()


def test_iterators_of_workers(cluster: dict[str, list[str]]) -> None:
    connect(cluster)
    workers = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2)]
    shift = tf.constant(100, tf.int64)
    rows = tf.data.Dataset.from_tensor_slices({"x": np.arange(8), "s": [f"row {i}" for i in range(8)]})
    dataset = rows.map(lambda row: {**row, "x": row["x"] + shift}).shuffle(8, seed=1).batch(2).prefetch(1)
    iterators = [placed_iterator(dataset.shard(2, i), device, "rows") for i, device in enumerate(workers)]

    def function_of(iterator: Any, device: str) -> Any:
        @tf.function
        def following() -> Any:
            with tf.device(device):
                row = next(iterator)
                return tf.reduce_sum(row["x"]), row["s"]

        return following

    functions = [function_of(*pair) for pair in zip(iterators, workers, strict=True)]
    found = [f() for _ in range(2) for f in functions]
    assert sum(int(total) for total, _ in found) == 8 * 100 + 28
    assert sorted(s for _, texts in found for s in texts.numpy()) == [f"row {i}".encode() for i in range(8)]
    with pytest.raises(tf.errors.OutOfRangeError):
        functions[0]()
    with pytest.raises(StopIteration):
        next(iterators[1])


def test_a_dataset_of_the_coordinator_is_iterated_by_workers(cluster: dict[str, list[str]]) -> None:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    coordinator = tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))
    scale = tf.constant(10, tf.int64)
    dataset = tf.data.Dataset.range(3).map(lambda x: x * scale).repeat()

    @tf.function
    def following(iterator: Any) -> Any:
        return next(iterator)

    for made in (dataset, lambda: dataset):
        iterator = iter(coordinator.create_per_worker_dataset(made))
        found = [coordinator.schedule(following, args=(iterator,)) for _ in range(6)]
        coordinator.join()
        assert {int(value.fetch()) for value in found} <= {0, 10, 20}


def test_ragged_tensors_of_a_dataset_of_workers(cluster: dict[str, list[str]]) -> None:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    coordinator = tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))
    rows = tf.ragged.constant([[1, 2], [], [3], [4, 5, 6]])
    dataset = tf.data.Dataset.from_tensor_slices(rows).map(lambda row: row * 10).ragged_batch(4).repeat()

    @tf.function
    def following(iterator: Any) -> Any:
        batch = next(iterator)
        return tf.reduce_sum(batch, axis=1), batch.row_splits

    for made in (dataset, lambda: dataset):
        iterator = iter(coordinator.create_per_worker_dataset(made))
        found = [coordinator.schedule(following, args=(iterator,)) for _ in range(4)]
        coordinator.join()
        for totals, splits in (value.fetch() for value in found):
            assert totals.tolist() == [30, 0, 30, 150] and splits.tolist() == [0, 2, 2, 3, 6]
