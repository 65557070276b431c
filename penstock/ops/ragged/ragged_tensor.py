"""RaggedTensor: a tensor whose rows have different lengths."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import DTypeLike, ShapeLike
from penstock.ops.array.creation import fill, zeros
from penstock.ops.array.gathering import tensor_scatter_nd_update
from penstock.ops.array.joining import concat, stack
from penstock.ops.array.ranges import range as range_of
from penstock.ops.array.reshaping import broadcast_to, reshape, shape
from penstock.ops.array.selection import boolean_mask, sequence_mask
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import less, not_equal
from penstock.ops.math.operators import install_operators
from penstock.ops.math.reduce import reduce_all, reduce_any, reduce_max
from penstock.ops.ragged import row_ops, rows


class RaggedTensor(Ragged):
    """A tensor whose rows have different lengths: `values`, and in `row_splits` the places where rows begin and end.

    >>> tf.RaggedTensor.from_row_lengths([1, 2, 3], [2, 0, 1])
    <tf.RaggedTensor [[1, 2], [], [3]]>
    """

    # Making one of values and a partition into rows

    @classmethod
    def from_row_splits(
        cls, values: Any, row_splits: Any, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Rows `values[row_splits[i]:row_splits[i + 1]]`."""
        values = _values(values)
        splits = _partition(row_splits)
        if validate:
            splits = row_ops.checked_splits(splits, rows.row_count(values, splits.dtype))
        return cls(values, splits)

    @classmethod
    def from_row_lengths(
        cls, values: Any, row_lengths: Any, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Rows of these lengths."""
        return cls.from_row_splits(values, row_ops.splits_of(_partition(row_lengths)), name, validate)

    @classmethod
    def from_value_rowids(
        cls, values: Any, value_rowids: Any, nrows: Any = None, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Rows of the values that have the same number, which must rise: `from_value_rowids([3, 1, 4], [0, 0, 2])`."""
        ids = _partition(value_rowids)
        count = cast(convert_to_tensor(-1 if nrows is None else nrows), ids.dtype)
        return cls.from_row_splits(values, row_ops.splits_of_row_ids(ids, count), name, validate)

    @classmethod
    def from_row_starts(
        cls, values: Any, row_starts: Any, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Rows that begin at these places."""
        values, starts = _values(values), _partition(row_starts)
        return cls.from_row_splits(values, concat([starts, rows.row_count(values, starts.dtype)[None]], 0), name)

    @classmethod
    def from_row_limits(
        cls, values: Any, row_limits: Any, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Rows that end before these places."""
        limits = _partition(row_limits)
        return cls.from_row_splits(values, concat([zeros([1], limits.dtype), limits], 0), name, validate)

    @classmethod
    def from_uniform_row_length(
        cls, values: Any, uniform_row_length: Any, nrows: Any = None, validate: bool = True, name: str | None = None
    ) -> RaggedTensor:
        """Rows that all have one length."""
        values = _values(values)
        length = cast(convert_to_tensor(uniform_row_length), dt.int64)
        count = rows.row_count(values, dt.int64) // length if nrows is None else cast(nrows, dt.int64)
        splits = range_of(count + 1) * length
        known = constant_value(length)
        if validate:
            splits = row_ops.checked_splits(splits, rows.row_count(values, dt.int64))
        return cls(values, splits, None if known is None else int(known))

    @classmethod
    def from_nested_row_splits(
        cls, flat_values: Any, nested_row_splits: Sequence[Any], name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Rows of rows: the splits of each ragged dimension, the outermost first."""
        found: Any = flat_values
        for splits in reversed(nested_row_splits):
            found = cls.from_row_splits(found, splits, name, validate)
        return _ragged(found)

    @classmethod
    def from_nested_row_lengths(
        cls, flat_values: Any, nested_row_lengths: Sequence[Any], name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Rows of rows: the lengths of rows in each ragged dimension, the outermost first."""
        found: Any = flat_values
        for lengths in reversed(nested_row_lengths):
            found = cls.from_row_lengths(found, lengths, name, validate)
        return _ragged(found)

    @classmethod
    def from_nested_value_rowids(
        cls,
        flat_values: Any,
        nested_value_rowids: Sequence[Any],
        nested_nrows: Sequence[Any] | None = None,
        name: str | None = None,
        validate: bool = True,
    ) -> RaggedTensor:
        """Rows of rows: the numbers of rows in each ragged dimension, the outermost first."""
        found: Any = flat_values
        counts = [None] * len(nested_value_rowids) if nested_nrows is None else list(nested_nrows)
        for ids, count in zip(reversed(nested_value_rowids), reversed(counts), strict=True):
            found = cls.from_value_rowids(found, ids, count, name, validate)
        return _ragged(found)

    # Making one of another tensor

    @classmethod
    def from_tensor(
        cls,
        tensor: Any,
        lengths: Any = None,
        padding: Any = None,
        ragged_rank: int = 1,
        name: str | None = None,
        row_splits_dtype: Any = dt.int64,
    ) -> RaggedTensor:
        """The rows of a dense tensor, as far as `lengths` says, or without `padding` at their ends.

        >>> tf.RaggedTensor.from_tensor([[1, 2, 0], [3, 0, 0]], padding=0)
        <tf.RaggedTensor [[1, 2], [3]]>
        """
        if lengths is not None and padding is not None:
            raise ValueError("from_tensor: give lengths or padding, not both.")
        if ragged_rank < 1:
            raise ValueError(f"from_tensor: ragged_rank must be at least 1, received {ragged_rank}.")
        if isinstance(lengths, (list, tuple)) and lengths and isinstance(lengths[0], (list, tuple, Tensor)):
            return _by_nested_lengths(cls, tensor, lengths, row_splits_dtype)
        dense: Any = convert_to_tensor(tensor, name="tensor")
        dims: Any = shape(dense, out_type=row_splits_dtype)
        if ragged_rank > 1:
            # The outer dimensions become one while the inner ones are taken apart.
            flat = reshape(dense, concat([(dims[0] * dims[1])[None], dims[2:]], 0))
            inner = cls.from_tensor(flat, lengths, padding, ragged_rank - 1, name, row_splits_dtype)
            return cls(inner, _even_splits(dense, dims), dense.shape.as_list()[1])
        if padding is not None:
            filled: Any = not_equal(dense, cast(convert_to_tensor(padding), dense.dtype))
            if (dense.shape.rank or 2) > 2:
                filled = reduce_any(filled, axis=list(range(2, dense.shape.rank or 2)))
            lengths = reduce_max(cast(filled, dims.dtype) * range_of(1, dims[1] + 1), axis=1)
        if lengths is None:
            flat = reshape(dense, concat([(dims[0] * dims[1])[None], dims[2:]], 0))
            return cls(flat, _even_splits(dense, dims), dense.shape.as_list()[1])
        counts = cast(convert_to_tensor(lengths), dims.dtype)
        return cls(boolean_mask(dense, sequence_mask(counts, dims[1])), row_ops.splits_of(counts))

    @classmethod
    def from_sparse(
        cls, st_input: SparseTensor, name: str | None = None, row_splits_dtype: Any = dt.int64
    ) -> RaggedTensor:
        """The rows of a sparse matrix, which must be in order and without gaps."""
        if not isinstance(st_input, SparseTensor):
            raise TypeError(f"from_sparse takes a SparseTensor, received {type(st_input).__name__}.")
        if st_input.dense_shape.shape.as_list()[0] not in (None, 2):
            raise ValueError(f"from_sparse takes a matrix, received shape {st_input.shape}.")
        places: Any = row_ops.checked_places(st_input.indices)
        dims: Any = st_input.dense_shape
        ids, count = cast(places[:, 0], row_splits_dtype), cast(dims[0], row_splits_dtype)
        return cls.from_value_rowids(st_input.values, ids, count)

    # The partition

    @property
    def uniform_row_length(self) -> Any:
        """The length of all rows, if it is one by construction."""
        known = self._uniform_row_length
        return None if known is None else convert_to_tensor(known, dtype=self.row_splits.dtype)

    def get_shape(self) -> TensorShape:
        """The static shape."""
        return self.shape

    def nrows(self, out_type: Any = None, name: str | None = None) -> Any:
        """The number of rows."""
        return rows.row_count(self, None if out_type is None else as_dtype(out_type))

    def row_starts(self, name: str | None = None) -> Any:
        """The places where rows begin."""
        return self.row_splits[:-1]

    def row_limits(self, name: str | None = None) -> Any:
        """The places where rows end."""
        return self.row_splits[1:]

    def row_lengths(self, axis: int = 1, name: str | None = None) -> Any:
        """The lengths of the rows; with `axis` those of rows further inside, as a ragged tensor."""
        if axis == 0:
            return self.nrows()
        lengths = self.row_splits[1:] - self.row_splits[:-1]
        if axis == 1:
            return lengths
        if isinstance(self.values, RaggedTensor):
            return self.with_values(self.values.row_lengths(axis - 1))
        dims: Any = shape(self.values, out_type=self.row_splits.dtype)
        return self.with_values(fill(dims[: axis - 1], dims[axis - 1]))

    def value_rowids(self, name: str | None = None) -> Any:
        """The number of its row for each value."""
        return row_ops.row_ids(self.row_splits)

    def nested_row_lengths(self, name: str | None = None) -> tuple[Any, ...]:
        """The lengths of the rows of all ragged dimensions."""
        return tuple(splits[1:] - splits[:-1] for splits in self.nested_row_splits)

    def nested_value_rowids(self, name: str | None = None) -> tuple[Any, ...]:
        """The numbers of rows of all ragged dimensions."""
        return tuple(row_ops.row_ids(splits) for splits in self.nested_row_splits)

    def bounding_shape(self, axis: Any = None, name: str | None = None, out_type: Any = None) -> Any:
        """The shape of the smallest dense tensor that holds all rows."""
        dtype = self.row_splits.dtype if out_type is None else as_dtype(out_type)
        zero = zeros([1], self.row_splits.dtype)
        longest = [reduce_max(concat([zero, lengths], 0)) for lengths in self.nested_row_lengths()]
        outer: Any = stack([self.nrows(), *longest])
        inner: Any = shape(self.flat_values, out_type=outer.dtype)
        dims = cast(concat([outer, inner[1:]], 0), dtype)
        return dims if axis is None else _picked(dims, axis)

    def with_row_splits_dtype(self, dtype: DTypeLike) -> RaggedTensor:
        """The same rows with splits of another type."""
        return self.with_parts([self.flat_values, *(cast(s, dtype) for s in self.nested_row_splits)])

    def merge_dims(self, outer_axis: int, inner_axis: int) -> Any:
        """The dimensions from `outer_axis` to `inner_axis` as one: `r.merge_dims(0, 1)` is `r.values`."""
        rank = self.shape.rank or self.ragged_rank + 1
        first, last = outer_axis % rank, inner_axis % rank
        if first > last:
            raise ValueError(f"merge_dims: outer_axis {outer_axis} comes after inner_axis {inner_axis}.")
        if first == last:
            return self
        if first > 0:
            inner = self.values
            is_ragged = isinstance(inner, RaggedTensor)
            merged = inner.merge_dims(first - 1, last - 1) if is_ragged else _dense_merge(inner, first - 1, last - 1)
            return self.with_values(merged) if first > 1 else type(self)(merged, _through(self, last - 1))
        merged = self.values
        for _ in range(last - 1):
            merged = merged.values if isinstance(merged, RaggedTensor) else _dense_merge(merged, 0, 1)
        return merged

    # As other tensors

    def to_tensor(self, default_value: Any = None, name: str | None = None, shape: ShapeLike = None) -> Any:
        """A dense tensor, with `default_value` (0, or "") where rows are too short; cut or padded to `shape`.

        >>> tf.ragged.constant([[1, 2], [3]]).to_tensor()  # [[1, 2], [3, 0]]
        """
        dtype = self.dtype
        places = row_ops.ragged_places(list(self.nested_row_splits))
        values = self.flat_values
        dims = self.bounding_shape()
        static = self.shape
        if shape is not None:
            dims, static = _limits(dims, shape)
            kept = reduce_all(less(places, dims[: self.ragged_rank + 1]), axis=1)
            places, values = boolean_mask(places, kept), boolean_mask(values, kept)
        if default_value is None:
            default_value = "" if dtype == dt.string else 0
        empty = broadcast_to(cast(convert_to_tensor(default_value, dtype_hint=dtype), dtype), dims)
        dense = tensor_scatter_nd_update(empty, places, values)
        dense.set_shape(static)
        return dense

    def to_sparse(self, name: str | None = None) -> SparseTensor:
        """A sparse tensor with a place for each value."""
        inner = self.flat_values.shape.rank
        whole = self
        if inner is not None and inner > 1:
            whole = self.with_flat_values(RaggedTensor.from_tensor(self.flat_values, ragged_rank=inner - 1))
        places = cast(row_ops.ragged_places(list(whole.nested_row_splits)), dt.int64)
        return SparseTensor(places, whole.flat_values, self.bounding_shape(out_type=dt.int64))

    # Values

    def numpy(self) -> np.ndarray:
        """The rows as an array: of objects, if they have different lengths."""
        values = self.values.numpy()
        splits = self._eager(self.row_splits)
        found = [values[a:b] for a, b in itertools.pairwise(splits)]
        if len({len(row) for row in found}) <= 1:
            return np.stack(found) if found else np.empty(0, values.dtype)
        array = np.empty(len(found), object)
        array[:] = found
        return array

    def to_list(self) -> list[Any]:
        """The rows as nested lists."""
        inner = self.values
        values = inner.to_list() if isinstance(inner, RaggedTensor) else self._eager(inner).tolist()
        splits = self._eager(self.row_splits).tolist()
        return [values[a:b] for a, b in itertools.pairwise(splits)]

    def _eager(self, tensor: Tensor) -> np.ndarray:
        if not tensor.graph.is_eager:
            raise ValueError("A ragged tensor of a graph has no values yet: run it, or return it from the function.")
        return np.asarray(tensor)

    def __getitem__(self, key: Any) -> Any:
        return rows.get_item(self, key)

    def __iter__(self) -> Iterator[Any]:
        if not self.graph.is_eager:
            raise TypeError("Iterating over a ragged tensor of a graph is not allowed: AutoGraph did not convert this.")
        return (self[i] for i in range(len(self._eager(self.row_splits)) - 1))

    def __bool__(self) -> bool:
        raise TypeError("A RaggedTensor may not be used as a bool.")

    def __repr__(self) -> str:
        if self.flat_values.graph.is_eager:
            return f"<tf.RaggedTensor {_text(self.to_list())}>"
        return super().__repr__()


install_operators(RaggedTensor)


def _text(value: Any) -> str:
    return str(value) if not isinstance(value, list) else f"[{', '.join(_item(v) for v in value)}]"


def _item(value: Any) -> str:
    return _text(value) if isinstance(value, list) else repr(value)


def _ragged(found: Any) -> RaggedTensor:
    if not isinstance(found, RaggedTensor):
        raise ValueError("A ragged tensor needs the partition of one dimension at least.")
    return found


def _values(values: Any) -> Any:
    return values if isinstance(values, Ragged) else convert_to_tensor(values, name="values")


def _partition(given: Any) -> Any:
    """A partition as a tensor: int64 unless it has a type."""
    return convert_to_tensor(given, dtype=None if hasattr(given, "dtype") else dt.int64, name="partition")


def _even_splits(dense: Tensor, dims: Any) -> Any:
    """The splits of the rows of a dense tensor, which are all as long as its second dimension."""
    splits: Any = range_of(dims[0] + 1) * dims[1]
    rows = dense.shape.as_list()[0]
    splits.set_shape([None if rows is None else rows + 1])
    return splits


def _picked(dims: Any, axis: Any) -> Any:
    return dims[axis] if isinstance(axis, int) else stack([dims[a] for a in axis])


def _limits(dims: Any, wanted: Any) -> tuple[Any, TensorShape]:
    """The sizes of a dense form: those wanted, or where these are unknown the bounding ones."""
    if isinstance(wanted, Tensor):
        return cast(wanted, dims.dtype), TensorShape.of(None)
    static = as_shape(wanted)
    if static.rank is None:
        return dims, static
    return stack([dims[i] if d is None else cast(d, dims.dtype) for i, d in enumerate(static.as_list())]), static


def _through(ragged: RaggedTensor, levels: int) -> Any:
    """The splits of rows as splits of what is `levels` further inside."""
    from_outer = ragged.row_splits
    level = ragged.values
    for _ in range(levels):
        if isinstance(level, RaggedTensor):
            from_outer, level = rows.gather_rows(level.row_splits, from_outer), level.values
        else:
            dims: Any = shape(level, out_type=from_outer.dtype)
            from_outer, level = from_outer * dims[1], _dense_merge(level, 0, 1)
    return from_outer


def _dense_merge(tensor: Tensor, first: int, last: int) -> Any:
    dims: Any = shape(tensor)
    return reshape(tensor, concat([dims[:first], [-1], dims[last + 1 :]], 0))


def _by_nested_lengths(kind: type[RaggedTensor], tensor: Any, lengths: Sequence[Any], dtype: Any) -> RaggedTensor:
    """A dense tensor cut by the lengths of rows in several dimensions."""
    outer, *rest = lengths
    found = kind.from_tensor(tensor, lengths=outer, row_splits_dtype=dtype)
    if not rest:
        return found
    inner = rest[0] if len(rest) == 1 and not isinstance(rest[0], (list, tuple)) else rest
    return found.with_values(kind.from_tensor(found.values, lengths=inner, row_splits_dtype=dtype))
