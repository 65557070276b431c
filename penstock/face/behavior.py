"""The switches between the behaviour of TensorFlow 1 and 2. This face always has the behaviour of TensorFlow 1."""

from __future__ import annotations


def disable_v2_behavior() -> None:
    """Does nothing: this face always uses graphs and sessions."""


disable_eager_execution = disable_tensor_equality = disable_v2_tensorshape = disable_v2_behavior
disable_control_flow_v2 = enable_control_flow_v2 = disable_v2_behavior


def enable_eager_execution() -> None:
    """Raises an error: there is no eager execution yet."""
    raise ValueError("penstock has no eager execution yet: ops are added to a graph, which a tf.Session runs.")


enable_v2_behavior = enable_eager_execution


def executing_eagerly() -> bool:
    """False: ops are added to a graph."""
    return False


def executing_eagerly_outside_functions() -> bool:
    """False: ops are added to a graph."""
    return False
