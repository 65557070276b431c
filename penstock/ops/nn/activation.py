"""Activations, and the gradient ops that TensorFlow has for them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import get_default_graph
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.ragged_tensor import tensor_or_ragged
from penstock.graph.scopes import control_dependencies, name_scope
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import FLOATS, REALS, Array
from penstock.ops.array import creation, joining, passthrough, selection
from penstock.ops.math import arithmetic, casting, compare, reduce, special, unary

_FLOATS32 = Types(*FLOATS, default=dt.float32)

_SELU_SCALE = 1.0507009873554805
_SELU_ALPHA = 1.6732632423543772


def _flat_second_order(op: Operation, dy: Any) -> list[Any]:
    """The second-order gradient of piecewise linear activations: `f''` is zero wherever it exists."""
    attrs: dict[str, Any] = {"alpha": op.attrs["alpha"]} if "alpha" in op.attrs else {}
    features = op.input_list[1]
    return [op.op_def(dy, features, **attrs), creation.zeros_like(features)]


def _curved_second_order(op: Operation, dy: Any) -> list[Any]:
    """The gradient of EluGrad and SeluGrad, which are linear in the outputs below zero."""
    first, outputs = op.input_list
    straight = op.op_def(dy, outputs)
    return [straight, selection.where(compare.less(outputs, 0), dy * first, creation.zeros_like(outputs))]


@op("ReluGrad", "T, T -> backprops: T", shape=shapes.merged, T=REALS, grad=_flat_second_order)
def relu_grad(gradients: Array, features: Array) -> Array:
    return jnp.where(features > 0, gradients, jnp.zeros_like(gradients))


@op(
    "Relu",
    "T -> activations: T",
    shape=shapes.unchanged,
    T=Types(*REALS, dt.qint8),
    grad=lambda op, dy: [relu_grad(dy, op.outputs[0])],
)
def relu(features: Array) -> Array:
    return jnp.maximum(features, jnp.zeros((), features.dtype))


@op("Relu6Grad", "T, T -> backprops: T", shape=shapes.merged, T=REALS, grad=_flat_second_order)
def relu6_grad(gradients: Array, features: Array) -> Array:
    return jnp.where((features > 0) & (features < 6), gradients, jnp.zeros_like(gradients))


@op(
    "Relu6", "T -> activations: T", shape=shapes.unchanged, T=REALS, grad=lambda op, dy: [relu6_grad(dy, op.outputs[0])]
)
def relu6(features: Array) -> Array:
    return jnp.clip(features, jnp.zeros((), features.dtype), jnp.asarray(6, features.dtype))


@op("LeakyReluGrad", "T, T -> backprops: T", shape=shapes.merged, T=_FLOATS32, grad=_flat_second_order)
def leaky_relu_grad(gradients: Array, features: Array, *, alpha: float = 0.2) -> Array:
    return jnp.where(features > 0, gradients, gradients * alpha)


@op(
    "LeakyRelu",
    "T -> activations: T",
    shape=shapes.unchanged,
    T=_FLOATS32,
    grad=lambda op, dy: [leaky_relu_grad(dy, op.input_list[0], alpha=op.attrs["alpha"])],
)
def leaky_relu_op(features: Array, *, alpha: float = 0.2) -> Array:
    return jnp.where(features > 0, features, features * alpha)


@op("EluGrad", "T, T -> backprops: T", shape=shapes.merged, T=FLOATS, grad=_curved_second_order)
def elu_grad(gradients: Array, outputs: Array) -> Array:
    return jnp.where(outputs < 0, gradients * (outputs + 1), gradients)


@op("Elu", "T -> activations: T", shape=shapes.unchanged, T=FLOATS, grad=lambda op, dy: [elu_grad(dy, op.outputs[0])])
def elu(features: Array) -> Array:
    return jnp.where(features < 0, jnp.expm1(jnp.minimum(features, 0)), features)


@op("SeluGrad", "T, T -> backprops: T", shape=shapes.merged, T=FLOATS, grad=_curved_second_order)
def selu_grad(gradients: Array, outputs: Array) -> Array:
    below = gradients * (outputs + _SELU_SCALE * _SELU_ALPHA)
    return jnp.where(outputs < 0, below, gradients * _SELU_SCALE)


@op("Selu", "T -> activations: T", shape=shapes.unchanged, T=FLOATS, grad=lambda op, dy: [selu_grad(dy, op.outputs[0])])
def selu(features: Array) -> Array:
    below = _SELU_SCALE * _SELU_ALPHA * jnp.expm1(jnp.minimum(features, 0))
    return jnp.where(features < 0, below, _SELU_SCALE * features)


def _softplus_gradient(op: Operation, dy: Any) -> list[Any]:
    return [dy * unary.sigmoid(op.input_list[0])]


@op("Softplus", "T -> activations: T", shape=shapes.unchanged, T=FLOATS, grad=_softplus_gradient)
def softplus(features: Array) -> Array:
    return jax.nn.softplus(features)


@op("SoftplusGrad", "T, T -> backprops: T", shape=shapes.merged, T=FLOATS)
def softplus_grad(gradients: Array, features: Array) -> Array:
    return gradients * jax.nn.sigmoid(features)


@op("SoftsignGrad", "T, T -> backprops: T", shape=shapes.merged, T=FLOATS)
def softsign_grad(gradients: Array, features: Array) -> Array:
    return gradients / jnp.square(1 + jnp.abs(features))


@op(
    "Softsign",
    "T -> activations: T",
    shape=shapes.unchanged,
    T=FLOATS,
    grad=lambda op, dy: [softsign_grad(dy, op.input_list[0])],
)
def softsign(features: Array) -> Array:
    return features / (1 + jnp.abs(features))


def leaky_relu(features: TensorLike, alpha: TensorLike = 0.2, name: str | None = None) -> Tensor:
    """max(features, alpha * features).

    >>> tf.nn.leaky_relu(x, alpha=0.1)
    """
    with name_scope(name, "LeakyRelu", [features, alpha]) as name:
        features = tensor_or_ragged(features, name="features")
        if features.dtype.is_integer:
            features = casting.cast(features, dt.float32)
        if isinstance(alpha, Tensor):
            result: Tensor = arithmetic.maximum(alpha * features, features, name=name)
        else:
            result = leaky_relu_op(features, alpha=float(alpha), name=name)
        return result


def crelu(features: TensorLike, name: str | None = None, axis: int = -1) -> Tensor:
    """relu of `features` and of their negative, side by side: twice as many channels.

    >>> tf.nn.crelu(x)
    """
    with name_scope(name, "CRelu", [features]) as name:
        features = convert_to_tensor(features, name="features")
        both = joining.concat([features, -features], axis, name=name)
        result: Tensor = relu(both)
        return result


def swish(features: TensorLike, beta: TensorLike = 1.0) -> Tensor:
    """features * sigmoid(beta * features).

    >>> tf.nn.swish(x)
    """
    features = convert_to_tensor(features, name="features")
    beta = casting.cast(convert_to_tensor(beta, name="beta"), features.dtype)
    product: Any = features * unary.sigmoid(beta * features)
    passthrough.identity(product)

    def gradient(op: Operation, dy: Any, *_: Any) -> list[Any]:
        # It depends on the inputs alone: the sigmoid is computed again, not kept from the forward pass.
        with control_dependencies([dy]):
            sigmoid: Any = unary.sigmoid(beta * features)
        slope = sigmoid * (1.0 + beta * features * (1.0 - sigmoid))
        d_beta = reduce.reduce_sum(dy * unary.square(features) * sigmoid * (1.0 - sigmoid))
        return [None, dy * slope, d_beta]

    graph = get_default_graph()
    key = f"Swish-{next(_swishes)}"
    graph.gradient_functions[key] = gradient
    with graph.gradient_override_map({"IdentityN": key}):
        result: Tensor = passthrough.identity_n([product, features, beta])[0]
    return result


_swishes = itertools.count()
silu = swish


def gelu(features: TensorLike, approximate: bool = False, name: str | None = None) -> Tensor:
    """`x` times the probability that a normal variable is below `x`; with `approximate` by a formula with tanh.

    >>> tf.nn.gelu(x)
    """
    with name_scope(name, "Gelu", [features]):
        x = tensor_or_ragged(features, name="features")
        if not x.dtype.is_floating:
            raise ValueError(f"gelu: features must have a floating point type, received {x.dtype.name}.")
        if approximate:
            inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * arithmetic.pow(x, 3.0))
            return 0.5 * x * (1.0 + unary.tanh(inner))  # type: ignore[no-any-return]
        return 0.5 * x * (1.0 + special.erf(x / math.sqrt(2.0)))  # type: ignore[no-any-return]
