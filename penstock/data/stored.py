"""Components of elements as files hold them: ragged and sparse tensors are variants there, as in TensorFlow's files."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensorboard.compat.proto.tensor_pb2 import VariantTensorDataProto

from penstock.checkpoint import variants
from penstock.data.sparse_ops import Sparse
from penstock.errors import DataLossError, UnimplementedError
from penstock.graph import dtype as dt
from penstock.graph.dtype import as_dtype
from penstock.graph.tensor_proto import array_from_proto, tensor_proto
from penstock.ops.ragged.row_ops import Rows

_RAGGED, _TENSOR = "RaggedTensorVariant", "tensorflow::Tensor"
_SPARSE_PARTS = 3  # a sparse tensor is a row of its indices, values and shape


def stored(component: np.ndarray) -> np.ndarray:
    """A component as an array that a checkpoint can hold."""
    first = component.flat[0] if component.dtype == object and component.size else None
    if first is None or isinstance(first, (bytes, str)):
        return component
    if isinstance(first, Rows):
        found = np.empty(component.shape, object)
        for place, rows in np.ndenumerate(component):
            found[place] = _variant(_RAGGED, *rows.splits, rows.values)
        return found
    if isinstance(first, Sparse):
        found = np.empty((*component.shape, _SPARSE_PARTS), object)
        for place, sparse in np.ndenumerate(component):
            found[place] = [_variant(_TENSOR, part) for part in sparse.parts]
        return found
    raise UnimplementedError(f"A component that is a {type(first).__name__} cannot be written to a file.")


def restored(array: np.ndarray) -> np.ndarray:
    """The component that `stored` made an array of."""
    if not variants.holds(array):
        return array
    try:
        if array.flat[0].type_name == _RAGGED:
            found = np.empty(array.shape, object)
            for place, item in np.ndenumerate(array):
                found[place] = _rows(item)
            return found
        if array.ndim and array.shape[-1] == _SPARSE_PARTS:
            found = np.empty(array.shape[:-1], object)
            for place in np.ndindex(found.shape):
                found[place] = Sparse(*[_arrays(item, _TENSOR)[0] for item in array[place]])
            return found
        raise ValueError(f"variants of {array.flat[0].type_name!r} and shape {array.shape} are not known")
    except (ValueError, TypeError, IndexError) as error:
        raise DataLossError(f"A component of an element cannot be read: {error}.") from error


def _variant(kind: str, *arrays: Any) -> VariantTensorDataProto:
    tensors = [tensor_proto(a, dt.string if a.dtype == object else as_dtype(a.dtype)) for a in map(np.asarray, arrays)]
    return VariantTensorDataProto(type_name=kind, tensors=tensors)


def _arrays(item: VariantTensorDataProto, kind: str) -> list[np.ndarray]:
    if item.type_name != kind:
        raise ValueError(f"expected a variant of {kind!r}, received one of {item.type_name!r}")
    return [array_from_proto(tensor) for tensor in item.tensors]


def _rows(item: VariantTensorDataProto) -> Rows:
    *splits, values = _arrays(item, _RAGGED)
    for level, below in zip(splits, [*splits[1:], values], strict=False):
        rows = len(below) - (below is not values)
        if level.ndim != 1 or not len(level) or level[0] != 0 or (np.diff(level) < 0).any() or level[-1] != rows:
            raise ValueError("the splits of a ragged tensor do not fit its values")
    return Rows(splits, values)
