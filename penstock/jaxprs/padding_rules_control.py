"""Rules of calls, branches and loops. Conditions see true sizes, so loops run to the true length."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr

from penstock.jaxprs.dims import is_symbolic, scan_counts
from penstock.jaxprs.padding_frame import Frame, Padded, rule


def _inlined(frame: Frame, body: Any, arguments: list[Padded]) -> list[Padded]:
    if isinstance(body, ClosedJaxpr):
        return frame.run(body.jaxpr, body.consts, arguments)
    return frame.run(body, [], arguments)


@rule("jit", "pjit", "closed_call", "checkpoint", "remat2", "remat")
def call_jaxpr(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    body = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    return _inlined(frame, body, operands)


@rule("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "core_call", "call")
def call_with_derivative(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    # Derivatives have already been taken.
    body = equation.params.get("call_jaxpr", equation.params.get("fun_jaxpr"))
    return _inlined(frame, body, operands)


@rule("custom_linear_solve")
def custom_linear_solve(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    counts, jaxprs = equation.params["const_lengths"], equation.params["jaxprs"]
    before = counts.matvec + counts.vecmat
    constants = operands[before : before + counts.solve]
    right = operands[before + counts.solve + counts.transpose_solve :]
    return _inlined(frame, jaxprs.solve, [*constants, *right])


@rule("cond")
def cond(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    index, *arguments = operands

    def branch(closed: ClosedJaxpr) -> Any:
        return lambda *arrays: frame.call(closed, arrays)

    branches = [branch(closed) for closed in equation.params["branches"]]
    return lax.switch(index.array, branches, *(a.array for a in arguments))


@rule("while")
def while_loop(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    params = equation.params
    of_condition = params["cond_nconsts"]
    of_body = of_condition + params["body_nconsts"]
    arrays = [operand.array for operand in operands]
    condition_constants, body_constants = arrays[:of_condition], arrays[of_condition:of_body]

    batch = params["cond_jaxpr"].out_avals[0].shape

    def goes_on(carry: list[Any]) -> Any:
        return frame.call(params["cond_jaxpr"], [*condition_constants, *carry])[0]

    def condition(carry: list[Any]) -> Any:
        symbolic = {d: dim for d, dim in enumerate(batch) if is_symbolic(dim)}
        return jnp.any(frame.inner().masked(goes_on(carry), symbolic, False))

    def body(carry: list[Any]) -> list[Any]:
        new = frame.call(params["body_jaxpr"], [*body_constants, *carry])
        if not batch:
            return new
        # In a batch of loops, those that have ended keep their values.
        going = goes_on(carry)
        return [_chosen(going, after, before) for after, before in zip(new, carry, strict=True)]

    return lax.while_loop(condition, body, arrays[of_body:])


def _chosen(choice: Any, yes: Any, no: Any) -> Any:
    """Selects one of two values for each element of a batch."""
    return jnp.where(choice.reshape(choice.shape + (1,) * (yes.ndim - choice.ndim)), yes, no)


@rule("scan")
def scan(frame: Frame, equation: Any, operands: list[Padded]) -> Any:
    params = equation.params
    length, reverse, closed = params["length"], params["reverse"], params["jaxpr"]
    of_constants, count = scan_counts(params)
    of_carry = of_constants + count
    arrays = [operand.array for operand in operands]
    constants, carry, rows = arrays[:of_constants], arrays[of_constants:of_carry], arrays[of_carry:]

    def body(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        results = frame.call(closed, [*constants, *carry, *row])
        return results[:count], results[count:]

    if not is_symbolic(length):
        last, made = lax.scan(body, carry, rows, length=length, reverse=reverse, unroll=params["unroll"])
        return [*last, *made]

    total = frame.size(length)
    bound = frame.bounds.upper(length)
    made_avals = closed.out_avals[count:]
    made = [jnp.zeros((bound, *frame.padded(aval.shape)), aval.dtype) for aval in made_avals]

    def step(state: tuple[Any, list[Any], list[Any]]) -> tuple[Any, list[Any], list[Any]]:
        i, carry, made = state
        place = total - 1 - i if reverse else i
        row = [lax.dynamic_index_in_dim(x, place, 0, keepdims=False) for x in rows]
        carry, new = body(carry, row)
        made = [lax.dynamic_update_index_in_dim(x, y, place, 0) for x, y in zip(made, new, strict=True)]
        return i + 1, carry, made

    start = jnp.zeros((), np.int32)
    _, last, made = lax.while_loop(lambda state: state[0] < total, step, (start, carry, made))
    # Only true rows were written.
    shapes = [variable.aval.shape for variable in equation.outvars[count:]]
    return [*last, *(Padded(x, shape, frozenset({0})) for x, shape in zip(made, shapes, strict=True))]
