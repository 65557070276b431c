"""Dimension: one size of a shape, which may be unknown."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any


def dim_of(value: Any) -> int | None:
    """`value` as the size of a dimension: an int, or None for unknown."""
    if value is None:
        return None
    if value.__class__ is not int:
        if isinstance(value, Dimension):
            return value._value
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError(
                f"Dimension: the size must be an integer or None, received {value!r} of type {type(value).__name__}."
            ) from None
    size: int = value
    if size < 0:
        raise ValueError(f"Dimension: the size must be >= 0, received {size}.")
    return size


def _operator(function: Callable[[int, int], int], reflected: bool = False) -> Callable[[Dimension, Any], Dimension]:
    def apply(self: Dimension, other: Any) -> Any:
        try:
            right = dim_of(other)
        except TypeError:
            return NotImplemented
        if self._value is None or right is None:
            return Dimension(None)
        return Dimension(function(right, self._value) if reflected else function(self._value, right))

    return apply


def _comparison(function: Callable[[int, int], bool]) -> Callable[[Dimension, Any], bool | None]:
    def compare(self: Dimension, other: Any) -> bool | None:
        right = dim_of(other)
        return None if self._value is None or right is None else function(self._value, right)

    return compare


class Dimension:
    """The size of one dimension; unknown sizes stay unknown through arithmetic.

    Comparing with an unknown size gives None, which is neither equal nor different:

    >>> (Dimension(3) * 2).value, (Dimension(None) + 1).value, Dimension(None) == 3
    (6, None, None)
    """

    __slots__ = ("_value",)
    _value: int | None

    def __init__(self, value: Any) -> None:
        self._value = dim_of(value)

    @property
    def value(self) -> int | None:
        """The size, or None where it is unknown."""
        return self._value

    def is_compatible_with(self, other: Any) -> bool:
        """Tells if both could be the same size: `Dimension(3).is_compatible_with(None)`."""
        right = dim_of(other)
        return self._value == right or self._value is None or right is None

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raise ValueError unless `is_compatible_with(other)`."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Dimensions {self} and {as_dimension(other)} are not compatible")

    def merge_with(self, other: Any) -> Dimension:
        """Combines both: `Dimension(None).merge_with(3)` is `Dimension(3)`."""
        self.assert_is_compatible_with(other)
        return Dimension(other) if self._value is None else self

    def __eq__(self, other: object) -> Any:
        try:
            right = dim_of(other)
        except (TypeError, ValueError):
            return NotImplemented
        return None if self._value is None or right is None else self._value == right

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is None or equal is NotImplemented else not equal

    # Equality that may be None cannot be used in a dict or a set.
    __hash__ = None  # type: ignore[assignment]

    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)
    __add__ = __radd__ = _operator(operator.add)
    __mul__ = __rmul__ = _operator(operator.mul)
    __sub__ = _operator(operator.sub)
    __rsub__ = _operator(operator.sub, reflected=True)
    __floordiv__ = _operator(operator.floordiv)
    __rfloordiv__ = _operator(operator.floordiv, reflected=True)
    __mod__ = _operator(operator.mod)
    __rmod__ = _operator(operator.mod, reflected=True)

    def __truediv__(self, other: Any) -> Dimension:
        raise TypeError(f"Dimension: {self} / {other} would not be a whole number; use // instead.")

    def __rtruediv__(self, other: Any) -> Dimension:
        raise TypeError(f"Dimension: {other} / {self} would not be a whole number; use // instead.")

    def __index__(self) -> int:
        # Python turns a None from here into a TypeError, which is right for an unknown size.
        return self._value  # type: ignore[return-value]

    __int__ = __index__

    def __bool__(self) -> bool:
        return bool(self._value)

    def __str__(self) -> str:
        return "?" if self._value is None else str(self._value)

    def __repr__(self) -> str:
        return f"Dimension({self._value})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Dimension, (self._value,)


def as_dimension(value: Any) -> Dimension:
    """`value` as a Dimension: `as_dimension(None)`."""
    return value if isinstance(value, Dimension) else Dimension(value)
