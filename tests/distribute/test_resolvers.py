"""Cluster resolvers are as in TensorFlow, and what is wrong with TF_CONFIG is said by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from distribute.names import tf
from golden_programs import check, load, parameters
from loopback import free_addresses
from v2_golden import skip_beside_a_gpu

from penstock.errors import UnavailableError

resolvers = tf.distribute.cluster_resolver

# Cases that differ, and the reason.
DIFFERENT = {"tfconfig/malformed": "TensorFlow takes the JSON text '[]' for a TF_CONFIG without any keys"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs set TF_CONFIG; the value from before is restored after each."""
    monkeypatch.setenv("TF_CONFIG", "{}")


@pytest.mark.parametrize("row", parameters("distribute/resolvers.json", DIFFERENT))
def test_as_tensorflow(row: dict[str, Any]) -> None:
    skip_beside_a_gpu(row["id"], frozenset(("base/custom_subclass", "tfconfig/num_accelerators")))
    check(row, tf)


@pytest.mark.parametrize("row", load("semantics/cluster_resolver.json")["cases"], ids=lambda row: row["id"])
def test_as_tensorflow_for_graphs(row: dict[str, Any]) -> None:
    check({**row, "program": row["program"].replace(", tensorflow as tf2", "; tf2 = tf")}, tf)


MALFORMED = [
    ("", "JSONDecodeError", "is not JSON"),
    ("{", "JSONDecodeError", "is not JSON"),
    ("worker:0", "JSONDecodeError", "is not JSON"),
    ("null", "TypeError", "must be an object, received None"),
    ("[]", "TypeError", r"must be an object, received \[\]"),
    ("3", "TypeError", "must be an object, received 3"),
    ('{"cluster": ["a:1"]}', "TypeError", r"'cluster' .* received \['a:1'\]"),
    ('{"cluster": null}', "TypeError", "'cluster' .* received None"),
    ('{"cluster": {"worker": "a:1"}}', "TypeError", "'cluster' .* received {'worker': 'a:1'}"),
    ('{"cluster": {"worker": [1]}}', "TypeError", r"'cluster' .* received {'worker': \[1\]}"),
    ('{"cluster": {"worker": {"first": "a:1"}}}', "ValueError", "'cluster' .* received {'worker': {'first': 'a:1'}}"),
    ('{"cluster": {"worker": {"-1": "a:1"}}}', "InvalidArgumentError", "Task -1 of job 'worker'"),
    ('{"cluster": {"ps": ["a:1", "b"]}}', "InvalidArgumentError", "Task 1 of job 'ps' has the address 'b'"),
    ('{"cluster": {"ps": ["a:http"]}}', "InvalidArgumentError", "Task 0 of job 'ps' has the address 'a:http'"),
]


@pytest.mark.parametrize(("text", "kind", "says"), MALFORMED)
def test_a_cluster_that_cannot_be_read(text: str, kind: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    resolver = resolvers.TFConfigClusterResolver()
    for read in (resolver.cluster_spec, resolver.master):
        with pytest.raises(Exception, match=f"TF_CONFIG.*{says}") as caught:
            read()
        assert type(caught.value).__name__ == kind


BAD_TASKS = [
    ([], "TypeError", r"needs an object as 'task', received \[\]"),
    (None, "TypeError", "needs an object as 'task', received None"),
    ({"type": 3, "index": 0}, "TypeError", "needs a string as 'type', received 3"),
    ({"type": "worker", "index": "x"}, "ValueError", "must be an integer from 0 on, received 'x'"),
    ({"type": "worker", "index": -1}, "ValueError", "must be an integer from 0 on, received -1"),
    ({"type": "worker", "index": "-1"}, "ValueError", "must be an integer from 0 on, received '-1'"),
    ({"type": "worker", "index": True}, "ValueError", "must be an integer from 0 on, received True"),
    ({"type": "worker", "index": 1.5}, "TypeError", "must be an integer, received 1.5"),
    ({"type": "worker", "index": 2}, "ValueError", r"has no task 2 of job 'worker' .*\['a:1', 'b:1'\]"),
    ({"type": "helper", "index": 0}, "ValueError", r"has no task 0 of job 'helper' .*\['a:1', 'b:1'\]"),
    ({"type": "worker"}, "ValueError", "does not say in 'task' which .* received {'type': 'worker'}"),
    ({"type": None, "index": 0}, "ValueError", "does not say in 'task' which .* received {'type': None"),
    ({"type": "worker", "index": None}, "ValueError", "does not say in 'task' which .* 'index': None"),
    ({}, "ValueError", "does not say in 'task' which .* received {}"),
]


@pytest.mark.parametrize(("task", "kind", "says"), BAD_TASKS)
def test_a_task_that_cannot_be_read(task: Any, kind: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": task}))
    with pytest.raises(Exception, match=f"TF_CONFIG.*{says}") as caught:
        resolvers.TFConfigClusterResolver().master()
    assert type(caught.value).__name__ == kind


@pytest.mark.parametrize("key", ["rpc_layer", "session_master"])
def test_other_keys_of_a_wrong_type(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, key: 3}))
    with pytest.raises(TypeError, match=f"TF_CONFIG.*needs a string as '{key}', received 3"):
        resolvers.TFConfigClusterResolver().master("worker", 0)


def test_long_values_are_shortened_in_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "x" * 100_000)
    with pytest.raises(ValueError, match="TF_CONFIG") as caught:
        resolvers.TFConfigClusterResolver().cluster_spec()
    assert len(str(caught.value)) < 1000


def test_a_wrong_task_among_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1", "b:1"]}}))
    resolver = resolvers.TFConfigClusterResolver(task_type="worker", task_id="first")
    with pytest.raises(ValueError, match=r"task_id .* received 'first'"):
        resolver.master()
    resolver.task_id = 1
    assert resolver.master() == "b:1"


def test_a_server_without_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG")
    resolver = resolvers.TFConfigClusterResolver()
    for job, index in ((None, None), ("worker", 0)):
        with pytest.raises(ValueError, match=r"cluster has no tasks.*TF_CONFIG"):
            tf.distribute.Server(resolver.cluster_spec(), job_name=job, task_index=index)


def test_a_union_takes_task_zero_before_that_of_its_first_resolver() -> None:
    cluster = tf.train.ClusterSpec({"worker": ["a:1", "b:1"]})
    first = resolvers.SimpleClusterResolver(cluster, task_type="worker", task_id=1)
    union = resolvers.UnionResolver(first, task_id=0)
    assert (union.task_type, union.task_id) == ("worker", 0)
    union.task_id = None
    assert union.task_id == 1


def test_a_union_of_a_list_and_numbered_tasks() -> None:
    def simple(tasks: Any) -> Any:
        return resolvers.SimpleClusterResolver(tf.train.ClusterSpec({"worker": tasks}))

    union = resolvers.UnionResolver(simple(["a:1", "b:1"]), simple({3: "d:1"}))
    assert union.cluster_spec().as_dict() == {"worker": {0: "a:1", 1: "b:1", 3: "d:1"}}
    with pytest.raises(KeyError, match=r"task 1 of job 'worker'.*'b:1' and 'd:1'"):
        resolvers.UnionResolver(simple(["a:1", "b:1"]), simple({1: "d:1"})).cluster_spec()


def test_accelerators_are_those_of_the_task_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = free_addresses(2)
    monkeypatch.setenv("PENSTOCK_START_TIMEOUT_SECS", "0.2")
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 1}})
    )
    resolver = resolvers.TFConfigClusterResolver()
    here = resolver.num_accelerators()
    assert here.keys() <= {"GPU"}
    assert resolver.num_accelerators("worker", 1) == here
    with tf.distribute.Server(resolver.cluster_spec(), job_name="worker", task_index=0):
        assert resolver.num_accelerators("worker", 0) == here  # the same machine, and worker 1 is not asked
    with pytest.raises(UnavailableError, match=addresses[0]):
        resolver.num_accelerators("worker", 0)


def test_a_simple_resolver_refuses_what_is_no_address() -> None:
    with pytest.raises(TypeError, match="master must be a string, received 3"):
        resolvers.SimpleClusterResolver(tf.train.ClusterSpec({}), master=3)
    with pytest.raises(TypeError, match=r"must be a `tf.train.ClusterSpec`, received \['a:1'\]"):
        resolvers.SimpleClusterResolver(["a:1"])
