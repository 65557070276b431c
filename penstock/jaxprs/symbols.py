"""Symbols for sizes: one traced program for all shapes of one pattern."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import export
from jax._src import core
from jax._src.export.shape_poly import _DimExpr as _Symbol

NOT_FOR_SYMBOLS = (core.InconclusiveDimensionOperation,)  # raised if an answer depends on the size

Shape = tuple[int, ...]

_TERM = r"(?:\d+\*)?d\d+(?:\^\d+)?(?:\*d\d+(?:\^\d+)?)*"
_EXPRESSION = re.compile(rf"(?:- )?\b{_TERM}(?: [-+] (?:{_TERM}|\d+))*\b")  # as jax prints it


class _Here(threading.local):
    def __init__(self) -> None:
        self.undecided: list[str] = []  # questions about sizes that a trace left open: it computes with them


here = _Here()


def numbered(shapes: Sequence[Shape]) -> tuple[tuple[int, ...], ...]:
    """Replaces each size of 2 and more by a number, from -1 down, the same for equal sizes.

    Sizes 0 and 1 stay: they broadcast, or mean empty.

    >>> numbered([(20, 784), (784, 1)])
    ((-1, -2), (-2, 1))
    """
    numbers: dict[int, int] = {0: 0, 1: 1}
    return tuple([tuple([numbers.setdefault(d, 1 - len(numbers)) for d in shape]) for shape in shapes])


def symbolic(shapes: Sequence[Sequence[int]]) -> list[tuple[Any, ...]]:
    """Numbered shapes with a symbol in place of each number.

    >>> symbolic([(-1, -2), (-2, 1)])
    [(d0, d1), (d1, 1)]
    """
    count = -min((d for shape in shapes for d in shape), default=0)
    if count <= 0:
        return [tuple(shape) for shape in shapes]
    names = [f"d{i}" for i in range(count)]
    scope = export.SymbolicScope([f"{name} >= 2" for name in names])
    symbols = export.symbolic_shape(", ".join(names), scope=scope)
    return [tuple(symbols[-d - 1] if d < 0 else d for d in shape) for shape in shapes]


def sizes(dims: Any, dtype: Any) -> np.ndarray:
    """Sizes as an array of numbers, or of objects if some are symbols.

    >>> sizes((d0, 784), np.int32)
    array([d0, 784], dtype=object)
    """
    array = np.array(dims)
    return array if array.dtype == object else array.astype(dtype)


def named_sizes(shapes: Sequence[Shape]) -> dict[str, int]:
    """The size of each symbol of `symbolic(numbered(shapes))`.

    >>> named_sizes([(20, 784), (784, 1)])
    {'d0': 20, 'd1': 784}
    """
    found = dict.fromkeys(d for shape in shapes for d in shape if d > 1)
    return {f"d{i}": size for i, size in enumerate(found)}


def told(message: str, sizes: Mapping[str, int]) -> str:
    """Replaces the symbolic sizes in a message by numbers.

    >>> told("indices value 9 is not in [0, 2*d0 - 1)", {"d0": 4})
    'indices value 9 is not in [0, 7)'
    """

    def number(found: re.Match[str]) -> str:
        if any(name not in sizes for name in re.findall(r"d\d+", found[0])):
            return found[0]
        expression: Any = export.symbolic_shape(found[0])[0]
        return str(expression._evaluate(dict(sizes)))

    return _EXPRESSION.sub(number, message)


def has_symbols(value: Any) -> bool:
    """Tells if a value is an array that contains symbolic sizes."""
    return value.__class__ is np.ndarray and value.dtype == object and any(map(is_symbol, value.flat))


def is_symbol(size: Any) -> bool:
    """Tells if a size is a symbol, or an expression of symbols."""
    return size.__class__ is _Symbol


def as_number(size: Any) -> Any:
    """Converts a size to a number, which is known when the program runs."""
    return core.dimension_as_value(size) if is_symbol(size) else size


def as_numbers(dims: np.ndarray, dtype: Any) -> Any:
    """Converts sizes to numbers, which are known when the program runs."""
    flat = [jnp.asarray(as_number(d)).astype(dtype) for d in dims.flat]
    return jnp.stack(flat).reshape(dims.shape)


def as_size(size: Any) -> Any:
    """A size as an int, or as a symbol; also accepts a scalar array."""
    if size.__class__ is np.ndarray:
        size = size.item()
    return size if is_symbol(size) else int(size)


def broadcast_shapes(*shapes: Sequence[Any]) -> tuple[Any, ...]:
    """The shape that shapes broadcast to, symbols included; ValueError if they do not broadcast.

    >>> broadcast_shapes((d0, 1), (10,))
    (d0, 10)
    """
    if any(is_symbol(d) for shape in shapes for d in shape):
        return tuple(jnp.broadcast_shapes(*map(tuple, shapes)))
    return np.broadcast_shapes(*map(tuple, shapes))
