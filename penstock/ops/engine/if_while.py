"""If and While: control flow as nodes with bodies, compiled into a segment unless a body needs the host."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
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
from penstock.kernel.lists import RowList
from penstock.kernel.types import Array

Failure = tuple[Any, Any]  # the number of a failed check (0 for none) and its detail; both int64
NO_FAILURE: Failure = (np.int64(0), np.int64(0))


def first_failure(one: Failure, other: Failure) -> Failure:
    """`one` if it is a failure, else `other`."""
    return jnp.where(one[0] != 0, one[0], other[0]), jnp.where(one[0] != 0, one[1], other[1])


def _branch_shapes(op: Operation) -> list[TensorShape]:
    pairs = zip(op.attrs["then_branch"].outputs, op.attrs["else_branch"].outputs, strict=True)
    return [a.shape.most_specific_compatible_shape(b.shape) for a, b in pairs]


def as_predicate(value: Any) -> Any:
    """True where TensorFlow takes a condition as true: True, a non-zero number, a non-empty string."""
    if isinstance(value, np.ndarray):
        return bool(value.size and (value.reshape(-1)[0] not in (b"", 0)))
    return value if value.dtype == jnp.bool_ else value != 0


def _split(arguments: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Positions and values of the arguments that lax can carry. References and known values become closures."""
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
        outputs = ctx.call(then_branch if predicate else else_branch, input, branch=int(not predicate))
        ctx.count_runs(1 if predicate else 1 << 32)
        ctx.merge_failure(ctx.inner_failed)
        return list(outputs)
    positions, carried = _split(input)

    def branch(number: int) -> Any:
        function = (then_branch, else_branch)[number]

        def traced(values: list[Any]) -> Any:
            outputs = [_array(v) for v in ctx.call(function, _replaced(input, positions, values), branch=number)]
            outputs = [None if v is ABSENT else v for v in outputs]
            return outputs, NO_FAILURE if ctx.inner_failed is None else ctx.inner_failed

        return traced

    try:
        branches = _with_same_outputs(then_branch, else_branch, [branch(0), branch(1)], carried)
        outputs, failed = lax.cond(predicate, *branches, carried)
        outputs = [ABSENT if v is None else v for v in outputs]
    except (TypeError, InvalidArgumentError) as error:
        # The branches differ in shape, or one does not fit its inputs: the host runs only the branch that is taken.
        raise NotTraceable(f"the branches cannot be compiled together ({str(error).splitlines()[0]})") from error
    ctx.count_runs(jnp.where(jnp.asarray(predicate).reshape(()), np.uint64(1), np.uint64(1 << 32)))
    ctx.merge_failure(failed)
    return list(outputs)


class _Absent:
    """Stands for a value that only the other branch has."""

    host_only = True


ABSENT = _Absent()


@op("Absent", "-> value: T", no_gradient=True, shape=lambda op: [op.attrs["shape"]])
def absent(*, T: DType, shape: TensorShape) -> Any:
    """Returns the mark for a result that only the other branch has."""
    return ABSENT


def _with_same_outputs(
    then_branch: Function, else_branch: Function, branches: list[Any], carried: list[Any]
) -> list[Any]:
    """The branches, each with zeros for the results that only the other one has."""
    if all(t.op.type != "Absent" for f in (then_branch, else_branch) for t in f.outputs):
        return branches
    forms = [jax.eval_shape(b, carried)[0] for b in branches]

    def complete(own: Any, other_form: list[Any]) -> Any:
        def traced(values: list[Any]) -> Any:
            outputs, failed = own(values)
            return [_zeros(f) if o is None else o for o, f in zip(outputs, other_form, strict=True)], failed

        return traced

    return [complete(branches[0], forms[1]), complete(branches[1], forms[0])]


def _zeros(form: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), form)


def _replaced(values: Sequence[Any], positions: Sequence[int], others: Sequence[Any]) -> list[Any]:
    result = list(values)
    for position, value in zip(positions, others, strict=True):
        result[position] = value
    return result


def invariant_positions(body: Function) -> set[int]:
    """The positions of the loop variables that an iteration does not change."""
    return {i for i, (before, after) in enumerate(zip(body.inputs, body.outputs, strict=True)) if before is after}


class _TypesChange(Exception):
    """Raised if an iteration changes the type or shape of a loop variable."""


class _Loop:
    """A loop over the variables that change; the others are closures."""

    def __init__(self, arguments: Sequence[Any], cond: Function, body: Function, ctx: Any) -> None:
        self.arguments = list(arguments)
        self.cond, self.body, self.ctx = cond, body, ctx
        fixed = invariant_positions(body)
        self.changing = [i for i in range(len(arguments)) if i not in fixed]
        self.start = [_stacked(_array(self.arguments[i])) for i in self.changing]

    def _all(self, changing: Sequence[Any]) -> list[Any]:
        return _replaced(self.arguments, self.changing, changing)

    def test(self, changing: Sequence[Any]) -> Any:
        """True if the loop continues."""
        return as_predicate(_array(self.ctx.call(self.cond, self._all(changing))[0])).reshape(())

    def iterate(self, changing: Sequence[Any], number: Any) -> tuple[list[Any], Any]:
        """Runs one iteration. Returns the new values and the failure of a check in it, if any."""
        outputs = self.ctx.call(self.body, self._all(changing), number)
        failed = NO_FAILURE if self.ctx.inner_failed is None else self.ctx.inner_failed
        return [_stacked(_array(outputs[i])) for i in self.changing], failed

    def _make_room(self) -> None:
        """Allocates lists with the room that they have after one iteration."""
        after = jax.eval_shape(lambda v: self.iterate(v, jnp.int32(0))[0], self.start)
        self.start = [_with_room(s, a) for s, a in zip(self.start, after, strict=True)]

    def result(self, changing: Sequence[Any]) -> list[Any]:
        """All loop variables after the loop."""
        return self._all(changing)

    def run(self) -> tuple[list[Any], Any, Any]:
        """Runs the loop. Returns the values after it, the number of iterations, and the failure of a check, if any."""
        if not any(getattr(value, "items", value) is None for value in self.start):
            with contextlib.suppress(_TypesChange):
                return self._run()
        self._make_room()
        try:
            return self._run()
        except _TypesChange as error:
            reason = "the shapes of the loop variables change from one iteration to the next"
            raise NotTraceable(reason) from error

    def _run(self) -> tuple[list[Any], Any, Any]:
        def should_continue(state: Any) -> Any:
            values, _, failed = state
            return jnp.logical_and(self.test(values), failed[0] == 0)

        def step(state: Any) -> Any:
            values, number, failed = state
            values, new = self.iterate(values, number)
            return values, number + 1, first_failure(failed, new)

        start = (self.start, jnp.int32(0), jax.tree.map(jnp.asarray, NO_FAILURE))
        try:
            result: tuple[list[Any], Any, Any] = lax.while_loop(should_continue, step, start)
        except TypeError as error:  # a kernel's TypeError has become an InvalidArgumentError before
            raise _TypesChange from error
        return result


def _stacked(value: Any) -> Any:
    return value.stacked() if isinstance(value, RowList) else value


def _with_room(start: Any, after: Any) -> Any:
    """A list that had no room for items, with the room that it has after the first iteration."""
    make = getattr(start, "with_room", None)
    return start if make is None else make(after)


def _while_shapes(op: Operation) -> list[TensorShape]:
    return [t.shape for t in op.attrs["body"].inputs]


@op("While", "list(T) -> output: list(T)", control_flow=True, shape=_while_shapes)
def while_op(
    input: list[Array], *, T: list[DType], cond: Function, body: Function, parallel_iterations: int = 10, ctx: Any
) -> list[Array]:
    try:
        loop = _Loop(input, cond, body, ctx)
        values, runs, failed = loop.run()
    except InvalidArgumentError as error:
        # The error may never occur: a loop over a tensor of size 0 may not run its body. The host decides that.
        raise NotTraceable(f"the body cannot be compiled ({error.message})") from error
    ctx.count_runs(runs)
    ctx.merge_failure(failed)
    return loop.result(values)


@op(
    "WhileTripCount",
    "list(T) -> count: int32",
    control_flow=True,
    no_gradient=True,
    shape=lambda op: [TensorShape.of(())],
)
def while_trip_count(input: list[Array], *, T: list[DType], cond: Function, body: Function, ctx: Any) -> Array:
    """A bound for the iterations of a loop: the next power of four, so that code is compiled for few bounds."""
    count = _Loop(input, cond, body, ctx).run()[1]
    ctx.count_runs(count)
    exponent = 32 - lax.clz(jnp.maximum(count, 1) - 1)
    return lax.shift_left(jnp.int32(1), exponent + exponent % 2)


def bound_of_count(count: int) -> int:
    """The same bound, for iterations that were counted elsewhere.

    >>> [bound_of_count(n) for n in (1, 3, 4, 17)]
    [1, 4, 4, 64]
    """
    exponent = (max(count, 1) - 1).bit_length()
    return 1 << exponent + exponent % 2
