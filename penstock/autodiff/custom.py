"""custom_gradient: functions that define their own derivative."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from penstock.graph import dtype as dtypes
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.operation import Operation, Tensor
from penstock.ops.array import passthrough

_custom_gradients = itertools.count()


def custom_gradient(f: Callable[..., Any] | None = None) -> Any:
    """Decorator for a function that returns (y, grad_fn): `grad_fn(*dys)` replaces its derivative.

    A function that uses resource variables has a grad_fn with an argument `variables`, which returns
    (gradients of the inputs, gradients of the variables).

    >>> @tf.custom_gradient
    ... def clip_gradient(x):
    ...     return x, lambda dy: tf.clip_by_value(dy, -1.0, 1.0)
    """
    if f is None:
        return custom_gradient
    function = f

    @functools.wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise ValueError(f"custom_gradient: a graph takes no keyword arguments here, received {sorted(kwargs)}.")
        graph = get_default_graph()
        inputs = [convert_to_tensor(a) for a in args]
        before = graph.version
        result, grad_fn = function(*inputs)
        variables = _variables_used(graph, before, {t for t in inputs})
        takes_variables = "variables" in inspect.signature(grad_fn).parameters
        if variables and not takes_variables:
            raise TypeError(
                "custom_gradient: the function uses variables, so its grad_fn must accept the keyword argument "
                f"'variables'; they are {[v.name for v in variables]}."
            )
        results = _as_grads(result)

        def gradient(op: Operation, *dys: Any) -> list[Any]:
            extra = {"variables": variables} if variables else {}
            grads = grad_fn(*dys[: len(results)], **extra)
            grads, variable_grads = grads if variables else (grads, [])
            flat = [*_as_grads(grads), *_as_grads(variable_grads)]
            if len(flat) != len(inputs) + len(variables):
                raise ValueError(
                    f"custom_gradient: grad_fn must return {len(inputs) + len(variables)} gradients, it returned "
                    f"{len(flat)}."
                )
            return [None] * len(results) + flat

        key = f"CustomGradient-{next(_custom_gradients)}"
        graph.gradient_functions[key] = gradient
        with graph.gradient_override_map({"IdentityN": key}):
            outputs = passthrough.identity_n([*results, *inputs, *variables])
        outputs = list(outputs)[: len(results)]
        return type(result)(outputs) if isinstance(result, (list, tuple)) else outputs[0]

    return decorated


def grad_pass_through(f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` with the derivative of the identity: `tf.grad_pass_through(tf.round)(x)`."""

    @functools.wraps(f)
    def passing(*args: Any, **kwargs: Any) -> Any:
        @custom_gradient
        def replaced(*inputs: Any) -> Any:
            def gradient(*dys: Any, variables: Any = None) -> Any:
                grads = dys[0] if len(dys) == 1 else dys
                return (grads, [None] * len(variables)) if variables is not None else grads

            return passthrough.identity(f(*inputs, **kwargs)), gradient

        return replaced(*args)

    return passing


def _as_grads(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _variables_used(graph: Graph, since: int, inputs: set[Tensor]) -> list[Any]:
    """The resource variables that ops made since `since` use."""
    handles = {
        tensor: None
        for op in graph.get_operations()[since:]
        for tensor in op.input_list
        if tensor.dtype.base_dtype is dtypes.resource and tensor.op.type == "VarHandleOp" and tensor not in inputs
    }
    if not handles:
        return []
    known = {v.handle: v for v in _all_variables(graph)}
    return [known[h] for h in handles if h in known]


def _all_variables(graph: Graph) -> Iterator[Any]:
    for key in ("variables", "local_variables"):
        for variable in graph.get_collection(key):
            if isinstance(getattr(variable, "handle", None), Tensor):
                yield variable
