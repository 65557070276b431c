"""Programs that a coordinator cannot run: the caller gets an error that names the cause, and can go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.processes import Cluster
from leaks import leak_check

import penstock as tf
from penstock.eager.cluster import disconnect

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with leak_check(), Cluster(tmp_path_factory.mktemp("cluster"), ps=1, workers=1) as found:
        found.start("ps0", "worker0", mode="join")
        yield found
        disconnect()


@pytest.fixture(scope="module")
def coordinator(cluster: Cluster) -> Any:
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster.spec))
    return tf.distribute.coordinator.ClusterCoordinator(tf.distribute.ParameterServerStrategy(resolver))


@pytest.fixture(autouse=True)
def usable_afterwards(coordinator: Any) -> Iterator[None]:
    yield

    @tf.function
    def good(x: Any) -> Any:
        return x + 1

    assert coordinator.schedule(good, args=(tf.constant(1),)).fetch() == 2
    coordinator.join()


def test_a_python_function_cannot_travel(coordinator: Any) -> None:
    @tf.function
    def bad(x: Any) -> Any:
        return tf.py_function(lambda x: x, [x], tf.float32)

    coordinator.schedule(bad, args=(tf.constant(1.0),))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Python function.*cannot run on a worker"):
        coordinator.join()


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (lambda: tf.data.Dataset.range(3), "'bad' returns a .*Dataset, which cannot come back"),
        (lambda: tf.TensorArray(tf.int32, 1).write(0, 1), "'bad' returns a TensorArray, .*stack"),
    ],
)
def test_a_result_that_cannot_travel(coordinator: Any, result: Any, says: str) -> None:
    @tf.function
    def bad() -> Any:
        return result()

    with pytest.raises(TypeError, match=says):
        coordinator.schedule(bad)


def test_a_dataset_is_no_argument(coordinator: Any) -> None:
    @tf.function
    def bad(dataset: Any) -> Any:
        return dataset.reduce(np.int64(0), lambda a, b: a + b)

    with pytest.raises(TypeError, match=r"'bad' uses .* cannot go to a worker.*create_per_worker_dataset"):
        coordinator.schedule(bad, args=(tf.data.Dataset.range(3),))


WRONG_ARGUMENTS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"args": 5}, TypeError, r"args=\(x, y\), a tuple or list.* received args=5"),
    ({"args": tf.constant([1, 2])}, TypeError, "a tuple or list.* received args=<tf.Tensor"),
    ({"kwargs": [1]}, TypeError, r"a dict; received args=\(\) and kwargs=\[1\]"),
    ({"args": (1, 2, 3)}, TypeError, "same: too many positional arguments"),
    ({"kwargs": {"y": 1}}, TypeError, "same: .*'x'"),
]


@pytest.mark.parametrize(("arguments", "kind", "says"), WRONG_ARGUMENTS)
def test_wrong_arguments(coordinator: Any, arguments: dict[str, Any], kind: type[Exception], says: str) -> None:
    @tf.function
    def same(x: Any) -> Any:
        return x

    with pytest.raises(kind, match=says):
        coordinator.schedule(same, **arguments)


def test_only_functions_are_scheduled(coordinator: Any) -> None:
    with pytest.raises(TypeError, match=r"takes a tf.function or a concrete function, received <function"):
        coordinator.schedule(lambda: 1)


def test_a_result_is_no_argument_before_it_is_there(coordinator: Any) -> None:
    @tf.function
    def same(x: Any) -> Any:
        return x

    result = coordinator.schedule(same, args=(tf.constant(1),))
    with pytest.raises(ValueError, match=r"RemoteValue cannot be an argument.*Fetch it"):
        coordinator.schedule(same, args=({"a": result},))


def test_a_function_that_raises_when_it_is_traced(coordinator: Any) -> None:
    @tf.function
    def bad() -> Any:
        raise ValueError("no such layer")

    with pytest.raises(ValueError, match="no such layer"):
        coordinator.schedule(bad)


def test_a_function_that_cannot_be_sent(coordinator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is raised while a function is sent is an error of the function, not of the coordinator."""

    @tf.function
    def bad(x: Any) -> Any:
        return x * 2

    worker = coordinator._workers[0]

    def refuse(function: Any) -> Any:
        raise RecursionError("too deep")

    with monkeypatch.context() as patch:
        patch.setattr(worker, "register", refuse)
        coordinator.schedule(bad, args=(tf.constant(1),))
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"'bad' cannot be sent to worker 0: Recursion.*too deep"
        ):
            coordinator.join()


@pytest.mark.parametrize(
    ("config", "kind", "says"),
    [
        (None, ValueError, "non-empty.*TFConfigClusterResolver gives no tasks.*TF_CONFIG"),
        ('{"cluster": {"ps": ["a:1"', ValueError, "TF_CONFIG is not JSON.*Write it as"),
        ('{"cluster": {"worker": ["a:1"], "helper": ["b:1"]}}', ValueError, "Disallowed task type.*'helper'.*Use"),
        ('{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "x", "index": 0}}', ValueError, "'x'.*Use"),
        ('{"cluster": {"worker": ["a:1"]}}', ValueError, "at least one ps. The cluster is"),
    ],
)
def test_a_cluster_that_no_strategy_takes(
    coordinator: Any, config: str | None, kind: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if config is None:
        monkeypatch.delenv("TF_CONFIG", raising=False)
    else:
        monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(kind, match=says):
        tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())


def test_an_object_is_no_result(coordinator: Any) -> None:
    @tf.function
    def bad() -> Any:
        return object()

    with pytest.raises(TypeError, match="object"):
        coordinator.schedule(bad)


def test_a_dataset_function_that_raises_says_so_at_once(coordinator: Any) -> None:
    def dataset_fn() -> Any:
        raise KeyError("no such table")

    with pytest.raises(KeyError, match="no such table"):
        coordinator.create_per_worker_dataset(dataset_fn)


def test_what_is_no_dataset(coordinator: Any) -> None:
    with pytest.raises(ValueError, match=r"takes a function or a tf.data.Dataset, received None"):
        coordinator.create_per_worker_dataset(None)
    with pytest.raises(AttributeError, match=r"must return a tf.data.Dataset, it returned \[1, 2\]"):
        coordinator.create_per_worker_dataset(lambda: [1, 2])


def test_a_dataset_that_fails_on_the_worker_fails_the_function_that_uses_it(coordinator: Any) -> None:
    def dataset_fn() -> Any:
        return tf.data.Dataset.range(3).map(lambda x: tf.debugging.check_numerics(1.0 / tf.cast(x, tf.float32), "zero"))

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))

    @tf.function
    def take(iterator: Any) -> Any:
        return next(iterator)

    coordinator.schedule(take, args=(iterator,))
    with pytest.raises(tf.errors.InvalidArgumentError, match="zero"):
        coordinator.join()


def test_a_function_that_makes_a_variable_in_each_call(coordinator: Any) -> None:
    @tf.function
    def bad() -> Any:
        return tf.Variable(1.0) + 1.0

    with pytest.raises(ValueError, match="variable"):
        coordinator.schedule(bad)


def test_a_python_side_effect_happens_once(coordinator: Any) -> None:
    seen = []

    @tf.function
    def noting(x: Any) -> Any:
        seen.append(x)
        return x

    for i in range(5):
        coordinator.schedule(noting, args=(tf.constant(i),))
    coordinator.join()
    assert len(seen) == 1


def test_a_checkpoint_of_another_model_is_refused(coordinator: Any, tmp_path: Path) -> None:
    with coordinator.strategy.scope():
        mine, other = tf.Variable(np.zeros(3, "f")), tf.Variable(np.zeros(4, "f"))
    path = tf.train.Checkpoint(weights=other).write(str(tmp_path / "other"))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="shape"):
        tf.train.Checkpoint(weights=mine).read(path)
