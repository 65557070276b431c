"""Initializers of contrib.layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.dtype import as_dtype
from penstock.graph.typing import DTypeLike
from penstock.ops.random.stateful import random_uniform, truncated_normal

Initializer = Callable[..., Any]


def variance_scaling_initializer(
    factor: float = 2.0,
    mode: str = "FAN_IN",
    uniform: bool = False,
    seed: int | None = None,
    dtype: DTypeLike = dt.float32,
) -> Initializer:
    """Random numbers of variance `factor` over the number of inputs (FAN_IN), outputs or the mean of both (FAN_AVG).

    >>> tf.contrib.layers.variance_scaling_initializer(factor=2.0, mode="FAN_IN")
    """
    if not as_dtype(dtype).is_floating:
        raise TypeError("Cannot create initializer for non-floating point type.")
    if mode not in ("FAN_IN", "FAN_OUT", "FAN_AVG"):
        raise TypeError(f"Unknown mode {mode} [FAN_IN, FAN_OUT, FAN_AVG]")

    def initializer(shape: Any, dtype: Any = dtype, partition_info: Any = None) -> Any:
        if not as_dtype(dtype).is_floating:
            raise TypeError("Cannot create initializer for non-floating point type.")
        whole = [int(d) for d in (shape if partition_info is None else partition_info.full_shape)]
        field = math.prod(whole[:-2])
        inputs = float((whole[-2] if len(whole) > 1 else whole[-1] if whole else 1) * field)
        outputs = float((whole[-1] if whole else 1) * field)
        count = {"FAN_IN": inputs, "FAN_OUT": outputs, "FAN_AVG": (inputs + outputs) / 2.0}[mode]
        if uniform:
            limit = math.sqrt(3.0 * factor / count)
            return random_uniform(shape, -limit, limit, dtype, seed=seed)
        # Cutting at two deviations reduces the variance; 1.3 compensates for it.
        return truncated_normal(shape, 0.0, math.sqrt(1.3 * factor / count), dtype, seed=seed)

    return initializer


def xavier_initializer(uniform: bool = True, seed: int | None = None, dtype: DTypeLike = dt.float32) -> Initializer:
    """Keeps the scale of gradients about the same in all layers (Glorot and Bengio).

    >>> tf.get_variable("w", [784, 10], initializer=tf.contrib.layers.xavier_initializer())
    """
    return variance_scaling_initializer(1.0, "FAN_AVG", uniform, seed, dtype)


xavier_initializer_conv2d = xavier_initializer
