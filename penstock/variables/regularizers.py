"""Regularizers: functions from a variable to a penalty, which scopes add to REGULARIZATION_LOSSES."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.scopes import name_scope
from penstock.ops.math.arithmetic import add_n, multiply
from penstock.ops.math.reduce import reduce_sum
from penstock.ops.math.unary import abs
from penstock.ops.nn.cross_entropy import l2_loss

Regularizer = Callable[..., Any]


def _checked_scale(scale: Any, name: str) -> float:
    if isinstance(scale, numbers.Integral):
        raise ValueError(f"{name} cannot be an integer: {scale}")
    if isinstance(scale, numbers.Real) and scale < 0.0:
        raise ValueError(f"{name} must not be negative, received {scale}.")
    return float(scale)


def l1_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """`scale` times the sum of absolute values.

    >>> tf.get_variable("w", [3], regularizer=tf.contrib.layers.l1_regularizer(0.01))
    """
    factor = _checked_scale(scale, "scale")
    if factor == 0.0:
        return lambda weights, name=None: None

    def l1(weights: Any, name: str | None = None) -> Any:
        with name_scope(scope, "l1_regularizer", [weights]) as inner:
            by = convert_to_tensor(factor, dtype=weights.dtype.base_dtype, name="scale")
            return multiply(by, reduce_sum(abs(weights)), name=name or inner)

    return l1


def l2_regularizer(scale: float, scope: str | None = None) -> Regularizer:
    """`scale` times half the sum of squares.

    >>> tf.get_variable("w", [3], regularizer=tf.contrib.layers.l2_regularizer(0.01))
    """
    factor = _checked_scale(scale, "scale")
    if factor == 0.0:
        return lambda weights, name=None: None

    def l2(weights: Any, name: str | None = None) -> Any:
        with name_scope(scope, "l2_regularizer", [weights]) as inner:
            by = convert_to_tensor(factor, dtype=weights.dtype.base_dtype, name="scale")
            return multiply(by, l2_loss(weights), name=name or inner)

    return l2


def l1_l2_regularizer(scale_l1: float = 1.0, scale_l2: float = 1.0, scope: str | None = None) -> Regularizer:
    """The sum of both penalties."""
    _checked_scale(scale_l1, "scale_l1")
    _checked_scale(scale_l2, "scale_l2")
    chosen = scope or "l1_l2_regularizer"
    if scale_l1 == 0.0:
        return l2_regularizer(scale_l2, chosen)
    if scale_l2 == 0.0:
        return l1_regularizer(scale_l1, chosen)
    both: Regularizer = sum_regularizer([l1_regularizer(scale_l1), l2_regularizer(scale_l2)], scope=chosen)
    return both


def sum_regularizer(regularizer_list: Iterable[Regularizer | None], scope: str | None = None) -> Any:
    """The sum of several penalties; None if there is none."""
    regularizers = [r for r in regularizer_list if r is not None]
    if not regularizers:
        return None

    def total(weights: Any) -> Any:
        with name_scope(scope, "sum_regularizer", [weights]) as inner:
            penalties = [p for p in (r(weights) for r in regularizers) if p is not None]
            return add_n(penalties, name=inner) if penalties else None

    return total


def apply_regularization(regularizer: Regularizer, weights_list: Iterable[Any] | None = None) -> Any:
    """The sum of `regularizer` over `weights_list` (or the WEIGHTS collection), added to REGULARIZATION_LOSSES."""
    graph = get_default_graph()
    weights = list(weights_list) if weights_list else graph.get_collection(GraphKeys.WEIGHTS)
    if not weights:
        raise ValueError("No weights to regularize.")
    with name_scope("get_regularization_penalty", values=weights) as scope:
        penalties = [regularizer(w) for w in weights]
        penalties = [p if p is not None else convert_to_tensor(0.0) for p in penalties]
        for penalty in penalties:
            if penalty.shape.rank != 0:
                raise ValueError(f"The regularizer must give a scalar tensor, received {penalty}.")
        total = add_n(penalties, name=scope)
        graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, total)
        return total


def no_regularizer(_: Any) -> None:
    """A scope's regularizer that disables those of outer scopes."""
    return None
