"""Assertions fail while the graph is built if the values are known then, else when it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf

VALUES: list[tuple[Any, list[list[float]], list[list[float]]]] = [
    (tf.assert_equal, [[1, 2], [1, 2]], [[1, 2], [1, 3]]),
    (tf.assert_none_equal, [[1, 2], [2, 3]], [[1, 2], [1, 3]]),
    (tf.assert_less, [[1, 2], [2, 3]], [[1, 2], [1, 3]]),
    (tf.assert_less_equal, [[1, 2], [1, 3]], [[1, 2], [0, 3]]),
    (tf.assert_greater, [[2, 3], [1, 2]], [[1, 3], [1, 2]]),
    (tf.assert_greater_equal, [[1, 3], [1, 2]], [[0, 3], [1, 2]]),
    (tf.assert_positive, [[1, 2]], [[0, 2]]),
    (tf.assert_negative, [[-1, -2]], [[-1, 0]]),
    (tf.assert_non_negative, [[0, 2]], [[-1, 2]]),
    (tf.assert_non_positive, [[0, -2]], [[0, 1]]),
]


@pytest.mark.parametrize("check, good, bad", VALUES, ids=[row[0].__name__ for row in VALUES])
def test_values(check: Any, good: list[list[float]], bad: list[list[float]]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        fed = [tf.placeholder(tf.float32) for _ in good]
        operation = check(*fed, message="told so")
        session.run(operation, dict(zip(fed, good, strict=True)))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"told so.*Condition x .* did not hold"):
            session.run(operation, dict(zip(fed, bad, strict=True)))
        session.run(check(*map(tf.constant, good)))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"told so\nCondition x .* did not hold"):
            check(*map(tf.constant, bad), message="told so")


def test_data_replaces_what_is_shown() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.int32, [2])
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"assertion failed: \[seen\] \[7\]"):
            session.run(tf.assert_equal(x, 1, data=["seen", x[0]]), {x: [7, 1]})


RANKS = [
    (tf.assert_rank, 2, [[1]], [1]),
    (tf.assert_rank_at_least, 1, [[1]], 1),
    (tf.assert_rank_in, (0, 1), [1], [[1]]),
]


@pytest.mark.parametrize("check, rank, good, bad", RANKS, ids=[row[0].__name__ for row in RANKS])
def test_ranks(check: Any, rank: Any, good: Any, bad: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32)
        operation = check(x, rank)
        session.run(operation, {x: good})
        with pytest.raises(tf.errors.InvalidArgumentError, match="must have rank"):
            session.run(operation, {x: bad})
        session.run(check(good, rank))
        with pytest.raises(ValueError, match=r"told so.*must have rank"):
            check(bad, rank, message="told so")


def test_ranks_that_are_fed() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        rank = tf.placeholder(tf.int32)
        operation = tf.assert_rank(tf.zeros([2, 2]), rank)
        session.run(operation, {rank: 2})
        for wrong in (1, [2]):
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(operation, {rank: wrong})


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda: tf.assert_rank(tf.zeros([2]), 0.5), TypeError),
        (lambda: tf.assert_rank(tf.zeros([2]), [1, 2]), ValueError),
        (lambda: tf.assert_type(tf.zeros([2]), tf.int32), TypeError),
        (lambda: tf.assert_integer(tf.zeros([2])), TypeError),
        (lambda: tf.assert_scalar(tf.zeros([2])), ValueError),
        (lambda: tf.assert_scalar(tf.placeholder(tf.float32)), ValueError),
    ],
)
def test_what_is_always_known(call: Any, error: type[Exception]) -> None:
    with tf.Graph().as_default(), pytest.raises(error):
        call()


def test_what_passes_is_one_no_op() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.int32, [])
        made = [tf.assert_rank(x, 0), tf.assert_type(x, tf.int32), tf.debugging.assert_integer(x)]
        assert [operation.type for operation in made] == ["NoOp"] * 3
        assert tf.assert_scalar(x) is x
        numeric = [x, tf.constant("a"), tf.constant(True), np.float32(1)]
        assert [tf.is_numeric_tensor(value) for value in numeric] == [True, False, False, False]
