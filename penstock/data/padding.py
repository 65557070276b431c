"""Padding: converts the shapes and values that `padded_batch` takes to tensors, checked against the elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.data import structure
from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.shape import TensorShape, as_shape
from penstock.ops.math.casting import cast


def padded_shape_tensors(spec: Any, padded_shapes: Any) -> tuple[list[TensorShape], list[Tensor]]:
    """For each component: the padded shape as far as it is known, and as a vector with -1 for unknown sizes."""
    known: list[TensorShape] = []
    tensors: list[Tensor] = []
    leaves = structure.flatten(spec)
    for leaf, wanted in zip(leaves, structure.flatten_up_to(spec, padded_shapes), strict=True):
        if isinstance(leaf, (structure.SparseTensorSpec, structure.RaggedTensorSpec)):
            raise TypeError("Batching of padded sparse or ragged tensors is not supported.")
        tensor, shape = _shape_tensor(wanted)
        if leaf.shape.rank is not None and shape.rank is not None and leaf.shape.rank != shape.rank:
            raise ValueError(
                f"The padded shape {shape} is not compatible with the corresponding component's shape {leaf.shape}."
            )
        if leaf.shape.rank is not None and shape.rank is not None:
            for have, want in zip(leaf.shape.as_list(), shape.as_list(), strict=True):
                if have is not None and want is not None and want < have:
                    raise ValueError(
                        f"The padded shape {shape} is not compatible with the corresponding component's shape "
                        f"{leaf.shape}: padding cannot make it smaller."
                    )
        known.append(shape)
        tensors.append(tensor)
    return known, tensors


def _shape_tensor(wanted: Any) -> tuple[Tensor, TensorShape]:
    if isinstance(wanted, Tensor):
        value = constant_value(wanted)
        tensor = wanted if wanted.dtype == dt.int64 else _cast(wanted)
        if value is None:
            length = wanted.shape.as_list()[0] if wanted.shape.rank == 1 else None
            return tensor, TensorShape.of(None if length is None else (None,) * length)
        return tensor, TensorShape([None if d < 0 else int(d) for d in value])
    if isinstance(wanted, (list, tuple, np.ndarray)):
        wanted = [None if isinstance(d, (int, np.integer)) and d < 0 else d for d in wanted]
    shape = as_shape(wanted)
    if shape.rank is None:
        raise ValueError(f"Padded shape {wanted!r} must have a known rank.")
    dims = [-1 if d is None else d for d in shape.as_list()]
    return convert_to_tensor(np.array(dims, np.int64)), shape


def _cast(tensor: Tensor) -> Tensor:
    found: Tensor = cast(tensor, dt.int64)
    return found


def padding_value_tensors(spec: Any, padding_values: Any) -> list[Tensor]:
    """The value to pad each component with: zero, or an empty string, unless given."""
    leaves = structure.flatten(spec)
    if padding_values is None:
        given: list[Any] = [None] * len(leaves)
    elif structure.is_nested(spec) and not structure.is_nested(padding_values):
        given = [padding_values] * len(leaves)
    else:
        given = structure.flatten_up_to(spec, padding_values)
    tensors = []
    for leaf, value in zip(leaves, given, strict=True):
        if value is None:
            value = "" if leaf.dtype == dt.string else np.zeros((), leaf.dtype.as_numpy_dtype)
        tensor = (
            convert_to_tensor(value, name="padding_value")
            if isinstance(value, Tensor)
            else convert_to_tensor(value, dtype=leaf.dtype, name="padding_value")
        )
        if not tensor.shape.is_compatible_with(()):
            raise ValueError(f"Padding value should be a scalar, but is not: {value!r:.100}.")
        if tensor.dtype != leaf.dtype:
            raise TypeError(f"Padding value type ({tensor.dtype.name}) does not match output type ({leaf.dtype.name}).")
        tensors.append(tensor)
    return tensors
