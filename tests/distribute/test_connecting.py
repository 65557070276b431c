"""tf.config.experimental_connect_to_cluster: eager operations on devices of other tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from leaks import leak_check
from loopback import free_addresses

import penstock as tf
from penstock.eager.cluster import connect, disconnect
from penstock.eager.iterators import placed_iterator


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a task of the job `worker`."""
    with leak_check():
        server = tf.distribute.Server({"worker": ["localhost:0"]}, job_name="worker", task_index=0)
        try:
            yield server.target.removeprefix("grpc://")
        finally:
            disconnect()
            server.stop()


def default_device() -> str:
    """The device of the task for operations that ask for none: a GPU of the machine, if it has one."""
    return f"/job:worker/replica:0/task:0{tf.test.gpu_device_name() or '/device:CPU:0'}"


def test_operations_run_on_the_devices_of_a_cluster(address: str) -> None:
    tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec({"worker": [address]}))
    with tf.device("/job:worker/task:0"):
        v = tf.Variable([1.0, 2.0])
        assert v.device == default_device()
        assert (v * 2.0).numpy().tolist() == [2.0, 4.0]
    assert "/job:localhost" in tf.constant(1).device
    assert "/job:worker/replica:0/task:0/device:CPU:0" in [d.name for d in tf.config.list_logical_devices("CPU")]


def test_a_host(address: str) -> None:
    tf.config.experimental_connect_to_host(f"grpc://{address}")
    with tf.device("/job:worker"):
        assert tf.Variable(1).device == default_device()
    with pytest.raises(ValueError, match="address of one task"):
        tf.config.experimental_connect_to_host()


def test_the_master_of_a_resolver_becomes_the_default_device(address: str) -> None:
    cluster = tf.train.ClusterSpec({"worker": [address]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, master=address, rpc_layer="grpc")
    with tf.device("/CPU:0"), pytest.raises(ValueError, match="inside of a device scope"):
        tf.config.experimental_connect_to_cluster(resolver)
    tf.config.experimental_connect_to_cluster(resolver)
    assert tf.Variable(1).device.startswith("/job:worker/")
    tf.config.experimental_connect_to_cluster(resolver, make_master_device_default=False)
    assert tf.Variable(1).device.startswith("/job:localhost/")
    other = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, master="localhost:1", rpc_layer="grpc")
    with pytest.raises(ValueError, match="cannot find master grpc://localhost:1"):
        tf.config.experimental_connect_to_cluster(other)


def test_a_name_that_this_process_once_had_means_another_task_now(address: str) -> None:
    connect(tf.train.ClusterSpec({"worker": free_addresses(1)}), "worker", 0)
    disconnect()
    connect(tf.train.ClusterSpec({"worker": [address]}), "chief", 0)
    iterator = placed_iterator(tf.data.Dataset.range(5), "/job:worker/replica:0/task:0/device:CPU:0")
    assert [int(x) for x in iterator] == [0, 1, 2, 3, 4]


def test_arguments(address: str) -> None:
    cluster = tf.train.ClusterSpec({"worker": [address]})
    with pytest.raises(ValueError, match="cluster_device_filters"):
        tf.config.experimental_connect_to_cluster(cluster, cluster_device_filters="/job:ps")
    tf.config.experimental_connect_to_cluster(tf.distribute.cluster_resolver.SimpleClusterResolver(cluster))
    assert len(tf.config.list_logical_devices("CPU")) == 1  # a resolver without a master: this process alone
