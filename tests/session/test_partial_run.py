"""Steps in pieces: each operation runs once, and a failed piece ends the step."""

from __future__ import annotations

import pytest

import penstock.v1 as tf


@pytest.fixture
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def test_updates_happen_once_when_they_can(session):
    total = tf.get_variable("total", initializer=0.0, use_resource=True)
    session.run(total.initializer)
    a, b, c = (tf.placeholder(tf.float32, []) for _ in range(3))
    with tf.control_dependencies([total.assign_add(a)]):
        first = total.read_value() + b
    with tf.control_dependencies([first, total.assign_add(100.0 * a)]):
        last = first * c
    handle = session.partial_run_setup([first, last], [a, b, c])
    assert session.partial_run(handle, [], {a: 1.0}) == []
    assert session.run(total) in (1.0, 101.0)
    session.partial_run(handle, first, {b: 10.0})
    session.partial_run(handle, last, {c: 2.0})
    assert session.run(total) == 101.0


def test_random_numbers_are_drawn_once(session):
    a, b = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    drawn = tf.random_uniform([3])
    handle = session.partial_run_setup([drawn + a, drawn + b], [a, b])
    first, last = drawn.consumers()
    one = session.partial_run(handle, first.outputs[0], {a: 0.0})
    assert session.partial_run(handle, last.outputs[0], {b: 0.0}).tolist() == one.tolist()


def test_a_piece_that_fails_ends_the_step(session):
    a, b = tf.placeholder(tf.int32, []), tf.placeholder(tf.int32, [])
    quotient = 7 // a
    total = quotient + b
    handle = session.partial_run_setup([quotient, total], [a, b])
    with pytest.raises(tf.errors.InvalidArgumentError, match="zero"):
        session.partial_run(handle, quotient, {a: 0})
    with pytest.raises(tf.errors.InvalidArgumentError, match="is over"):
        session.partial_run(handle, total, {b: 1})


def test_errors_say_what_to_feed(session):
    a, b = tf.placeholder(tf.float32, name="a"), tf.placeholder(tf.float32, name="b")
    handle = session.partial_run_setup([a + b], [a, b])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"before these have been fed: \['b:0'\]"):
        session.partial_run(handle, a.consumers()[0].outputs[0], {a: 1.0})
