"""Runs functions in converted form: NumPy arguments are fed, other arguments stay Python values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import penstock.v1 as tf
from penstock.autograph.wrapper import converted


def in_graph(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A function that converts `function`, adds its nodes to a new graph, and runs them in a session.

    >>> in_graph(lambda x: x if x > 0 else -x)(np.int32(-2))
    2
    """

    def run(*args: Any) -> Any:
        with tf.Graph().as_default():
            feeds = {}
            given = []
            for value in args:
                if isinstance(value, (np.ndarray, np.generic)):
                    fed = tf.placeholder(value.dtype, np.shape(value))
                    feeds[fed] = value
                    value = fed
                given.append(value)
            result = converted(function, **options)(*given)
            leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(result)]
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                return tf.nest.pack_sequence_as(result, session.run(leaves, feeds))

    return run


def i32(value: Any) -> Any:
    """An int32 argument that is fed."""
    return np.int32(value) if np.ndim(value) == 0 else np.array(value, np.int32)
