"""The switches between the behaviour of TensorFlow 1 and 2 that change nothing here."""

from __future__ import annotations


def disable_tensor_equality() -> None:
    """Does nothing: tensors of graphs are compared by identity, those of functions and with values by value."""


disable_control_flow_v2 = enable_control_flow_v2 = disable_tensor_equality
