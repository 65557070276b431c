"""Ops of penstock on arrays of JAX: their kernels are functions of JAX, so that code which JAX traces may use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.eager.function_graph import FuncGraph
from penstock.graph import nest
from penstock.graph.checks import ignoring_checks
from penstock.graph.dtype import as_dtype
from penstock.graph.graph import get_default_graph
from penstock.graph.opdef import grouped
from penstock.graph.operation import Operation, Tensor


class NativeCode(TypeError):
    """Is raised where JAX traces code with ops that it cannot run: that code must be called on tensors."""


def on_arrays(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a function of penstock with arrays of JAX among its arguments, and returns arrays.

    >>> jax.jit(lambda x: on_arrays(tf.reduce_mean, (x,), {"axis": 1}))(jnp.ones([2, 3]))
    """
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda leaf: leaf is None)
    graph = FuncGraph("on_arrays", get_default_graph())
    arrays: list[Any] = []
    with graph.as_default():
        filled = []
        for leaf in leaves:
            if isinstance(leaf, jax.Array):
                arrays.append(leaf)
                dims = [d if isinstance(d, int) else None for d in leaf.shape]
                leaf = graph.add_input(as_dtype(np.dtype(leaf.dtype)), dims, "array")
            filled.append(leaf)
        own_args, own_kwargs = jax.tree.unflatten(tree, filled)
        results = function(*own_args, **own_kwargs)
        flat = [
            graph.capture(t) if isinstance(t, Tensor) and t.graph is not graph else t for t in nest.flatten(results)
        ]
    captured = [np.asarray(t) for t in graph.captured]
    values = _computed(graph, [*arrays, *captured])
    return nest.pack_sequence_as(results, [values[t] if isinstance(t, Tensor) else t for t in flat])


def _computed(graph: FuncGraph, inputs: Sequence[Any]) -> dict[Tensor, Any]:
    values: dict[Tensor, Any] = dict(zip(graph.inputs, inputs, strict=True))
    with ignoring_checks():
        for operation in graph.get_operations():
            if all(t in values for t in operation.outputs):
                continue
            try:
                found = _run(operation, [values[t] for t in operation.input_list])
            except Exception as error:  # kernels may raise any kind for arrays that JAX traces
                raise NativeCode(f"NativeCode: JAX cannot trace {operation.type} ({error}).") from error
            values.update(zip(operation.outputs, found, strict=True))
    return values


def _run(operation: Operation, inputs: list[Any]) -> list[Any]:
    op_def, attrs = operation.op_def, operation.attrs
    if op_def.name == "Const":
        return [np.asarray(attrs["value"])]
    if op_def.host or op_def.stateful or op_def.random or op_def.control_flow:
        raise TypeError(f"{op_def.name} has effects, or runs in Python")
    wanted = {k: v for k, v in attrs.items() if k in op_def.wants}
    result = op_def.kernel(*grouped(op_def, attrs, inputs), **wanted)
    results = result if isinstance(result, (tuple, list)) else [result]
    return [_typed(r, t) for r, t in zip(results, operation.outputs, strict=True)]


def _typed(value: Any, tensor: Tensor) -> Any:
    kind = tensor.dtype.base_dtype.as_numpy_dtype
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value, kind)
    return jnp.asarray(value).astype(kind)
