"""Decays of the sign in AddSign and PowerSign: functions of the global step (arXiv:1709.07417)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import zeros_like
from penstock.ops.array.selection import where
from penstock.ops.math.arithmetic import floormod, maximum, minimum
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import greater_equal
from penstock.ops.math.unary import cos

SignDecay = Callable[[Any], Any]


def get_linear_decay_fn(decay_steps: int) -> SignDecay:
    """A function of the step that falls from 1 to 0 in `decay_steps` steps, and stays there.

    >>> decay = tf.contrib.opt.get_linear_decay_fn(1000)
    >>> rule = tf.contrib.opt.PowerSignOptimizer(0.1, sign_decay_fn=decay)
    """
    _require_steps(decay_steps)

    def linear_decay(global_step: TensorLike) -> Any:
        return maximum(0.0, 1.0 - _done(global_step, decay_steps, "linear_decay"))

    return linear_decay


def get_cosine_decay_fn(decay_steps: int, num_periods: float = 0.5, zero_after: float | None = None) -> SignDecay:
    """A function of the step: `num_periods` periods of a cosine between 1 and 0 in `decay_steps` steps.

    After `zero_after` periods it is 0.

    >>> decay = tf.contrib.opt.get_cosine_decay_fn(1000, num_periods=2)
    """
    _require_steps(decay_steps)

    def cosine_decay(global_step: TensorLike) -> Any:
        periods = num_periods * _done(global_step, decay_steps, "cosine_decay")
        return _zero_after(zero_after, periods, _cosine(2.0 * periods))

    return cosine_decay


def get_restart_decay_fn(decay_steps: int, num_periods: float = 1, zero_after: float | None = None) -> SignDecay:
    """A function of the step: `num_periods` falls from 1 to 0 along half a cosine, each followed by a jump to 1.

    The last fall also ends with a jump: from `decay_steps` on the value is 1. With `zero_after=num_periods` it is 0.

    >>> decay = tf.contrib.opt.get_restart_decay_fn(1000, num_periods=4, zero_after=4)
    """
    _require_steps(decay_steps)

    def restart_decay(global_step: TensorLike) -> Any:
        step: Any = cast(_capped(global_step, decay_steps, "restart_decay"), dt.float32)
        scaled = num_periods * step
        into_fall: Any = floormod(scaled, float(decay_steps))
        return _zero_after(zero_after, scaled / float(decay_steps), _cosine(into_fall / float(decay_steps)))

    return restart_decay


def _require_steps(decay_steps: int) -> None:
    if decay_steps <= 0:
        raise ValueError(f"decay_steps must be positive, received {decay_steps}.")


def _capped(global_step: Any, decay_steps: int, what: str) -> Any:
    if global_step is None:
        raise ValueError(f"global_step is required for {what}: pass it to minimize() or apply_gradients().")
    step = convert_to_tensor(global_step)
    return minimum(step, convert_to_tensor(decay_steps, dtype=step.dtype.base_dtype))


def _done(global_step: Any, decay_steps: int, what: str) -> Any:
    """The share of the decay that is over, from 0 to 1."""
    step: Any = cast(_capped(global_step, decay_steps, what), dt.float32)
    return step / float(decay_steps)


def _cosine(half_periods: Any) -> Any:
    turned: Any = cos(math.pi * half_periods)
    return 0.5 * (1.0 + turned)


def _zero_after(limit: float | None, periods: Any, value: Any) -> Any:
    return value if limit is None else where(greater_equal(periods, float(limit)), zeros_like(value), value)
