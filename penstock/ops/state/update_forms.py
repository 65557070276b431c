"""Declares updates of variables: one kernel makes the forms for references and handles, whole and by rows.

In a signature `V` stands for a variable: a reference in `ApplyX`, a handle in `ResourceApplyX`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
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
        settings["elementwise"] = "Tindices" not in signature
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


def require_same_shape(var: Array, *others: Array) -> None:
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
    require_same_shape(var, *slots)
    if indices.ndim != 1 or tuple(grad.shape) != (indices.shape[0], *var.shape[1:]):
        raise ValueError(
            f"the gradient must have one row of the variable for each index, received shapes {list(indices.shape)} of "
            f"indices, {list(grad.shape)} of the gradient and {list(var.shape)} of the variable"
        )
    require_in_range(indices, var.shape[0])


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
