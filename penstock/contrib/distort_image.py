"""tf.contrib.image: changes hue, saturation and value at once, in YIQ colours, which is cheaper than in HSV."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation
from penstock.ops.array.joining import stack
from penstock.ops.array.reshaping import reshape
from penstock.ops.array.reshaping import shape as shape_of
from penstock.ops.image.color import convert_image_dtype
from penstock.ops.linalg.matmul import matmul
from penstock.ops.math import unary
from penstock.ops.math.arithmetic import mul
from penstock.ops.random.stateful import random_uniform

_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]], np.float32)


def random_hsv_in_yiq(
    image: TensorLike,
    max_delta_hue: float = 0,
    lower_saturation: float = 1,
    upper_saturation: float = 1,
    lower_value: float = 1,
    upper_value: float = 1,
    seed: int | None = None,
) -> Tensor:
    """Rotates the hue of `image`, and scales saturation and value, by random amounts within these limits.

    >>> image = distort_image_ops.random_hsv_in_yiq(image, 0.2, 0.5, 1.5)
    """
    if max_delta_hue < 0:
        raise ValueError(f"max_delta_hue must not be negative, received {max_delta_hue}.")
    for what, lower, upper in (("saturation", lower_saturation, upper_saturation), ("value", lower_value, upper_value)):
        if lower < 0 or upper < lower:
            raise ValueError(f"0 <= lower_{what} <= upper_{what} must hold, received {lower} and {upper}.")

    def drawn(lower: float, upper: float) -> Any:
        return random_uniform([], lower, upper, seed=seed) if lower < upper else lower

    with name_scope(None, "random_hsv_in_yiq", [image]):
        return adjust_hsv_in_yiq(
            image,
            drawn(-max_delta_hue, max_delta_hue),
            drawn(lower_saturation, upper_saturation),
            drawn(lower_value, upper_value),
        )


def adjust_hsv_in_yiq(
    image: TensorLike,
    delta_hue: TensorLike = 0,
    scale_saturation: TensorLike = 1,
    scale_value: TensorLike = 1,
    name: str | None = None,
) -> Tensor:
    """Rotates the hue of `image` (RGB in its last dimension) by `delta_hue` radians and scales the others.

    Values are not clipped.
    """
    with name_scope(name, "adjust_hsv_in_yiq", [image]):
        original = convert_to_tensor(image, name="image")
        pixels = convert_image_dtype(original, dt.float32)
        amounts: list[Any] = [delta_hue, scale_saturation, scale_value]
        hue, saturation, value = (convert_to_tensor(each, dtype=dt.float32) for each in amounts)
        along, across = (mul(mul(value, saturation), turn(hue)) for turn in (unary.cos, unary.sin))
        zero = creation.zeros_like(value)
        # Hue and saturation are the angle and the length of (I, Q); value scales all three.
        change = reshape(stack([value, zero, zero, zero, along, unary.negative(across), zero, across, along]), [3, 3])
        to_yiq, to_rgb = (convert_to_tensor(each.astype(np.float32)) for each in (_YIQ, np.linalg.inv(_YIQ)))
        whole = matmul(to_rgb, matmul(change, to_yiq))
        changed = reshape(matmul(reshape(pixels, [-1, 3]), whole, transpose_b=True), shape_of(pixels))
        changed.set_shape(pixels.shape)
        return convert_image_dtype(changed, original.dtype)
