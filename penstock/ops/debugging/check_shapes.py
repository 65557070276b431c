"""assert_shapes: checks sizes that several tensors share, by names of dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.ops.array import joining, reshaping
from penstock.ops.control import grouping
from penstock.ops.debugging import check_ops
from penstock.ops.debugging.assertion import Assert
from penstock.ops.math import compare

_ANY = (None, ".")


def assert_shapes(
    shapes: Any, data: Any = None, summarize: int | None = None, message: str | None = None, name: str | None = None
) -> Operation:
    """An operation that fails unless tensors have the given shapes, in which equal names stand for equal sizes.

    A shape is a tuple of sizes, names, and None or "." for any size; "*" or `...` at one end stands for any further
    dimensions. A mismatch that is known while the graph is built raises ValueError.

    >>> tf.debugging.assert_shapes([(x, ("N", 784)), (labels, ("N",))])
    """
    pairs: Iterable[tuple[Any, Any]] = shapes.items() if isinstance(shapes, dict) else shapes
    start = f"{message}. " if message else ""
    with name_scope(name, "assert_shapes", [shapes, data]):
        checks: list[Operation] = []
        sizes: dict[Any, tuple[Any, str]] = {}
        for given, symbols in pairs:
            tensor = given if isinstance(given, SparseTensor) else convert_to_tensor(given)
            wanted, open_end = _symbols(symbols)
            checks.append(_ranked(tensor, wanted, open_end, data, summarize, message))
            for position, symbol in wanted:
                if symbol in _ANY:
                    continue
                size = _size(tensor, position)
                where = f"{tensor.label if isinstance(tensor, Tensor) else tensor.indices.label}, dimension {position}"
                if isinstance(symbol, int):
                    expected: tuple[Any, str] = (symbol, "the size asked for")
                else:
                    expected = sizes.setdefault(symbol, (size, where))
                if isinstance(size, int) and isinstance(expected[0], int):
                    if size != expected[0]:
                        raise ValueError(
                            f"{start}Specified by {expected[1]}, dimension {symbol} must have size {expected[0]}. "
                            f"Received size {size} in {where}, shape {tensor.shape}"
                        )
                elif size is not expected[0]:
                    shown = data or [
                        f"{start}Dimension {symbol} of {where} must have the size of {expected[1]}:",
                        expected[0],
                        "Received: ",
                        size,
                    ]
                    checks.append(Assert(compare.equal(expected[0], size), shown, summarize=summarize))
                    if not isinstance(symbol, int) and isinstance(size, int):
                        sizes[symbol] = (size, where)
    return grouping.group(*checks)


def _symbols(symbols: Any) -> tuple[list[tuple[int, Any]], bool]:
    """(position, symbol) of the named dimensions, and flags that allow others before or after them."""
    if isinstance(symbols, TensorShape):
        symbols = symbols.as_list()
    items = [None] if symbols is None else list(symbols) if isinstance(symbols, (list, tuple, str)) else [symbols]
    open_first, open_last = (bool(items) and items[i] in ("*", ...) for i in (0, -1))
    if sum(item in ("*", ...) for item in items) > 1:
        raise ValueError(f"assert_shapes: '*' may stand at one end of a shape only, received {symbols!r}.")
    if any(item in ("*", ...) for item in items[1:-1]):
        raise ValueError(f"assert_shapes: '*' may stand at an end of a shape only, received {symbols!r}.")
    items = items[open_first : len(items) - open_last]
    items = [int(item) if isinstance(item, str) and item.isdigit() else item for item in items]
    first = -len(items) if open_first else 0
    return list(enumerate(items, first)), open_first or open_last


def _ranked(
    tensor: Any, wanted: list[tuple[int, Any]], open_end: bool, data: Any, summarize: int | None, message: str | None
) -> Operation:
    settings = {"data": data, "summarize": summarize, "message": message}
    if open_end:
        return check_ops.assert_rank_at_least(tensor, len(wanted), **settings)
    if len(wanted) == 1:
        # A scalar counts as a vector of one element.
        return check_ops.assert_rank_in(tensor, [0, 1], **settings)
    return check_ops.assert_rank(tensor, len(wanted), **settings)


def _size(tensor: Any, position: int) -> Any:
    """The size of a dimension: a number if it is known, else a tensor."""
    known = None if tensor.shape.rank is None else (tensor.shape.as_list() or [1])[position]
    if known is not None:
        return known
    dims: Any = reshaping.shape(tensor)
    if tensor.shape.rank is None:
        # A scalar has size 1 in place of a vector.
        dims = joining.concat([dims, [1]], 0) if position >= 0 else joining.concat([[1], dims], 0)
    return dims[position]
