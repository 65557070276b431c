"""`if` statements and expressions, `and`, `or`, `not`, `==`, `!=` and `assert`, on tensors and on Python values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from malt.operators import Undefined, UndefinedReturnValue

from penstock.autograph.dispatch import becomes_nodes
from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph import nest
from penstock.graph.arrays import array_of
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.ops.array.reshaping import reshape
from penstock.ops.control.flow import cond
from penstock.ops.debugging.assertion import Assert
from penstock.ops.math.compare import equal, logical_not
from penstock.variables.variable import Variable

PYTHON_VALUES = (bool, int, float, str, np.ndarray, np.generic)  # leaves that become constants where tensors are needed
GetState = Callable[[], tuple[Any, ...]]
SetState = Callable[[Sequence[Any]], None]


def if_stmt(
    condition: Any,
    body: Callable[[], None],
    orelse: Callable[[], None],
    get_state: GetState,
    set_state: SetState,
    symbol_names: tuple[str, ...],
    nouts: int,
) -> None:
    """Runs an `if` statement. Branches assign to variables of the converted function, which `get_state` reads.

    The first `nouts` of these are used after the statement.
    """
    if not becomes_nodes(condition):
        body() if condition else orelse()
        return
    predicate = as_predicate(condition, "if statement")
    before = get_state()
    found: dict[str, tuple[Any, ...]] = {}

    def branch(label: str, run: Callable[[], None]) -> tuple[Any, ...]:
        set_state(before)
        run()
        after = found[label] = get_state()[:nouts]
        _require_defined(after, symbol_names, label)
        if len(found) == 2:
            for name, main, other in zip(symbol_names, found["main"], found["else"], strict=False):
                _require_same_form(name, main, other)
        return after

    after = cond(predicate, lambda: branch("main", body), lambda: branch("else", orelse), strict=True)
    set_state((*after, *before[nouts:]))


def if_exp(condition: Any, if_true: Callable[[], Any], if_false: Callable[[], Any], expr_repr: str) -> Any:
    """The value of `if_true() if condition else if_false()`; `expr_repr` is its text in messages."""
    if not becomes_nodes(condition):
        return if_true() if condition else if_false()
    return _chosen(condition, if_true, if_false, expr_repr)


def _chosen(condition: Any, if_true: Callable[[], Any], if_false: Callable[[], Any], expression: str) -> Any:
    found: list[Any] = []

    def branch(value: Callable[[], Any]) -> Any:
        found.append(value())
        if len(found) == 2:
            _require_same_form(expression, *found)
        return found[-1]

    predicate = as_predicate(condition, expression, InvalidArgumentError)
    return cond(predicate, lambda: branch(if_true), lambda: branch(if_false), strict=True)


def as_predicate(condition: Any, where: str, error: type[Exception] = ValueError) -> Tensor:
    """The scalar that a node can branch on; an error of the given class if there is none."""
    predicate: Tensor = convert_to_tensor(condition)
    remedy = "to check for None, use `is not None`"
    if predicate.dtype.base_dtype is not dt.bool:
        raise error(
            f"condition of {where} expected to be `tf.bool` scalar, got {predicate}; to use as boolean Tensor, use "
            f"`tf.cast`; {remedy}"
        )
    if predicate.shape.rank == 0:
        return predicate
    if any(size not in (None, 1) for size in predicate.shape._dims or ()):
        raise error(f"condition of {where} expected to be `tf.bool` scalar, got {predicate}; {remedy}")
    return reshape(predicate, ())


def _require_defined(values: Sequence[Any], names: Sequence[str], branch: str) -> None:
    for name, value in zip(names, values, strict=False):
        if isinstance(value, Undefined):
            raise ValueError(f"'{name}' must also be initialized in the {branch} branch")
        if isinstance(value, UndefinedReturnValue):
            raise ValueError(f"the {branch} branch must also have a return statement.")


def _require_same_form(name: str, main: Any, other: Any) -> None:
    try:
        nest.assert_same_structure(main, other)
    except (ValueError, TypeError) as error:
        raise TypeError(
            f"'{name}' must have the same nested structure in the main and else branches:\n\n{error}"
        ) from error
    for one, two in zip(nest.flatten(main), nest.flatten(other), strict=True):
        for value, branch in ((one, "main"), (two, "else")):
            if value is None:
                raise ValueError(f"'{name}' is None at the end of the {branch} branch.")
        types = dtype_of(one), dtype_of(two)
        if None not in types and types[0] != types[1]:
            raise TypeError(
                f"'{name}' has dtype {types[0]} in the main branch, but dtype {types[1]} in the else branch"
            )


def dtype_of(value: Any) -> str | None:
    """The name of the type that a leaf has as a tensor; None for what is no single tensor, such as a TensorArray."""
    if isinstance(value, (Tensor, Variable)):
        return value.dtype.base_dtype.name
    return array_of(value)[1].name if isinstance(value, PYTHON_VALUES) else None


# Logic


def and_(a: Callable[[], Any], b: Callable[[], Any]) -> Any:
    """`a() and b()`, where `b` runs only if it is needed."""
    first = a()
    return _chosen(first, b, lambda: first, "and") if becomes_nodes(first) else first and b()


def or_(a: Callable[[], Any], b: Callable[[], Any]) -> Any:
    """`a() or b()`, where `b` runs only if it is needed."""
    first = a()
    return _chosen(first, lambda: first, b, "or") if becomes_nodes(first) else first or b()


def not_(a: Any) -> Any:
    """`not a`."""
    return logical_not(a) if becomes_nodes(a) else not a


def eq(a: Any, b: Any) -> Any:
    """`a == b` by value."""
    return equal(a, b) if becomes_nodes(a) or becomes_nodes(b) else a == b


def not_eq(a: Any, b: Any) -> Any:
    """`a != b` by value."""
    return not_(eq(a, b))


def assert_stmt(condition: Any, message: Callable[[], Any]) -> Any:
    """`assert condition, message()`; on a tensor an Assert node, which checks when it runs."""
    if becomes_nodes(condition):
        told = message()
        return Assert(condition, told if isinstance(told, list) else [told])
    assert condition, message()
    return None
