"""Tensors that travel from one task to another as one, and variables that an update takes as one.

Passes make these nodes (`passes/join.py`); users do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from penstock.errors import InternalError
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes as rules
from penstock.kernel.types import Array, xp
from penstock.kernel.waiting import as_handle, from_handle
from penstock.ops.queue.accumulator_resources import JointAccumulators


def whole(shapes: Iterable[TensorShape]) -> TensorShape:
    """The shape of tensors of these shapes, which are known, when they are joined."""
    return TensorShape.of((sum(shape.num_elements() or 0 for shape in shapes),))


@op("_JoinTensors", "N*T -> joined: T", numpy=True, no_gradient=True, shape=lambda op: [whole(op.attrs["shapes"])])
def join_tensors(tensors: list[Array], *, shapes: list[TensorShape]) -> Array:
    """Returns tensors of these shapes, one after the other in a vector."""
    for tensor, shape in zip(tensors, shapes, strict=True):
        if list(tensor.shape) != shape.as_list():
            raise ValueError(f"the variable has shape {shape.as_list()}, but the gradient {list(tensor.shape)}")
    joined: Array = xp(*tensors).concatenate([tensor.reshape(-1) for tensor in tensors])
    return joined


@op("_SplitTensor", "T -> parts: N*T", numpy=True, no_gradient=True, shape=lambda op: op.attrs["shapes"])
def split_tensor(joined: Array, *, shapes: list[TensorShape]) -> list[Array]:
    """Returns the tensors that were joined, on the host as views."""
    parts, end = [], 0
    for shape in shapes:
        start, end = end, end + (shape.num_elements() or 0)
        parts.append(joined[start:end].reshape(shape.as_list()))
    return parts


@op(
    "_JoinedAccumulators",
    "N*resource -> handle: resource",
    host=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of((2,))],
)
def joined_accumulators(accumulators: list[Any], *, shapes: list[TensorShape]) -> np.ndarray:
    """Returns the handle of accumulators of these shapes as one, which takes and gives joined gradients."""
    return as_handle(JointAccumulators(list(map(from_handle, accumulators)), shapes))


@op("_JoinedVariable", "-> ref: &dtype", stateful=True, no_gradient=True, shape=rules.from_attr)
def joined_variable(*, dtype: DType, shape: TensorShape) -> Any:
    """Stands for several variables, one after the other in a vector: those of the nodes in its attr `parts`."""
    raise InternalError(None, "_JoinedVariable", "_JoinedVariable stands for variables, and is not run.")
