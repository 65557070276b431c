"""Servers, cluster specs and device filters are as in TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import v2_golden
from distribute.names import tf
from golden_programs import check, parameters, run_program
from leaks import leak_check
from loopback import free_addresses
from tensorboard.compat.proto.cluster_pb2 import ClusterDef

import penstock.server
from penstock.errors import InternalError, InvalidArgumentError

# Cases that differ, and the reason.
DIFFERENT = {"filters/errors": "TensorFlow takes a string for a list of letters, and any job and task number"}


@pytest.fixture(autouse=True)
def _stopped() -> Iterator[None]:
    """Stops the servers that a program has started: TensorFlow's, for which it was written, cannot be stopped."""
    with leak_check():
        yield
        for server in list(penstock.server._in_process.values()):
            server.stop()


@pytest.mark.parametrize("row", parameters("distribute/servers.json", DIFFERENT))
def test_as_tensorflow(row: dict[str, Any], tmp_path: Path) -> None:
    if row["id"].startswith("connect/"):
        v2_golden.check(row, tmp_path)  # with all names of the V2 face, since it uses graphs
    elif row["id"] == "cluster_spec/serialized":
        # The order of a map's entries is not specified, and versions of protobuf differ in it.
        ours, theirs = run_program(row, tf), row["result"].encode("latin-1")
        assert ClusterDef.FromString(ours) == ClusterDef.FromString(theirs)
    else:
        check(row, tf)


def test_a_server_whose_job_or_task_is_not_in_the_cluster() -> None:
    cluster = {"worker": ["localhost:0", "localhost:0"]}
    with pytest.raises(ValueError, match=r"No such job in cluster: 'ps'.*'worker'"):
        tf.distribute.Server(cluster, job_name="ps")
    with pytest.raises(InternalError, match=r"Task 0 .*'ps'.*localhost:0"):
        tf.distribute.Server(cluster, job_name="ps", task_index=0)
    with pytest.raises(InternalError, match=r"Task 3 .*'worker'.*localhost:0"):
        tf.distribute.Server(cluster, job_name="worker", task_index=3)


WRONG_ARGUMENTS = [
    ({"task_index": "0"}, "task_index .* type Integral, received '0'"),
    ({"task_index": 1.5}, "task_index .* type Integral, received 1.5"),
    ({"protocol": 3}, "protocol .* type str, received 3"),
    ({"config": {}}, "config .* type ConfigProto, received {}"),
]


@pytest.mark.parametrize(("arguments", "says"), WRONG_ARGUMENTS)
def test_arguments_of_a_wrong_type(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        tf.distribute.Server({"worker": ["localhost:0"]}, **arguments)


def test_a_task_number_below_zero_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="Task -1 of job 'worker' must have a number from 0 on"):
        tf.distribute.Server({"worker": {-1: "localhost:0"}})


def test_the_number_of_a_task_may_be_of_numpy() -> None:
    with tf.distribute.Server({"worker": ["localhost:0"]}, task_index=np.int64(0)) as server:
        assert server.server_def.task_index == 0


def test_a_server_that_was_never_started_gives_its_port_back() -> None:
    (address,) = free_addresses(1)  # a port that the system chooses may go to a connection meanwhile
    with tf.distribute.Server({"worker": [address]}, start=False) as server:
        assert server.address == address
    with tf.distribute.Server({"worker": [address]}) as again:
        assert again.address == address


WRONG_FILTERS = [
    (("worker", 0, "/job:ps"), TypeError, "list of device names, received '/job:ps'"),
    (("worker", 0, None), TypeError, "list of device names, received None"),
    (("worker", 0, [3]), TypeError, "received 3"),
    (("worker", 0, ["/job:ps/tusk:1"]), ValueError, "/job:ps/tusk:1"),
    (("worker", "x", ["/job:ps"]), TypeError, "task_index must be an integer, received 'x'"),
    (("worker", True, ["/job:ps"]), TypeError, "task_index must be an integer, received True"),
    (("worker", -1, ["/job:ps"]), ValueError, "task_index must not be negative, received -1"),
    ((3, 0, ["/job:ps"]), TypeError, "job_name must be a string, received 3"),
]


@pytest.mark.parametrize(("arguments", "kind", "says"), WRONG_FILTERS)
def test_device_filters_that_are_refused(arguments: tuple[Any, ...], kind: type[Exception], says: str) -> None:
    filters = tf.config.experimental.ClusterDeviceFilters()
    with pytest.raises(kind, match=says):
        filters.set_device_filters(*arguments)
    assert not filters._as_cluster_device_filters().jobs


def test_device_filters_are_messages() -> None:
    filters = tf.config.experimental.ClusterDeviceFilters()
    filters.set_device_filters("worker", 1, ["/job:ps"])
    message = filters._as_cluster_device_filters()
    assert type(message).FromString(message.SerializeToString()) == message
    # The bytes are TensorFlow's.
    assert message.SerializeToString() == b"\n\x17\n\x06worker\x12\r\x08\x01\x12\t\n\x07/job:ps"
