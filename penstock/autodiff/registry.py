"""The gradient functions of op types: those that users register, and those of op declarations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.graph.opdef import registered
from penstock.graph.operation import Operation
from penstock.ops.engine.vjp import differentiable, vjp_gradient
from penstock.ops.math import elementwise_gradients  # noqa: F401  declares gradients of ops below it

GradientFunction = Callable[..., Any]

# Gradients by op type, as users register them; None if the type has no gradient.
_REGISTERED: dict[str, GradientFunction | None] = {}


class RegisterGradient:
    """Decorator: makes a function the gradient of an op type, or of a name for `gradient_override_map`.

    >>> @tf.RegisterGradient("Straight")
    ... def _straight(op, grad):
    ...     return grad
    """

    def __init__(self, op_type: str) -> None:
        if not isinstance(op_type, str):
            raise TypeError(f"op_type must be a string, received {op_type!r}.")
        self._op_type = op_type

    def __call__(self, f: GradientFunction) -> GradientFunction:
        _register(self._op_type, f)
        return f


def NotDifferentiable(op_type: str) -> None:
    """Declares that ops of this type have no gradient, so that `gradients` gives None through them."""
    if not isinstance(op_type, str):
        raise TypeError(f"op_type must be a string, received {op_type!r}.")
    _register(op_type, None)


NoGradient = NotDifferentiable


def _register(op_type: str, function: GradientFunction | None) -> None:
    if op_type in _REGISTERED:
        raise KeyError(f"A gradient for '{op_type}' is registered already.")
    _REGISTERED[op_type] = function


def get_gradient_function(op: Operation) -> GradientFunction | None:
    """The gradient function of a node, None if it is declared to have none; LookupError if nothing is declared.

    >>> tf.get_gradient_function(y.op)(y.op, dy)
    """
    if not op.input_list:
        return None
    override = op.attrs.get("_gradient_op_type")
    name = op.type if override is None else override.decode() if isinstance(override, bytes) else str(override)
    if name in op.graph.gradient_functions:
        return op.graph.gradient_functions[name]
    if name in _REGISTERED:
        return _REGISTERED[name]
    op_def = op.op_def if override is None else registered(name)
    if op_def is not None:
        if op_def.grad is not None:
            return op_def.grad
        if op_def.no_gradient or op_def.random or op_def.writes:
            return None
        if not any(differentiable(t.dtype) for t in op.input_list):
            return None
        if not op_def.host and not op_def.control_flow and op_def is op.op_def:
            return vjp_gradient
    raise LookupError(
        f"'{op.name}' has no gradient: none is known for '{name}'. Register one with `@tf.RegisterGradient`, "
        "or put `tf.stop_gradient` before it."
    )
