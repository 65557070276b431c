"""Light work runs in the thread that asks for it, with the same results; all else has all threads of XLA's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import penstock.v1 as tf
from penstock.segments.one_thread import MOST_BYTES, one_thread
from penstock.segments.segment import Segment

ON_CPU = tf.ConfigProto(device_count={"GPU": 0})
LIGHT, HEAVY = 8, MOST_BYTES // 64 // 4 + 1  # rows of 64 numbers


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Has XLA count as having two threads, on any machine, and compiles at once."""
    monkeypatch.setenv("NPROC", "2")
    monkeypatch.setenv("PENSTOCK_TIER", "exact")
    one_thread.cache_clear()
    yield
    one_thread.cache_clear()


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Tells for each piece of code that is compiled if it runs in one thread."""
    found: list[bool] = []
    function_for = Segment.function_for

    def noted(segment: Segment, values: list[Any]) -> Callable[..., Any]:
        function = function_for(segment, values)
        found.append(function is segment._in_one_thread)
        return function

    monkeypatch.setattr(Segment, "function_for", noted)
    return found


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).normal(size=(count, 64)).astype(np.float32)


def test_light_work_runs_in_one_thread_until_more_comes(chosen: list[bool]) -> None:
    weights = np.eye(64, dtype=np.float32) * 2
    with tf.Graph().as_default(), tf.Session(config=ON_CPU) as sess:
        x, w = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.float32, [64, 64])
        y = tf.nn.relu(tf.matmul(x, w))
        for count, is_in_one in ((LIGHT, True), (LIGHT + 1, True), (HEAVY, False), (LIGHT + 2, False), (LIGHT, False)):
            for _ in range(2):
                fed = rows(count)
                result = sess.run(y, {x: fed, w: weights})
                np.testing.assert_allclose(result, np.maximum(fed * 2, 0), 1e-6)
                result[:] = 0  # it belongs to the client
            assert chosen[-1] is is_in_one


def test_others_take_its_results(chosen: list[bool]) -> None:
    with tf.Graph().as_default(), tf.Session(config=ON_CPU) as sess:
        x = tf.placeholder(tf.float32, [None, 64])
        light = tf.nn.relu(x) @ tf.transpose(x)
        v = tf.get_variable("v", initializer=tf.zeros([LIGHT, LIGHT]), use_resource=True)
        through_host = tf.py_func(lambda a: a, [light], tf.float32)
        assigned = tf.assign_add(v, tf.reshape(through_host, [LIGHT, LIGHT]) * 2.0)
        sess.run(v.initializer)
        del chosen[:]
        fed = rows(LIGHT)
        sess.run(assigned, {x: fed})
        assert chosen == [True, False]
        np.testing.assert_allclose(sess.run(v), np.maximum(fed, 0) @ fed.T * 2, 1e-4)


def convolution(x: Any) -> Any:
    return tf.nn.conv2d(tf.reshape(x, [-1, 8, 8, 1]), tf.ones([3, 3, 1, 4]), [1, 1, 1, 1], "SAME")


def loop(x: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y * 2.0), (0, x))[1]


def variable(x: Any) -> Any:
    return x * tf.get_variable("v", initializer=tf.ones([64]), use_resource=True)


def random(x: Any) -> Any:
    return x + tf.random_uniform([64])


@pytest.mark.parametrize("build", [convolution, loop, variable, random])
def test_other_work_has_all_threads(build: Callable[[Any], Any], chosen: list[bool]) -> None:
    with tf.Graph().as_default(), tf.Session(config=ON_CPU) as sess:
        x = tf.placeholder(tf.float32, [None, 64])
        y = build(x)
        sess.run(tf.global_variables_initializer())
        del chosen[:]
        sess.run(y, {x: rows(LIGHT)})
        assert chosen and not any(chosen)


def test_programs_do_not_see_its_device() -> None:
    assert one_thread() is one_thread() and one_thread() not in jax.devices("cpu")
    assert os.environ["NPROC"] == "2"


def test_there_is_none_where_xla_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC", "1")
    assert one_thread() is None
