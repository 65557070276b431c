"""Times single ops on large inputs: Session.run against the same jnp call under jax.jit, in milliseconds.

    python benchmarks/ops.py [NAME ...]

The inputs are variables in penstock and device arrays in jax. Both sides fetch the largest value of the result, so
neither pays for transfers. The two run in turns; a ratio above 1.2 is marked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import penstock.v1 as tf
from penstock.segments.compiler_options import compiler_options

ROUNDS, REPEATS, LIMIT = 6, 3, 1.2
Build = Callable[..., Any]


def conv(x: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def pooled(x: Any) -> Any:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


F = np.float32
ROWS, WIDTH = 200_000, 32

# Inputs (floats by shape, or row numbers below a limit), the call in penstock, the call in jax.
CASES: dict[str, tuple[list[Any], Build, Build]] = {
    "conv2d 3x3": ([(16, 28, 28, 64), (3, 3, 64, 64)], lambda x, k: tf.nn.conv2d(x, k, [1, 1, 1, 1], "SAME"), conv),
    "conv2d 5x5 of 3 maps": (
        [(32, 24, 24, 3), (5, 5, 3, 64)],
        lambda x, k: tf.nn.conv2d(x, k, [1, 1, 1, 1], "SAME"),
        conv,
    ),
    "depthwise 3x3": (
        [(4, 28, 28, 64), (3, 3, 64, 1)],
        lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "SAME"),
        lambda x, k: jax.lax.conv_general_dilated(
            x,
            k.reshape(3, 3, 1, 64),
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=64,
        ),
    ),
    "max_pool 2x2": ([(32, 56, 56, 64)], lambda x: tf.nn.max_pool(x, 2, 2, "VALID"), pooled),
    "matmul": ([(1024, 1024), (1024, 1024)], tf.matmul, jnp.matmul),
    **{
        f"gradient of {n} column{'s' * (n > 1)}": (
            [(1024, 1024), (1024, n)],
            lambda x, y: tf.matmul(x, y, transpose_a=True),
            lambda x, y: x.T @ y,
        )
        for n in (1, 10, 64)
    },
    "batch matmul": ([(64, 128, 128), (64, 128, 128)], tf.matmul, jnp.matmul),
    "sum of columns": ([(16384, 1024)], lambda x: tf.reduce_sum(x, 0), lambda x: jnp.sum(x, 0)),
    "sum of rows": ([(16384, 1024)], lambda x: tf.reduce_sum(x, 1), lambda x: jnp.sum(x, 1)),
    "mean of all": ([(16384, 1024)], tf.reduce_mean, jnp.mean),
    "argmax": ([(16384, 1024)], lambda x: tf.argmax(x, 1), lambda x: jnp.argmax(x, 1)),
    "softmax": ([(16384, 1024)], tf.nn.softmax, jax.nn.softmax),
    "gather": ([(ROWS, WIDTH), (ROWS, ROWS)], lambda x, i: tf.gather(x, i), lambda x, i: jnp.take(x, i, 0)),
    "unsorted_segment_sum": (
        [(ROWS, WIDTH), (ROWS, 1000)],
        lambda x, i: tf.unsorted_segment_sum(x, i, 1000),
        lambda x, i: jax.ops.segment_sum(x, i, 1000),
    ),
    "transpose": ([(4096, 4096)], tf.transpose, jnp.transpose),
    "cumsum": ([(2048, 1024)], lambda x: tf.cumsum(x, 1), lambda x: jnp.cumsum(x, 1)),
}


def inputs_of(shapes: list[Any]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    values: list[np.ndarray] = []
    for shape in shapes:
        if len(values) == 1 and len(shape) == 2 and values[0].shape == (ROWS, WIDTH):
            values.append(random.integers(0, shape[1], shape[0]).astype(np.int32))
        else:
            values.append(random.standard_normal(shape, dtype=F))
    return values


def compare(name: str) -> float:
    """The time of penstock divided by that of jax."""
    shapes, here, there = CASES[name]
    arrays = inputs_of(shapes)
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.Variable(a) for a in arrays]
        fetch = tf.reduce_max(here(*(v.value() for v in variables)))
        session.run(tf.global_variables_initializer())
        call = session.make_callable(fetch) if hasattr(session, "make_callable") else lambda: session.run(fetch)
        program = jax.jit(lambda *args: jnp.max(there(*args)), compiler_options=compiler_options("cpu"))
        placed = [jnp.asarray(a) for a in arrays]
        sides = {"here": lambda: call(), "there": lambda: np.asarray(program(*placed))}
        np.testing.assert_allclose(sides["here"](), sides["there"](), rtol=1e-3, atol=1e-3)
        best = dict.fromkeys(sides, float("inf"))
        for _ in range(ROUNDS):
            for side, run in sides.items():
                run()
                for _ in range(REPEATS):
                    start = time.perf_counter()
                    run()
                    best[side] = min(best[side], (time.perf_counter() - start) * 1e3)
    ratio = best["here"] / best["there"]
    mark = "   <-- slow" if ratio > LIMIT else ""
    print(f"{name:22} here {best['here']:8.2f}   jax {best['there']:8.2f}   ratio {ratio:5.2f}{mark}", flush=True)
    return ratio


def main(names: list[str]) -> None:
    for name in names or CASES:
        compare(name)


if __name__ == "__main__":
    main(sys.argv[1:])
