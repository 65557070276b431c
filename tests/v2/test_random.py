"""Random numbers of eager execution and of functions are TensorFlow's, for the same seeds."""

from __future__ import annotations

from typing import Any

import pytest
from random_golden import check, rows

import penstock as tf
from penstock.eager.seeds import stream_name


@pytest.mark.parametrize("row", rows("eager.json"))
def test_programs(row: dict[str, Any]) -> None:
    with tf.device("/cpu:0"):  # the programs were run on a machine without a GPU: a device has generators of its own
        check(row, tf)


def test_calls_alike_share_a_generator() -> None:
    attrs = {"seed": 0, "seed2": 1, "dtype": tf.float32, "T": tf.int32}
    name = stream_name("RandomUniform", attrs, "/device:CPU:0")
    assert stream_name("RandomUniform", dict(reversed(attrs.items())), "/device:CPU:0") == name
    for other in ({"seed2": 2}, {"dtype": tf.float64}, {"T": tf.int64}):
        assert stream_name("RandomUniform", {**attrs, **other}, "/device:CPU:0") != name
    assert stream_name("RandomStandardNormal", attrs, "/device:CPU:0") != name
    assert stream_name("RandomUniform", attrs, "/device:GPU:0") != name
