"""Static shapes: the known dimensions of a tensor before it has a value.

>>> TensorShape([None, 3]).merge_with([2, None])
TensorShape([Dimension(2), Dimension(3)])
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeAlias, overload

from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

from penstock.graph.dimension import Dimension, dim_of

Dims: TypeAlias = tuple[int | None, ...] | None
"""What a `TensorShape` holds: one entry per dimension, None where it is unknown; None alone for unknown rank."""


class _Behavior:
    """A switch: shapes show their sizes as `Dimension` objects, or as ints and None, as in TensorFlow 2."""

    plain_sizes = False


_behavior = _Behavior()


def enable_v2_tensorshape() -> None:
    """Makes the elements of shapes ints and None: `TensorShape([None, 3])[1] == 3`."""
    _behavior.plain_sizes = True


def disable_v2_tensorshape() -> None:
    """Makes the elements of shapes `Dimension` objects: `TensorShape([None, 3])[1].value == 3`."""
    _behavior.plain_sizes = False


def is_v2_tensorshape() -> bool:
    """Tells if the elements of shapes are ints and None."""
    return _behavior.plain_sizes


class TensorShape:
    """The static shape of a tensor: fully known, partly known, or of unknown rank.

    Iterating and indexing give `Dimension` objects in the 1.x API, ints and None in that of TensorFlow 2.
    `as_list()` gives ints and None in both.

    >>> TensorShape([None, 784])[1].value, TensorShape([2, 3]).as_list(), TensorShape(None).rank
    (784, [2, 3], None)
    """

    __slots__ = ("_dims",)
    _dims: Dims

    def __init__(self, dims: Any) -> None:
        if dims is None:
            self._dims = None
        elif isinstance(dims, (tuple, list)):
            self._dims = tuple(map(dim_of, dims))
        elif isinstance(dims, TensorShape):
            self._dims = dims._dims
        elif isinstance(dims, TensorShapeProto):
            self._dims = (
                None if dims.unknown_rank else tuple(None if d.size == -1 else dim_of(d.size) for d in dims.dim)
            )
        else:
            self._dims = _dims_of(dims)

    @classmethod
    def of(cls, dims: Dims) -> TensorShape:
        """Wraps a tuple of int or None (or None) that is known to be valid: skips every check."""
        self = cls.__new__(cls)
        self._dims = dims
        return self

    @property
    def dims(self) -> list[Dimension] | None:
        """The dimensions, or None for unknown rank."""
        return None if self._dims is None else [Dimension(d) for d in self._dims]

    @property
    def rank(self) -> int | None:
        """The number of dimensions, or None where it is unknown."""
        return None if self._dims is None else len(self._dims)

    @property
    def ndims(self) -> int | None:
        """The same as `rank`."""
        return None if self._dims is None else len(self._dims)

    def as_list(self) -> list[int | None]:
        """The sizes as a list, None where unknown: `TensorShape([None, 3]).as_list() == [None, 3]`."""
        if self._dims is None:
            raise ValueError("as_list() is not defined on a TensorShape of unknown rank.")
        return list(self._dims)

    def as_proto(self) -> TensorShapeProto:
        """The shape as a TensorShapeProto."""
        if self._dims is None:
            return TensorShapeProto(unknown_rank=True)
        return TensorShapeProto(dim=[TensorShapeProto.Dim(size=-1 if d is None else d) for d in self._dims])

    def num_elements(self) -> int | None:
        """The number of elements, None unless fully defined: `TensorShape([2, 3]).num_elements() == 6`."""
        return None if self._dims is None or None in self._dims else math.prod(self._dims)  # type: ignore[arg-type]

    def is_fully_defined(self) -> bool:
        """Tells if the rank and every dimension are known."""
        return self._dims is not None and None not in self._dims

    def assert_is_fully_defined(self) -> None:
        """Raise ValueError unless `is_fully_defined()`."""
        if not self.is_fully_defined():
            raise ValueError(f"Shape {self} is not fully defined")

    def is_compatible_with(self, other: Any) -> bool:
        """Tells if one concrete shape could satisfy both: `TensorShape([None]).is_compatible_with([3])`."""
        if other.__class__ is tuple and other == self._dims:
            return True  # without a shape of `other`: most arrays have just the shape that is declared
        left, right = self._dims, as_shape(other)._dims
        if left is None or right is None or left == right:
            return True
        return len(left) == len(right) and all(
            a is None or b is None or a == b for a, b in zip(left, right, strict=True)
        )

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raise ValueError unless `is_compatible_with(other)`."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Shapes {self} and {as_shape(other)} are incompatible")

    def merge_with(self, other: Any) -> TensorShape:
        """Combines both, ValueError if they contradict: `[2, None]` with `[None, 3]` is `[2, 3]`."""
        shape = as_shape(other)
        left, right = self._dims, shape._dims
        if right is None or left == right:
            return self
        if left is None:
            return shape
        if not self.is_compatible_with(shape):
            raise ValueError(f"Shapes {self} and {shape} are not compatible")
        return TensorShape.of(tuple(b if a is None else a for a, b in zip(left, right, strict=True)))

    def concatenate(self, other: Any) -> TensorShape:
        """The dimensions of this shape, then those of `other`; unknown where either rank is."""
        left, right = self._dims, as_shape(other)._dims
        return TensorShape.of(None if left is None or right is None else left + right)

    def most_specific_compatible_shape(self, other: Any) -> TensorShape:
        """The tightest shape that covers both: `[1, 2]` with `[1, 3]` is `[1, None]`."""
        left, right = self._dims, as_shape(other)._dims
        if left is None or right is None or len(left) != len(right):
            return TensorShape.of(None)
        return TensorShape.of(tuple(a if a == b else None for a, b in zip(left, right, strict=True)))

    def is_subtype_of(self, other: Any) -> bool:
        """Tells if every concrete shape that fits this one also fits `other`."""
        left, right = self._dims, as_shape(other)._dims
        if right is None or left == right:
            return True
        if left is None or len(left) != len(right):
            return False
        return all(b is None or a == b for a, b in zip(left, right, strict=True))

    def assert_same_rank(self, other: Any) -> None:
        """Raise ValueError where both ranks are known and differ."""
        other = as_shape(other)
        if self.rank is not None and other.rank is not None and self.rank != other.rank:
            raise ValueError(f"Shapes {self} and {other} must have the same rank")

    def assert_has_rank(self, rank: int | None) -> None:
        """Raise ValueError unless the rank is `rank` or unknown."""
        if rank is not None and self._dims is not None and len(self._dims) != rank:
            raise ValueError(f"Shape {self} must have rank {rank}")

    def with_rank(self, rank: int | None) -> TensorShape:
        """This shape, with a rank if it had none; ValueError if its rank differs."""
        self.assert_has_rank(rank)
        return unknown_shape(rank) if self._dims is None else self

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """This shape; ValueError if its rank is less."""
        if self._dims is not None and len(self._dims) < rank:
            raise ValueError(f"Shape {self} must have rank at least {rank}")
        return self

    def with_rank_at_most(self, rank: int) -> TensorShape:
        """This shape; ValueError if its rank is greater."""
        if self._dims is not None and len(self._dims) > rank:
            raise ValueError(f"Shape {self} must have rank at most {rank}")
        return self

    @overload
    def __getitem__(self, key: slice) -> TensorShape: ...
    @overload
    def __getitem__(self, key: int) -> Any: ...
    def __getitem__(self, key: slice | int) -> Any:
        if not isinstance(key, slice):
            size = None if self._dims is None else self._dims[key]
            return size if _behavior.plain_sizes else Dimension(size)
        if self._dims is not None:
            return TensorShape.of(self._dims[key])
        # With an unknown rank, only a slice with two ends, both counted from the front, has a known length.
        start, stop = 0 if key.start is None else key.start, key.stop
        if key.step is not None:
            raise ValueError(f"TensorShape of unknown rank: a slice with a step ({key.step}) has no known shape.")
        if stop is None or start < 0 or stop < 0:
            return TensorShape.of(None)
        return TensorShape.of((None,) * max(0, stop - start))

    def __iter__(self) -> Iterator[Any]:
        if self._dims is None:
            raise ValueError("TensorShape of unknown rank: its dimensions cannot be iterated over.")
        return iter(self._dims) if _behavior.plain_sizes else map(Dimension, self._dims)

    def __len__(self) -> int:
        if self._dims is None:
            raise ValueError("TensorShape of unknown rank: it has no len(); test `shape.rank is None` first.")
        return len(self._dims)

    def __bool__(self) -> bool:
        return self._dims is not None

    def __add__(self, other: Any) -> TensorShape:
        return self.concatenate(other)

    def __radd__(self, other: Any) -> TensorShape:
        return as_shape(other).concatenate(self)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is TensorShape:
            return self._dims == other._dims
        try:
            return self._dims == as_shape(other)._dims
        except (TypeError, ValueError):
            return NotImplemented

    def __hash__(self) -> int:
        return hash(self._dims)

    def __str__(self) -> str:
        if self._dims is None:
            return "<unknown>"
        unknown = "None" if _behavior.plain_sizes else "?"
        return f"({', '.join(unknown if d is None else str(d) for d in self._dims)}{',' * (len(self._dims) == 1)})"

    def __repr__(self) -> str:
        sizes = self.dims if self._dims is None or not _behavior.plain_sizes else list(self._dims)
        return f"TensorShape({sizes})"

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorShape, (self._dims,)


def _dims_of(value: Any) -> Dims:
    """The dims of a value that is not a list, tuple, shape or proto: one size, or any iterable of sizes."""
    if hasattr(value, "__index__") and not getattr(value, "ndim", 0):
        return (dim_of(value),)
    try:
        return tuple(map(dim_of, value))
    except TypeError:
        raise TypeError(
            f"TensorShape: expected None, a size or a sequence of sizes (int or None), received {value!r}."
        ) from None


def as_shape(shape: Any) -> TensorShape:
    """`shape` as a TensorShape: `as_shape([None, 3])`."""
    return shape if isinstance(shape, TensorShape) else TensorShape(shape)


def dimension_value(dimension: Any) -> Any:
    """The size in a Dimension; any other value as it is: `dimension_value(shape[0])`."""
    return dimension._value if isinstance(dimension, Dimension) else dimension


def dimension_at_index(shape: TensorShape, index: int) -> Dimension:
    """Dimension `index` of `shape`, unknown where the rank is: `dimension_at_index(TensorShape([2, 3]), 1)`."""
    return Dimension(None if shape._dims is None else shape._dims[index])


def unknown_shape(rank: int | None = None) -> TensorShape:
    """A shape with unknown dimensions, and an unknown rank unless one is given: `unknown_shape(2)`."""
    return TensorShape.of(None if rank is None else (None,) * rank)


def scalar() -> TensorShape:
    """The shape of a scalar: `scalar().as_list() == []`."""
    return TensorShape.of(())


def vector(length: Any) -> TensorShape:
    """The shape of a vector: `vector(None).as_list() == [None]`."""
    return TensorShape([length])


def matrix(rows: Any, cols: Any) -> TensorShape:
    """The shape of a matrix: `matrix(None, 10).as_list() == [None, 10]`."""
    return TensorShape([rows, cols])


def broadcast_shape(a: Any, b: Any) -> TensorShape:
    """The shape of an elementwise result of shapes `a` and `b`; ValueError if they do not broadcast.

    An unknown size next to n > 1 must be 1 or n, so the result is n; next to 1 or 0 it stays unknown.

    >>> broadcast_shape([None, 1, 3], [4, None]).as_list()
    [None, 4, 3]
    """
    shape_a, shape_b = as_shape(a), as_shape(b)
    left, right = shape_a._dims, shape_b._dims
    if left is None or right is None:
        return TensorShape.of(None)
    if left == right:
        # The shapes are equal, but an unknown size may stand for two different ones, so it stays unknown.
        return shape_a
    if len(left) < len(right):
        left, right = right, left
    lead = len(left) - len(right)
    dims = list(left[:lead])
    for x, y in zip(left[lead:], right, strict=True):
        if x == y or y == 1:
            dims.append(x)
        elif x == 1:
            dims.append(y)
        elif x is None or y is None:
            known = y if x is None else x
            dims.append(known if known is not None and known > 1 else None)
        else:
            raise ValueError(
                f"Shapes {shape_a} and {shape_b} do not broadcast: sizes {x} and {y} differ and neither is 1."
            )
    return TensorShape.of(tuple(dims))
