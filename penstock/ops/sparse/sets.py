"""Ops on sets, the rows along the last dimension of tensors, and edit distances between sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import TensorLike
from penstock.kernel.shapes import merge

_MEMBERS = Types(dt.int8, dt.int16, dt.int32, dt.int64, dt.uint8, dt.uint16, dt.string)
Place = tuple[int, ...]

_OPERATIONS: dict[str, Callable[[set[Any], set[Any]], set[Any]]] = {
    "a-b": set.difference,
    "b-a": lambda a, b: b - a,
    "intersection": set.intersection,
    "union": set.union,
}


def _refused(message: str) -> InvalidArgumentError:
    return InvalidArgumentError(message)


def _groups(indices: np.ndarray, values: np.ndarray, shape: np.ndarray, validate: bool) -> dict[Place, list[Any]]:
    """Maps the position of each row of a sparse tensor to its values."""
    if indices.ndim != 2 or len(indices) != len(values) or indices.shape[1] != len(shape):
        raise _refused(
            f"indices of shape {list(indices.shape)}, {len(values)} values and a shape of {len(shape)} sizes do not "
            "make a sparse tensor"
        )
    if validate and len(indices):
        if (indices < 0).any() or (indices >= shape).any():
            raise _refused(f"an index is out of bounds of shape {shape.tolist()}")
        keys = [tuple(row) for row in indices.tolist()]
        if any(a >= b for a, b in pairwise(keys)):
            raise _refused("indices are out of order or repeated")
    found: dict[Place, list[Any]] = {}
    for row, value in zip(indices.tolist(), values.tolist(), strict=True):
        found.setdefault(tuple(row[:-1]), []).append(value)
    return found


def _dense_groups(tensor: np.ndarray) -> dict[Place, list[Any]]:
    if tensor.ndim < 2:
        raise _refused(f"sets must have at least 2 dimensions, received shape {list(tensor.shape)}")
    return {place: tensor[place].tolist() for place in np.ndindex(*tensor.shape[:-1])}


def _combined(
    name: str,
    outer: Iterable[int],
    other: Iterable[int],
    a: dict[Place, list[Any]],
    b: dict[Place, list[Any]],
    dtype: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The result of the operation on each pair of rows, with sorted members, as a sparse tensor."""
    dims, others = [int(d) for d in outer], [int(d) for d in other]
    if dims != others:
        raise _refused(f"Mismatched group shapes {dims} and {others}")
    combine = _OPERATIONS.get(name.lower())
    if combine is None:
        raise _refused(f"Invalid set_operation {name}")
    indices: list[list[int]] = []
    values: list[Any] = []
    longest = 0
    for place in sorted(a.keys() | b.keys()):
        members = sorted(combine(set(a.get(place, ())), set(b.get(place, ()))))
        longest = max(longest, len(members))
        indices += [[*place, i] for i in range(len(members))]
        values += members
    rows = np.array(indices, np.int64).reshape(len(values), len(dims) + 1)
    if dtype.kind == "O":
        flat = np.empty(len(values), object)
        flat[:] = values
    else:
        flat = np.array(values, dtype)
    return rows, flat, np.array([*dims, longest], np.int64)


def _result_shape(rank: int | None) -> list[TensorShape]:
    return [TensorShape.of((None, rank)), TensorShape.of((None,)), TensorShape.of((rank,))]


def _rank(tensor: Tensor, sparse_shape: bool) -> int | None:
    if sparse_shape:
        size: int | None = tensor.shape.with_rank(1).as_list()[0]
        return size
    return tensor.shape.rank


def _two(a: int | None, b: int | None) -> list[TensorShape]:
    if None not in (a, b) and a != b:
        raise ValueError(f"Shapes must be equal rank, but are {a} and {b}")
    rank = b if a is None else a
    if rank is not None and rank < 2:
        raise ValueError(f"Input 0 expected rank >= 2, got {rank}.")
    return _result_shape(rank)


def _dense_shape(op: Operation) -> list[TensorShape]:
    a, b = (t.shape for t in op.input_list)
    found = _two(a.rank, b.rank)
    if a.rank is not None and b.rank is not None:
        merge(a[:-1], b[:-1])
    return found


_SIGNATURE = "result_indices: int64, result_values: T, result_shape: int64"


@op("DenseToDenseSetOperation", f"T, T -> {_SIGNATURE}", host=True, no_gradient=True, T=_MEMBERS, shape=_dense_shape)
def dense_to_dense(set1: Any, set2: Any, *, set_operation: str, validate_indices: bool = True) -> Any:
    a, b = _dense_groups(set1), _dense_groups(set2)
    return _combined(set_operation, set1.shape[:-1], set2.shape[:-1], a, b, set1.dtype)


@op(
    "DenseToSparseSetOperation",
    f"T, int64, T, int64 -> {_SIGNATURE}",
    host=True,
    no_gradient=True,
    T=_MEMBERS,
    shape=lambda op: _two(_rank(op.input_list[0], False), _rank(op.input_list[3], True)),
)
def dense_to_sparse(
    set1: Any,
    set2_indices: Any,
    set2_values: Any,
    set2_shape: Any,
    *,
    set_operation: str,
    validate_indices: bool = True,
) -> Any:
    a, b = _dense_groups(set1), _groups(set2_indices, set2_values, set2_shape, validate_indices)
    return _combined(set_operation, set1.shape[:-1], set2_shape[:-1], a, b, set1.dtype)


@op(
    "SparseToSparseSetOperation",
    f"int64, T, int64, int64, T, int64 -> {_SIGNATURE}",
    host=True,
    no_gradient=True,
    T=_MEMBERS,
    shape=lambda op: _two(_rank(op.input_list[2], True), _rank(op.input_list[5], True)),
)
def sparse_to_sparse(
    set1_indices: Any,
    set1_values: Any,
    set1_shape: Any,
    set2_indices: Any,
    set2_values: Any,
    set2_shape: Any,
    *,
    set_operation: str,
    validate_indices: bool = True,
) -> Any:
    a = _groups(set1_indices, set1_values, set1_shape, validate_indices)
    b = _groups(set2_indices, set2_values, set2_shape, validate_indices)
    return _combined(set_operation, set1_shape[:-1], set2_shape[:-1], a, b, set1_values.dtype)


_LARGEST = 2**28  # limit for the elements of a dense result whose size the input's shape alone decides


def _sized(dims: Iterable[int], what: str) -> tuple[int, ...]:
    """`dims` as the shape of a new array, after a check of its size."""
    sizes = tuple(int(d) for d in dims)
    count = 1
    for size in sizes:
        count *= size
    if any(size < 0 for size in sizes) or count > _LARGEST:
        raise _refused(f"{what} has shape {list(sizes)}: too large, or negative")
    return sizes


def _size_shape(op: Operation) -> list[TensorShape]:
    known = constant_value(op.input_list[2])
    if known is not None:
        return [TensorShape.of(tuple(int(d) for d in known[:-1]))]
    rank = _rank(op.input_list[2], True)
    return [TensorShape.of(None if rank is None else (None,) * (rank - 1))]


@op("SetSize", "int64, T, int64 -> size: int32", host=True, no_gradient=True, T=_MEMBERS, shape=_size_shape)
def set_size_op(set_indices: Any, set_values: Any, set_shape: Any, *, validate_indices: bool = True) -> Any:
    counts = np.zeros(_sized(set_shape[:-1], "the sizes of the sets"), np.int32)
    for place, members in _groups(set_indices, set_values, set_shape, validate_indices).items():
        counts[place] = len(set(members))
    return counts


# Public functions


def _as_set(value: Any, name: str) -> Any:
    if isinstance(value, SparseTensor) or hasattr(value, "dense_shape"):
        return SparseTensor.from_value(value)
    return convert_to_tensor(value, name=name)


def _operate(a: Any, b: Any, operation: str, validate_indices: bool) -> SparseTensor:
    a, b = _as_set(a, "a"), _as_set(b, "b")
    if a.dtype.base_dtype != b.dtype.base_dtype:
        raise TypeError(f"Types don't match: {a.dtype.name} and {b.dtype.name}.")
    if isinstance(a, SparseTensor) and not isinstance(b, SparseTensor):
        a, b = b, a
        operation = {"a-b": "b-a", "b-a": "a-b"}.get(operation, operation)
    settings: dict[str, Any] = {"set_operation": operation, "validate_indices": validate_indices}
    if isinstance(a, SparseTensor):
        parts = sparse_to_sparse(a.indices, a.values, a.dense_shape, b.indices, b.values, b.dense_shape, **settings)
    elif isinstance(b, SparseTensor):
        parts = dense_to_sparse(a, b.indices, b.values, b.dense_shape, **settings)
    else:
        parts = dense_to_dense(a, b, **settings)
    return SparseTensor(*parts)


def set_size(a: TensorLike, validate_indices: bool = True) -> Tensor:
    """The number of different members of each set of a SparseTensor: `tf.sets.size(tags)`."""
    if not (isinstance(a, SparseTensor) or hasattr(a, "dense_shape")):
        raise TypeError(f"Expected SparseTensor, got {a}.")
    a = SparseTensor.from_value(a)
    if a.values.dtype.base_dtype not in _MEMBERS:
        raise TypeError(f"set_size: values must be integers or strings, received {a.values.dtype.name}.")
    result: Tensor = set_size_op(a.indices, a.values, a.dense_shape, validate_indices=validate_indices)
    return result


def set_intersection(a: TensorLike, b: TensorLike, validate_indices: bool = True) -> SparseTensor:
    """The members that sets of `a` and `b` share: `tf.sets.intersection([[1, 2]], [[2, 3]])`."""
    return _operate(a, b, "intersection", validate_indices)


def set_union(a: TensorLike, b: TensorLike, validate_indices: bool = True) -> SparseTensor:
    """The members of sets of `a` or `b`: `tf.sets.union([[1, 2]], [[2, 3]])`."""
    return _operate(a, b, "union", validate_indices)


def set_difference(a: TensorLike, b: TensorLike, aminusb: bool = True, validate_indices: bool = True) -> SparseTensor:
    """The members of sets of `a` that are not in those of `b`; the reverse if `aminusb` is False."""
    return _operate(a, b, "a-b" if aminusb else "b-a", validate_indices)


# Edit distance


def _distance_shape(op: Operation) -> list[TensorShape]:
    known = [constant_value(op.input_list[i]) for i in (2, 5)]
    first, second = known
    if first is None or second is None:
        return [TensorShape.of(None)]
    if len(first) != len(second):
        raise ValueError(f"Num elements of hypothesis_shape does not match truth_shape: {len(first)} vs. {len(second)}")
    return [TensorShape.of(tuple(int(d) for d in np.maximum(first, second)[:-1]))]


def _levenshtein(a: list[Any], b: list[Any]) -> int:
    """The number of insertions, deletions and replacements that turn `a` into `b`."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


@op(
    "EditDistance",
    "int64, T, int64, int64, T, int64 -> output: float32",
    host=True,
    no_gradient=True,
    shape=_distance_shape,
)
def edit_distance_op(
    hypothesis_indices: Any,
    hypothesis_values: Any,
    hypothesis_shape: Any,
    truth_indices: Any,
    truth_values: Any,
    truth_shape: Any,
    *,
    normalize: bool = True,
) -> Any:
    if len(hypothesis_shape) != len(truth_shape):
        raise _refused(
            f"hypothesis_shape and truth_shape have {len(hypothesis_shape)} and {len(truth_shape)} sizes: they must "
            "have as many"
        )
    guesses = _groups(hypothesis_indices, hypothesis_values, hypothesis_shape, True)
    truths = _groups(truth_indices, truth_values, truth_shape, True)
    found = np.zeros(_sized(np.maximum(hypothesis_shape, truth_shape)[:-1], "the result"), np.float32)
    for place in guesses.keys() | truths.keys():
        guess, truth = guesses.get(place, []), truths.get(place, [])
        distance = float(_levenshtein(guess, truth))
        found[place] = distance if not normalize else distance / len(truth) if truth else np.inf
    return found


def edit_distance(hypothesis: Any, truth: Any, normalize: bool = True, name: str = "edit_distance") -> Tensor:
    """Levenshtein distances between the sequences of two SparseTensors, divided by the truth's length if `normalize`.

    >>> tf.edit_distance(decoded, labels)
    """
    for value in (hypothesis, truth):
        if not (isinstance(value, SparseTensor) or hasattr(value, "dense_shape")):
            raise TypeError(f"edit_distance takes SparseTensors, received {value!r}.")
    guess, right = SparseTensor.from_value(hypothesis), SparseTensor.from_value(truth)
    result: Tensor = edit_distance_op(
        guess.indices,
        guess.values,
        guess.dense_shape,
        right.indices,
        right.values,
        right.dense_shape,
        normalize=normalize,
        name=name,
    )
    return result
