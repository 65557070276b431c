"""custom_gradient: functions that define their own derivative."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from penstock.graph import dtype as dtypes
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.hooks import eager_hooks
from penstock.graph.operation import Tensor
from penstock.graph.recording import VariableWatcher
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
        graph = get_default_graph()
        if kwargs and not graph.is_eager:
            raise ValueError(f"custom_gradient: a graph takes no keyword arguments here, received {sorted(kwargs)}.")
        inputs = [convert_to_tensor(a) for a in nest.flatten(args)]
        before = graph.version
        with VariableWatcher() as watcher:
            result, grad_fn = function(*nest.pack_sequence_as(args, inputs), **kwargs)
        given = [*nest.flatten(args), *nest.flatten(kwargs)]
        variables = [v for v in watcher.variables if v.trainable and not any(v is x for x in given)]
        if not graph.is_eager:
            variables += [v for v in _variables_used(graph, before, set(inputs)) if not any(v is w for w in variables)]
        if variables and not _takes_variables(grad_fn):
            raise TypeError(
                "custom_gradient: the function uses variables, so its grad_fn must accept the keyword argument "
                f"'variables'; they are {[v.name for v in variables]}."
            )
        results = [convert_to_tensor(r) for r in nest.flatten(result)]

        def gradients(*dys: Any) -> list[Any]:
            grads, variable_grads = grad_fn(*dys, variables=variables) if variables else (grad_fn(*dys), [])
            flat = [*nest.flatten(grads), *nest.flatten(variable_grads)]
            if len(flat) != len(inputs) + len(variables):
                raise ValueError(
                    f"custom_gradient: grad_fn must return {len(inputs) + len(variables)} gradients, it returned "
                    f"{len(flat)}."
                )
            return flat

        sources = [*inputs, *variables]
        if graph.is_eager:
            outputs = eager_hooks.with_gradient(graph, [convert_to_tensor(x) for x in sources], results, gradients)
        else:
            outputs = _with_gradient(graph, sources, results, gradients)
        return nest.pack_sequence_as(result, outputs) if nest.is_nested(result) else outputs[0]

    return decorated


def _with_gradient(graph: Graph, inputs: list[Any], results: list[Tensor], gradients: Callable[..., Any]) -> list[Any]:
    """The results of a function of `inputs` as the results of a node whose gradient is the given function."""
    count = len(results)
    key = f"CustomGradient-{next(_custom_gradients)}"
    graph.gradient_functions[key] = lambda op, *dys: [None] * count + gradients(*dys[:count])
    with graph.gradient_override_map({"IdentityN": key}):
        return list(passthrough.identity_n([*results, *inputs]))[:count]


def _takes_variables(grad_fn: Callable[..., Any]) -> bool:
    parameters = inspect.signature(grad_fn).parameters
    return "variables" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


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
