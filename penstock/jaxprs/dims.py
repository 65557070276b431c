"""Symbolic dimensions: their values, their bounds, and their positions in a jaxpr.

An expression of `jax.export` is a sum of terms with coefficients, a term is a product of factors with exponents, and a
factor is a symbol or an operation on expressions. jax has no public way to inspect one, so all code that does so
is here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim
from jax.extend.core import ClosedJaxpr, Jaxpr

Dim = Any  # an int or a symbolic expression

_MAX_CASES = 1 << 20  # combinations of sizes that are tried one by one to find a bound


def is_symbolic(dim: Dim) -> bool:
    """Tells if a dimension is an expression rather than a number."""
    return is_symbolic_dim(dim)


def symbols(dim: Dim) -> set[str]:
    """The symbols of an expression."""
    return set(dim._get_vars()) if is_symbolic(dim) else set()


def evaluate(dim: Dim, sizes: Mapping[str, Any]) -> Any:
    """The value of an expression for given sizes of the symbols: numbers, NumPy arrays or traced integers."""
    if not is_symbolic(dim):
        return int(dim)
    total: Any = 0
    for term, coefficient in dim._sorted_terms:
        product: Any = coefficient
        for factor, exponent in term._factors:
            value = _factor(factor, sizes)
            for _ in range(exponent):
                product = value if isinstance(product, int) and product == 1 else product * value
        total = product if isinstance(total, int) and total == 0 else total + product
    return total


def _factor(factor: Any, sizes: Mapping[str, Any]) -> Any:
    if factor.var is not None:
        return sizes[factor.var]
    left, right = (evaluate(operand, sizes) for operand in factor.operands)
    on_host = all(isinstance(x, (int, np.integer, np.ndarray)) for x in (left, right))
    match factor.operation:
        case "floordiv":
            return left // right
        case "mod":
            return left % right
        case "max":
            return np.maximum(left, right) if on_host else jnp.maximum(left, right)
        case "min":
            return np.minimum(left, right) if on_host else jnp.minimum(left, right)
    raise NotImplementedError(f"dimension {factor}: operation {factor.operation!r} is not known")


class Bounds:
    """The range of each expression while every symbol is between 1 and its bound.

    >>> (b,) = jax.export.symbolic_shape("b")
    >>> Bounds({"b": 8}).range(b - 1)
    (0, 7)
    """

    def __init__(self, bounds: Mapping[str, int]) -> None:
        self._bounds = {name: int(bound) for name, bound in bounds.items()}
        self._ranges: dict[str, tuple[int, int]] = {}

    def range(self, dim: Dim) -> tuple[int, int]:
        """The smallest and the largest value; both are exact unless there are many symbols with large bounds."""
        if not is_symbolic(dim):
            return int(dim), int(dim)
        text = str(dim)
        if text not in self._ranges:
            self._ranges[text] = self._compute(dim)
        return self._ranges[text]

    def upper(self, dim: Dim) -> int:
        """The size that a dimension is padded to."""
        return max(self.range(dim)[1], 0)

    def padded(self, shape: Sequence[Dim]) -> tuple[int, ...]:
        """The padded form of a shape."""
        return tuple(map(self.upper, shape))

    def _compute(self, dim: Dim) -> tuple[int, int]:
        names = sorted(symbols(dim))
        for name in names:
            if name not in self._bounds:
                raise ValueError(f"dimension {dim}: no bound for '{name}', received bounds for {sorted(self._bounds)}")
        if math.prod(self._bounds[name] for name in names) > _MAX_CASES:
            return _interval(dim, self._bounds)
        axes = np.meshgrid(*(np.arange(1, self._bounds[name] + 1) for name in names), indexing="ij", sparse=True)
        with np.errstate(divide="ignore"):  # sizes that the program excludes may divide by zero
            values = np.asarray(evaluate(dim, dict(zip(names, axes, strict=True))))
        return int(values.min()), int(values.max())


def _interval(dim: Dim, bounds: Mapping[str, int]) -> tuple[int, int]:
    """A range that contains all values of an expression, from the ranges of its parts."""
    if not is_symbolic(dim):
        return int(dim), int(dim)
    total = (0, 0)
    for term, coefficient in dim._sorted_terms:
        product = (coefficient, coefficient)
        for factor, exponent in term._factors:
            one = _factor_interval(factor, bounds)
            for _ in range(exponent):
                corners = [x * y for x in product for y in one]
                product = min(corners), max(corners)
        total = total[0] + product[0], total[1] + product[1]
    return total


def _factor_interval(factor: Any, bounds: Mapping[str, int]) -> tuple[int, int]:
    if factor.var is not None:
        return 1, bounds[factor.var]
    left, right = (_interval(operand, bounds) for operand in factor.operands)
    match factor.operation:
        case "max":
            return max(left[0], right[0]), max(left[1], right[1])
        case "min":
            return min(left[0], right[0]), min(left[1], right[1])
    divisors = [d for d in (*right, -1, 1) if d and right[0] <= d <= right[1]]
    if factor.operation == "mod":
        return min(right[0] + 1, 0), max(right[1] - 1, 0)
    corners = [x // d for x in left for d in divisors]
    return min(corners), max(corners)


def touches_symbols(thing: Any) -> bool:
    """Finds a symbolic dimension in an equation, a jaxpr, or a parameter."""
    if is_symbolic(thing):
        return True
    if isinstance(thing, ClosedJaxpr) and thing.jaxpr is not thing:  # jax 0.11 has one kind of jaxpr
        return touches_symbols(thing.jaxpr)
    if isinstance(thing, Jaxpr):
        variables = [*thing.invars, *thing.constvars, *thing.outvars]
        return any(map(_symbolic_value, variables)) or any(map(equation_touches_symbols, thing.eqns))
    if isinstance(thing, (tuple, list)):
        return any(map(touches_symbols, thing))
    if isinstance(thing, dict):
        return any(map(touches_symbols, thing.values()))
    return False


def equation_touches_symbols(equation: Any) -> bool:
    """Finds a symbolic dimension in the operands, results or parameters of an equation."""
    return any(map(_symbolic_value, (*equation.invars, *equation.outvars))) or touches_symbols(equation.params)


def _symbolic_value(variable: Any) -> bool:
    return any(map(is_symbolic, getattr(variable.aval, "shape", ())))


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """The number of a scan's operands that are constants, and the number carried between iterations."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carry, _ = params["ft_in"].unpack()  # in jax 0.11: a flat tree of the inputs
    return len(constants), len(carry)
