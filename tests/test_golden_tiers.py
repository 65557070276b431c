"""Golden op cases with every size unknown: segments in NumPy, padded, and compiled for their shape agree.

Each case runs with its recorded inputs, and with these repeated two and three times along their first axis, which is
another size for all ops and an error for some. `make tiers` runs all cases; without it every thirtieth does.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from golden_ops import CASES, Built

import penstock.v1 as tf

EVERY = int(os.environ.get("GOLDEN_TIERS_EVERY", "30"))
TIMES = (1, 2, 3, 2)
OF_SUBNORMALS = {"math/math_log_3"}  # XLA treats them as 0, as TensorFlow does; NumPy does not


def _results(case: dict[str, Any]) -> list[Any]:
    """The outputs and gradients for each size, or the kind of error."""
    found: list[Any] = []
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(7)
        try:
            built = Built(case, "all_unknown")
        except ValueError as error:
            pytest.skip(f"needs a size: {error}")
        floats = [t for t in built.outputs.values() if isinstance(t, tf.Tensor) and t.dtype.is_floating]
        inputs = [t for t in built.feeds if t.dtype.is_floating]
        try:
            gradients = tf.gradients([_weighed(y) for y in floats], inputs) if floats and inputs else []
        except (LookupError, ValueError, TypeError, NotImplementedError):  # it has none
            gradients = []
        fetches = [*built.outputs.values(), *(g for g in gradients if g is not None)]
        for times in TIMES:
            feeds = {t: np.concatenate([v] * times) if v.ndim else v for t, v in built.feeds.items()}
            try:
                found.append(session.run(fetches, feeds))
            except tf.errors.OpError as error:
                found.append(type(error))
    return found


def _weighed(y: Any) -> Any:
    """A sum with different weights: the gradient of a plain one may be only noise, as that of a softmax."""
    return tf.reduce_sum(tf.reshape(y, [-1]) * tf.cast(tf.cos(tf.cast(tf.range(tf.size(y)), tf.float64)), y.dtype))


def _flat(value: Any) -> list[np.ndarray]:
    if isinstance(value, tuple):  # sparse tensors and slices
        return [np.asarray(part) for part in value if part is not None]
    return [np.asarray(value)]


def _assert_same(ours: np.ndarray, exact: np.ndarray) -> None:
    assert (ours.shape, ours.dtype) == (exact.shape, exact.dtype)
    if exact.dtype.kind in "biuOS":
        np.testing.assert_array_equal(ours, exact)
        return
    short = exact.dtype.itemsize == 2
    if short:
        ours, exact = ours.astype(np.float32), exact.astype(np.float32)
    finite = np.abs(exact[np.isfinite(exact)])
    tolerance = 2e-2 if short else 1e-5 if exact.dtype.itemsize <= 8 and exact.dtype != np.float64 else 1e-11
    smallest = float(np.finfo(exact.real.dtype).tiny)  # XLA treats smaller numbers as 0
    allowed = max(smallest, tolerance * float(finite.max(initial=0)))
    np.testing.assert_allclose(ours, exact, rtol=tolerance, atol=allowed)


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize("name", sorted(set(CASES) - OF_SUBNORMALS)[::EVERY])
def test_tiers_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = {}
    for tier in ("exact", "interpreted", "padded"):
        monkeypatch.setenv("PENSTOCK_TIER", tier)
        results[tier] = _results(CASES[name])
    for tier in ("interpreted", "padded"):
        for times, ours, exact in zip(TIMES, results[tier], results["exact"], strict=True):
            if isinstance(exact, type) or isinstance(ours, type):
                assert ours is exact, f"{tier}, {times} times"
                continue
            for one, other in zip(ours, exact, strict=True):
                for part, wanted in zip(_flat(one), _flat(other), strict=True):
                    _assert_same(part, wanted)
