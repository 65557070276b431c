"""Specs as JSON: the structure of elements, for datasets that are saved or sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.data.structure import DatasetSpec, RaggedTensorSpec, SparseTensorSpec, TensorSpec

_KINDS = {"tensor": TensorSpec, "sparse": SparseTensorSpec}


def encoded(spec: Any) -> Any:
    """A nest of specs as lists, dicts, strings and numbers. Tuples with names become plain ones.

    >>> encoded((TensorSpec([None], tf.int32),))
    ['tuple', [['tensor', [None], 'int32']]]
    """
    if isinstance(spec, Mapping):
        return ["dict", {str(key): encoded(value) for key, value in spec.items()}]
    if isinstance(spec, tuple):
        return ["tuple", [encoded(value) for value in spec]]
    if isinstance(spec, DatasetSpec):
        return ["dataset", encoded(spec.element_spec)]
    if isinstance(spec, RaggedTensorSpec):
        shape = None if spec.shape.rank is None else spec.shape.as_list()
        return ["ragged", shape, spec.dtype.name, spec.ragged_rank, spec.row_splits_dtype.name]
    kind = "sparse" if isinstance(spec, SparseTensorSpec) else "tensor"
    return [kind, None if spec.shape.rank is None else spec.shape.as_list(), spec.dtype.name]


def decoded(data: Any) -> Any:
    """The specs that `encoded` wrote. Raises ValueError for anything else."""
    match data:
        case ["dict", dict() as items]:
            return {key: decoded(value) for key, value in items.items()}
        case ["tuple", list() as items]:
            return tuple(decoded(value) for value in items)
        case ["dataset", inner]:
            return DatasetSpec(decoded(inner))
        case [("tensor" | "sparse") as kind, (list() | None) as shape, str() as dtype]:
            return _KINDS[kind](shape, dtype)
        case ["ragged", (list() | None) as shape, str() as dtype, int() as ragged_rank, str() as splits]:
            return RaggedTensorSpec(shape, dtype, ragged_rank, splits)
    raise ValueError(f"This is not the structure of an element: {data!r:.200}")
