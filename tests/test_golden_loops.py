"""Loops and conditionals have the same values and gradients as in TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden_programs import check, difference, load, run_program, view

import penstock.v1 as tf

ROWS = {row["id"]: row for row in load("loops/loops.json")["cases"]}

# Cases with a limitation of TensorFlow: the result here, or None if another test checks it.
SECOND = "a second derivative, which TensorFlow refuses: test_second_derivatives"
BETTER: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(
        (
            "while_second_0",
            "while_second_1",
            "while_second_2",
            "while_second_3",
            "nested2_second",
            "while_hessian",
            "map_fn_second",
            "scan_second",
            "while_grad_norm_penalty",
            "cond_in_while_second",
            "map_fn_second_capture_nested",
            "ta_second_derivative",
        ),
        (SECOND, None),
    ),
    "map_fn_empty": ("the gradient of no elements has no elements", [None, None, 0.0]),
    "scan_empty": ("the gradient of no elements has no elements", [None, [None, None]]),
    "ta_write_twice": ("a TensorArray is a value: the second write counts", None),
    "ta_clear_after_read": ("a TensorArray is a value: it can be read twice", [None, [[1.0, 2.0], [1.0, 2.0]]]),
    "feed_captured_intermediate_while": (
        "TensorFlow replaces x * x by another node and then ignores what is fed for it",
        [
            [57.0, 5.0, 120.0, 26.0, 5.0],
            [321.0, 11.0, 348.0, 62.0, 11.0],
            [32.0, 0.0, 100.0, 21.0, 5.0],
            [5.0, 5.0, 24.0, 6.0, 1.0],
        ],
    ),
    "feed_captured_map_fn": ("the same", None),
    "feed_tensor_inside_cond": (
        "tensors inside a branch cannot be fed",
        [[False, False], *["InaccessibleTensorError"] * 2, "ValueError"],
    ),
    "map_fn_no_dtype": ("refused when the graph is built, not when it runs", ["TypeError", [[1, 2]]]),
    "while_dtype_change": ("refused when the graph is built, not when it runs", "TypeError"),
}


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize("name", [name for name in ROWS if name not in BETTER])
def test_as_tensorflow(name: str) -> None:
    check(ROWS[name], tf)


@pytest.mark.parametrize("name", [name for name, (why, _) in BETTER.items() if why != SECOND])
def test_better_than_tensorflow(name: str) -> None:
    with pytest.raises(AssertionError):
        check(ROWS[name], tf)
    wanted = BETTER[name][1]
    if wanted is not None:
        assert difference(view(run_program(ROWS[name], tf)), wanted) is None


@pytest.mark.parametrize("name", [name for name, (why, _) in BETTER.items() if why == SECOND])
def test_second_derivatives_are_given(name: str) -> None:
    assert run_program(ROWS[name], tf) is not None


def _repeated(step: Any, x: Any, times: int = 3) -> Any:
    return tf.while_loop(lambda i, _: i < times, lambda i, a: (i + 1, step(i, a)), (0, x))[1]


def _written(x: Any, w: Any) -> Any:
    array = tf.TensorArray(tf.float64, 3)
    _, _, array = tf.while_loop(
        lambda i, *_: i < 3, lambda i, a, t: (i + 1, tf.sin(a) * x, t.write(i, a * a * w)), (0, x, array)
    )
    return array.stack()


def _penalty(x: Any, w: Any) -> Any:
    return tf.norm(tf.gradients(_repeated(lambda _, a: tf.tanh(a * w), x), x)[0])


DIFFERENTIABLE_TWICE = {
    "square": lambda x, w: _repeated(lambda _, a: a * a, x),
    "captured": lambda x, w: _repeated(lambda _, a: tf.sin(a * w) + x, x),
    "until a limit": lambda x, w: tf.while_loop(lambda a: tf.reduce_sum(a) < 20.0, lambda a: [a * a * w + 1.0], [x])[0],
    "loop in a loop": lambda x, w: _repeated(lambda i, a: _repeated(lambda _, b: tf.sin(b * w) + a, a, i + 1), x),
    "cond in a loop": lambda x, w: _repeated(
        lambda i, a: tf.cond(tf.equal(i % 2, 0), lambda: a * a * w, lambda: tf.sin(a)), x
    ),
    "loop in cond": lambda x, w: tf.cond(
        tf.reduce_sum(w) > 0.0, lambda: _repeated(lambda _, a: a * a * w, x), lambda: x
    ),
    "map_fn": lambda x, w: tf.map_fn(lambda e: tf.sin(e * e) * tf.reduce_sum(w), x),
    "map_fn in map_fn": lambda x, w: tf.map_fn(lambda e: tf.map_fn(lambda f: tf.sin(e * f), w), x),
    "scan": lambda x, w: tf.scan(lambda a, e: tf.tanh(a * e) * tf.reduce_sum(w), x),
    "TensorArray": _written,
    "norm of a gradient": _penalty,
}


@pytest.mark.parametrize("name", DIFFERENTIABLE_TWICE)
def test_second_derivatives(name: str) -> None:
    """The gradient of the gradient agrees with differences of the gradient."""
    start = np.array([0.7, 1.1])
    x, w = tf.placeholder(tf.float64, [2]), tf.placeholder(tf.float64, [2])
    (first,) = tf.gradients(DIFFERENTIABLE_TWICE[name](x, w), x)
    weights = tf.constant([0.3, -0.8], tf.float64)
    total = tf.reduce_sum(first * weights)
    second = tf.gradients(total, [x, w], unconnected_gradients="zero")
    step = 1e-6
    with tf.Session() as session:
        feed = {x: start, w: np.array([0.9, 0.4])}
        exact = session.run(second, feed)
        for source, gradient in zip((x, w), exact, strict=True):
            for i in range(2):
                move = step * np.eye(2)[i]
                near = [session.run(total, {**feed, source: feed[source] + sign * move}) for sign in (1, -1)]
                np.testing.assert_allclose(gradient[i], (near[0] - near[1]) / (2 * step), rtol=1e-5, atol=1e-7)


def test_random_numbers_in_a_loop() -> None:
    """A random op in a body returns different numbers for each element, and the same ones in every session."""
    rows = [run_program(ROWS["map_fn_random_seeded"], tf)[0] for _ in range(2)]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert len(np.unique(rows[0])) == rows[0].size
    assert ((rows[0] >= 0) & (rows[0] < 1)).all()
