"""py_function: a Python function that runs eagerly as a node of a graph, with a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.autodiff.walk import UnconnectedGradients
from penstock.eager.graph import the_graph
from penstock.eager.runtime import runtime
from penstock.eager.tape import GradientTape, stop_recording
from penstock.eager.tensor import EagerTensor
from penstock.errors import OpError
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.graph import get_default_graph
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.recording import recorders
from penstock.ops.control.python_function import as_op_error, call_back, callback_of, register_callback
from penstock.ops.engine.vjp import differentiable


class _EagerCallback:
    """Calls a function with tensors that have values, and remembers the last call for its gradient."""

    def __init__(self, function: Callable[..., Any], types: Sequence[DType]) -> None:
        self._function = function
        self._types = types
        self._last: tuple[list[Tensor], GradientTape, list[Tensor]] | None = None

    def __call__(self, *values: Any) -> list[np.ndarray]:
        with the_graph().as_default(), stop_recording():
            outputs = self._run([_tensor(value) for value in values])[2]
            return [t._array() for t in outputs]  # type: ignore[attr-defined]

    def _run(self, inputs: list[Tensor]) -> tuple[list[Tensor], GradientTape, list[Tensor]]:
        with GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([t for t in inputs if differentiable(t.dtype)])
            outputs = _outputs(self._function, inputs, self._types)
        self._last = inputs, tape, outputs
        return self._last

    def gradients(self, *tensors: Any) -> list[Any]:
        """The gradients of the inputs that have some, given those of the results and then the inputs."""
        given, inputs = tensors[: len(self._types)], list(tensors[len(self._types) :])
        last, self._last = self._last, None
        if recorders.items or last is None or not _same(last[0], inputs):
            last = self._run(inputs)
            self._last = None
        before, tape, outputs = last
        moving = [t for t in before if differentiable(t.dtype)]
        pairs = [(y, dy) for y, dy in zip(outputs, given, strict=True) if differentiable(y.dtype)]
        found: list[Any] = tape.gradient(
            [y for y, _ in pairs], moving, [dy for _, dy in pairs], unconnected_gradients=UnconnectedGradients.ZERO
        )
        return found


def _same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Tells if the tensors have the same values."""
    return all(np.array_equal(a._array(), b._array()) for a, b in zip(first, second, strict=True))


def _tensor(value: np.ndarray) -> EagerTensor:
    array = np.asarray(value)
    dtype = as_dtype("string") if array.dtype == object else as_dtype(array.dtype)
    return EagerTensor(the_graph(), array, dtype, runtime.default_device)


def _gradient(node: Operation, *dys: Any) -> list[Any]:
    callback: _EagerCallback = callback_of(node.attrs["token"])
    inputs = node.input_list
    types = [t.dtype.base_dtype for t in inputs if differentiable(t.dtype)]
    if not types:
        return [None] * len(inputs)
    # A result of a type without gradients passes as itself, to keep its place.
    given = [y if dy is None else dy for dy, y in zip(dys, node.outputs, strict=True)]
    backward = _EagerCallback(callback.gradients, types)
    found = iter(eager_py_func([*given, *inputs], token=register_callback(backward), Tout=types))
    return [next(found) if differentiable(t.dtype) else None for t in inputs]


@op("EagerPyFunc", "list(Tin) -> output: list(Tout)", host=True, stateful=True, grad=_gradient)
def eager_py_func(
    input: list[Any], *, token: str, Tin: list[DType], Tout: list[DType], is_async: bool = False
) -> list[Any]:
    return call_back(input, token, Tout)


def py_function(
    func: Callable[..., Any] | None = None, inp: Any = None, Tout: Any = None, name: str | None = None
) -> Any:
    """Calls `func` with tensors that have values, in graphs too. Gradients flow through it. It runs in this process.

    >>> tf.py_function(lambda x: x * x if x > 0 else -x, [x], tf.float32)
    """
    if not callable(func):
        raise ValueError(f"py_function: func must be callable, received {func!r}.")
    several = isinstance(Tout, (list, tuple))
    types = [as_dtype(t) for t in (Tout if several else [] if Tout is None else [Tout])]
    inputs = [convert_to_tensor(x) for x in inp or ()]
    if get_default_graph().is_eager:
        try:
            results: Any = _outputs(func, inputs, types)
        except OpError:
            raise
        except Exception as error:
            raise as_op_error(error) from error
    else:
        token = register_callback(_EagerCallback(func, types))
        results = eager_py_func(inputs, token=token, Tout=types, name=name)
    return results if several or not isinstance(results, list) else results[0] if results else None


def _outputs(function: Callable[..., Any], inputs: Sequence[Tensor], types: Sequence[DType]) -> list[Tensor]:
    result = function(*inputs)
    results = list(result) if isinstance(result, (list, tuple)) else [] if result is None else [result]
    return [convert_to_tensor(value, dtype=dtype) for value, dtype in zip(results, types, strict=False)]
