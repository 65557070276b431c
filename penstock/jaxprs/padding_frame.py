"""The interpreter of a padded program: values with their true shapes, and the rules by name of primitive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from penstock.jaxprs.dims import Bounds, Dim, equation_touches_symbols, evaluate, is_symbolic
from penstock.jaxprs.errors import NoRule

Array = Any  # a traced jax array

# A rule gets the frame, the equation and its operands; it returns a result or a list of them, padded.
Rule = Callable[["Frame", Any, "list[Padded]"], Any]

RULES: dict[str, Rule] = {}
CONTROL = "penstock.jaxprs.padding_rules_control"  # the module with the rules of loops and branches


def rule(*primitives: str) -> Callable[[Rule], Rule]:
    """Declares the rule of some primitives."""

    def declare(function: Rule) -> Rule:
        for name in primitives:
            RULES[name] = function
        return function

    return declare


@dataclass
class Padded:
    """An array with symbolic dimensions padded to their bounds."""

    array: Array  # or a NoRule, if nothing may read it
    shape: tuple[Dim, ...]  # the true one
    zero: frozenset[int] = frozenset()  # dimensions with padding that is known to be all zeros


class Frame:
    """Runs equations at the true sizes. Each body of a loop or branch has its own frame."""

    def __init__(self, bounds: Bounds, sizes: Mapping[str, Any]) -> None:
        self.bounds = bounds
        self._symbols = sizes
        # Values computed in the body of a loop must not be used outside it, so each frame has its own cache.
        self._sizes: dict[str, Any] = {}

    def size(self, dim: Dim) -> Any:
        """The true size: a number, or a traced integer."""
        if not is_symbolic(dim):
            return int(dim)
        text = str(dim)
        if text not in self._sizes:
            self._sizes[text] = evaluate(dim, self._symbols)
        return self._sizes[text]

    def padded(self, shape: Sequence[Dim]) -> tuple[int, ...]:
        """The padded form of a shape."""
        return self.bounds.padded(shape)

    def masked(self, array: Array, dims: Mapping[int, Dim], fill: Any) -> Array:
        """`array` with `fill` beyond the true size of each of `dims`."""
        if not dims:
            return array
        inside: Any = None
        for d, dim in dims.items():
            positions = lax.broadcasted_iota(np.int32, array.shape, d)
            within = positions < self.size(dim)
            inside = within if inside is None else inside & within
        return jnp.where(inside, array, jnp.asarray(fill, array.dtype))

    def filled(self, value: Padded, fill: Any, dims: Iterable[int] | None = None) -> Array:
        """The array with `fill` in the padding of some dimensions (default: all)."""
        chosen = range(len(value.shape)) if dims is None else dims
        return self.masked(value.array, {d: value.shape[d] for d in chosen if is_symbolic(value.shape[d])}, fill)

    def zeroed(self, value: Padded, dims: Iterable[int] | None = None) -> Array:
        """The array with zeros in the padding of some dimensions (default: all); cached for later uses."""
        chosen = set(range(len(value.shape)) if dims is None else dims)
        todo = {d for d in chosen - value.zero if is_symbolic(value.shape[d])}
        value.array = self.filled(value, 0, sorted(todo))
        value.zero |= todo
        return value.array

    def inner(self) -> Frame:
        """A frame for a body."""
        return Frame(self.bounds, self._symbols)

    def call(self, closed: ClosedJaxpr, arguments: Sequence[Any]) -> list[Array]:
        """Runs the body of a loop or branch on arrays, in a frame of its own."""
        return [value.array for value in self.inner().run(closed.jaxpr, closed.consts, arguments)]

    def run(self, jaxpr: Jaxpr, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Padded]:
        """Runs a jaxpr on arrays or padded values."""
        values: dict[Any, Padded] = {}

        def read(variable: Any) -> Padded:
            if not isinstance(variable, Literal):
                value = values[variable]
                if isinstance(value.array, NoRule):
                    raise value.array
                return value
            aval: Any = variable.aval
            return Padded((jnp if aval.shape else np).asarray(variable.val, aval.dtype), aval.shape)

        def write(variable: Any, result: Any) -> None:
            if not isinstance(result, Padded):
                result = Padded(result, getattr(variable.aval, "shape", ()))
            values[variable] = result

        for variable, argument in zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True):
            write(variable, argument)
        for equation in jaxpr.eqns:
            operands = [read(variable) for variable in equation.invars]
            with equation.ctx.manager:
                results = self._apply(equation, operands)
            if not isinstance(results, (list, tuple)):
                results = [results]
            for variable, result in zip(equation.outvars, results, strict=True):
                write(variable, result)
        return [read(variable) for variable in jaxpr.outvars]

    def _apply(self, equation: Any, operands: list[Padded]) -> Any:
        primitive = equation.primitive
        if not equation_touches_symbols(equation):
            return primitive.bind(*(o.array for o in operands), **primitive.get_bind_params(equation.params))
        if primitive.name not in RULES:
            raise NoRule(primitive.name, f"symbolic dimensions of {_signature(equation)}")
        rule = RULES[primitive.name]
        if rule.__module__ == CONTROL:
            return rule(self, equation, operands)
        with jax.disable_jit():  # jnp's functions are jitted, and tracing each separately is slow
            return rule(self, equation, operands)


def no_rule(equation: Any, why: str) -> NoRule:
    """The error for an equation that a rule does not cover."""
    return NoRule(equation.primitive.name, f"{why}, {_signature(equation)}")


def _signature(equation: Any) -> str:
    operands = ", ".join(str(v.aval) for v in equation.invars)
    return f"{operands} -> {', '.join(str(v.aval) for v in equation.outvars)}"


def bind(equation: Any, *operands: Array, **changed: Any) -> Any:
    """Binds the primitive of an equation with some parameters changed."""
    return equation.primitive.bind(*operands, **{**equation.params, **changed})


def result_shape(equation: Any) -> tuple[Dim, ...]:
    """The true shape of the first result."""
    shape: tuple[Dim, ...] = equation.outvars[0].aval.shape
    return shape


def resized(array: Array, dim: int, size: int) -> Array:
    """`array` cut or filled with zeros at the end of a dimension."""
    if array.shape[dim] == size:
        return array
    return placed(array, dim, 0, (0, 0), size, 0)


def placed(
    array: Array, dim: int, low: Any, low_range: tuple[int, int], length: int, fill: Any, interior: int = 0
) -> Array:
    """`array` moved along a dimension so that it starts at `low` (if negative, its start is cut), `length` long.

    `low` may be traced; then `low_range` gives its bounds.
    """
    extent = max(array.shape[dim] * (interior + 1) - interior, 0)
    none = [(0, 0, 0)] * array.ndim
    fill = jnp.asarray(fill, array.dtype)
    if isinstance(low, (int, np.integer)):
        config = (int(low), length - int(low) - extent, interior)
        return lax.pad(array, fill, [*none[:dim], config, *none[dim + 1 :]])
    lead = max(low_range[1], 0)
    total = lead - low_range[0] + length
    roomy = lax.pad(array, fill, [*none[:dim], (lead, total - lead - extent, interior), *none[dim + 1 :]])
    return lax.dynamic_slice_in_dim(roomy, lead - low, length, dim)


def cut(frame: Frame, array: Array, d: int, start: Dim, length: int) -> Array:
    """`length` positions of an array from a start that may be symbolic."""
    lowest, highest = frame.bounds.range(start)
    size = frame.size(start)
    return placed(array, d, -size, (-highest, -lowest), length, 0)


def largest(dtype: Any) -> Any:
    """The largest number of a type."""
    if dtype == np.bool_:
        return True
    return np.inf if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).max


def smallest(dtype: Any) -> Any:
    """The smallest number of a type."""
    if dtype == np.bool_:
        return False
    return -np.inf if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).min
