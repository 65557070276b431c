"""Random graphs with sizes that change: all tiers agree on values, gradients and random draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from random_graphs import STEPS, WIDTH, Steps, few, graphs

import penstock.v1 as tf

SIZES = (5, 2, 17, 1)


def _results(steps: Steps) -> list[Any]:
    """Values and gradients of a graph of these steps for each size, or the type of the error."""
    found: list[Any] = []
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(5)
        x = tf.placeholder(tf.float32, [None, WIDTH])
        tensors = [x]
        for name, first, second in steps:
            tensors.append(STEPS[name](tensors[first % len(tensors)], tensors[second % len(tensors)]))
        gradient = tf.gradients(tf.reduce_sum(tensors[-1] ** 2), x)[0]
        fetches = [tensors[-1], *([] if gradient is None else [tf.convert_to_tensor(gradient)])]
        for size in SIZES:
            rows = np.random.RandomState(size).randn(size, WIDTH).astype(np.float32)
            try:
                found.append(session.run(fetches, {x: rows}))
            except tf.errors.OpError as error:
                found.append(type(error))
    return found


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@few(6)
@given(graphs(STEPS))
def test_all_tiers_agree(steps: Steps) -> None:
    results = {}
    for tier in ("exact", "interpreted", "padded", ""):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PENSTOCK_TIER", tier)
            results[tier] = _results(steps)
    for tier in ("interpreted", "padded", ""):
        for size, ours, exact in zip(SIZES, results[tier], results["exact"], strict=True):
            if isinstance(exact, type) or isinstance(ours, type):
                assert ours is exact, (tier, size)
                continue
            for one, other in zip(ours, exact, strict=True):
                scale = float(np.abs(other).max(initial=1))
                np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5 * scale, err_msg=f"{tier!r}, size {size}")
