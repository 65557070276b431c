"""If and While: control flow as nodes with bodies, compiled into a segment; a body that needs the host runs there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.errors import InvalidArgumentError
from penstock.graph.checks import NotTraceable
from penstock.graph.dtype import DType
from penstock.graph.function import Function
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.ops.tensor_list import growing_lists
from penstock.ops.types import Array

Failure = tuple[Any, Any]  # the number of a check that failed, or 0, and its detail; both int64
NO_FAILURE: Failure = (np.int64(0), np.int64(0))


def first_failure(one: Failure, other: Failure) -> Failure:
    """`one` if it is a failure, else `other`."""
    return jnp.where(one[0] != 0, one[0], other[0]), jnp.where(one[0] != 0, one[1], other[1])


def _branch_shapes(op: Operation) -> list[TensorShape]:
    pairs = zip(op.attrs["then_branch"].outputs, op.attrs["else_branch"].outputs, strict=True)
    return [a.shape.most_specific_compatible_shape(b.shape) for a, b in pairs]


def as_predicate(value: Any) -> Any:
    """TensorFlow's truth of a condition: a bool, a non-zero number, a non-empty string."""
    if isinstance(value, np.ndarray):
        return bool(value.size and (value.reshape(-1)[0] not in (b"", 0)))
    return value if value.dtype == jnp.bool_ else value != 0


def _split(arguments: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Positions and values of the arguments that lax can carry; references and known values are closed over."""
    carried = [i for i, a in enumerate(arguments) if isinstance(a, jax.Array) or hasattr(a, "tree_flatten")]
    return carried, [arguments[i] for i in carried]


def _array(value: Any) -> Any:
    return jnp.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else value


@op("If", "Tcond, list(Tin) -> list(Tout)", control_flow=True, shape=_branch_shapes)
def if_op(
    cond: Array, input: list[Array], *, Tout: list[DType], then_branch: Function, else_branch: Function, ctx: Any
) -> list[Array]:
    predicate = as_predicate(cond)
    if isinstance(predicate, bool):
        outputs = ctx.call(then_branch if predicate else else_branch, input)
        ctx.merge_failure(ctx.inner_failed)
        return list(outputs)
    positions, carried = _split(input)

    def branch(function: Function) -> Any:
        def traced(values: list[Any]) -> Any:
            outputs = [_array(v) for v in ctx.call(function, _replaced(input, positions, values))]
            return outputs, NO_FAILURE if ctx.inner_failed is None else ctx.inner_failed

        return traced

    try:
        outputs, failed = lax.cond(predicate, branch(then_branch), branch(else_branch), carried)
    except (TypeError, InvalidArgumentError) as error:
        # The branches differ in shape, or the one that is not taken does not fit: the host runs only the other.
        raise NotTraceable(f"the branches cannot be compiled together ({str(error).splitlines()[0]})") from error
    ctx.merge_failure(failed)
    return list(outputs)


@op("IfGrad", "Tcond, list(Tin), list(Tdy) -> list(Tdx)", control_flow=True,
    shape=lambda op: [op.input_list[1 + i].shape for i in op.attrs["wrt"]])  # fmt: skip
def if_grad(
    cond: Array, input: list[Array], dy: list[Array], *,
    Tdx: list[DType], then_branch: Function, else_branch: Function, wrt: list[int], outputs: list[int], ctx: Any,
) -> list[Array]:  # fmt: skip
    """Gradients of the outputs at `outputs` of an If with respect to its inputs at `wrt`."""

    def forward(variables: list[Any]) -> list[Any]:
        arguments = _replaced(input, wrt, variables)
        result = if_op.kernel(cond, arguments, Tout=[], then_branch=then_branch, else_branch=else_branch, ctx=ctx)
        return [_array(result[i]) for i in outputs]

    _, vjp = jax.vjp(forward, [_array(input[i]) for i in wrt])
    (gradients,) = vjp([_array(d) for d in dy])
    return list(gradients)


def _replaced(values: Sequence[Any], positions: Sequence[int], others: Sequence[Any]) -> list[Any]:
    result = list(values)
    for position, value in zip(positions, others, strict=True):
        result[position] = value
    return result


def invariant_positions(body: Function) -> set[int]:
    """The loop variables that an iteration does not change."""
    return {i for i, (before, after) in enumerate(zip(body.inputs, body.outputs, strict=True)) if before is after}


class _Loop:
    """A loop over the variables that change, the others closed over."""

    def __init__(self, arguments: Sequence[Any], cond: Function, body: Function, ctx: Any) -> None:
        self.arguments = list(arguments)
        self.cond, self.body, self.ctx = cond, body, ctx
        fixed = invariant_positions(body)
        self.changing = [i for i in range(len(arguments)) if i not in fixed]
        self.start = self._settled([_array(self.arguments[i]) for i in self.changing])

    def _all(self, changing: Sequence[Any]) -> list[Any]:
        return _replaced(self.arguments, self.changing, changing)

    def test(self, changing: Sequence[Any]) -> Any:
        """Whether the loop goes on."""
        return as_predicate(_array(self.ctx.call(self.cond, self._all(changing))[0])).reshape(())

    def iterate(self, changing: Sequence[Any], number: Any) -> tuple[list[Any], Any]:
        """One iteration: the new values, and what a check inside it found."""
        outputs = self.ctx.call(self.body, self._all(changing), number)
        failed = NO_FAILURE if self.ctx.inner_failed is None else self.ctx.inner_failed
        return [_array(outputs[i]) for i in self.changing], failed

    def _settled(self, start: list[Any]) -> list[Any]:
        """The start values in the form that iterations keep: lists get their room, shapes must not change."""
        for _ in range(2):
            after = jax.eval_shape(lambda v: self.iterate(v, jnp.int32(0))[0], start)
            before = jax.eval_shape(lambda v: v, start)
            if str(jax.tree.structure(before)) == str(jax.tree.structure(after)):
                break
            start = [_with_room(s, a) for s, a in zip(start, after, strict=True)]
        else:
            before, after = after, None
        same = after is not None and all(
            x.shape == y.shape and x.dtype == y.dtype
            for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
        )
        if not same:
            raise NotTraceable("the shapes of the loop variables change from one iteration to the next")
        return start

    def result(self, changing: Sequence[Any]) -> list[Any]:
        """All loop variables after the loop."""
        return self._all(changing)

    def run(self) -> tuple[list[Any], Any, Any]:
        """The values after the loop, how often it went round, and what a check found."""

        def go_on(state: Any) -> Any:
            values, _, failed = state
            return jnp.logical_and(self.test(values), failed[0] == 0)

        def step(state: Any) -> Any:
            values, number, failed = state
            values, new = self.iterate(values, number)
            return values, number + 1, first_failure(failed, new)

        return lax.while_loop(go_on, step, (self.start, jnp.int32(0), jax.tree.map(jnp.asarray, NO_FAILURE)))

    def run_bounded(self, start: Sequence[Any], limit: int) -> list[Any]:
        """The same with at most `limit` iterations, in a form that can be differentiated in reverse."""

        def step(state: Any, number: Any) -> Any:
            values, active = state
            active = jnp.logical_and(active, self.test(values))
            values = lax.cond(active, lambda v: self.iterate(v, number)[0], lambda v: list(v), values)
            return (values, active), None

        (values, _), _ = lax.scan(step, (list(start), jnp.bool_(True)), jnp.arange(limit, dtype=jnp.int32))
        return list(values)


def _with_room(start: Any, after: Any) -> Any:
    """A list without room for its items, with the room that the first iteration gave it."""
    make = getattr(start, "with_room", None)
    return start if make is None else make(after)


def _while_shapes(op: Operation) -> list[TensorShape]:
    return [t.shape for t in op.attrs["body"].inputs]


@op("While", "list(T) -> output: list(T)", control_flow=True, shape=_while_shapes)
def while_op(
    input: list[Array], *, T: list[DType], cond: Function, body: Function, parallel_iterations: int = 10, ctx: Any
) -> list[Array]:
    loop = _Loop(input, cond, body, ctx)
    gradient = ctx.gradient_in_segment()
    if gradient is not None:
        # The gradient needs what this run sees: it is kept, so that the loop runs forwards once.
        limit, wrt = gradient
        kept = _KeptLoop(loop, limit, _arrays_at(input, wrt))
        ctx.merge_failure(kept.run.failed)
        ctx.kept_loops[ctx.forward_name()] = kept
        return loop.result(kept.run.values)
    values, _, failed = loop.run()
    ctx.merge_failure(failed)
    return loop.result(values)


@op("WhileTripCount", "list(T) -> count: int32", control_flow=True, no_gradient=True,
    shape=lambda op: [TensorShape.of(())])  # fmt: skip
def while_trip_count(input: list[Array], *, T: list[DType], cond: Function, body: Function, ctx: Any) -> Array:
    """A bound for the iterations of a loop: the next power of two, so that few different bounds are compiled for."""
    with growing_lists(0):
        count = _Loop(input, cond, body, ctx).run()[1]
    return lax.shift_left(jnp.int32(1), 32 - lax.clz(jnp.maximum(count, 1) - 1))


@op("WhileGrad", "int32, list(T), list(Tdy) -> list(Tdx)", control_flow=True, static="limit",
    shape=lambda op: [op.input_list[1 + i].shape for i in op.attrs["wrt"]])  # fmt: skip
def while_grad(
    limit: Array, input: list[Array], dy: list[Array], *,
    T: list[DType], Tdx: list[DType], cond: Function, body: Function, wrt: list[int], outputs: list[int], ctx: Any,
) -> list[Array]:  # fmt: skip
    """Gradients of a loop's outputs at `outputs` with respect to its inputs at `wrt`; `limit` bounds its iterations."""
    bound = int(limit)
    moving = _arrays_at(input, wrt)
    cotangents = [_array(d) for d in dy]
    kept = ctx.kept_loops.get(ctx.forward_name())
    if kept is not None and kept.wrt == moving and kept.reversible.bound == bound:
        found = kept.gradients(outputs, cotangents)
    else:
        with growing_lists(bound):
            found = _gradients(input, moving, cotangents, lambda a: _Loop(a, cond, body, ctx), bound, outputs)
    gradients = dict(zip(moving, found, strict=True))
    return [gradients.get(i, input[i]) for i in wrt]


def _gradients(
    input: list[Any], moving: list[int], cotangents: list[Any], make: Callable[[list[Any]], _Loop], bound: int,
    outputs: list[int],
) -> list[Any]:  # fmt: skip
    """The gradients of a loop that runs forwards for them, in a form that has gradients itself."""

    @jax.custom_vjp
    def gradients(variables: list[Any], cotangents: list[Any]) -> Any:
        return _KeptLoop(make(_replaced(input, moving, variables)), bound, moving).gradients(outputs, cotangents)

    def again(variables: list[Any]) -> list[Any]:
        loop = make(_replaced(input, moving, variables))
        result = loop.result(loop.run_bounded(loop.start, bound))
        return [result[i] for i in outputs]

    # The run backwards cannot be differentiated itself: a second derivative takes the loop in a form that can.
    def slowly(variables: list[Any], cotangents: list[Any]) -> Any:
        return jax.vjp(again, variables)[1](cotangents)[0]

    gradients.defvjp(lambda *arguments: jax.vjp(slowly, *arguments), lambda reverse, ct: reverse(ct))
    found: list[Any] = gradients([_array(input[i]) for i in moving], cotangents)
    return found


def _arrays_at(values: Sequence[Any], positions: Sequence[int]) -> list[int]:
    """The positions at which there is an array or a list, not a reference."""
    return [i for i in positions if isinstance(_array(values[i]), jax.Array) or hasattr(values[i], "tree_flatten")]


class _KeptLoop:
    """A loop that ran forwards and can run backwards; `bound` limits its iterations."""

    def __init__(self, loop: _Loop, bound: int, wrt: list[int]) -> None:
        # Needs parts of jax that take long to import.
        from penstock.ops.loop_gradient import ReversibleLoop

        self.loop, self.wrt = loop, wrt
        self.fixed = [i for i in wrt if i not in loop.changing]
        self.constants = [_array(loop.arguments[i]) for i in self.fixed]
        self.reversible = ReversibleLoop(loop.test, self._iterate, loop.start, self.constants, bound, NO_FAILURE)
        self.run = self.reversible.run()

    def _iterate(self, values: Any, constants: Any, number: Any) -> Any:
        arguments = self.loop.arguments
        self.loop.arguments = _replaced(arguments, self.fixed, constants)
        try:
            return self.loop.iterate(values, number)
        finally:
            self.loop.arguments = arguments

    def gradients(self, outputs: list[int], cotangents: list[Any]) -> list[Any]:
        """The gradients with respect to the arguments at `wrt`, given those of the results at `outputs`."""
        loop = self.loop
        given = dict(zip(outputs, cotangents, strict=True))
        incoming = [_real_leaves(s, given.get(i)) for i, s in zip(loop.changing, loop.start, strict=True)]
        real, of_constants = self.reversible.gradients(self.run, incoming)
        rest, more = iter(real), iter(of_constants)
        found = {i: _refilled(loop.arguments[i], s, rest) for i, s in zip(loop.changing, loop.start, strict=True)}
        for i, value in zip(self.fixed, self.constants, strict=True):
            leaves, form = jax.tree.flatten(value)
            direct = jax.tree.leaves(given[i]) if i in given else [None] * len(leaves)
            totals = [_total(leaf, next(more), d) for leaf, d in zip(leaves, direct, strict=True)]
            found[i] = jax.tree.unflatten(form, totals)
        return [found[i] for i in self.wrt]


def _total(like: Any, *parts: Any) -> Any:
    present = [p for p in parts if p is not None]
    return sum(present[1:], present[0]) if present else jnp.zeros_like(like)


def _real_leaves(start: Any, cotangent: Any) -> list[Any]:
    """The gradients that come in for the floating leaves of a loop variable; zeros where there are none."""
    given: list[Any] = jax.tree.leaves(cotangent)
    leaves = jax.tree.leaves(start)
    if len(given) != len(leaves):
        given = [None] * len(leaves)
    pairs = zip(leaves, given, strict=True)
    return [_rows_like(x, g) for x, g in pairs if jnp.issubdtype(x.dtype, jnp.inexact)]


def _rows_like(leaf: Any, gradient: Any) -> Any:
    if gradient is None:
        return jnp.zeros_like(leaf)
    missing = 0 if gradient.shape == leaf.shape else leaf.shape[0] - gradient.shape[0]
    # A list that grows has as many rows as were written; in the loop it has room for all iterations.
    return jnp.pad(gradient, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1)) if missing else gradient


def _refilled(argument: Any, start: Any, real: Any) -> Any:
    """The gradient of a loop variable in the form that it had before the loop."""
    leaves = [
        next(real) if jnp.issubdtype(x.dtype, jnp.inexact) else np.zeros(x.shape, jax.dtypes.float0)
        for x in jax.tree.leaves(start)
    ]
    argument = _array(argument)
    before, form = jax.tree.flatten(argument)
    if len(before) != len(leaves):
        return argument  # a list that had no room yet
    pairs = zip(leaves, before, strict=True)
    return jax.tree.unflatten(form, [x[: b.shape[0]] if x.shape != b.shape else x for x, b in pairs])
