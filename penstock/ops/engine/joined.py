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
from penstock.kernel.waiting import from_handle
from penstock.ops.queue.accumulator_resources import apply_joined, take_joined


def whole(shapes: Iterable[TensorShape]) -> TensorShape:
    """The shape of tensors of these shapes, which are known, when they are joined."""
    return TensorShape.of((sum(shape.num_elements() or 0 for shape in shapes),))


@op("_JoinTensors", "N*T -> joined: T", numpy=True, no_gradient=True, shape=lambda op: [whole(op.attrs["shapes"])])
def join_tensors(tensors: list[Array], *, shapes: list[TensorShape]) -> Array:
    """Returns tensors of these shapes, one after the other in a vector."""
    check_shapes(tensors, shapes)
    joined: Array = xp(*tensors).concatenate([tensor.reshape(-1) for tensor in tensors])
    return joined


def check_shapes(tensors: Iterable[Any], shapes: Iterable[TensorShape]) -> None:
    """Raises ValueError if tensors that are to be joined have other shapes."""
    for tensor, shape in zip(tensors, shapes, strict=True):
        if list(tensor.shape) != shape.as_list():
            raise ValueError(f"the variable has shape {shape.as_list()}, but the gradient {list(tensor.shape)}")


@op("_SplitTensor", "T -> parts: N*T", numpy=True, no_gradient=True, shape=lambda op: op.attrs["shapes"])
def split_tensor(joined: Array, *, shapes: list[TensorShape]) -> list[Array]:
    """Returns the tensors that were joined, on the host as views."""
    parts, end = [], 0
    for shape in shapes:
        start, end = end, end + (shape.num_elements() or 0)
        parts.append(joined[start:end].reshape(shape.as_list()))
    return parts


@op("_ApplyJoinedGradients", "N*resource, int64, T ->", host=True, stateful=True, no_gradient=True)
def apply_joined_gradients(
    accumulators: list[Any], local_step: np.ndarray, gradients: np.ndarray, *, shapes: list[TensorShape], size: int
) -> None:
    """Adds gradients that were joined to their accumulators."""
    if gradients.shape != (size,):
        raise ValueError(f"the accumulators take {size} numbers, but the gradients have shape {list(gradients.shape)}")
    apply_joined(tuple(map(from_handle, accumulators)), int(local_step), gradients, shapes)


@op(
    "_TakeJoinedGradients",
    "N*resource, int32 -> averages: dtype",
    host=True,
    stateful=True,
    blocking=True,
    can_suspend=True,
    no_gradient=True,
    shape=lambda op: [whole(op.attrs["shapes"])],
)
def take_joined_gradients(
    accumulators: list[Any], num_required: np.ndarray, *, dtype: DType, shapes: list[TensorShape], ctx: Any
) -> Any:
    """Takes what accumulators have, once each has `num_required` gradients, one after the other in a vector."""
    return take_joined(tuple(map(from_handle, accumulators)), int(num_required), ctx)


@op("_JoinedVariable", "-> ref: &dtype", stateful=True, no_gradient=True, shape=rules.from_attr)
def joined_variable(*, dtype: DType, shape: TensorShape) -> Any:
    """Stands for several variables, one after the other in a vector: those of the nodes in its attr `parts`."""
    raise InternalError(None, "_JoinedVariable", "_JoinedVariable stands for variables, and is not run.")
