"""Feeds check and convert the values of a feed_dict."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.client.tensor_handle import TensorHandle
from penstock.graph import nest
from penstock.graph.arrays import array_of
from penstock.graph.dtype import string
from penstock.graph.graph import Graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.ragged_value import RaggedTensorValue
from penstock.graph.sparse_tensor import SparseTensor


class SparseTensorValue(NamedTuple):
    """Holds the value of a SparseTensor."""

    indices: Any
    values: Any
    dense_shape: Any


class IndexedSlicesValue(NamedTuple):
    """Holds the value of IndexedSlices."""

    values: Any
    indices: Any
    dense_shape: Any


class Feed:
    """Checks and converts the value of one tensor."""

    __slots__ = ("_accepted", "_axes", "_dtype", "_rank", "_sizes", "tensors")

    def __init__(self, tensor: Tensor) -> None:
        self.tensors = [tensor]
        self._dtype = None if tensor.dtype.base_dtype is string else tensor.dtype.base_dtype._numpy
        self._rank = tensor.shape.rank
        known = {i: size for i, size in enumerate(tensor.shape._dims or ()) if size is not None}
        self._axes, self._sizes = list(known), list(known.values())
        self._accepted: tuple[int, ...] | None = None  # the last shape that fitted

    def append_to(self, fed: list[Any], value: Any) -> None:
        """Checks `value` and appends its array."""
        # The common case first: an array of the right type.
        if value.__class__ is np.ndarray and value.dtype == self._dtype:
            array = value
        else:
            array = _convert(self.tensors[0], value)
        if array.shape != self._accepted:
            self._accept(array.shape)
        fed.append(array)

    def _accept(self, shape: tuple[int, ...]) -> None:
        if self._rank is not None and (len(shape) != self._rank or [shape[i] for i in self._axes] != self._sizes):
            tensor = self.tensors[0]
            raise ValueError(
                f"Cannot feed value of shape {shape} for Tensor '{tensor.name}', which has shape '{tensor.shape}'."
            )
        self._accepted = shape


class PartsFeed:
    """Converts a sparse value, or slices, to values of the tensors that they consist of."""

    __slots__ = ("_feeds", "_names", "tensors")

    def __init__(self, tensors: list[Tensor], names: tuple[str, ...]) -> None:
        self._feeds = [Feed(tensor) for tensor in tensors]
        self._names = names  # of the parts, in the order of `tensors`
        self.tensors = tensors

    def append_to(self, fed: list[Any], value: Any) -> None:
        """Checks `value`, a tuple or an object with these parts, and appends their arrays."""
        parts = [getattr(value, name) for name in self._names] if hasattr(value, self._names[0]) else value
        for feed, part in zip(self._feeds, parts, strict=False):
            feed.append_to(fed, part)


def _convert(tensor: Tensor, value: Any) -> Any:
    if isinstance(value, TensorHandle):
        value = value.eval()
    if isinstance(value, (Tensor, SparseTensor, IndexedSlices)) or hasattr(value, "_as_graph_element"):
        raise TypeError(
            f"The value of a feed cannot be a tensor; received {value!r} for '{tensor.name}'. Feed Python scalars, "
            "strings, lists or NumPy arrays."
        )
    dtype = tensor.dtype.base_dtype
    if dtype is string:
        return array_of(value, string)[0]
    wanted = dtype.as_numpy_dtype
    if isinstance(value, int) and np.asarray(value).astype(wanted) != value:
        raise TypeError(f"{value} does not fit the type {dtype.name} of '{tensor.name}'.")
    if hasattr(value, "unsafe_buffer_pointer") and value.dtype == wanted:
        return value  # a jax array is fed as it is
    try:
        return np.asarray(value, dtype=wanted)
    except ValueError as error:
        raise ValueError(
            f"Cannot feed {value!r:.80} for Tensor '{tensor.name}' of type {dtype.name}: {error}"
        ) from error


class RaggedFeed:
    """Converts a RaggedTensorValue to values of tensors."""

    __slots__ = ("_feeds", "tensors")

    def __init__(self, tensors: list[Tensor]) -> None:
        self._feeds = [Feed(tensor) for tensor in tensors]
        self.tensors = tensors

    def append_to(self, fed: list[Any], value: Any) -> None:
        """Checks `value` and appends the arrays for the innermost values and all splits."""
        if not isinstance(value, RaggedTensorValue) or value.ragged_rank != len(self.tensors) - 1:
            raise TypeError(
                f"A ragged tensor with {len(self.tensors) - 1} ragged dimensions ('{self.tensors[0].name}') is fed "
                f"with a RaggedTensorValue of as many, received {value!r:.200}. Use tf.ragged.constant_value."
            )
        for feed, part in zip(self._feeds, value.parts, strict=True):
            feed.append_to(fed, part)


class NestedFeed:
    """Converts the value for a tuple of keys, such as the state of a cell, to values of tensors."""

    __slots__ = ("_feeds", "tensors")

    def __init__(self, feeds: list[Feed | PartsFeed | RaggedFeed]) -> None:
        self._feeds = feeds
        self.tensors = [t for feed in feeds for t in feed.tensors]

    def append_to(self, fed: list[Any], value: Any) -> None:
        """Checks the nested `value` and appends the arrays for the tensors."""
        values = nest.flatten(value)
        if len(values) != len(self._feeds):
            raise ValueError(
                f"A nested key of the feed_dict has {len(self._feeds)} elements ({[t.name for t in self.tensors]}), "
                f"but its value has {len(values)}: {value!r:.80}."
            )
        for feed, part in zip(self._feeds, values, strict=True):
            feed.append_to(fed, part)


AnyFeed = Feed | PartsFeed | RaggedFeed | NestedFeed


def feed_for(graph: Graph, key: Any) -> AnyFeed:
    """Returns the feed for a key of a feed_dict. Raises TensorFlow's errors if `key` cannot be fed."""
    if isinstance(key, tuple):
        return NestedFeed([_feed_for(graph, part) for part in nest.flatten(key)])
    return _feed_for(graph, key)


def _feed_for(graph: Graph, key: Any) -> Feed | PartsFeed | RaggedFeed:
    if isinstance(key, SparseTensor):
        return PartsFeed([key.indices, key.values, key.dense_shape], ("indices", "values", "dense_shape"))
    if isinstance(key, IndexedSlices):
        dense = [] if key.dense_shape is None else [key.dense_shape]
        return PartsFeed([key.values, key.indices, *dense], ("values", "indices", "dense_shape"))
    if isinstance(key, Ragged):
        return RaggedFeed(key.parts)
    if isinstance(key, Tensor) and key.graph is not graph and key.graph.is_function:
        raise ValueError(f"Tensor {key.name} may not be fed: it is inside a branch or the body of a loop.")
    try:
        tensor = graph.as_graph_element(key, allow_operation=False)
    except (KeyError, TypeError, ValueError) as error:
        raise TypeError(f"Cannot interpret feed_dict key as Tensor: {error.args[0]}") from error
    if not graph.is_feedable(tensor):
        raise ValueError(f"Tensor {tensor.name} may not be fed.")
    return Feed(tensor)
