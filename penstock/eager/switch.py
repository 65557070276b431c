"""Turns eager execution on and off for the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.graph.graph import executing_eagerly_outside_functions, has_built_a_graph, set_eager_graph
from penstock.graph.shape import disable_v2_tensorshape, enable_v2_tensorshape, is_v2_tensorshape


def enable_eager_execution(config: object = None, device_policy: object = None, execution_mode: object = None) -> None:
    """Makes ops outside of graphs and functions run at once. `import penstock as tf` does this.

    >>> tf.compat.v1.enable_eager_execution()
    """
    if has_built_a_graph() and not executing_eagerly_outside_functions():
        raise ValueError(
            "tf.enable_eager_execution must be called at program startup, before ops are added to a graph."
        )
    _run_eagerly()


def _run_eagerly() -> None:
    # A program of the 1.x API that never calls this must not load it.
    from penstock.eager.graph import the_graph  # start-up

    set_eager_graph(the_graph())


def disable_eager_execution() -> None:
    """Makes ops outside of functions be added to the default graph, for a session to run."""
    set_eager_graph(None)


def enable_v2_behavior() -> None:
    """Makes everything behave as in TensorFlow 2: ops run at once, and shapes hold ints.

    >>> tf.compat.v1.enable_v2_behavior()
    """
    _run_eagerly()
    enable_v2_tensorshape()


def disable_v2_behavior() -> None:
    """Makes everything behave as in TensorFlow 1: ops are added to graphs, and shapes hold `Dimension` objects.

    >>> import tensorflow.compat.v1 as tf
    >>> tf.disable_v2_behavior()
    """
    disable_eager_execution()
    disable_v2_tensorshape()


@contextmanager
def eager_execution(on: bool) -> Iterator[None]:
    """A context with the behaviour of TensorFlow 2, or of TensorFlow 1."""
    from penstock.eager.graph import the_graph  # start-up

    before, sizes = set_eager_graph(the_graph() if on else None), is_v2_tensorshape()
    enable_v2_tensorshape() if on else disable_v2_tensorshape()
    try:
        yield
    finally:
        set_eager_graph(before)
        enable_v2_tensorshape() if sizes else disable_v2_tensorshape()
