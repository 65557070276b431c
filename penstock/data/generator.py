"""Datasets of Python generators: the generator lives in this process, and the graph calls it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.data import source_ops, structure
from penstock.data.functions import trace
from penstock.data.structure import RaggedTensorSpec, SparseTensorSpec, TensorSpec
from penstock.graph import dtype as dt
from penstock.graph.arrays import array_of
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.ragged_value import RaggedTensorValue
from penstock.graph.sparse_tensor import SparseTensor
from penstock.ops.control.python_function import py_func


class _RunningGenerators:
    """The running iterations of one generator function, by number."""

    def __init__(self, generator: Callable[..., Any], spec: Any) -> None:
        self._generator, self._spec = generator, spec
        self._leaves = structure.flatten(spec)
        self._numbers = itertools.count()
        self._iterators: dict[int, Iterator[Any]] = {}
        self._lock = threading.Lock()

    def start(self, *args: Any) -> np.int64:
        with self._lock:
            number = next(self._numbers)
        self._iterators[number] = iter(self._generator(*args))
        return np.int64(number)

    def advance(self, number: Any) -> list[Any]:
        values = next(self._iterators[int(number)])
        try:
            flat = structure.flatten_up_to(self._spec, values)
        except ValueError as error:
            wanted = structure.map_leaves(lambda s: s.dtype.name, self._spec)
            raise TypeError(
                "`generator` yielded an element that did not match the expected structure: expected "
                f"{wanted!r}, received {values!r:.200}."
            ) from error
        found = []
        for value, leaf in zip(flat, self._leaves, strict=True):
            pairs = zip(_pieces(value, leaf), _piece_specs(leaf), strict=True)
            found += [self._converted(piece, spec) for piece, spec in pairs]
        return found

    def _converted(self, value: Any, leaf: Any) -> Any:
        try:
            # A fraction becomes an integer, as in TensorFlow.
            given = value if leaf.dtype == dt.string else np.asarray(value, leaf.dtype.as_numpy_dtype)
            array, _ = array_of(given, leaf.dtype)
        except (TypeError, ValueError) as error:
            raise TypeError(
                "`generator` yielded an element that could not be converted to the expected type: expected "
                f"{leaf.dtype.name}, received {value!r:.200}."
            ) from error
        if not leaf.shape.is_compatible_with(array.shape):
            raise ValueError(
                f"`generator` yielded an element of shape {array.shape} where an element of shape {leaf.shape} was "
                "expected."
            )
        return array

    def finish(self, number: Any) -> np.int64:
        ended = self._iterators.pop(int(number), None)
        close = getattr(ended, "close", None)
        if close is not None:
            close()
        return np.int64(0)


def _piece_specs(leaf: Any) -> list[TensorSpec]:
    """The specs of the dense tensors that a component is made of."""
    if isinstance(leaf, RaggedTensorSpec) and leaf.ragged_rank:
        return leaf.part_specs()
    if isinstance(leaf, SparseTensorSpec):
        rank = leaf.shape.rank
        return [TensorSpec((None, rank), dt.int64), TensorSpec((None,), leaf.dtype), TensorSpec((rank,), dt.int64)]
    return [TensorSpec(leaf.shape, leaf.dtype)]


def _pieces(value: Any, leaf: Any) -> list[Any]:
    """The dense values that a component is made of, which a generator has yielded."""
    if isinstance(leaf, RaggedTensorSpec) and leaf.ragged_rank:
        if not isinstance(value, (Ragged, RaggedTensorValue)) or value.ragged_rank != leaf.ragged_rank:
            raise TypeError(f"`generator` yielded {value!r:.200} where a ragged tensor like {leaf} was expected.")
        return [np.asarray(part) for part in value.parts]
    if isinstance(leaf, SparseTensorSpec):
        if not hasattr(value, "dense_shape"):
            raise TypeError(f"`generator` yielded {value!r:.200} where a sparse tensor like {leaf} was expected.")
        return [np.asarray(part) for part in (value.indices, value.values, value.dense_shape)]
    return [value]


def _component(leaf: Any, pieces: list[Tensor]) -> Any:
    """The component that is made of some tensors."""
    if isinstance(leaf, SparseTensorSpec):
        return SparseTensor(*pieces)
    if not isinstance(leaf, RaggedTensorSpec):
        return pieces[0]
    if not leaf.ragged_rank:
        return structure.RaggedRow(pieces[0])
    return leaf.value_type.from_nested_row_splits(pieces[0], pieces[1:])


def generator_tensor(generator: Callable[..., Any], spec: Any, args: Any) -> tuple[Tensor, Any]:
    """The tensor of a dataset of the elements that `generator(*args)` yields, and their structure."""
    if not callable(generator):
        raise TypeError(f"`generator` must be callable, received {generator!r:.200}.")
    types = structure.types_of(spec)
    tensors = [convert_to_tensor(a) for a in args] if args is not None else []
    running = _RunningGenerators(generator, spec)
    state = TensorSpec((), dt.int64)

    def shaped(tensor: Any, shape: Any) -> Any:
        tensor.set_shape(shape)
        return tensor

    def advance(number: Any) -> Any:
        pieces = [_piece_specs(leaf) for leaf in structure.flatten(spec)]
        results = iter(py_func(running.advance, [number], [s.dtype for part in pieces for s in part]))
        leaves = zip(structure.flatten(spec), pieces, strict=True)
        return tuple(_component(leaf, [shaped(next(results), s.shape) for s in part]) for leaf, part in leaves)

    start = trace(lambda: shaped(py_func(running.start, tensors, dt.int64), ()), "Dataset.from_generator_start")
    proceed = trace(advance, "Dataset.from_generator_next", state)
    finish = trace(lambda n: shaped(py_func(running.finish, [n], dt.int64), ()), "Dataset.from_generator_end", state)
    variant = source_ops.generator_dataset(
        start.captured,
        proceed.captured,
        finish.captured,
        init_func=start.function,
        next_func=proceed.function,
        finalize_func=finish.function,
        output_types=types,
        output_shapes=structure.shapes_of(spec),
    )
    return variant, spec
