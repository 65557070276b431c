"""One compiled program for all sizes up to a bound.

A program that was traced with symbolic dimensions is interpreted on arrays that are padded to the bounds; the true
sizes are arguments of the compiled code. Masks keep the padding, even NaN, out of the true part of every result. They
are needed only if a primitive mixes positions along a padded dimension: a product of matrices needs none along the
batch, the gradient of its weights does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from penstock.jaxprs import (  # noqa: F401  importing the modules declares the rules
    padding_rules_arrange,
    padding_rules_control,
    padding_rules_elementwise,
    padding_rules_index,
    padding_rules_linear,
    padding_rules_random,
    padding_rules_reduce,
    padding_rules_reshape,
    padding_rules_window,
)
from penstock.jaxprs.dims import Bounds, Dim, evaluate
from penstock.jaxprs.padding_frame import Frame, resized

Program = Callable[[Mapping[str, Any], Sequence[Any]], list[Any]]


def padded(jaxpr: ClosedJaxpr, bounds: Mapping[str, int]) -> Program:
    """The program of `jaxpr` for all sizes from 1 to `bounds`, to be called under `jax.jit` with sizes and arguments.

    Each argument is padded to `padded_shape` of its shape. So is each result; its first `true_shape` entries are
    correct, the rest is arbitrary. Raises NoRule if a primitive that touches a symbolic dimension has no rule.

    >>> (b,) = jax.export.symbolic_shape("b")
    >>> mean = jax.jit(jnp.mean).trace(jax.ShapeDtypeStruct((b,), "float32")).jaxpr
    >>> jax.jit(padded(mean, {"b": 4}))({"b": 2}, [np.array([1, 3, np.nan, np.nan], np.float32)])
    [Array(2., dtype=float32)]
    """
    ranges = Bounds(bounds)
    names = sorted(bounds)
    shapes = [ranges.padded(aval.shape) for aval in jaxpr.in_avals]

    def interpret(sizes: Sequence[Any], *arguments: Any) -> list[Any]:
        frame = Frame(ranges, dict(zip(names, sizes, strict=True)))
        results = frame.run(jaxpr.jaxpr, jaxpr.consts, arguments)
        return [_in_shape(r.array, ranges.padded(a.shape)) for r, a in zip(results, jaxpr.out_avals, strict=True)]

    templates = [jax.ShapeDtypeStruct(s, a.dtype) for s, a in zip(shapes, jaxpr.in_avals, strict=True)]
    # Tracing here finds primitives without a rule early, and leaves a jaxpr of fixed shapes for each use.
    program = jaxpr_as_fun(jax.make_jaxpr(interpret)([jax.ShapeDtypeStruct((), np.int32)] * len(names), *templates))

    def run(sizes: Mapping[str, Any], arguments: Sequence[Any]) -> list[Any]:
        received = [np.shape(argument) for argument in arguments]
        if received != shapes:
            raise ValueError(f"arguments must be padded to the shapes {shapes}, received {received}")
        return list(program(*(jnp.asarray(sizes[name], np.int32) for name in names), *arguments))

    return run


def _in_shape(array: Any, shape: tuple[int, ...]) -> Any:
    for d, size in enumerate(shape):
        array = resized(array, d, size)
    return array


def padded_shape(shape: Sequence[Dim], bounds: Mapping[str, int]) -> tuple[int, ...]:
    """The shape that an argument or result of shape `shape` has in a padded program.

    >>> padded_shape((b + 1, 3), {"b": 4})
    (5, 3)
    """
    return Bounds(bounds).padded(shape)


def true_shape(shape: Sequence[Dim], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of the valid part of a padded result.

    >>> true_shape((b + 1, 3), {"b": 2})
    (3, 3)
    """
    return tuple(int(evaluate(dim, sizes)) for dim in shape)
