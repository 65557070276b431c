"""Options of XLA's compiler: programs round as TensorFlow does."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import penstock.v1 as tf
from penstock.segments.compiler_options import compiler_options

NARROW = pytest.mark.parametrize("narrow", [tf.bfloat16, tf.float16], ids=["bfloat16", "float16"])
WIDE = pytest.mark.parametrize("wide", [np.float32, np.float64])
VALUES = [0.1, 1 / 3, -2.7, 1e-6, 60000.1, 0.0, np.inf]  # 1e-6 is subnormal in float16


@NARROW
@WIDE
@pytest.mark.parametrize("tier", ["exact", ""])
def test_a_cast_down_and_back_rounds(narrow: Any, wide: Any, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both casts are in one segment. On a GPU XLA would leave out the pair."""
    monkeypatch.setenv("PENSTOCK_TIER", tier)
    with tf.Graph().as_default(), tf.Session() as session:
        fed = tf.placeholder(wide, [None])
        back = tf.cast(tf.cast(fed, narrow), wide)
        for count in (1, 3, len(VALUES)):  # other shapes, for which the segment may be padded
            values = np.array(VALUES[-count:], wide)
            rounded = values.astype(narrow.as_numpy_dtype).astype(wide)
            np.testing.assert_array_equal(session.run(back, {fed: values}), rounded)


@NARROW
@WIDE
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_xla_takes_the_options(platform: str, narrow: Any, wide: Any) -> None:
    """Those for a GPU are tried on jax's default device, which is the CPU if there is no GPU."""
    cast = jax.jit(lambda x: x.astype(narrow.as_numpy_dtype).astype(wide), compiler_options=compiler_options(platform))
    values = np.array(VALUES, wide)
    with jax.default_device(jax.devices("cpu" if platform == "cpu" else None)[0]):
        np.testing.assert_array_equal(cast(values), values.astype(narrow.as_numpy_dtype).astype(wide))


def test_programs_of_a_gpu_may_not_keep_excess_precision() -> None:
    assert compiler_options("gpu")["xla_allow_excess_precision"] is False
