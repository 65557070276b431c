"""Vjp: the gradient of any op whose kernel jax can differentiate, as one node."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from penstock.graph.build import output_types
from penstock.graph.checks import ignoring_checks
from penstock.graph.dtype import DType, variant
from penstock.graph.function import Call
from penstock.graph.opdef import OpDef, grouped, op, registered, static_positions
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel.types import Array


def differentiable(dtype: DType) -> bool:
    """True if values of this type have derivatives."""
    base = dtype.base_dtype
    return base.is_floating or base.is_complex or base is variant


def _forward_of(call: Call) -> OpDef:
    op_def = registered(call.op)
    if op_def is None:
        raise ValueError(f"Vjp: the forward op type '{call.op}' is not registered.")
    return op_def


def moving_inputs(op_def: OpDef, attrs: dict[str, Any], types: Any) -> list[int]:
    """Positions of the inputs that a node has gradients for: real or complex, and not static."""
    static = static_positions(op_def, attrs, len(types))
    return [i for i, dtype in enumerate(types) if i not in static and differentiable(dtype)]


def _static(attrs: dict[str, Any]) -> frozenset[int]:
    forward: Call = attrs["forward"]
    return static_positions(_forward_of(forward), forward.attrs, len(attrs["Tin"]))


def _shapes(node: Operation) -> list[TensorShape]:
    forward: Call = node.attrs["forward"]
    moving = moving_inputs(_forward_of(forward), forward.attrs, node.attrs["Tin"])
    if len(moving) != len(node.outputs):
        raise ValueError(f"{forward.op} has {len(moving)} differentiable inputs, but Tout {len(node.outputs)} types")
    return [node.input_list[i].shape for i in moving]


@op("Vjp", "list(Tin), list(Tdy) -> grads: list(Tout)", shape=_shapes, static_of=_static)
def vjp(inputs: list[Array], dys: list[Array], *, forward: Call, Tin: list[DType], ctx: Any) -> list[Array]:
    """Gradients of the differentiable inputs of `forward`, given those of its differentiable outputs.

    The forward computation is repeated here; within one compiled segment XLA merges it with the forward node's.
    """
    op_def = _forward_of(forward)
    moving = moving_inputs(op_def, forward.attrs, Tin)
    types = [t.base_dtype for t in output_types(op_def, forward.attrs)]
    wanted = [i for i, dtype in enumerate(types) if differentiable(dtype)]
    attrs = {k: v for k, v in forward.attrs.items() if k in op_def.wants}
    if "ctx" in op_def.wants:
        attrs["ctx"] = ctx

    def call(*arrays: Array) -> list[Array]:
        values = list(inputs)
        for i, array in zip(moving, arrays, strict=True):
            values[i] = array
        # The forward node makes the run-time checks.
        with ignoring_checks():
            result = op_def.kernel(*grouped(op_def, forward.attrs, values), **attrs)
        results = result if isinstance(result, (tuple, list)) else [result]
        return [_typed(results[i], types[i]) for i in wanted]

    outputs, pull = jax.vjp(call, *(_typed(inputs[i], Tin[i]) for i in moving))
    for i, (output, dy) in enumerate(zip(outputs, dys, strict=True)):
        if hasattr(output, "shape") and output.shape != dy.shape:
            raise ValueError(f"the gradient of output {i} of {forward.op} has shape {dy.shape}, must be {output.shape}")
    # TensorFlow's gradient of a complex tensor is the conjugate of jax's.
    cotangents = [_conjugate(_typed(dy, types[i])) for i, dy in zip(wanted, dys, strict=True)]
    return [_conjugate(g) for g in pull(cotangents)]


def _typed(value: Any, dtype: DType) -> Any:
    """A value that jax can differentiate: an array of that type, or an unchanged list of tensors."""
    return value if dtype is variant else jnp.asarray(value).astype(dtype.as_numpy_dtype)


def _conjugate(value: Any) -> Any:
    return jax.tree.map(jnp.conj, value)


def vjp_gradient(node: Operation, *dys: Any) -> list[Any]:
    """The default gradient of a node: one Vjp node, and None for inputs that have no derivative."""
    types = [t.dtype.base_dtype for t in node.input_list]
    moving = moving_inputs(node.op_def, node.attrs, types)
    wanted = [i for i, t in enumerate(node.outputs) if differentiable(t.dtype)]
    result: list[Any] = [None] * len(types)
    if not moving or not wanted:
        return result
    attrs = {k: v for k, v in node.attrs.items() if k in node.op_def.attrs}
    # A loop's second derivative must use the random numbers that the loop used.
    source = {"_forward": node.attrs["_forward"]} if "_forward" in node.attrs else {}
    grads = vjp(
        node.input_list,
        [dys[i] for i in wanted],
        forward=Call(node.type, attrs),
        Tin=types,
        Tdy=[node.outputs[i].dtype.base_dtype for i in wanted],
        Tout=[types[i] for i in moving],
        **source,
    )
    for i, grad in zip(moving, grads, strict=True):
        result[i] = grad
    return result
