"""Training: the ops that apply gradients to variables. Each rule is one kernel, for references and for handles.

A kernel takes the values of the variables and returns the new ones. In a signature `V` stands for a variable: a
reference in `ApplyX`, a handle in `ResourceApplyX`. The sparse forms apply the same kernel to the rows that have a
gradient.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph.checks import ignoring_checks, require_in_range, rows_to_write
from penstock.graph.opdef import OpDef, op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel.types import INDEX, Array
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.state.variable_ops import UPDATABLE, handle_shape
from penstock.row_sums import run_starts, sums_of_runs

_GRADIENTS = frozenset(("grad", "delta"))


class Update(NamedTuple):
    """The two forms of an update: on references and on handles."""

    ref: OpDef
    resource: OpDef


def update(name: str, signature: str, *, writes: str) -> Callable[[Callable[..., Any]], Update]:
    """Declares `name` on references and `Resource<name>` on handles from one kernel."""

    def declare(kernel: Callable[..., Any]) -> Update:
        types: dict[str, Any] = {"T": UPDATABLE}
        if "Tindices" in signature:
            types["Tindices"] = INDEX
        settings: dict[str, Any] = {"writes": writes, "grad": refuse_gradient, "shape": _updated_shape, **types}
        ref = op(name, signature.replace("V", "&T") + " -> out: &T", **settings)
        resource = op("Resource" + name, signature.replace("V", "resource") + " ->", **settings)
        return Update(ref(kernel), resource(kernel))

    return declare


# Maps the names of sparse ops to functions that update the rows that have a gradient.
_ROW_RULES: dict[str, Callable[..., Any]] = {
    prefix + name: rule
    for prefix in ("", "Resource")
    for name, rule in (
        ("ScatterAdd", lambda rows, updates, **_: rows + updates),
        ("ScatterSub", lambda rows, updates, **_: rows - updates),
    )
}


class Rule(NamedTuple):
    """The forms of a rule: for a whole variable, and for the rows that have a gradient."""

    dense: Update
    sparse: Update


def rule(name: str, signature: str, *, writes: str) -> Callable[[Callable[..., Any]], Rule]:
    """Declares `Apply<name>` and `SparseApply<name>`, on references and on handles, from one kernel."""

    def declare(kernel: Callable[..., Any]) -> Rule:
        parameters = list(inspect.signature(kernel).parameters.values())
        gradient = next(i for i, p in enumerate(parameters) if p.name in _GRADIENTS)
        count = len(writes.split())

        def sparse(*args: Array, **attrs: Any) -> Any:
            grad, indices = args[gradient], args[gradient + 1]
            before, after = args[count:gradient], args[gradient + 2 :]
            state = args[:count]
            _require_rows(state[0], grad, indices, *state[1:])

            def change(state: tuple[Array, ...], at: Array) -> tuple[Array, ...]:
                rows = [jnp.take(s, at, axis=0, mode="clip") for s in state]
                new = kernel(*rows, *before, grad, *after, **attrs)
                changed = zip(state, new if isinstance(new, tuple) else (new,), strict=True)
                return tuple(s.at[at].set(row, mode="drop") for s, row in changed)

            return _in_turn(indices, state[0].shape[0], change, state)

        # The kernel's own parameters, with the indices after the gradient, which is always called `grad` here.
        parameters[gradient] = parameters[gradient].replace(name="grad")
        parameters.insert(gradient + 1, parameters[gradient].replace(name="indices"))
        sparse.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        types = [t.strip() for t in signature.split(",")]
        sparse_signature = ", ".join([*types[: gradient + 1], "Tindices", *types[gradient + 1 :]])
        forms = Rule(
            update(f"Apply{name}", signature, writes=writes)(kernel),
            update(f"SparseApply{name}", sparse_signature, writes=writes)(sparse),
        )
        _ROW_RULES.update((form.name, kernel) for form in forms.sparse)
        return forms

    return declare


def _updated_shape(op: Operation) -> list[TensorShape]:
    """Shape rule: the variable, its slots and a dense gradient have one shape; all other inputs are scalars."""
    inputs = {arg.name: tensor for arg, tensor in zip(op.op_def.inputs, op.input_list, strict=True)}
    shape = TensorShape.of(None)
    for name in op.op_def.writes:
        tensor = inputs.pop(name)
        shape = shape.merge_with(tensor.shape if tensor.dtype._is_ref_dtype else handle_shape(tensor))
    indices = inputs.pop("indices", None)
    for name, tensor in inputs.items():
        if name not in _GRADIENTS:
            tensor.shape.assert_has_rank(0)
        elif indices is None:
            shape = shape.merge_with(tensor.shape)
        elif shape.rank is not None and indices.shape.rank is not None:
            indices.shape.assert_has_rank(1)
            indices.shape.concatenate(TensorShape(shape.as_list()[1:])).assert_is_compatible_with(tensor.shape)
    return [shape] * len(op.outputs)


def _require_same_shape(var: Array, *others: Array) -> None:
    for other in others:
        if tuple(other.shape) != tuple(var.shape):
            raise ValueError(
                f"the variable has shape {list(var.shape)}, but a slot or the gradient {list(other.shape)}"
            )


class _Promise(threading.local):
    distinct = False  # no index in range occurs twice


_promise = _Promise()


@contextmanager
def _distinct_indices() -> Iterator[None]:
    before, _promise.distinct = _promise.distinct, True
    try:
        yield
    finally:
        _promise.distinct = before


def _in_turn(
    indices: Array, size: int, change: Callable[[tuple[Array, ...], Array], tuple[Array, ...]], state: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Applies sparse rows one after the other if an index occurs more than once, and all at once otherwise.

    `change(state, at)` gets the rows to change; in `at`, the other rows are out of range.
    """
    state = tuple(jnp.asarray(s) for s in state)
    indices = rows_to_write(jnp.asarray(indices), size)
    count = indices.shape[0]
    if count == 0:
        return state
    if count == 1 or _promise.distinct:
        return change(state, indices)
    order = jnp.argsort(indices, stable=True)
    ordered = indices[order]
    place = jnp.arange(count)
    first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    start = jax.lax.cummax(jnp.where(first, place, 0))
    turn = jnp.zeros(count, place.dtype).at[order].set(place - start, unique_indices=True)
    last = jnp.max(turn)

    def one(carry: tuple[Any, tuple[Array, ...]]) -> tuple[Any, tuple[Array, ...]]:
        now, current = carry
        return now + 1, change(current, jnp.where(turn == now, indices, size))

    _, result = jax.lax.while_loop(lambda carry: carry[0] <= last, one, (jnp.zeros_like(last), state))
    return tuple(result)


def _require_rows(var: Array, grad: Array, indices: Array, *slots: Array) -> None:
    _require_same_shape(var, *slots)
    if indices.ndim != 1 or tuple(grad.shape) != (indices.shape[0], *var.shape[1:]):
        raise ValueError(
            f"the gradient must have one row of the variable for each index, received shapes {list(indices.shape)} of "
            f"indices, {list(grad.shape)} of the gradient and {list(var.shape)} of the variable"
        )
    require_in_range(indices, var.shape[0])


@update("ApplyGradientDescent", "V, T, T", writes="var")
def apply_gradient_descent(var: Array, alpha: Array, delta: Array, *, use_locking: bool = False) -> Array:
    _require_same_shape(var, delta)
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
    _require_same_shape(var, accum, grad)
    accum = accum * momentum + grad
    step = grad * lr + accum * momentum * lr if use_nesterov else accum * lr
    return var - step, accum


@rule("Adagrad", "V, V, T, T", writes="var accum")
def adagrad(
    var: Array, accum: Array, lr: Array, grad: Array, *, use_locking: bool = False, update_slots: bool = True
) -> Any:
    _require_same_shape(var, accum, grad)
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
    _require_same_shape(var, accum, grad)
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
    _require_same_shape(var, accum, accum_update, grad)
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
    _require_same_shape(var, ms, mom, grad)
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
    _require_same_shape(var, mg, ms, mom, grad)
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
    """The FTRL update; `pull` is the gradient of the linear part, with shrinkage."""
    _require_same_shape(var, accum, linear, grad)
    scale = lr if multiply_linear_by_lr else jnp.ones_like(lr)  # scale of the linear part
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
    _require_same_shape(var, delta)
    return _shrunk(var - alpha * delta, alpha * l1) / (1 + alpha * l2)


@rule("ProximalAdagrad", "V, V, T, T, T, T", writes="var accum")
def proximal_adagrad(
    var: Array, accum: Array, lr: Array, l1: Array, l2: Array, grad: Array, *, use_locking: bool = False
) -> Any:
    _require_same_shape(var, accum, grad)
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
    _require_same_shape(var, gradient_accumulator, gradient_squared_accumulator, grad)
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
    _require_same_shape(var, m, v, grad)
    rate = lr * jnp.sqrt(1 - beta2_power) / (1 - beta1_power)
    m = m + (grad - m) * (1 - beta1)
    v = v + (grad * grad - v) * (1 - beta2)
    direction = grad * (1 - beta1) + beta1 * m if use_nesterov else m
    return var - direction * rate / (jnp.sqrt(v) + epsilon), m, v


# Sums of rows of the same index in compiled code. Optimizers do this by Unique and UnsortedSegmentSum, whose results
# have as many rows as there are distinct indices; `penstock.passes.sparse_updates` replaces these by the ops below.


@op("SumDuplicateRows", "T, Tindices -> sums: T, rows: Tindices", T=UPDATABLE, Tindices=INDEX, no_gradient=True)
def sum_duplicate_rows(values: Array, indices: Array) -> Any:
    """Sums of the rows of each index, and the indices. There are as many as inputs; the rest are out of range."""
    values, indices = jnp.asarray(values), jnp.asarray(indices)
    count = indices.shape[0]
    order = jnp.argsort(indices)
    ordered = indices[order]
    first = jnp.concatenate([jnp.ones(min(count, 1), bool), ordered[1:] != ordered[:-1]])
    place = jnp.cumsum(first) - 1
    sums = jnp.zeros_like(values).at[place].add(values[order], indices_are_sorted=True)
    nowhere = jnp.full(count, np.iinfo(indices.dtype).max, indices.dtype)
    return sums, nowhere.at[place].set(ordered, indices_are_sorted=True)


@op(
    "SumDuplicateRowsOnHost",
    "T, Tindices -> sums: T, rows: Tindices",
    T=UPDATABLE,
    Tindices=INDEX,
    host=True,
    no_gradient=True,
)
def sum_duplicate_rows_on_host(values: np.ndarray, indices: np.ndarray) -> Any:
    """The same for rows from another task: only distinct rows are left, and a few that are out of range.

    These pad the result to one of few sizes, so that the code that takes it is compiled for few shapes.
    """
    if not indices.size:
        return values, indices
    rising = not np.count_nonzero(indices[1:] <= indices[:-1])
    order = None if rising else np.argsort(indices)
    ordered = indices if order is None else indices[order]
    is_new = run_starts(ordered)
    distinct = ordered if rising or is_new.all() else ordered[is_new]
    found, count = len(distinct), _padded(len(distinct), (values.shape[1:], values.dtype))
    rows = np.full(count, np.iinfo(indices.dtype).max, indices.dtype)
    rows[:found] = distinct
    if found == len(ordered):
        sums = np.zeros((count, *values.shape[1:]), values.dtype)
        sums[:found] = values if order is None else values[order]
        return sums, rows
    ends = np.full(count + 1, len(ordered), np.int32)
    ends[:found] = np.flatnonzero(is_new)
    return sums_of_runs(values, ends, order), rows


_sizes: dict[Any, list[int]] = defaultdict(list)  # sizes that were used so far, per kind
_sizes_lock = threading.Lock()


def _padded(count: int, kind: Any) -> int:
    """A size of at least `count`: one that was used before if it is not much larger, else a new one with spare room.

    Batches differ a little from each other. Sizes rounded to fixed steps would differ whenever they are near a step.
    """
    room = max(count // 8, 8 * math.isqrt(count))  # small sizes vary relatively more than large ones
    with _sizes_lock:
        fitting = [size for size in _sizes[kind] if count <= size <= count + 2 * room]
        if not fitting:
            fitting = [count + room]
            _sizes[kind] += fitting
        return min(fitting)


@functools.cache
def with_distinct_indices(op_def: OpDef) -> OpDef:
    """A sparse update that takes the results of `sum_duplicate_rows`: indices out of range change nothing."""
    position = op_def.input_index("indices")

    def kernel(*args: Array, **attrs: Any) -> Any:
        indices, size = args[position], args[0].shape[0]
        require_in_range(jnp.where(indices == np.iinfo(indices.dtype).max, 0, indices), size)
        with _distinct_indices(), ignoring_checks():
            return op_def.kernel(*args, **attrs)

    return dataclasses.replace(op_def, kernel=kernel, row_rule=_ROW_RULES.get(op_def.name))
