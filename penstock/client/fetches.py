"""Fetches turn any nesting of graph elements into a flat list, and values back into the nesting."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.client.feeds import IndexedSlicesValue, SparseTensorValue
from penstock.client.tensor_handle import KeptTensors
from penstock.errors import InaccessibleTensorError
from penstock.graph.graph import Graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Operation, Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.ragged_value import RaggedTensorValue
from penstock.graph.sparse_tensor import SparseTensor

_COPY_BELOW = 1 << 14  # bytes: for less, a copy is cheaper than a view
Build = Callable[[list[Any]], Any]


class Fetch:
    """Holds the tensors and operations of a fetch structure, and builds the structure from values."""

    __slots__ = ("build", "operations", "tensors")

    def __init__(self, tensors: tuple[Tensor, ...], operations: tuple[Operation, ...], build: Build) -> None:
        self.tensors = tensors
        self.operations = operations
        self.build = build


class _Flat:
    def __init__(self, graph: Graph, kept: KeptTensors) -> None:
        self.graph = graph
        self.kept = kept
        self.tensors: dict[Tensor, int] = {}
        self.operations: dict[Operation, None] = {}

    def add(self, fetch: Any) -> Build:
        """Notes what `fetch` needs. Returns a function that builds its value from the list of all values."""
        if fetch is None:
            raise TypeError("A fetch must be a tensor, an operation, a name or a nesting of them; received None.")
        if isinstance(fetch, (list, tuple)):
            return self._sequence(fetch)
        if isinstance(fetch, Mapping):
            return self._mapping(fetch)
        if isinstance(fetch, SparseTensor):
            parts = [self.add(t) for t in (fetch.indices, fetch.values, fetch.dense_shape)]
            return lambda values: SparseTensorValue(*[p(values) for p in parts])
        if isinstance(fetch, IndexedSlices):
            given = [self.add(fetch.values), self.add(fetch.indices)]
            dense = None if fetch.dense_shape is None else self.add(fetch.dense_shape)
            return lambda values: IndexedSlicesValue(given[0](values), given[1](values), dense and dense(values))
        if isinstance(fetch, Ragged):
            pieces = [self.add(t) for t in fetch.parts]
            return lambda values: RaggedTensorValue.of_parts(*[p(values) for p in pieces])
        return self._element(fetch)

    def _element(self, fetch: Any) -> Build:
        if isinstance(fetch, (Tensor, Operation)) and fetch.graph is not self.graph and fetch.graph.is_function:
            raise InaccessibleTensorError(
                f"'{fetch.name}' cannot be fetched: it was made in a branch or in the body of a loop, and has a value "
                "only while that runs. Return it from there, and fetch what cond or while_loop gives for it."
            )
        try:
            element = self.graph.as_graph_element(fetch)
        except TypeError as error:
            raise TypeError(f"Fetch argument {fetch!r} is no tensor, operation or name: {error}") from error
        except (KeyError, ValueError) as error:
            raise ValueError(f"Fetch argument {fetch!r} cannot be interpreted as a Tensor: {error.args[0]}") from error
        if not self.graph.is_fetchable(element):
            raise ValueError(f"Operation '{element.name}' has been marked as not fetchable.")
        if isinstance(element, Operation):
            self.operations[element] = None
            return lambda values: None
        position = self.tensors.setdefault(element, len(self.tensors))
        if element.op.type == "GetSessionHandle":
            name, dtype = element.op.name, element.op.input_list[0].dtype.base_dtype
            return lambda values: self.kept.handle(name + values[position].decode(), dtype)
        return lambda values: values[position]

    def _sequence(self, fetch: Sequence[Any]) -> Build:
        parts = [self.add(f) for f in fetch]
        kind = type(fetch)
        if kind is list:
            return lambda values: [p(values) for p in parts]
        if hasattr(kind, "_make"):
            return lambda values: kind._make(p(values) for p in parts)
        return lambda values: kind(p(values) for p in parts)  # type: ignore[call-arg]

    def _mapping(self, fetch: Mapping[Any, Any]) -> Build:
        parts = {k: self.add(v) for k, v in fetch.items()}
        kind = type(fetch)
        if isinstance(fetch, collections.defaultdict):
            return lambda values: {k: p(values) for k, p in parts.items()}
        return lambda values: kind((k, p(values)) for k, p in parts.items())  # type: ignore[call-arg]


def fetch_for(graph: Graph, fetches: Any, kept: KeptTensors) -> Fetch:
    """Returns the flat form of `fetches`. Fetched handles name tensors among `kept`."""
    flat = _Flat(graph, kept)
    build = flat.add(fetches)
    return Fetch(tuple(flat.tensors), tuple(flat.operations), build)


class _WritableMemory:
    """Gives NumPy the memory of a jax array that nobody else uses, to write to, and keeps it alive."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, array: Any, view: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = {**view.__array_interface__, "data": (view.ctypes.data, False)}


def to_numpy(value: Any) -> Any:
    """Returns a fetched value as TensorFlow does: a NumPy scalar, or an array that the caller owns and may write to.

    A jax array among the fetched values is the output of a segment that nobody else holds, so a large one on the CPU
    needs no copy.
    """
    if value.__class__ is np.ndarray:
        return value[()] if value.ndim == 0 else value.copy()
    if not hasattr(value, "block_until_ready"):
        return value
    array = np.asarray(value)  # the buffer protocol takes a fifth of `value.__array__()`
    if array.ndim == 0:
        return array[()]
    if array.nbytes < _COPY_BELOW or array.dtype.kind == "V" or not array.flags.c_contiguous:
        return array.copy()
    if array.flags.owndata:  # it came from another device
        array.setflags(write=True)
        return array
    return np.asarray(_WritableMemory(value, array))
