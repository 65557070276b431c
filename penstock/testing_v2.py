"""tf.test of TensorFlow 2: functions that differ from those of the 1.x API, and facts about the installation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock import testing
from penstock.eager.tape import GradientTape
from penstock.graph.convert import convert_to_tensor


def assert_equal_graph_def(expected: Any, actual: Any) -> None:
    """Raises AssertionError unless two GraphDefs have the same nodes, in any order."""
    testing.assert_equal_graph_def(actual, expected)


def compute_gradient(
    f: Callable[..., Any], x: Sequence[Any], delta: float | None = None
) -> tuple[list[Any], list[Any]]:
    """The Jacobians of `f(*x)` by each of `x`: by a tape, and by finite differences.

    >>> theoretical, numerical = tf.test.compute_gradient(tf.square, [tf.constant([1.0, 2.0])])
    """
    if not isinstance(x, (list, tuple)):
        raise ValueError(f"`x` must be a list or tuple of values, received {x!r:.80}.")
    points = [convert_to_tensor(value) for value in x]
    step = 1.0 / 1024 if delta is None else delta
    with GradientTape(persistent=True) as tape:
        tape.watch(points)
        target = convert_to_tensor(f(*points))
    size = target.shape.num_elements() or 0
    theoretical = [np.reshape(tape.jacobian(target, p), (size, -1)) for p in points]
    return theoretical, [_differences(f, points, i, step, size) for i in range(len(points))]


def _differences(f: Callable[..., Any], points: list[Any], which: int, step: float, size: int) -> np.ndarray:
    """The Jacobian by the input `which`, by differences to both sides."""
    point = np.array(points[which])
    columns = []
    for place in np.ndindex(point.shape):
        sides = []
        for sign in (1, -1):
            moved = point.copy()
            moved[place] += sign * step
            arguments = [*points[:which], convert_to_tensor(moved), *points[which + 1 :]]
            sides.append(np.asarray(convert_to_tensor(f(*arguments)), np.float64).reshape(size))
        columns.append((sides[0] - sides[1]) / (2 * step))
    return np.stack(columns, 1).astype(point.dtype) if columns else np.zeros((size, 0), point.dtype)


def is_built_with_gpu_support() -> bool:
    """Tells if GPUs can be used, which depends on the installed jax."""
    return testing.is_built_with_cuda()


def is_built_with_rocm() -> bool:
    """False: GPUs of AMD were not tried."""
    return False


def is_built_with_xla() -> bool:
    """True: everything is compiled by XLA."""
    return True
