"""Ops on the partition of values into rows, and ragged tensors as single values that datasets and lists can hold."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.dtype import DType
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel.types import INDEX64
from penstock.kernel.waiting import as_handle

_RANGED = Types(dt.bfloat16, dt.float32, dt.float64, dt.int32, dt.int64, default=dt.int32)


def _vector(_: Operation) -> list[TensorShape]:
    return [TensorShape.of((None,))]


def _splits_of(lengths: np.ndarray, dtype: Any) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(dtype)


@op("_RowIds", "T -> row_ids: T", host=True, no_gradient=True, shape=_vector, default_name="RowIds", T=INDEX64)
def row_ids(row_splits: Any) -> Any:
    """The number of its row for each value."""
    splits = np.asarray(row_splits)
    return np.repeat(np.arange(len(splits) - 1, dtype=splits.dtype), np.diff(splits))


@op(
    "_SplitsOf",
    "T -> row_splits: T",
    host=True,
    no_gradient=True,
    default_name="SplitsOf",
    T=INDEX64,
    shape=lambda op: [_one_more(op)],
)
def splits_of(row_lengths: Any) -> Any:
    """The splits of rows of these lengths."""
    lengths = np.asarray(row_lengths)
    if lengths.ndim != 1 or (lengths < 0).any():
        raise InvalidArgumentError(f"The lengths of rows must be a vector of numbers >= 0, received {lengths!r:.200}.")
    return _splits_of(lengths, lengths.dtype)


def _one_more(op: Operation) -> TensorShape:
    size = op.input_list[0].shape.with_rank(1).as_list()[0]
    return TensorShape.of((None if size is None else size + 1,))


@op(
    "_CheckedSplits",
    "T, T -> checked: T",
    host=True,
    no_gradient=True,
    default_name="CheckedSplits",
    T=INDEX64,
    shape=lambda op: [op.input_list[0].shape],
)
def checked_splits(row_splits: Any, values: Any) -> Any:
    """The splits themselves, if they rise from 0 to the number of values."""
    splits = np.asarray(row_splits)
    if splits.ndim != 1 or len(splits) < 1 or splits[0] != 0 or (np.diff(splits) < 0).any() or splits[-1] != values:
        raise InvalidArgumentError(
            f"The splits of rows must rise from 0 to the number of values, {int(values)}, received "
            f"{splits.tolist()!r:.200}."
        )
    return splits


@op(
    "_SplitsOfRowIds",
    "T, T -> row_splits: T",
    host=True,
    no_gradient=True,
    default_name="SplitsOfRowIds",
    T=INDEX64,
    shape=_vector,
)
def splits_of_row_ids(row_ids: Any, nrows: Any) -> Any:
    """The splits of values by the numbers of their rows; -1 rows means as many as the last number says."""
    ids, rows = np.asarray(row_ids), int(nrows)
    rows = (int(ids[-1]) + 1 if len(ids) else 0) if rows < 0 else rows
    if (np.diff(ids) < 0).any() or (len(ids) and (ids[0] < 0 or ids[-1] >= rows)):
        raise InvalidArgumentError(
            f"The numbers of rows must rise, from 0 to less than {rows}, received {ids.tolist()!r:.200}."
        )
    return _splits_of(np.bincount(ids, minlength=rows)[:rows], ids.dtype)


@op(
    "_SlicedRows",
    "T, T, T, T -> indices: T, row_splits: T",
    host=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of((None,)), op.input_list[0].shape],
    default_name="SlicedRows",
    T=INDEX64,
)
def sliced_rows(row_splits: Any, start: Any, stop: Any, step: Any, *, has_start: bool, has_stop: bool) -> Any:
    """The places of the values that `[start:stop:step]` takes of each row, and the splits of these."""
    splits = np.asarray(row_splits)
    bounds = slice(int(start) if has_start else None, int(stop) if has_stop else None, int(step))
    taken = [np.arange(a, b)[bounds] for a, b in itertools.pairwise(splits.tolist())]
    found = np.concatenate(taken) if taken else np.empty(0)
    return found.astype(splits.dtype), _splits_of(np.array([len(t) for t in taken], splits.dtype), splits.dtype)


@op(
    "_RaggedPlaces",
    "N*T -> places: T",
    host=True,
    no_gradient=True,
    default_name="RaggedPlaces",
    T=INDEX64,
    shape=lambda op: [TensorShape.of((None, op.attrs["N"] + 1))],
)
def ragged_places(nested_splits: Any) -> Any:
    """The place of each innermost value: its number in each dimension, from the outermost to the last ragged one."""
    *outer, last = [np.asarray(s) for s in nested_splits]
    numbers = np.arange(last[-1], dtype=last.dtype)
    places = []
    for splits in (last, *reversed(outer)):
        rows = np.searchsorted(splits, numbers, side="right") - 1
        places.append(numbers - splits[rows])
        numbers = rows
    return np.stack([numbers, *reversed(places)], axis=1).astype(last.dtype)


@op(
    "_CheckedPlaces",
    "int64 -> checked: int64",
    host=True,
    no_gradient=True,
    default_name="CheckedPlaces",
    shape=lambda op: [op.input_list[0].shape],
)
def checked_places(indices: Any) -> Any:
    """The places of a sparse matrix, if each row is filled from its start without gaps."""
    places = np.asarray(indices)
    starts = np.searchsorted(places[:, 0], places[:, 0])
    if (np.diff(places[:, 0]) < 0).any() or (places[:, 1] != np.arange(len(places)) - starts).any():
        raise InvalidArgumentError("SparseTensor is not right-ragged: its rows must be in order and without gaps.")
    return places


@op(
    "_EqualSplits",
    "T, T -> checked: T",
    host=True,
    no_gradient=True,
    default_name="EqualSplits",
    T=INDEX64,
    shape=lambda op: [op.input_list[0].shape],
)
def equal_splits(splits: Any, other: Any) -> Any:
    """The splits of one operand, if the rows of another have the same lengths."""
    if not np.array_equal(splits, other):
        raise InvalidArgumentError(
            f"The rows of ragged operands must have the same lengths: splits {np.asarray(splits).tolist()!r:.100} "
            f"against {np.asarray(other).tolist()!r:.100}."
        )
    return splits


@op(
    "_OnlyLength",
    "T -> length: T",
    host=True,
    no_gradient=True,
    default_name="OnlyLength",
    T=INDEX64,
    shape=lambda op: [TensorShape.of(())],
)
def only_length(row_splits: Any) -> Any:
    """The length that all rows have; -1 if it differs."""
    lengths = np.diff(np.asarray(row_splits))
    same = len(lengths) > 0 and (lengths == lengths[0]).all()
    return np.array(lengths[0] if same else -1, np.asarray(row_splits).dtype)


@op(
    "_BroadcastPlaces",
    "T, T, T -> places: T",
    host=True,
    no_gradient=True,
    default_name="BroadcastPlaces",
    T=INDEX64,
    shape=lambda op: [op.input_list[0].shape],
)
def broadcast_places(places: Any, sizes: Any, bounds: Any) -> Any:
    """The places in a dense operand of these sizes: 0 where it is broadcast, else it must be as large as the rows."""
    sizes, bounds = np.asarray(sizes), np.asarray(bounds)
    if ((sizes != 1) & (sizes != bounds)).any():
        raise InvalidArgumentError(
            f"A dense operand of outer dimensions {sizes.tolist()} does not fit rows of different lengths: each "
            f"dimension must be 1 or as large as the rows, {['?' if b < 0 else int(b) for b in bounds]}."
        )
    return np.where(sizes == 1, 0, places).astype(np.asarray(places).dtype)


@op("_TruePlaces", "bool -> places: int64", host=True, no_gradient=True, default_name="TruePlaces", shape=_vector)
def true_places(mask: Any) -> Any:
    """The places where a vector is True."""
    return np.flatnonzero(np.asarray(mask)).astype(np.int64)


@op(
    "_TrueCounts",
    "T, bool -> counts: T",
    host=True,
    no_gradient=True,
    default_name="TrueCounts",
    T=INDEX64,
    shape=_vector,
)
def true_counts(row_splits: Any, mask: Any) -> Any:
    """The number of values of each row that are True."""
    splits = np.asarray(row_splits)
    return np.diff(_splits_of(np.asarray(mask), splits.dtype)[splits])


@op(
    "RaggedRange",
    "T, T, T -> rt_nested_splits: Tsplits, rt_dense_values: T",
    host=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of((None,)), TensorShape.of((None,))],
    T=_RANGED,
    Tsplits=INDEX64,
)
def ragged_range(starts: Any, limits: Any, deltas: Any, *, Tsplits: DType = dt.int64) -> Any:
    begin, end, step = np.broadcast_arrays(*[np.asarray(a).reshape(-1) for a in (starts, limits, deltas)])
    if (step == 0).any():
        raise InvalidArgumentError("RaggedRange: deltas must not be 0.")
    lengths = np.maximum(np.ceil((end - begin) / step), 0).astype(np.int64)
    if begin.dtype.kind == "i":
        lengths = np.maximum(-((begin - end) // step), 0).astype(np.int64)
    splits = _splits_of(lengths, Tsplits.as_numpy_dtype)
    places = np.arange(splits[-1]) - np.repeat(splits[:-1], lengths)
    return splits, (np.repeat(begin, lengths) + places * np.repeat(step, lengths)).astype(np.asarray(starts).dtype)


class Rows:
    """A ragged tensor as one value: the splits of its ragged dimensions, and its innermost values."""

    __slots__ = ("splits", "values")

    def __init__(self, splits: list[np.ndarray], values: np.ndarray) -> None:
        self.splits = splits
        self.values = values

    def rows(self) -> np.ndarray:
        """The rows, as values with one ragged dimension less."""
        if not self.splits:
            raise InvalidArgumentError("A value without ragged dimensions has no rows of different lengths.")
        rows = np.empty(len(self.splits[0]) - 1, object)
        for i in range(len(rows)):
            rows[i] = self._row(i)
        return rows

    def _row(self, i: int) -> Rows:
        bounds, *rest = self.splits
        start, end = int(bounds[i]), int(bounds[i + 1])
        splits = []
        for inner in rest:
            part = inner[start : end + 1]
            start, end = int(part[0]), int(part[-1])
            splits.append(part - part[0])
        return Rows(splits, self.values[start:end])


@op(
    "RaggedTensorToVariant",
    "RAGGED_RANK*Tsplits, Tvalues -> encoded_ragged: variant",
    host=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of((None,) if op.attrs["batched_input"] else ())],
    Tsplits=INDEX64,
)
def ragged_tensor_to_variant(rt_nested_splits: Any, rt_dense_values: Any, *, batched_input: bool) -> Any:
    whole = Rows([np.asarray(s) for s in rt_nested_splits], np.asarray(rt_dense_values))
    return whole.rows() if batched_input else as_handle(whole)


@op("_UnstackedVariant", "variant -> rows: variant", host=True, no_gradient=True, shape=_vector, default_name="Unstack")
def unstacked_variant(encoded_ragged: Any) -> Any:
    """The rows of the ragged tensor that a value carries, as values."""
    return encoded_ragged.item().rows()


@op(
    "RaggedTensorFromVariant",
    "variant -> output_nested_splits: output_ragged_rank*Tsplits, output_dense_values: Tvalues",
    host=True,
    no_gradient=True,
    shape=lambda op: [*[TensorShape.of((None,))] * op.attrs["output_ragged_rank"], TensorShape.of(None)],
    Tsplits=INDEX64,
)
def ragged_tensor_from_variant(
    encoded_ragged: Any, *, input_ragged_rank: int, output_ragged_rank: int, Tvalues: DType, Tsplits: DType = dt.int64
) -> Any:
    """The parts of a value; an array of values has one ragged dimension more for each of its own dimensions."""
    found = _joined(encoded_ragged, output_ragged_rank, Tvalues)
    if len(found.splits) != output_ragged_rank:
        raise InvalidArgumentError(
            f"RaggedTensorFromVariant: the value has {len(found.splits)} ragged dimensions, expected "
            f"{output_ragged_rank}."
        )
    return [*(s.astype(Tsplits.as_numpy_dtype) for s in found.splits), found.values]


def _joined(encoded: Any, ragged_rank: int, dtype: DType) -> Rows:
    if isinstance(encoded, Rows):
        return encoded
    if encoded.ndim == 0:
        return _joined(encoded.item(), ragged_rank, dtype)
    rows = [_joined(row, ragged_rank - 1, dtype) for row in encoded]
    if not rows:
        kind = object if dtype == dt.string else dtype.as_numpy_dtype
        return Rows([np.zeros(1, np.int64)] * ragged_rank, np.empty(0, kind))
    if any(row.values.ndim == 0 for row in rows):
        raise InvalidArgumentError("Ragged values must have a rank of 1 at least: scalars are no rows.")
    if len({row.values.shape[1:] for row in rows}) > 1 or len({len(row.splits) for row in rows}) > 1:
        raise InvalidArgumentError("Cannot batch ragged tensors whose values have different shapes.")
    inner = [np.asarray(row.splits[0]) if row.splits else row.values for row in rows]
    lengths = [len(part) - 1 if row.splits else len(part) for row, part in zip(rows, inner, strict=True)]
    splits = [_splits_of(np.array(lengths), np.int64)]
    for level in range(len(rows[0].splits)):
        splits.append(_splits_of(np.concatenate([np.diff(row.splits[level]) for row in rows]), np.int64))
    return Rows(splits, np.concatenate([row.values for row in rows]))
