"""Tiers: segments run in NumPy first, compiled code takes over if it is faster, and all have the same results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.segments import plan, tiers
from penstock.segments.compilation import Compilations, wait_idle
from penstock.segments.tiers import Tiers
from penstock.worker.interpreted import Updates

TIERS = ("interpreted", "padded", "exact")
DEADLINE = 120.0
ON_CPU = tf.ConfigProto(device_count={"GPU": 0})  # NumPy runs segments only there


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch, nothing_on_disk: None) -> Iterator[list[Any]]:
    """A list of the segments that are compiled during a test."""
    found: list[Any] = []
    record = Compilations.record

    def recording(self: Compilations, compilation: Any) -> None:
        if compilation.kind != "operation":
            found.append(compilation)
        record(self, compilation)

    monkeypatch.setattr(Compilations, "record", recording)
    yield found
    assert wait_idle(DEADLINE)


@pytest.fixture
def eager_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles code as early as possible."""
    monkeypatch.setattr(tiers, "WORTH", 0.0)
    monkeypatch.setattr(tiers, "AGAIN", 2)
    monkeypatch.setattr(tiers, "LONG", 0.0)
    monkeypatch.setattr(tiers, "LONG_FOR_ONE", 0.0)


def model() -> tuple[Any, Any, Any, Any]:
    """A small net with ops over its batch: means, sums, maxima, products, and a scatter."""
    x = tf.placeholder(tf.float32, [None, 4])
    ids = tf.placeholder(tf.int32, [None])
    table = tf.get_variable("table", [7, 3], initializer=tf.random_normal_initializer(seed=1))
    weights = tf.get_variable("weights", [7, 5], initializer=tf.random_normal_initializer(seed=2))
    rows = tf.concat([x, tf.nn.embedding_lookup(table, ids)], 1)
    logits = tf.matmul(rows, weights)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids % 5, logits=logits))
    loss += 0.1 * tf.reduce_max(logits) + tf.reduce_sum(tf.matmul(logits, logits, transpose_a=True)) / 100.0
    train = tf.train.AdagradOptimizer(0.1).minimize(loss)
    return x, ids, loss, train


def losses(sizes: list[int]) -> list[Any]:
    """The losses and weights of a training with batches of these sizes."""
    random = np.random.RandomState(0)
    with tf.Graph().as_default(), tf.Session() as sess:
        x, ids, loss, train = model()
        sess.run(tf.global_variables_initializer())
        found = [sess.run([loss, train], {x: random.rand(n, 4), ids: random.randint(0, 7, n)})[0] for n in sizes]
        return found + sess.run(tf.trainable_variables())


SIZES = [5, 9, 2, 17, 9, 1, 30, 9]


def test_all_tiers_give_the_same(monkeypatch):
    results = {}
    for tier in TIERS:
        monkeypatch.setenv("PENSTOCK_TIER", tier)
        results[tier] = losses(SIZES)
    for tier in TIERS[:2]:
        for ours, exact in zip(results[tier], results["exact"], strict=True):
            np.testing.assert_allclose(ours, exact, rtol=2e-5, atol=1e-6)


def test_switching_tiers_gives_the_same(eager_compiler, monkeypatch):
    ours = losses(SIZES * 5)
    assert wait_idle(DEADLINE)
    monkeypatch.setenv("PENSTOCK_TIER", "exact")
    for one, other in zip(ours, losses(SIZES * 5), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_what_runs_once_is_not_compiled(compilations):
    with tf.Graph().as_default(), tf.Session(config=ON_CPU) as sess:
        x, ids, loss, train = model()
        sess.run(tf.global_variables_initializer())
        sess.run(tf.assign(tf.trainable_variables()[0], np.ones((7, 3))))
        sess.run([loss, train], {x: np.ones((3, 4)), ids: [1, 2, 3]})
    assert wait_idle(DEADLINE)
    assert compilations == []


@pytest.mark.parametrize(("later", "programs"), [(1, 0), (1e9, 1)], ids=["always quick", "long in all"])
def test_quick_work_is_compiled_once_it_has_taken_long_in_all(later, programs, compilations, monkeypatch):
    monkeypatch.setattr(tiers, "WORTH", DEADLINE)
    monkeypatch.setattr(tiers, "LATER", later)
    monkeypatch.setattr(tiers, "LONG", 0.01)
    x = tf.placeholder(tf.float32, [1000])
    y = tf.tanh(x) * 2.0
    with tf.Session(config=ON_CPU) as sess:
        for i in range(1000):
            np.testing.assert_allclose(sess.run(y, {x: np.full(1000, i)}), 2 * np.tanh(np.full(1000, i)), 1e-6)
        assert wait_idle(DEADLINE)
    assert len(compilations) == programs


@pytest.mark.parametrize("config", [None, ON_CPU], ids=["any device", "CPU"])
def test_a_thousand_lengths_need_few_programs(config, compilations, eager_compiler):
    x = tf.placeholder(tf.float32, [None])
    y = tf.reduce_sum(tf.tanh(x)) / tf.reduce_max(x) + tf.cast(tf.size(x), tf.float32)
    random = np.random.RandomState(0)
    with tf.Session(config=config) as sess:
        for n in range(2, 1002):
            fed = random.rand(n).astype(np.float32) + 1
            wanted = np.tanh(fed).sum() / fed.max() + n
            np.testing.assert_allclose(sess.run(y, {x: fed}), wanted, rtol=1e-5)
            if n % 100 == 0:
                assert wait_idle(DEADLINE)
    assert 1 <= len(compilations) <= 12
    if config is ON_CPU:
        assert {c.kind for c in compilations} == {"padded"}
        assert all(c.in_background for c in compilations)


def test_a_shape_that_comes_again_is_compiled_for_in_the_background(compilations, eager_compiler):
    x = tf.placeholder(tf.float32, [4])
    y = tf.sqrt(x) * 2
    with tf.Session(config=ON_CPU) as sess:
        for _ in range(3):
            np.testing.assert_allclose(sess.run(y, {x: np.full(4, 9.0)}), np.full(4, 6.0))
        assert wait_idle(DEADLINE)
        assert [(c.kind, c.in_background) for c in compilations] == [("exact", True)]
        np.testing.assert_allclose(sess.run(y, {x: np.full(4, 16.0)}), np.full(4, 8.0))
    assert len(compilations) == 1


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("bad", [3, 7])
def test_a_failed_check_changes_nothing(tier, bad, monkeypatch):
    monkeypatch.setenv("PENSTOCK_TIER", tier)
    v = tf.Variable(tf.zeros([5, 2]))
    w = tf.Variable(tf.ones([3]))
    ids = tf.placeholder(tf.int32, [None])
    with tf.control_dependencies([tf.scatter_add(v, [0, 1], tf.ones([2, 2]))]):
        both = tf.group(tf.assign_add(w, [1.0, 1.0, 1.0]), tf.scatter_add(v, ids, tf.ones([tf.size(ids), 2])))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for count in (2, 3, 4):
            with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
                sess.run(both, {ids: [bad + 2, *range(count)]})
        np.testing.assert_array_equal(sess.run(v), np.zeros([5, 2]))
        np.testing.assert_array_equal(sess.run(w), np.ones([3]))
        sess.run(both, {ids: [2, 2, 4]})
        np.testing.assert_array_equal(sess.run(v)[:, 0], [1, 1, 2, 0, 1])


@pytest.mark.parametrize("tier", TIERS)
def test_what_is_fetched_is_the_callers_own(tier, monkeypatch):
    monkeypatch.setenv("PENSTOCK_TIER", tier)
    v = tf.Variable([1.0, 2.0, 3.0])
    x = tf.placeholder(tf.float32, [None])
    read, passed, row = tf.identity(v), tf.identity(x), tf.reshape(x, [-1, 1])
    with tf.Session() as sess:
        sess.run(v.initializer)
        for n in (2, 3, 4, 5):
            fed = np.ones(n, np.float32)
            for array in sess.run([read, passed, row], {x: fed}):
                array[...] = 7
            np.testing.assert_array_equal(fed, np.ones(n))
        np.testing.assert_array_equal(sess.run(v), [1, 2, 3])


def test_a_reader_keeps_what_it_has_read_while_rows_change(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TIER", "interpreted")
    v = tf.Variable(tf.zeros([1000, 8]))
    add = tf.scatter_add(v, tf.range(1000), tf.ones([1000, 8])).op
    with tf.Session() as sess:
        sess.run(v.initializer)
        before = sess.run(v)
        for _ in range(3):
            sess.run(add)
        assert before.max() == 0
        assert sess.run(v).min() == 3


def test_random_numbers_are_the_same_in_all_tiers(monkeypatch):
    drawn = {}
    for tier in TIERS:
        monkeypatch.setenv("PENSTOCK_TIER", tier)
        with tf.Graph().as_default(), tf.Session() as sess:
            x = tf.placeholder(tf.float32, [None, 3])
            y = x + tf.random_normal(tf.shape(x), seed=4) + tf.random_uniform([tf.shape(x)[0], 1], seed=5)
            drawn[tier] = [sess.run(y, {x: np.zeros((n, 3))}) for n in (4, 7, 2, 9, 5)]
    for tier in TIERS[:2]:
        for ours, exact in zip(drawn[tier], drawn["exact"], strict=True):
            np.testing.assert_allclose(ours, exact, rtol=1e-6, atol=1e-6)


def test_the_tier_that_cannot_run_a_segment_leaves_it_to_another(monkeypatch):
    monkeypatch.setattr(Tiers, "_run_nodes", _no_rule)
    x = tf.placeholder(tf.float32, None)
    with tf.Session() as sess:
        for n in (2, 3, 4, 5, 6):
            assert sess.run(tf.reduce_sum(x), {x: np.ones(n)}) == n


ON_A_SECOND_DEVICE = """
import numpy as np
import penstock.v1 as tf
from penstock.segments import plan
from penstock.segments import tiers
from penstock.segments.compilation import Compilations, wait_idle
from penstock.worker.interpreted import Updates

tiers.WORTH, tiers.AGAIN, tiers.LONG = 0.0, 2, 0.0
found, record = [], Compilations.record

def recording(self, compilation):
    if compilation.kind != "operation":
        found.append((compilation.kind, compilation.in_background))
    record(self, compilation)

Compilations.record = recording
with tf.device("/cpu:1"):
    x, y = tf.placeholder(tf.float32, [4]), tf.placeholder(tf.float32, [None])
    total = tf.reduce_sum(tf.tanh(y))
    step = tf.assign_add(tf.Variable(tf.ones([4])), x).op
with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as sess:
    sess.run(tf.global_variables_initializer())
    for n in range(3, 8):
        sess.run(step, {x: np.ones(4)})
        sess.run(total, {y: np.ones(n)})
        assert wait_idle(60)
print(sorted(found))
"""


def test_code_is_prepared_for_the_device_of_the_segment():
    """Otherwise a call would compile it again."""
    two_devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    environment = {**os.environ, **two_devices, "PENSTOCK_CACHE_DIR": ""}
    program = [sys.executable, "-c", ON_A_SECOND_DEVICE]
    done = subprocess.run(program, env=environment, timeout=DEADLINE, capture_output=True, text=True, check=True)
    assert done.stdout == "[('exact', True), ('padded', True)]\n"


def test_a_segment_knows_by_another_which_sizes_change(monkeypatch):
    """So all are traced for any size in the first step; none waits for a second size."""
    monkeypatch.setattr(tiers, "FEW_NODES", 0)
    x = tf.placeholder(tf.float32, [None, None, 3])
    steps = tf.shape(x)[1]
    rows = tf.TensorArray(tf.float32, size=steps).unstack(tf.transpose(x, [1, 0, 2]))
    w = tf.get_variable("w", initializer=np.eye(3, dtype=np.float32))
    last = tf.while_loop(
        lambda t, h: t < steps, lambda t, h: (t + 1, tf.matmul(h, w) + rows.read(t)), [0, tf.zeros([tf.shape(x)[0], 3])]
    )[1]
    gradient = tf.gradients(last, x)[0]
    node_by_node = []
    run_nodes = Tiers._run_nodes
    with tf.Session(config=ON_CPU) as sess:
        sess.run(w.initializer)
        monkeypatch.setattr(Tiers, "_run_nodes", lambda self, *a: node_by_node.append(self) or run_nodes(self, *a))
        for n in (4, 7):
            fed = np.random.RandomState(n).rand(n, n + 2, 3).astype(np.float32)
            found, slope = sess.run([last, gradient], {x: fed})
            np.testing.assert_allclose(found, fed.sum(1), rtol=1e-5)
            np.testing.assert_array_equal(slope, np.ones_like(fed))
    assert node_by_node == []


def _no_rule(self: Any, values: Any, step: Any) -> None:
    raise tiers.NoRule("made up")


def test_a_graph_that_runs_once_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    analyse = plan._Analysis.__init__

    def counting(self: Any, *args: Any) -> None:
        plans.append(self)
        analyse(self, *args)

    monkeypatch.setattr(plan._Analysis, "__init__", counting)
    with tf.Graph().as_default(), tf.Session(config=ON_CPU) as session:
        v = tf.get_variable("v", initializer=np.ones(3, np.float32))
        session.run(v.initializer)
        plans.clear()
        np.testing.assert_array_equal(session.run(tf.assign_add(v, 2.0 * v)), [3, 3, 3])
    assert len(plans) == 1


def _one_after_the_other(x: Any) -> Any:
    first, second = tf.get_variable("first", [3]), tf.get_variable("second", [3])
    with tf.control_dependencies([tf.assign_add(first, x)]):
        return tf.assign_add(second, first).op


UPDATES = {
    "a sum": (lambda x: tf.assign_add(tf.get_variable("v", [3]), x).op, True),
    "Adagrad": (lambda x: tf.train.AdagradOptimizer(0.1).apply_gradients([(x, tf.get_variable("v", [3]))]), True),
    "Adam": (
        lambda x: tf.train.AdamOptimizer(0.1).apply_gradients(
            [(x, tf.get_variable("v", [3])), (2 * x, tf.get_variable("w", [3]))], tf.train.create_global_step()
        ),
        False,  # it also multiplies
    ),
    "one after the other": (_one_after_the_other, False),
}


@pytest.mark.parametrize("name", UPDATES)
def test_small_updates_that_come_again_and_again_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a small segment only runs known updates, nothing but these is run."""
    build, is_direct = UPDATES[name]
    direct: list[bool] = []
    call = Updates.__call__
    monkeypatch.setattr(Updates, "__call__", lambda self, inputs: direct.append(call(self, inputs)) or direct[-1])
    monkeypatch.setattr(tiers, "WORTH", 1000.0)
    monkeypatch.setattr(tiers, "OFTEN", 5)
    results = []
    for tier in ("", "exact"):
        monkeypatch.setenv("PENSTOCK_TIER", tier)
        with tf.Graph().as_default(), tf.Session(config=ON_CPU) as sess:
            x = tf.placeholder(tf.float32, [3])
            tf.get_variable_scope().set_initializer(tf.ones_initializer())
            update = build(x)
            sess.run(tf.global_variables_initializer())
            for i in range(12):
                sess.run(update, {x: np.array([i, 1.0, -2.0], np.float32)})
            results.append(sess.run({v.name: v for v in tf.global_variables()}))
    assert bool(direct) == is_direct and all(direct)
    for found, expected in zip(results[0].values(), results[1].values(), strict=True):
        np.testing.assert_allclose(found, expected, 1e-6, 1e-6)


def test_a_small_update_of_a_variable_that_was_reset_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "WORTH", 1000.0)
    monkeypatch.setattr(tiers, "OFTEN", 5)
    with tf.Graph().as_default(), tf.Session(config=ON_CPU) as sess:
        first, second = tf.Variable(0.0), tf.Variable(0.0)
        update = tf.group(tf.assign_add(first, 1.0), tf.assign_add(second, 1.0))
        sess.run(tf.global_variables_initializer())
        for _ in range(12):
            sess.run(update)
        devices = [device for task in sess._master.tasks.connected() for device in task.worker.devices]
        resources = {name: resource for d in devices for (_, name), resource in d.resources.items()}
        resources[second.op.name].close()
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value Variable_1"):
            sess.run(update)
        assert sess.run(first) == 12
