"""Training: the rules by which gradients change variables. Each is one kernel, for references and for handles.

A kernel takes the values of the variables and returns the new ones. The sparse forms apply the same kernel to the rows
that have a gradient (`penstock/ops/state/update_forms.py`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from penstock.kernel.types import Array
from penstock.ops.state.update_forms import require_same_shape, rule, update


@update("ApplyGradientDescent", "V, T, T", writes="var")
def apply_gradient_descent(var: Array, alpha: Array, delta: Array, *, use_locking: bool = False) -> Array:
    require_same_shape(var, delta)
    return var - alpha * delta


@rule("Momentum", "V, V, T, T, T", writes="var accum")
def momentum(
    var: Array,
    accum: Array,
    lr: Array,
    grad: Array,
    momentum: Array,
    *,
    use_locking: bool = False,
    use_nesterov: bool = False,
) -> Any:
    require_same_shape(var, accum, grad)
    accum = accum * momentum + grad
    step = grad * lr + accum * momentum * lr if use_nesterov else accum * lr
    return var - step, accum


@rule("Adagrad", "V, V, T, T", writes="var accum")
def adagrad(
    var: Array, accum: Array, lr: Array, grad: Array, *, use_locking: bool = False, update_slots: bool = True
) -> Any:
    require_same_shape(var, accum, grad)
    accum = accum + grad * grad if update_slots else accum
    return var - lr * grad * jax.lax.rsqrt(accum), accum


@rule("AdagradV2", "V, V, T, T, T", writes="var accum")
def adagrad_v2(
    var: Array,
    accum: Array,
    lr: Array,
    epsilon: Array,
    grad: Array,
    *,
    use_locking: bool = False,
    update_slots: bool = True,
) -> Any:
    require_same_shape(var, accum, grad)
    accum = accum + grad * grad if update_slots else accum
    return var - lr * grad / (jnp.sqrt(accum) + epsilon), accum


@rule("Adadelta", "V, V, V, T, T, T, T", writes="var accum accum_update")
def adadelta(
    var: Array,
    accum: Array,
    accum_update: Array,
    lr: Array,
    rho: Array,
    epsilon: Array,
    grad: Array,
    *,
    use_locking: bool = False,
) -> Any:
    require_same_shape(var, accum, accum_update, grad)
    accum = accum * rho + grad * grad * (1 - rho)
    step = jnp.sqrt(accum_update + epsilon) * jax.lax.rsqrt(accum + epsilon) * grad
    return var - step * lr, accum, accum_update * rho + step * step * (1 - rho)


@rule("RMSProp", "V, V, V, T, T, T, T, T", writes="var ms mom")
def rms_prop(
    var: Array,
    ms: Array,
    mom: Array,
    lr: Array,
    rho: Array,
    momentum: Array,
    epsilon: Array,
    grad: Array,
    *,
    use_locking: bool = False,
) -> Any:
    require_same_shape(var, ms, mom, grad)
    ms = ms + (grad * grad - ms) * (1 - rho)
    mom = mom * momentum + lr * grad * jax.lax.rsqrt(ms + epsilon)
    return var - mom, ms, mom


@rule("CenteredRMSProp", "V, V, V, V, T, T, T, T, T", writes="var mg ms mom")
def centered_rms_prop(
    var: Array,
    mg: Array,
    ms: Array,
    mom: Array,
    lr: Array,
    rho: Array,
    momentum: Array,
    epsilon: Array,
    grad: Array,
    *,
    use_locking: bool = False,
) -> Any:
    require_same_shape(var, mg, ms, mom, grad)
    ms = ms + (grad * grad - ms) * (1 - rho)
    mg = mg + (grad - mg) * (1 - rho)
    mom = mom * momentum + lr * grad * jax.lax.rsqrt(ms - mg * mg + epsilon)
    return var - mom, mg, ms, mom


def _ftrl(
    var: Array,
    accum: Array,
    linear: Array,
    grad: Array,
    pull: Array,
    lr: Array,
    l1: Array,
    l2: Array,
    lr_power: Array,
    multiply_linear_by_lr: bool,
) -> Any:
    """`pull` is the gradient of the linear part, shrinkage included."""
    require_same_shape(var, accum, linear, grad)
    scale = lr if multiply_linear_by_lr else jnp.ones_like(lr)  # of the linear part
    new_accum = accum + grad * grad
    root, new_root = (jnp.power(a, -lr_power) for a in (accum, new_accum))
    linear = linear + pull * scale - (new_root - root) * scale / lr * var
    quadratic = new_root * scale / lr + 2 * l2 * scale
    shrunk = (jnp.sign(linear) * l1 * scale - linear) / quadratic
    return jnp.where(jnp.abs(linear) > l1 * scale, shrunk, jnp.zeros_like(var)), new_accum, linear


@rule("Ftrl", "V, V, V, T, T, T, T, T", writes="var accum linear")
def ftrl(
    var: Array,
    accum: Array,
    linear: Array,
    grad: Array,
    lr: Array,
    l1: Array,
    l2: Array,
    lr_power: Array,
    *,
    use_locking: bool = False,
    multiply_linear_by_lr: bool = False,
) -> Any:
    return _ftrl(var, accum, linear, grad, grad, lr, l1, l2, lr_power, multiply_linear_by_lr)


@rule("FtrlV2", "V, V, V, T, T, T, T, T, T", writes="var accum linear")
def ftrl_v2(
    var: Array,
    accum: Array,
    linear: Array,
    grad: Array,
    lr: Array,
    l1: Array,
    l2: Array,
    l2_shrinkage: Array,
    lr_power: Array,
    *,
    use_locking: bool = False,
    multiply_linear_by_lr: bool = False,
) -> Any:
    pull = grad + 2 * l2_shrinkage * var
    return _ftrl(var, accum, linear, grad, pull, lr, l1, l2, lr_power, multiply_linear_by_lr)


def _shrunk(value: Array, l1: Array) -> Array:
    """`value` moved towards zero by `l1`, but not past it."""
    return jnp.where(l1 > 0, jnp.sign(value) * jnp.maximum(jnp.abs(value) - l1, 0), value)


@rule("ProximalGradientDescent", "V, T, T, T, T", writes="var")
def proximal_gradient_descent(
    var: Array, alpha: Array, l1: Array, l2: Array, delta: Array, *, use_locking: bool = False
) -> Array:
    require_same_shape(var, delta)
    return _shrunk(var - alpha * delta, alpha * l1) / (1 + alpha * l2)


@rule("ProximalAdagrad", "V, V, T, T, T, T", writes="var accum")
def proximal_adagrad(
    var: Array, accum: Array, lr: Array, l1: Array, l2: Array, grad: Array, *, use_locking: bool = False
) -> Any:
    require_same_shape(var, accum, grad)
    accum = accum + grad * grad
    rate = lr * jax.lax.rsqrt(accum)
    return _shrunk(var - grad * rate, rate * l1) / (1 + l2 * rate), accum


@rule("AdagradDA", "V, V, V, T, T, T, T, int64", writes="var gradient_accumulator gradient_squared_accumulator")
def adagrad_da(
    var: Array,
    gradient_accumulator: Array,
    gradient_squared_accumulator: Array,
    grad: Array,
    lr: Array,
    l1: Array,
    l2: Array,
    global_step: Array,
    *,
    use_locking: bool = False,
) -> Any:
    require_same_shape(var, gradient_accumulator, gradient_squared_accumulator, grad)
    step = jnp.asarray(global_step).astype(var.dtype)
    total, squares = gradient_accumulator + grad, gradient_squared_accumulator + grad * grad
    return -lr * _shrunk(total, l1 * step) / (l2 * step * lr + jnp.sqrt(squares)), total, squares


@update("ApplyAdam", "V, V, V, T, T, T, T, T, T, T", writes="var m v")
def apply_adam(
    var: Array,
    m: Array,
    v: Array,
    beta1_power: Array,
    beta2_power: Array,
    lr: Array,
    beta1: Array,
    beta2: Array,
    epsilon: Array,
    grad: Array,
    *,
    use_locking: bool = False,
    use_nesterov: bool = False,
) -> Any:
    require_same_shape(var, m, v, grad)
    rate = lr * jnp.sqrt(1 - beta2_power) / (1 - beta1_power)
    m = m + (grad - m) * (1 - beta1)
    v = v + (grad * grad - v) * (1 - beta2)
    direction = grad * (1 - beta1) + beta1 * m if use_nesterov else m
    return var - direction * rate / (jnp.sqrt(v) + epsilon), m, v


@rule("LazyAdam", "V, V, V, T, T, T, T, T, T, T", writes="var m v")
def lazy_adam(
    var: Array,
    m: Array,
    v: Array,
    beta1_power: Array,
    beta2_power: Array,
    lr: Array,
    beta1: Array,
    beta2: Array,
    epsilon: Array,
    grad: Array,
    *,
    use_locking: bool = False,
) -> Any:
    return apply_adam.ref.kernel(var, m, v, beta1_power, beta2_power, lr, beta1, beta2, epsilon, grad)


@update("ApplyAdamWithAmsgrad", "V, V, V, V, T, T, T, T, T, T, T", writes="var m v vhat")
def apply_adam_with_amsgrad(
    var: Array,
    m: Array,
    v: Array,
    vhat: Array,
    beta1_power: Array,
    beta2_power: Array,
    lr: Array,
    beta1: Array,
    beta2: Array,
    epsilon: Array,
    grad: Array,
    *,
    use_locking: bool = False,
) -> Any:
    require_same_shape(var, m, v, vhat, grad)
    rate = lr * jnp.sqrt(1 - beta2_power) / (1 - beta1_power)
    m = m + (grad - m) * (1 - beta1)
    v = v + (grad * grad - v) * (1 - beta2)
    vhat = jnp.maximum(vhat, v)
    return var - m * rate / (jnp.sqrt(vhat) + epsilon), m, v, vhat


@rule("AdaMax", "V, V, V, T, T, T, T, T, T", writes="var m v")
def ada_max(
    var: Array,
    m: Array,
    v: Array,
    beta1_power: Array,
    lr: Array,
    beta1: Array,
    beta2: Array,
    epsilon: Array,
    grad: Array,
    *,
    use_locking: bool = False,
) -> Any:
    require_same_shape(var, m, v, grad)
    m = m + (grad - m) * (1 - beta1)
    v = jnp.maximum(beta2 * v, jnp.abs(grad))
    return var - lr / (1 - beta1_power) * (m / (v + epsilon)), m, v


@update("ApplyAddSign", "V, V, T, T, T, T, T", writes="var m")
def apply_add_sign(
    var: Array,
    m: Array,
    lr: Array,
    alpha: Array,
    sign_decay: Array,
    beta: Array,
    grad: Array,
    *,
    use_locking: bool = False,
) -> Any:
    require_same_shape(var, m, grad)
    m = m * beta + grad * (1 - beta)
    return var - lr * (alpha + sign_decay * jnp.sign(grad) * jnp.sign(m)) * grad, m


@update("ApplyPowerSign", "V, V, T, T, T, T, T", writes="var m")
def apply_power_sign(
    var: Array,
    m: Array,
    lr: Array,
    logbase: Array,
    sign_decay: Array,
    beta: Array,
    grad: Array,
    *,
    use_locking: bool = False,
) -> Any:
    require_same_shape(var, m, grad)
    m = m * beta + grad * (1 - beta)
    return var - lr * jnp.exp(logbase * sign_decay * jnp.sign(grad) * jnp.sign(m)) * grad, m
