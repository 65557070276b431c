"""recompute_grad: a function whose intermediate results are computed again for its gradient, not kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from penstock.autodiff.custom import custom_gradient
from penstock.autodiff.walk import UnconnectedGradients
from penstock.eager.tape import GradientTape, stop_recording
from penstock.graph import nest
from penstock.graph.scopes import control_dependencies
from penstock.ops.array.passthrough import identity


def recompute_grad(f: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the gradient of `f` call `f` again, which takes time and saves memory.

    >>> block = tf.recompute_grad(lambda x: tf.sin(x) * x)
    """

    @functools.wraps(f)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        @custom_gradient
        def call(*inputs: Any) -> Any:
            with stop_recording():
                result = f(*inputs, **kwargs)

            def gradient(*dys: Any, variables: Any = None) -> Any:
                used = list(variables or ())
                again = [identity(x) for x in inputs]
                with GradientTape() as tape:
                    tape.watch([*again, *used])
                    # In a graph this keeps the compiler from using the first results instead.
                    with control_dependencies(dys):
                        found = f(*again, **kwargs)
                grads = tape.gradient(
                    nest.flatten(found), [*again, *used], list(dys), unconnected_gradients=UnconnectedGradients.ZERO
                )
                return (grads[: len(again)], grads[len(again) :]) if variables else grads

            return result, gradient

        return call(*args)

    return recomputed
