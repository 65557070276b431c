"""Sizes of symbolic dimensions, found in the shapes of arguments and used to evaluate expressions of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.jaxprs.dims import evaluate, is_symbolic


class SizesNeeded(Exception):
    """Raised when a symbolic dimension is needed before sizes are known."""


class Sizes:
    """The size of each symbol, and the values of the expressions evaluated so far.

    Sizes({"b": 3}).value(dim) is 6 for the dimension 2*b.
    """

    def __init__(self, symbols: dict[str, int]) -> None:
        self.symbols = symbols
        # By identity: comparing expressions is slow, and a jaxpr keeps its expressions alive.
        self._values: dict[int, int] = {}

    def value(self, dimension: Any) -> int:
        known = self._values.get(id(dimension))
        if known is None:
            known = self._values[id(dimension)] = int(evaluate(dimension, self.symbols))
        return known

    def resolve(self, value: Any) -> Any:
        """`value` with its symbolic dimensions, also those in tuples and lists, replaced by numbers."""
        if isinstance(value, (tuple, list)) and has_symbols(value):
            return type(value)(self.resolve(item) for item in value)
        return self.value(value) if is_symbolic(value) else value


def has_symbols(value: Any) -> bool:
    """True for a symbolic dimension and for tuples and lists with one in them."""
    if isinstance(value, (tuple, list)):
        return any(has_symbols(item) for item in value)
    return is_symbolic(value)


def dimension_key(dimension: Any) -> Any:
    """A value that is equal for equal dimensions, and cheap to compare."""
    return str(dimension) if is_symbolic(dimension) else int(dimension)


def symbol_places(shapes: Sequence[Sequence[Any]]) -> dict[str, tuple[int, int]]:
    """The place to read each symbol: (position in `shapes`, axis) of a dimension that is the plain symbol."""
    places: dict[str, tuple[int, int]] = {}
    for position, shape in enumerate(shapes):
        for axis, dimension in enumerate(shape):
            if is_symbolic(dimension):
                name = dimension._to_var()
                if name is not None:
                    places.setdefault(name, (position, axis))
    return places
