"""A session may bring its cluster: servers need not know of each other when they start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from leaks import leak_check
from loopback import free_addresses

import penstock.v1 as tf

SERVER = """
import sys
import penstock.v1 as tf
job, address = sys.argv[1:]
tf.train.Server({job: [address]}, job, 0).join()
"""
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=["in this process", "in processes of their own"])
def cluster(request: pytest.FixtureRequest) -> Iterator[tf.train.ClusterSpec]:
    """A parameter server, a helper and a worker that each know only themselves."""
    addresses = dict(zip(("worker", "ps", "helper"), free_addresses(3), strict=True))
    with leak_check(), ExitStack() as stack:
        for job, address in addresses.items():
            if request.param == "in this process":
                stack.enter_context(tf.train.Server({job: [address]}, job, 0))
            else:
                process = stack.enter_context(subprocess.Popen([sys.executable, "-c", SERVER, job, address]))
                stack.callback(process.kill)
        yield tf.train.ClusterSpec({job: [address] for job, address in addresses.items()})


def test_tensors_go_from_task_to_task(cluster: tf.train.ClusterSpec) -> None:
    with tf.Graph().as_default():
        with tf.device("/job:ps"):
            weights = tf.Variable(tf.range(100_000, dtype=tf.float32))
        with tf.device("/job:helper"):
            doubled = weights * 2.0
        with tf.device("/job:ps"):
            update = tf.assign_add(weights, doubled)
        target = f"grpc://{cluster.task_address('worker', 0)}"
        with tf.Session(target, config=tf.ConfigProto(cluster_def=cluster.as_cluster_def())) as session:
            session.run(weights.initializer)
            session.run(update.op)
            assert session.run(weights[10]) == 30.0


def test_a_server_that_is_not_in_it_says_so(cluster: tf.train.ClusterSpec) -> None:
    jobs = {job: [cluster.task_address(job, 0)] for job in ("ps", "helper")}
    config = tf.ConfigProto(cluster_def=tf.train.ClusterSpec(jobs).as_cluster_def())
    with tf.Graph().as_default():
        value = tf.constant(1.0)
        with (
            pytest.raises(tf.errors.InvalidArgumentError, match="no /job:worker/replica:0/task:0"),
            tf.Session(f"grpc://{cluster.task_address('worker', 0)}", config=config) as session,
        ):
            session.run(value)
