"""Tensors to and from other libraries, by way of DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.eager.tensor import EagerTensor
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor


def to_dlpack(tf_tensor: Tensor) -> Any:
    """A capsule with the value of a tensor, which another library takes once.

    >>> capsule = tf.experimental.dlpack.to_dlpack(tf.constant([1.0, 2.0]))
    """
    if not isinstance(tf_tensor, EagerTensor):
        raise TypeError(f"to_dlpack takes a tensor with a value, received {tf_tensor!r}.")
    return tf_tensor.numpy().__dlpack__()  # a copy, since whoever takes it may write to it


class _Capsule:
    """A capsule as an object that NumPy takes."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the memory of the host


def from_dlpack(dlcapsule: Any) -> Tensor:
    """A tensor with the value of a capsule, or of an object that gives one.

    >>> tf.experimental.dlpack.from_dlpack(capsule)
    """
    source = dlcapsule if hasattr(dlcapsule, "__dlpack__") else _Capsule(dlcapsule)
    return convert_to_tensor(np.from_dlpack(source))
