"""Tensors that travel from one task to another as one, and variables that an update takes as one.

Passes make these nodes (`passes/join.py`); users do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from penstock.errors import InternalError
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes as rules
from penstock.kernel.types import Array, xp


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
    """Returns the tensors that were joined."""
    ends = list(itertools.accumulate(shape.num_elements() or 0 for shape in shapes))[:-1]
    parts = xp(joined).split(joined, ends)
    return [part.reshape(shape.as_list()) for part, shape in zip(parts, shapes, strict=True)]


@op("_JoinedVariable", "-> ref: &dtype", stateful=True, no_gradient=True, shape=rules.from_attr)
def joined_variable(*, dtype: DType, shape: TensorShape) -> Any:
    """Stands for several variables, one after the other in a vector: those of the nodes in its attr `parts`."""
    raise InternalError(None, "_JoinedVariable", "_JoinedVariable stands for variables, and is not run.")
