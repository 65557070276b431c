"""Many small variables that a segment updates lie in blocks, and nobody but the segment sees that."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loopback import free_addresses

import penstock.v1 as tf
from penstock.graph.dtype import float32, int64
from penstock.graph.shape import TensorShape
from penstock.segments import blocks
from penstock.segments.blocks import FEWEST, LARGEST, MOST, Blocks, Bundle, bundled, joined, joined_on_host
from penstock.segments.stored_variable import USED_UP, Part, StoredVariable

CPU = jax.local_devices(backend="cpu")[0]
MANY = FEWEST + 3
ON_CPU = tf.ConfigProto(device_count={"GPU": 0})


@pytest.fixture(autouse=True)
def compiled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TIER", "exact")


class Model:
    """Variables of several shapes with the sum of their squares as loss, and what a test does to them."""

    def __init__(self, sess: tf.Session) -> None:
        shapes = [(), (3,), (2, 4), (5,)]
        self.sess = sess
        self.variables = [tf.Variable(np.full(shapes[i % 4], i + 1, "f"), name=f"v{i}") for i in range(MANY)]
        self.large = tf.Variable(np.ones(LARGEST, "f"), name="large")
        self.scale = tf.placeholder(tf.float32, [None])
        terms = [tf.reduce_sum(v * v) for v in (*self.variables, self.large)]
        self.train = tf.train.AdamOptimizer(0.1).minimize(tf.add_n(terms) * tf.reduce_sum(self.scale))

    def start(self) -> Model:
        self.sess.run(tf.global_variables_initializer())
        return self

    def step(self, rows: int = 2) -> None:
        self.sess.run(self.train, {self.scale: np.ones(rows, "f")})

    def values(self) -> list[np.ndarray]:
        return self.sess.run(self.variables)

    def stored(self, name: str) -> StoredVariable:
        devices = self.sess._master.tasks.default.worker.devices
        return next(r for device in devices for (_, key), r in device.resources.items() if key == name)

    def is_in_block(self, name: str) -> bool:
        return isinstance(self.stored(name).held, Part)


@pytest.fixture
def model() -> Any:
    with tf.Graph().as_default(), tf.Session(config=ON_CPU) as sess:
        yield Model(sess)


def alike(some: list[np.ndarray], others: list[np.ndarray]) -> None:
    for one, other in zip(some, others, strict=True):
        np.testing.assert_allclose(one, other, 1e-5)


def test_small_variables_lie_together_and_train_as_by_themselves(model: Model, monkeypatch: Any) -> None:
    model.start()
    for _ in range(4):
        model.step()
    assert model.is_in_block("v0") and model.is_in_block("v7/Adam") and not model.is_in_block("large")
    monkeypatch.setattr(blocks, "FEWEST", 1000)
    with tf.Graph().as_default(), tf.Session(config=ON_CPU) as sess:
        plain = Model(sess).start()
        for _ in range(4):
            plain.step()
        assert not plain.is_in_block("v0")
        alike(model.values(), plain.values())


def test_what_was_read_stays_as_it_was(model: Model) -> None:
    model.start().step()
    held = [model.stored(f"v{i}").snapshot() for i in range(MANY)]
    before = [np.array(value) for value in held]
    model.step()
    for value, copy, now in zip(held, before, model.values(), strict=True):
        np.testing.assert_array_equal(value, copy)
        assert np.all(now != copy)


def test_a_value_from_elsewhere_takes_a_variable_out_until_the_next_run(model: Model) -> None:
    set_to_zero = tf.assign(model.variables[1], [0.0, 0.0, 50.0])
    model.start().step()
    others = model.values()[2:]
    model.sess.run(set_to_zero)
    assert not model.is_in_block("v1") and model.is_in_block("v2")
    alike(model.values()[2:], others)
    model.step()
    assert model.is_in_block("v1")
    changed = model.values()[1]
    assert abs(changed[0]) < 0.5 and 49 < changed[2] < 50


def test_two_segments_that_update_one_variable_each_find_its_value(model: Model) -> None:
    others = [tf.Variable(0.0) for _ in range(MANY)]
    both = tf.group(*[tf.assign_add(v, 1.0) for v in (*others, model.variables[0])])
    model.start()
    for _ in range(3):
        model.step()
        before = model.values()[0]
        model.sess.run(both)
        assert model.values()[0] == before + 1
    assert model.sess.run(others) == [3.0] * MANY


def test_other_tiers_take_over_for_other_shapes(model: Model, monkeypatch: Any) -> None:
    monkeypatch.delenv("PENSTOCK_TIER")
    model.start().step()
    monkeypatch.setattr(blocks, "FEWEST", 1000)
    with tf.Graph().as_default(), tf.Session(config=ON_CPU) as sess:
        plain = Model(sess).start()
        plain.step()
        deadline = time.monotonic() + 60
        while not model.is_in_block("v0") and time.monotonic() < deadline:
            model.step()
            plain.step()
        assert model.is_in_block("v0")
        for rows in (3, 2, 5, 2):
            model.step(rows)
            plain.step(rows)
        alike(model.values(), plain.values())


def test_an_uninitialised_variable_is_named(model: Model) -> None:
    model.start()
    extra = tf.Variable(1.0, name="forgotten")
    both = tf.group(*[tf.assign_add(v, tf.ones_like(v)) for v in (*model.variables, extra)])
    with pytest.raises(tf.errors.FailedPreconditionError, match="forgotten"):
        model.sess.run(both)
    model.sess.run(extra.initializer)
    model.sess.run(both)
    assert model.sess.run(extra) == 2.0


def test_a_failed_check_changes_nothing(model: Model) -> None:
    divisor = tf.placeholder(tf.int32, [])
    checked = tf.cast(6 // divisor, tf.float32)
    add = tf.group(*[tf.assign_add(v, tf.zeros_like(v) + checked) for v in model.variables])
    model.start()
    model.sess.run(add, {divisor: 2})
    before = model.values()
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.sess.run(add, {divisor: 0})
    alike(model.values(), before)
    model.sess.run(add, {divisor: 6})
    assert model.values()[0] == before[0] + 1


def test_saved_and_restored(model: Model, tmp_path: Path) -> None:
    saver = tf.train.Saver()
    model.start()
    model.step()
    path = saver.save(model.sess, str(tmp_path / "model"))
    saved = model.values()
    model.step()
    saver.restore(model.sess, path)
    alike(model.values(), saved)
    model.step()
    assert model.is_in_block("v3") and np.all(model.values()[3] < saved[3])


def test_readers_race_with_updates(model: Model) -> None:
    add = tf.group(*[tf.assign_add(v, tf.ones_like(v)) for v in model.variables])
    evaluated = model.variables[2] * 1.0
    model.start()
    ended, errors, seen = threading.Event(), [], []

    def read(what: Any) -> None:
        try:
            while not ended.is_set():
                value = model.sess.run(what)
                assert (value == value.ravel()[0]).all(), "torn"
                seen.append(value.ravel()[0])
        except Exception as error:  # shown below
            errors.append(error)

    readers = [threading.Thread(target=read, args=(what,)) for what in (model.variables[2], evaluated)]
    for reader in readers:
        reader.start()
    updates, deadline = 0, time.monotonic() + 60
    while len(set(seen[-10000:])) < 20 and not errors and time.monotonic() < deadline:
        model.sess.run(add)
        updates += 1
    ended.set()
    for reader in readers:
        reader.join(60)
    assert not errors and model.is_in_block("v2")
    assert len(set(seen)) >= 20 and model.values()[2].ravel()[0] == 3 + updates


def stored(count: int, dtype: Any, shape: tuple[int, ...] = (2,)) -> list[StoredVariable]:
    made = [StoredVariable(f"v{i}", dtype, TensorShape.of(shape), True) for i in range(count)]
    for i, variable in enumerate(made):
        variable.value = np.full(shape, i, dtype.as_numpy_dtype)
    return made


def test_each_type_has_blocks_of_its_own() -> None:
    few, ints, floats = stored(2, float32, (LARGEST,)), stored(MANY, int64), stored(MOST + 5, float32)
    together = Blocks([few[0], *ints, *floats, few[1]], CPU, is_used=True)
    taken = together.taken()
    assert [a.shape for a in taken] == [(2 * MANY,), (2 * MOST,), (10,), (LARGEST,), (LARGEST,)]
    together.put(together.joined([value + 1 for value in together.split(taken)]))
    for variables in (few, ints, floats):
        assert [variable.copy()[0] for variable in variables] == [i + 1 for i in range(len(variables))]


def test_few_variables_stay_alone() -> None:
    variables = stored(FEWEST - 1, float32)
    assert len(Blocks(variables, CPU, is_used=True).taken()) == FEWEST - 1
    assert len(Blocks(stored(MANY, float32), CPU, is_used=False).taken()) == MANY


def test_while_an_update_has_the_block_a_value_is_used_up() -> None:
    variables = stored(MANY, float32)
    together = Blocks(variables, CPU, is_used=True)
    with jax.default_device(CPU):
        new = jax.jit(lambda given: [jnp.copy(x) + 1 for x in given], donate_argnums=0)(together.taken())
    assert variables[4].value is USED_UP
    together.put(new)
    assert variables[4].copy().tolist() == [5.0, 5.0]


def test_a_failed_call_that_has_taken_the_block_leaves_no_values() -> None:
    variables = stored(MANY, float32)
    together = Blocks(variables, CPU, is_used=True)
    taken = together.taken()
    together.forget_lost(taken)
    assert variables[0].copy().tolist() == [0.0, 0.0]
    taken[0].delete()
    together.forget_lost(taken)
    with pytest.raises(tf.errors.FailedPreconditionError, match="v0"):
        variables[0].read()


# What a segment gets from other tasks, and sends to them


def some_arrays() -> list[np.ndarray]:
    """Many small ones of two types, more than fit into one, and a large one."""
    floats = [np.full(((), (3,), (2, 2))[i % 3], i, "f") for i in range(MOST + 40)]
    return [*floats[:50], np.ones(LARGEST, "f"), *floats[50:], *(np.array([i, -i]) for i in range(MANY))]


def test_small_arrays_travel_together_and_come_out_again() -> None:
    arrays = some_arrays()
    bundle = bundled(arrays, range(len(arrays)), joined_on_host)
    assert [leaf.shape for leaf in jax.tree.leaves(bundle)][2:] == [(2 * MANY,), (LARGEST,)]
    again = jax.jit(lambda given: bundled(given.split(), range(len(arrays)), joined))
    with jax.default_device(CPU):
        for result in (bundle.split(), again(bundle).split()):
            for one, other in zip(result, arrays, strict=True):
                np.testing.assert_array_equal(one, other)
                assert (one.shape, one.dtype) == (other.shape, other.dtype)


def test_arrays_at_other_places_are_left_alone() -> None:
    arrays = some_arrays()
    assert bundled(arrays, range(FEWEST - 1), joined_on_host) is arrays
    bundle = bundled(arrays, range(FEWEST), joined_on_host)
    assert isinstance(bundle, Bundle) and len(jax.tree.leaves(bundle)) == 1 + len(arrays) - FEWEST


def test_a_cluster_trains_many_variables_as_one_process_does(model: Model, monkeypatch: Any) -> None:
    model.start()
    sizes: list[int] = []
    split = Bundle.split

    def noted(bundle: Bundle) -> list[Any]:
        sizes.append(len(split(bundle)))
        return split(bundle)

    monkeypatch.setattr(Bundle, "split", noted)
    ps, worker = free_addresses(2)
    cluster = tf.train.ClusterSpec({"ps": [ps], "worker": [worker]})
    servers = [tf.train.Server(cluster, job_name=job, task_index=0, config=ON_CPU) for job in ("ps", "worker")]
    try:
        setter = tf.train.replica_device_setter(cluster=cluster, worker_device="/job:worker/task:0/cpu:0")
        with tf.Graph().as_default(), tf.device(setter), tf.Session(servers[1].target, config=ON_CPU) as sess:
            other = Model(sess)
            gradients = tf.gradients(tf.add_n([tf.reduce_sum(v * v) for v in other.variables]), other.variables)
            push = tf.group(*[tf.assign_sub(v, 0.1 * g) for v, g in zip(other.variables, gradients, strict=True)])
            other.start()
            for _ in range(3):
                model.step()
                other.step()
            alike(other.values(), model.values())
            before = other.values()
            _, fetched = sess.run([push, gradients[1]])
            np.testing.assert_allclose(fetched, 2 * before[1], 1e-5)
            alike(other.values(), [0.8 * value for value in before])
        assert max(sizes) > MANY
    finally:
        for server in servers:
            server.stop()
