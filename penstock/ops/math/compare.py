"""Comparisons and logic, elementwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.jaxprs.symbols import is_symbol
from penstock.kernel import shapes
from penstock.kernel.types import NUMBERS, REALS, Array, xp


def _equality_shape(op: Operation) -> list[TensorShape]:
    if op.attrs["incompatible_shape_error"]:
        return shapes.broadcast(op)
    if all(t.shape.is_fully_defined() for t in op.input_list):
        return shapes.broadcast(op) if _fit(*(t.shape.as_list() for t in op.input_list)) else [TensorShape.of(())]
    return [TensorShape.of(None)]  # it is a scalar if the shapes turn out not to fit


def _fit(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Tells if shapes broadcast against each other. Shapes with symbols are left to the comparison itself."""
    if any(map(is_symbol, (*a, *b))):
        return True
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


@op("Equal", "T, T -> z: bool", shape=_equality_shape, no_gradient=True, numpy=True)
def equal(x: Array, y: Array, *, incompatible_shape_error: bool = True) -> Array:
    if not incompatible_shape_error and not _fit(x.shape, y.shape):
        return xp(x, y).asarray(False)
    return x == y


@op("NotEqual", "T, T -> z: bool", shape=_equality_shape, no_gradient=True, numpy=True)
def not_equal(x: Array, y: Array, *, incompatible_shape_error: bool = True) -> Array:
    if not incompatible_shape_error and not _fit(x.shape, y.shape):
        return xp(x, y).asarray(True)
    return x != y


@op("ApproximateEqual", "T, T -> z: bool", shape=shapes.merged, no_gradient=True, T=NUMBERS)
def approximate_equal(x: Array, y: Array, *, tolerance: float = 1e-5) -> Array:
    return jnp.abs(x - y) < tolerance


@op("Less", "T, T -> z: bool", shape=shapes.broadcast, no_gradient=True, numpy=True, T=REALS)
def less(x: Array, y: Array) -> Array:
    return x < y


@op("LessEqual", "T, T -> z: bool", shape=shapes.broadcast, no_gradient=True, numpy=True, T=REALS)
def less_equal(x: Array, y: Array) -> Array:
    return x <= y


@op("Greater", "T, T -> z: bool", shape=shapes.broadcast, no_gradient=True, numpy=True, T=REALS)
def greater(x: Array, y: Array) -> Array:
    return x > y


@op("GreaterEqual", "T, T -> z: bool", shape=shapes.broadcast, no_gradient=True, numpy=True, T=REALS)
def greater_equal(x: Array, y: Array) -> Array:
    return x >= y


@op("LogicalAnd", "bool, bool -> z: bool", shape=shapes.broadcast, no_gradient=True, numpy=True)
def logical_and(x: Array, y: Array) -> Array:
    return xp(x, y).logical_and(x, y)


@op("LogicalOr", "bool, bool -> z: bool", shape=shapes.broadcast, no_gradient=True, numpy=True)
def logical_or(x: Array, y: Array) -> Array:
    return xp(x, y).logical_or(x, y)


@op("LogicalNot", "bool -> y: bool", shape=shapes.unchanged, no_gradient=True, numpy=True)
def logical_not(x: Array) -> Array:
    return xp(x).logical_not(x)


def logical_xor(x: TensorLike, y: TensorLike, name: str | None = "LogicalXor") -> Tensor:
    """True where exactly one of two bools is True."""
    either, both = logical_or(x, y), logical_and(x, y)
    tensor: Tensor = logical_and(either, logical_not(both), name=name)
    return tensor
