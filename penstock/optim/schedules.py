"""Learning-rate schedules: functions of the global step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import constant
from penstock.ops.array.selection import where
from penstock.ops.math.arithmetic import minimum, multiply, pow, subtract
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import equal, less_equal
from penstock.ops.math.unary import ceil, cos, exp, floor, log, sqrt
from penstock.ops.random.stateful import random_normal


def _inputs(schedule: str, learning_rate: Any, global_step: Any, *settings: Any) -> tuple[Any, ...]:
    """All arguments as tensors of the learning rate's type."""
    if global_step is None:
        raise ValueError(f"global_step is required for {schedule}.")
    rate: Any = convert_to_tensor(learning_rate, name="learning_rate")
    return rate, cast(global_step, rate.dtype), *(cast(setting, rate.dtype) for setting in settings)


def exponential_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate * decay_rate ** (global_step / decay_steps)`; with `staircase` the exponent is a whole number.

    >>> rate = tf.train.exponential_decay(0.1, step, 1000, 0.96, staircase=True)
    """
    with name_scope(name, "ExponentialDecay") as scope:
        rate, step, steps, decay = _inputs("exponential_decay", learning_rate, global_step, decay_steps, decay_rate)
        periods = step / steps
        return multiply(rate, pow(decay, floor(periods) if staircase else periods), name=scope)


def natural_exp_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate * exp(-decay_rate * global_step / decay_steps)`.

    >>> rate = tf.train.natural_exp_decay(0.1, step, 5, 0.5)
    """
    with name_scope(name, "NaturalExpDecay") as scope:
        rate, step, steps, decay = _inputs("natural_exp_decay", learning_rate, global_step, decay_steps, decay_rate)
        periods = step / steps
        return multiply(rate, exp(-decay * (floor(periods) if staircase else periods)), name=scope)


def inverse_time_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    decay_rate: TensorLike,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate / (1 + decay_rate * global_step / decay_steps)`.

    >>> rate = tf.train.inverse_time_decay(0.1, step, 1.0, 0.5)
    """
    with name_scope(name, "InverseTimeDecay") as scope:
        rate, step, steps, decay = _inputs("inverse_time_decay", learning_rate, global_step, decay_steps, decay_rate)
        periods = step / steps
        return multiply(rate, 1 / (1 + decay * (floor(periods) if staircase else periods)), name=scope)


def polynomial_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    end_learning_rate: TensorLike = 0.0001,
    power: TensorLike = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> Tensor:
    """From `learning_rate` to `end_learning_rate` in `decay_steps`; `cycle` starts again with ever longer periods.

    >>> rate = tf.train.polynomial_decay(0.1, step, 10000, 0.01, power=0.5)
    """
    with name_scope(name, "PolynomialDecay"):
        rate, step, steps, end, power = _inputs(
            "polynomial_decay", learning_rate, global_step, decay_steps, end_learning_rate, power
        )
        if cycle:
            steps = steps * where(equal(step, 0), constant(1.0, rate.dtype), ceil(step / steps))
        else:
            step = minimum(step, steps)
        decayed: Tensor = (rate - end) * pow(1 - step / steps, power) + end
        return decayed


def piecewise_constant(
    x: TensorLike, boundaries: Sequence[Any], values: Sequence[Any], name: str | None = None
) -> Tensor:
    """The first of `values` up to the first boundary, the second up to the second, and so on.

    >>> rate = tf.train.piecewise_constant(step, [1000, 2000], [0.1, 0.01, 0.001])
    """
    if len(boundaries) != len(values) - 1:
        raise ValueError(
            f"The length of boundaries should be 1 less than the length of values: received {len(boundaries)} and "
            f"{len(values)}."
        )
    with name_scope(name, "PiecewiseConstant"):
        x = convert_to_tensor(x)
        limits = [_comparable(b, x) for b in boundaries]
        rates: list[Any] = [convert_to_tensor(v) for v in values]
        if any(rate.dtype.base_dtype != rates[0].dtype.base_dtype for rate in rates):
            raise ValueError(f"values must have elements of one type: {[r.dtype.name for r in rates]}.")
        result: Tensor = rates[-1]
        for limit, rate in zip(reversed(limits), reversed(rates[:-1]), strict=True):
            result = where(less_equal(x, limit), rate, result)
        return result


def _comparable(boundary: Any, x: Tensor) -> Any:
    """A boundary in the type of `x`. As in TensorFlow, an int32 boundary may be compared with an int64 step."""
    limit = convert_to_tensor(boundary)
    if limit.dtype.base_dtype == x.dtype.base_dtype:
        return limit
    if limit.dtype.name == "int32" and x.dtype.base_dtype.name == "int64":
        return cast(limit, x.dtype.base_dtype)
    raise ValueError(f"Boundaries ({limit.dtype.name}) must have the same dtype as x ({x.dtype.base_dtype.name}).")


def cosine_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    alpha: TensorLike = 0.0,
    name: str | None = None,
) -> Tensor:
    """Half a cosine from `learning_rate` to `alpha` of it (arXiv:1608.03983).

    >>> rate = tf.train.cosine_decay(0.1, step, 1000)
    """
    with name_scope(name, "CosineDecay"):
        rate, step, steps = _inputs("cosine_decay", learning_rate, global_step, decay_steps)
        done = minimum(step, steps) / steps
        return multiply(rate, (1 - alpha) * _half_cosine(done) + alpha)


def _half_cosine(done: Any) -> Any:
    return 0.5 * (1.0 + cos(constant(math.pi, done.dtype) * done))


def cosine_decay_restarts(
    learning_rate: TensorLike,
    global_step: TensorLike,
    first_decay_steps: TensorLike,
    t_mul: float = 2.0,
    m_mul: float = 1.0,
    alpha: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """Half cosines one after the other, each `t_mul` times as long and `m_mul` times as high as the one before.

    >>> rate = tf.train.cosine_decay_restarts(0.1, step, 1000)
    """
    with name_scope(name, "SGDRDecay"):
        rate, step, first, longer, lower, low = _inputs(
            "cosine_decay_restarts", learning_rate, global_step, first_decay_steps, t_mul, m_mul, alpha
        )
        done = step / first
        if t_mul == 1.0:
            restarts = floor(done)
            done = done - restarts
        else:
            restarts = floor(log(1.0 - done * (1.0 - longer)) / log(longer))
            before = (1.0 - pow(longer, restarts)) / (1.0 - longer)
            done = (done - before) / pow(longer, restarts)
        return multiply(rate, (1 - low) * pow(lower, restarts) * _half_cosine(done) + low)


def linear_cosine_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    num_periods: float = 0.5,
    alpha: float = 0.0,
    beta: float = 0.001,
    name: str | None = None,
) -> Tensor:
    """A line to zero times a cosine (arXiv:1709.07417).

    >>> rate = tf.train.linear_cosine_decay(0.1, step, 1000)
    """
    with name_scope(name, "LinearCosineDecay"):
        rate, step, steps, periods, alpha_t, beta_t = _inputs(
            "linear_cosine_decay", learning_rate, global_step, decay_steps, num_periods, alpha, beta
        )
        line, wave = _line_and_wave(step, steps, periods)
        return multiply(rate, (alpha_t + line) * wave + beta_t)


def noisy_linear_cosine_decay(
    learning_rate: TensorLike,
    global_step: TensorLike,
    decay_steps: TensorLike,
    initial_variance: float = 1.0,
    variance_decay: float = 0.55,
    num_periods: float = 0.5,
    alpha: float = 0.0,
    beta: float = 0.001,
    name: str | None = None,
) -> Tensor:
    """`linear_cosine_decay` with noise on the line that fades as `initial_variance / (1 + step) ** variance_decay`.

    >>> rate = tf.train.noisy_linear_cosine_decay(0.1, step, 1000)
    """
    with name_scope(name, "NoisyLinearCosineDecay"):
        rate, step, steps, variance, fading, periods, alpha_t, beta_t = _inputs(
            "noisy_linear_cosine_decay",
            learning_rate,
            global_step,
            decay_steps,
            initial_variance,
            variance_decay,
            num_periods,
            alpha,
            beta,
        )
        line, wave = _line_and_wave(step, steps, periods)
        noise: Any = random_normal(line.shape, dtype=rate.dtype) * sqrt(variance / pow(1.0 + step, fading))
        return multiply(rate, (alpha_t + line + noise) * wave + beta_t)


def _line_and_wave(step: Any, steps: Any, periods: Any) -> tuple[Any, Any]:
    done: Any = minimum(step, steps) / steps
    wave = 0.5 * (1.0 + cos(2.0 * math.pi * periods * done))
    return subtract(steps, minimum(step, steps)) / steps, wave
