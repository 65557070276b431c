"""Variables that a parameter server keeps together for one worker's updates are the same variables to everybody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import free_addresses

import penstock.v1 as tf
from penstock.graph.dtype import float32
from penstock.graph.shape import TensorShape
from penstock.ops.queue.accumulator import resource_accumulator_apply_gradient
from penstock.segments.blocks import JoinedVariable
from penstock.segments.stored_variable import Part, StoredVariable
from penstock.worker.devices import local_devices

ON_CPU = tf.ConfigProto(device_count={"GPU": 0})
SHAPES = {"weights": [3, 2], "biases": [2], "scale": []}
WORKER = "/job:worker/task:0/cpu:0"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[tf.train.Server, str]]:
    """A parameter server, and the target of a worker."""
    with ExitStack() as stack:
        ps, worker = free_addresses(2)
        both = tf.train.ClusterSpec({"ps": [ps], "worker": [worker]})
        server = stack.enter_context(tf.train.Server(both, "ps", 0, config=ON_CPU))
        yield server, stack.enter_context(tf.train.Server(both, "worker", 0, config=ON_CPU)).target


class Model:
    """Variables of several shapes, a loss that a worker computes of them, and what a test does to them."""

    def __init__(self, optimizer: Any, use_resource: bool = False) -> None:
        with tf.device(tf.train.replica_device_setter(ps_tasks=1, worker_device=WORKER)):
            self.x = tf.placeholder(tf.float32, [None, 3])
            self.variables = [
                tf.get_variable(name, shape, use_resource=use_resource, initializer=tf.ones_initializer())
                for name, shape in SHAPES.items()
            ]
            weights, biases, scale = self.variables
            self.loss = tf.reduce_mean((tf.matmul(self.x, weights) * scale + biases) ** 2)
            self.train = optimizer.minimize(self.loss)

    def step(self, sess: tf.Session, seed: int = 0, rows: int = 4) -> None:
        x = np.random.RandomState(seed).standard_normal((rows, 3))
        sess.run(self.train, {self.x: x})


class Cluster:
    """A session on the cluster, and what its parameter server has."""

    def __init__(self, cluster: tuple[tf.train.Server, str]) -> None:
        self._server, self.target = cluster
        tf.Session.reset(self.target)  # the variables of other tests have the same names
        self.sess = tf.Session(self.target, config=ON_CPU)

    def stored(self, name: str) -> StoredVariable:
        found = [r for d in self._server.worker.devices for (_, key), r in d.resources.items() if key == name]
        variable: StoredVariable = found[0]
        return variable

    def are_together(self, *names: str) -> bool:
        return all(isinstance(self.stored(name).held, Part) for name in names)


@pytest.fixture
def served(cluster: tuple[tf.train.Server, str]) -> Iterator[Cluster]:
    with tf.Graph().as_default():
        served = Cluster(cluster)
        with served.sess:
            yield served


def sgd() -> Any:
    return tf.train.GradientDescentOptimizer(0.1)


@pytest.mark.parametrize("tier", ["exact", ""])
@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize(
    "optimizer",
    [
        sgd,
        lambda: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
        lambda: tf.train.AdamOptimizer(0.1),
        lambda: tf.train.RMSPropOptimizer(0.1, momentum=0.5, centered=True),
        lambda: tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
        lambda: tf.train.AdadeltaOptimizer(0.1),
    ],
    ids=["sgd", "momentum", "adam", "rmsprop", "ftrl", "adadelta"],
)
def test_they_train_as_in_one_process(
    served: Cluster, optimizer: Callable[[], Any], use_resource: bool, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TIER", tier)
    results = []
    for target in (served.target, ""):
        with tf.Graph().as_default(), ExitStack() as stack:
            if not target:
                stack.enter_context(monkeypatch.context()).setattr(tf, "device", lambda _: ExitStack())
            model = Model(optimizer(), use_resource)
            sess = stack.enter_context(tf.Session(target, config=ON_CPU))
            sess.run(tf.global_variables_initializer())
            for seed, rows in enumerate((4, 4, 5, 4)):
                model.step(sess, seed, rows)
            results.append(sess.run(tf.global_variables()))
    assert served.are_together(*SHAPES)
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)


def test_others_see_and_set_each_variable_by_itself(served: Cluster, tmp_path: Path) -> None:
    model, saver = Model(sgd()), tf.train.Saver()
    weights, biases, scale = model.variables
    double = tf.assign(biases, biases * 2.0)
    served.sess.run(tf.global_variables_initializer())
    model.step(served.sess)
    assert served.are_together("weights", "biases", "scale")
    before = served.sess.run([weights, biases, scale])
    saved = saver.save(served.sess, str(tmp_path / "model"))
    np.testing.assert_allclose(served.sess.run(double), 2 * before[1], 1e-6)
    assert not served.are_together("biases") and served.are_together("weights", "scale")
    loss = served.sess.run(model.loss, {model.x: np.zeros((1, 3))})
    np.testing.assert_allclose(loss, np.mean((2 * before[1]) ** 2), 1e-5, err_msg="the worker reads the new value")
    model.step(served.sess)
    assert served.are_together("biases")
    assert not np.allclose(served.sess.run(biases), 2 * before[1])
    saver.restore(served.sess, saved)
    for value, old in zip(served.sess.run([weights, biases, scale]), before, strict=True):
        np.testing.assert_array_equal(value, old)
    model.step(served.sess)
    assert np.all(served.sess.run(scale) != before[2])


def test_an_uninitialised_variable_is_named_and_nothing_changes(served: Cluster) -> None:
    model = Model(sgd())
    weights, biases, scale = model.variables
    served.sess.run([weights.initializer, scale.initializer])
    with pytest.raises(tf.errors.FailedPreconditionError, match="biases"):
        model.step(served.sess)
    assert served.sess.run(scale) == 1
    served.sess.run(biases.initializer)
    model.step(served.sess)
    assert served.sess.run(scale) != 1


def test_a_gradient_of_another_shape_is_refused_and_nothing_changes(served: Cluster) -> None:
    model = Model(sgd())
    with tf.device(WORKER):
        anything = tf.placeholder(tf.float32)
        gradients = [tf.identity(anything) for _ in SHAPES]
    push = sgd().apply_gradients(zip(gradients, model.variables, strict=True))
    served.sess.run(tf.global_variables_initializer())
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[3, 2\].*\[5\]"):
        served.sess.run(push, {anything: np.ones(5)})
    assert served.sess.run(model.variables[2]) == 1


def test_a_synchronous_step_adds_and_updates_all_at_once(served: Cluster) -> None:
    model = Model(tf.train.MomentumOptimizer(0.1, 0.9))
    twin = tf.train.SyncReplicasOptimizer(tf.train.MomentumOptimizer(0.1, 0.9, name="Twin"), 1)
    with tf.device(tf.train.replica_device_setter(ps_tasks=1, worker_device=WORKER)):
        train = twin.minimize(model.loss, tf.train.get_or_create_global_step())
    update = twin.get_chief_queue_runner().enqueue_ops[0]
    x, sess, weights = {model.x: np.random.RandomState(0).standard_normal((4, 3))}, served.sess, model.variables[0]
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    for _ in range(3):
        sess.run(model.train, x)
    expected = sess.run(model.variables)
    sess.run(tf.global_variables_initializer())
    sess.run(twin.chief_init_op)
    for _ in range(3):
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(sess.run, train, x)
            sess.run(update)  # takes the gradients, and puts out the token for which the other step waits
            waiting.result(60)
        assert served.are_together(*SHAPES)
    for value, other in zip(sess.run(model.variables), expected, strict=True):
        np.testing.assert_allclose(value, other, 1e-5)
    accumulator = next(op for op in sess.graph.get_operations() if op.type == "ResourceConditionalAccumulator")
    with sess.graph.colocate_with(accumulator):
        alone = resource_accumulator_apply_gradient(accumulator.outputs[0], 9, tf.ones(weights.shape))
    additions = [op for op in sess.graph.get_operations() if op.type == "ResourceAccumulatorApplyGradient"]
    sess.run(additions[:-1], x)
    sess.run(alone)
    means = [op.outputs[0] for op in sess.graph.get_operations() if op.type == "ResourceAccumulatorTakeGradient"]
    slope, *others = sess.run(tf.gradients(model.loss, model.variables), x)
    for mean, other in zip(sess.run(means), [(slope + 1) / 2, *others], strict=True):
        np.testing.assert_allclose(mean, other, 1e-5, err_msg="each accumulator can be used by itself")


def test_variables_of_a_new_session_are_others(served: Cluster) -> None:
    model = Model(sgd())
    served.sess.run(tf.global_variables_initializer())
    model.step(served.sess)
    old = served.stored("scale")
    tf.Session.reset(served.target)
    with tf.Session(served.target, config=ON_CPU) as sess:
        with pytest.raises(tf.errors.FailedPreconditionError):
            model.step(sess)
        sess.run(tf.global_variables_initializer())
        model.step(sess)
        assert served.stored("scale") is not old and served.are_together("scale")


def test_two_programs_that_train_different_variables_each_find_the_others_values(served: Cluster) -> None:
    model = Model(sgd())
    _, biases, scale = model.variables
    with tf.device(WORKER):
        some = tf.train.GradientDescentOptimizer(0.1).minimize(model.loss, var_list=[biases, scale])
    served.sess.run(tf.global_variables_initializer())
    twin = {v.op.name: np.ones(SHAPES[v.op.name], "f") for v in model.variables}
    x = np.eye(3, dtype="f")
    for op in (model.train, some, some, model.train, some):
        y = x @ twin["weights"] * twin["scale"] + twin["biases"]
        slope = 2 * y / y.size
        changes = {"biases": slope.sum(0), "scale": (slope * (x @ twin["weights"])).sum()}
        if op is model.train:
            changes["weights"] = x.T @ slope * twin["scale"]
        for name, change in changes.items():
            twin[name] = twin[name] - 0.1 * change
        served.sess.run(op, {model.x: x})
        for variable, expected in zip(model.variables, twin.values(), strict=True):
            np.testing.assert_allclose(served.sess.run(variable), expected, 1e-5)


def test_readers_race_with_updates(served: Cluster) -> None:
    with tf.device(tf.train.replica_device_setter(ps_tasks=1, worker_device=WORKER)):
        variables = [tf.get_variable(f"v{i}", [500 + i], initializer=tf.zeros_initializer()) for i in range(3)]
        slope = tf.constant(-1.0)
        gradients = [tf.fill([500 + i], slope) for i in range(3)]
        add = tf.train.GradientDescentOptimizer(1.0).apply_gradients(zip(gradients, variables, strict=True))
        evaluated = variables[1] * 1.0
    with tf.device("/job:ps/task:0"):
        beside = variables[2] * 1.0
    served.sess.run(tf.global_variables_initializer())
    ended, errors = threading.Event(), []
    seen: dict[Any, list[float]] = {what: [] for what in (variables[0], evaluated, beside)}

    def read(what: Any) -> None:
        try:
            while not ended.is_set():
                value = served.sess.run(what)
                assert (value == value[0]).all(), "torn"
                assert not seen[what] or value[0] >= seen[what][-1], "an older value"
                seen[what].append(value[0])
        except Exception as error:  # shown below
            errors.append(error)

    readers = [threading.Thread(target=read, args=(what,)) for what in seen]
    for reader in readers:
        reader.start()
    updates, deadline = 0, time.monotonic() + 120
    while any(len(set(values)) < 20 for values in seen.values()) and not errors and time.monotonic() < deadline:
        served.sess.run(add)
        updates += 1
    ended.set()
    for reader in readers:
        reader.join(60)
    assert not errors and served.are_together("v0", "v1", "v2")
    assert all(len(set(values)) >= 20 for values in seen.values())
    assert served.sess.run(variables[2])[0] == updates


def test_a_value_of_all_is_that_of_each() -> None:
    parts = [StoredVariable(name, float32, TensorShape(shape), True) for name, shape in SHAPES.items()]
    both = JoinedVariable(parts, local_devices("ps")[0].jax_device)
    with pytest.raises(tf.errors.FailedPreconditionError, match="weights"):
        both.read()
    for i, part in enumerate(parts):
        part.value = np.full(SHAPES[part.name], i, "f")
    assert np.asarray(both.read()).tolist() == [0] * 6 + [1] * 2 + [2]
    assert not isinstance(parts[0].held, Part), "a read leaves them where they are"
    both.value = np.arange(9, dtype="f")
    assert parts[0].read().tolist() == [[0, 1], [2, 3], [4, 5]] and parts[2].read() == 8
    assert both.nbytes() == 36
    both.forget()
    with pytest.raises(tf.errors.FailedPreconditionError, match="weights"):
        parts[0].read()
