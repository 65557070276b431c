"""The gradient of a compiled loop: a run forwards that keeps what the run backwards needs, and the run backwards.

Both are `lax.while_loop`s that go round as often as the loop does. What is kept lies in buffers with one row per
iteration; what is the same in all iterations (weights) is not kept. Four things that would cost the size of a whole
input in each iteration are done otherwise: the gradient of a weight that is multiplied in the loop is one product
over all iterations after the run backwards, that of a table that is looked up is one scatter, rows read from a
list add into the gradient of the list in place, and the gradient of a list that is only written to stays as it is
while its rows are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

Failure = tuple[Any, Any]
_INLINED = ("jit", "pjit", "closed_call")
# Rather computed again than kept.
_CHEAP = frozenset((
    "add", "sub", "mul", "neg", "max", "min", "sign", "integer_pow", "square", "select_n", "lt", "le", "gt", "ge", "eq",
    "ne", "and", "or", "not", "convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "expand_dims",
))  # fmt: skip
_LINEAR = ("dot_general", "gather", "dynamic_slice")  # linear in an operand that may be constant in the loop


@dataclass
class _Tap:
    """An equation that is linear in a constant of the loop: its results get a gradient of their own."""

    number: int  # of the equation, in the order in which they run
    equation: Any
    constant: int
    position: int
    result: jax.ShapeDtypeStruct

    @property
    def in_place(self) -> bool:
        return str(self.equation.primitive.name) == "dynamic_slice"

    @property
    def is_matrix_product(self) -> bool:
        """Whether it is a matrix times the constant, as layers multiply."""
        if str(self.equation.primitive.name) != "dot_general" or self.position != 1 or len(self.result.shape) != 2:
            return False
        return bool(self.equation.params["dimension_numbers"] == (((1,), (0,)), ((), ())))

    def apply(self, constant: Any, others: Sequence[Any]) -> Any:
        operands = list(others)
        operands.insert(self.position, constant)
        return _bind(self.equation, operands)[0]


def _bind(equation: Any, operands: Sequence[Any]) -> list[Any]:
    result = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
    return list(result) if equation.primitive.multiple_results else [result]


@dataclass
class _Write:
    """An equation that writes a row of a list (a loop variable that is used in no other way)."""

    number: int  # of the equation, in the order in which they run
    leaf: int
    row: jax.ShapeDtypeStruct


# Where a value comes from: the number of a constant of the loop, or of a leaf of the loop variables.
Source = tuple[str, int] | None
Visit = Callable[[int, Any, list[Any], list[Source]], tuple[list[Any], Source] | None]


def _evaluate(
    jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Any], sources: Sequence[Source], visit: Visit,
    numbers: Iterator[int],
) -> tuple[list[Any], list[Source]]:
    """Runs `jaxpr`. `sources` tells which arguments are to be followed; `visit` may do an equation itself.

    Returns the results, and where they come from.
    """
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    source: dict[Any, Source] = dict(zip(jaxpr.invars, sources, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    def origin(atom: Any) -> Source:
        return None if isinstance(atom, Literal) else source.get(atom)

    for equation in jaxpr.eqns:
        operands = [read(a) for a in equation.invars]
        origins = [origin(a) for a in equation.invars]
        if equation.primitive.name in _INLINED:
            inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
            results, passed = _evaluate(inner.jaxpr, inner.consts, operands, origins, visit, numbers)
            source.update(zip(equation.outvars, passed, strict=True))
            values.update(zip(equation.outvars, results, strict=True))
            continue
        number = next(numbers)  # equations have no other identity: functions that are called twice share theirs
        if any(origins) and (done := visit(number, equation, operands, origins)) is not None:
            results = done[0]
            source[equation.outvars[0]] = done[1]
        else:
            results = _bind(equation, operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(a) for a in jaxpr.outvars], [origin(a) for a in jaxpr.outvars]


def _is_row(operands: list[Any]) -> bool:
    whole, row = operands[:2]
    return bool(row.shape == (1, *whole.shape[1:]))


def _is_real(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


@dataclass
class Kept:
    """A loop that has run: its results, and what the run backwards needs."""

    values: list[Any]  # the loop variables after the loop
    failed: Failure
    count: Any
    residuals: dict[Any, Any]  # by variable of an iteration's jaxpr: its values in all iterations
    known: dict[Any, Any]  # the same of what is alike in all iterations: its value
    operands: tuple[list[Any], list[Any]]  # per tap: the buffers of the other operands; per write: those of the place


@dataclass
class ReversibleLoop:
    """A loop as jaxprs, to be run forwards once and backwards once.

    `test(values)` says whether it goes on, `iterate(values, constants, number)` gives the new values and what a check
    found. `start` and `constants` are pytrees; gradients are those of their floating leaves.
    """

    test: Callable[[Any], Any]
    iterate: Callable[[Any, Any, Any], tuple[Any, Failure]]
    start: Any
    constants: Any
    bound: int
    no_failure: Failure
    taps: list[_Tap] = field(default_factory=list)
    writes: list[_Write] = field(default_factory=list)

    def __post_init__(self) -> None:
        leaves, self.form = jax.tree.flatten(self.start)
        self.leaves = [jnp.asarray(leaf) for leaf in leaves]
        self.moving = [_is_real(leaf) for leaf in self.leaves]
        constant_leaves, self.constant_form = jax.tree.flatten(self.constants)
        self.constant_leaves = [jnp.asarray(leaf) for leaf in constant_leaves]
        self.real = list(self.moving)
        self.plain: set[int] = set()  # constants that are used in other ways than taps
        self.lists: set[int] = set()  # leaves that are only written to, row by row
        self.body = self._trace_body()
        self._find_taps()
        self.step = self._trace_step()

    # Leaves that have a gradient ("real") and others, apart and together

    def _apart(self, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        real = [x for x, m in zip(leaves, self.moving, strict=True) if m]
        return real, [x for x, m in zip(leaves, self.moving, strict=True) if not m]

    def _together(self, real: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        r, o = iter(real), iter(others)
        return [next(r) if m else next(o) for m in self.moving]

    # Tracing

    def _trace_body(self) -> ClosedJaxpr:
        def body(constants: list[Any], leaves: list[Any], number: Any) -> Any:
            values = jax.tree.unflatten(self.form, leaves)
            new, failed = self.iterate(values, jax.tree.unflatten(self.constant_form, constants), number)
            return jax.tree.leaves(new), [jnp.asarray(f, jnp.int64) for f in failed]

        return jax.make_jaxpr(body)(self.constant_leaves, self.leaves, jnp.int32(0))

    def _run_body(self, constants: list[Any], leaves: list[Any], number: Any, visit: Visit) -> Any:
        sources: list[Source] = [("constant", i) for i in range(len(constants))]
        sources += [("leaf", i) for i in range(len(leaves))]
        arguments = [*constants, *leaves, number]
        return _evaluate(self.body.jaxpr, self.body.consts, arguments, [*sources, None], visit, count())

    def _find_taps(self) -> None:
        """Finds what needs no gradient of full size, and which loop variables are lists that are only written to."""
        otherwise: set[int] = set()  # leaves that are used in other ways

        def visit(number: int, equation: Any, operands: list[Any], origins: list[Source]) -> Any:
            name = equation.primitive.name
            for position, origin in enumerate(origins):
                if origin is not None and origin[0] == "leaf":
                    if name == "dynamic_update_slice" and position == 0 and _is_row(operands):
                        row = jax.ShapeDtypeStruct(operands[1].shape, operands[1].dtype)
                        self.writes.append(_Write(number, origin[1], row))
                        return _bind(equation, operands), origin
                    otherwise.add(origin[1])
            known = [(i, o[1]) for i, o in enumerate(origins) if o is not None and o[0] == "constant"]
            known = [(i, c) for i, c in known if _is_real(self.constant_leaves[c])]
            if name in _LINEAR and len(known) == 1 and (known[0][0] == 0 or name == "dot_general"):
                result = _bind(equation, operands)[0]
                position, constant = known[0]
                form = jax.ShapeDtypeStruct(result.shape, result.dtype)
                self.taps.append(_Tap(number, equation, constant, position, form))
                return [result], None
            self.plain |= {c for _, c in known}
            return None

        def run(constants: list[Any], leaves: list[Any], number: Any) -> Any:
            results, passed = self._run_body(constants, leaves, number, visit)
            for i, source in enumerate(passed):
                if source is not None and source[0] == "constant":
                    self.plain.add(source[1])
                if source is not None and source[0] == "leaf" and source[1] != i:
                    otherwise.add(source[1])
            lists = {i for i, source in enumerate(passed) if source == ("leaf", i) and self.moving[i]}
            self.lists = lists - otherwise
            return results

        jax.eval_shape(run, self.constant_leaves, self.leaves, jnp.int32(0))
        self.plain = {c for c in self.plain if _is_real(self.constant_leaves[c])}
        self.lists &= {w.leaf for w in self.writes}
        self.writes = [w for w in self.writes if w.leaf in self.lists]
        self.moving = [m and i not in self.lists for i, m in enumerate(self.moving)]

    def _trace_step(self) -> Any:
        """One iteration with what it keeps, as a jaxpr of flat arguments."""
        self.plain_order = sorted(self.plain)
        forms: dict[str, Any] = {}

        def step(constants: list[Any], leaves: list[Any], number: Any) -> Any:
            real, others = self._apart(leaves)

            def forward(real: list[Any], plain: list[Any], nudges: list[Any]) -> Any:
                used = list(constants)
                for position, value in zip(self.plain_order, plain, strict=True):
                    used[position] = value
                taps = {t.number: (t, n) for t, n in zip(self.taps, nudges, strict=True)}
                writes = {w.number: w for w in self.writes}
                saved: list[list[Any]] = []
                rows: list[Any] = []
                places: list[list[Any]] = []

                def visit(number: int, equation: Any, operands: list[Any], origins: list[Source]) -> Any:
                    if number in writes:
                        whole, row, *starts = operands
                        rows.append(row)
                        places.append([jnp.asarray(s) for s in starts])
                        kept_apart = [whole, lax.stop_gradient(row), *starts]
                        return _bind(equation, kept_apart), ("leaf", writes[number].leaf)
                    if number in taps:
                        tap, nudge = taps[number]
                        others = [o for i, o in enumerate(operands) if i != tap.position]
                        saved.append([jnp.asarray(o) for o in others])
                        return [tap.apply(constants[tap.constant], others) + nudge], None
                    return None

                results, _ = self._run_body(used, self._together(real, others), number, visit)
                new, failed = results[:-2], results[-2:]
                new_real, new_others = self._apart(new)
                return (new_real, rows), (new_others, failed, saved, places)

            plain = [constants[i] for i in self.plain_order]
            nudges = [jnp.zeros(t.result.shape, t.result.dtype) for t in self.taps]
            (new_real, _), reverse, aux = jax.vjp(forward, real, plain, nudges, has_aux=True)
            new_others, failed, saved, places = aux
            residuals, forms["reverse"] = jax.tree.flatten(reverse)
            return self._together(new_real, new_others), failed, (saved, places), residuals

        traced, shapes = jax.make_jaxpr(step, return_shape=True)(self.constant_leaves, self.leaves, jnp.int32(0))
        self.reverse_form = forms["reverse"]
        self.result_form = jax.tree.structure(shapes)
        return traced

    # Running

    def run(self) -> Kept:
        """Forwards: the loop's results, with what its gradient needs."""
        _, _, saved_shapes, residual_shapes = jax.tree.unflatten(self.result_form, self.step.out_avals)
        known = self._same_in_all()
        wanted = self.step.jaxpr.outvars[len(self.step.jaxpr.outvars) - len(residual_shapes) :]
        chosen = self._worth_keeping([v for v in wanted if not isinstance(v, Literal) and v not in known])
        places = [wanted.index(v) for v in chosen]
        buffers = [jnp.zeros((self.bound, *residual_shapes[i].shape), residual_shapes[i].dtype) for i in places]
        operands = jax.tree.map(lambda s: jnp.zeros((self.bound, *s.shape), s.dtype), saved_shapes)
        call = jaxpr_as_fun(self.step)

        def go_on(state: Any) -> Any:
            leaves, number, failed, _, _ = state
            more = self.test(jax.tree.unflatten(self.form, leaves))
            return jnp.logical_and(more, jnp.logical_and(failed[0] == 0, number < self.bound))

        def step(state: Any) -> Any:
            leaves, number, _, buffers, operands = state
            results = jax.tree.unflatten(self.result_form, call(*self.constant_leaves, *leaves, number))
            new, found, saved, residuals = results

            def put(buffer: Any, row: Any) -> Any:
                return lax.dynamic_update_index_in_dim(buffer, row, number, 0)

            buffers = [put(b, residuals[i]) for b, i in zip(buffers, places, strict=True)]
            # The loop ends with the first failure.
            return new, number + 1, tuple(found), buffers, jax.tree.map(put, operands, saved)

        failed = tuple(jnp.asarray(f, jnp.int64) for f in self.no_failure)
        start = (self.leaves, jnp.int32(0), failed, buffers, operands)
        leaves, count, failed, buffers, operands = start if self.bound == 0 else lax.while_loop(go_on, step, start)
        values = jax.tree.unflatten(self.form, leaves)
        found = (failed[0], failed[1])
        return Kept(values, found, count, dict(zip(chosen, buffers, strict=True)), known, operands)

    def _same_in_all(self) -> dict[Any, Any]:
        """The variables of an iteration that need no iteration to be known, with their values."""
        jaxpr = self.step.jaxpr
        known: dict[Any, Any] = dict(zip(jaxpr.constvars, self.step.consts, strict=True))
        known.update(zip(jaxpr.invars, self.constant_leaves, strict=False))
        for equation in jaxpr.eqns:
            if not equation.effects and all(isinstance(a, Literal) or a in known for a in equation.invars):
                operands = [a.val if isinstance(a, Literal) else known[a] for a in equation.invars]
                known.update(zip(equation.outvars, _bind(equation, operands), strict=True))
        self._known = set(known)
        self._cheap = {
            e.outvars[0]: e for e in jaxpr.eqns if e.primitive.name in _CHEAP and e.outvars[0] not in known
        }
        return known

    def _worth_keeping(self, wanted: list[Any]) -> list[Any]:
        """Those of `wanted` that are not quickly computed from the others: less memory, and less to move."""
        order = {v: i for i, e in enumerate(self.step.jaxpr.eqns) for v in e.outvars}
        kept = dict.fromkeys(wanted)
        for variable in sorted(kept, key=lambda v: order.get(v, -1), reverse=True):
            if self._follows(variable, kept, 3):
                del kept[variable]
        return list(kept)

    def _follows(self, variable: Any, kept: dict[Any, None], depth: int) -> bool:
        equation = self._cheap.get(variable)
        return equation is not None and all(
            isinstance(a, Literal) or a in self._known or a in kept or (depth > 1 and self._follows(a, kept, depth - 1))
            for a in equation.invars
        )

    def _recalled(self, variable: Any, values: dict[Any, Any]) -> Any:
        """The value of a residual, from those that were kept."""
        if isinstance(variable, Literal):
            return jnp.asarray(variable.val)
        if variable not in values:
            equation = self._cheap[variable]
            values[variable] = _bind(equation, [self._recalled(a, values) for a in equation.invars])[0]
        return values[variable]

    def gradients(self, kept: Kept, cotangents: Any) -> tuple[list[Any], list[Any]]:
        """Backwards: the gradients of the floating leaves of `start` and of `constants` (None where there is none)."""
        given = iter(jax.tree.leaves(cotangents))
        incoming = {i: jnp.asarray(next(given)) for i, real in enumerate(self.real) if real}
        real = [incoming[i] for i, moves in enumerate(self.moving) if moves]
        # Of a row that is written twice only the last value counts.
        taken = {i: jnp.zeros(incoming[i].shape[:1], bool) for i in sorted(self.lists)}
        plain = [jnp.zeros_like(self.constant_leaves[i]) for i in self.plain_order]
        rows = {t.constant: jnp.zeros_like(self.constant_leaves[t.constant]) for t in self.taps if t.in_place}
        products = [
            None if t.in_place else jnp.zeros((self.bound, *t.result.shape), t.result.dtype) for t in self.taps
        ]
        operands, places = kept.operands
        wanted = self.step.jaxpr.outvars[len(self.step.jaxpr.outvars) - self.reverse_form.num_leaves :]

        def step(i: Any, state: Any) -> Any:
            real, taken, plain, rows, products = state
            at = kept.count - 1 - i

            def row_of(buffer: Any) -> Any:
                return lax.dynamic_index_in_dim(buffer, at, keepdims=False)

            values = {**kept.known, **{v: row_of(b) for v, b in kept.residuals.items()}}
            residuals = [self._recalled(v, values) for v in wanted]
            taken, rows, products = dict(taken), dict(rows), list(products)
            written: list[Any] = [None] * len(self.writes)
            for k, write in reversed(list(enumerate(self.writes))):
                starts = [row_of(p) for p in places[k]]
                row = lax.dynamic_slice(incoming[write.leaf], starts, write.row.shape)
                before = lax.dynamic_slice(taken[write.leaf], starts[:1], (1,))
                written[k] = jnp.where(before[0], 0, row).astype(row.dtype)
                taken[write.leaf] = lax.dynamic_update_slice(taken[write.leaf], jnp.array([True]), starts[:1])
            reverse = jax.tree.unflatten(self.reverse_form, residuals)
            real, more, nudges = reverse((real, written))
            plain = [p + m for p, m in zip(plain, more, strict=True)]
            for k, (tap, nudge) in enumerate(zip(self.taps, nudges, strict=True)):
                if tap.in_place:
                    starts = [row_of(o) for o in operands[k]]
                    total = rows[tap.constant]
                    row = lax.dynamic_slice(total, starts, tap.result.shape) + nudge
                    rows[tap.constant] = lax.dynamic_update_slice(total, row, starts)
                else:
                    products[k] = lax.dynamic_update_index_in_dim(products[k], nudge, at, 0)
            return real, taken, plain, rows, products

        state = (real, taken, plain, rows, products)
        if self.bound:
            state = lax.fori_loop(0, kept.count, step, state)
        real, taken, plain, rows, products = state
        totals: list[Any] = [None] * len(self.constant_leaves)
        found = [*zip(self.plain_order, plain, strict=True), *rows.items()]
        if self.bound:
            found += [
                (t.constant, self._product(t, operands[k], products[k]))
                for k, t in enumerate(self.taps) if not t.in_place
            ]  # fmt: skip
        for position, value in found:
            totals[position] = value if totals[position] is None else totals[position] + value
        rest = iter(real)
        outgoing = []
        for i in incoming:
            if i in self.lists:
                mask = taken[i].reshape(-1, *[1] * (incoming[i].ndim - 1))
                outgoing.append(jnp.where(mask, 0, incoming[i]).astype(incoming[i].dtype))
            else:
                outgoing.append(next(rest))
        return outgoing, totals

    def _product(self, tap: _Tap, operands: list[Any], cotangents: Any) -> Any:
        """The gradient of a constant over all iterations at once."""
        if tap.is_matrix_product:
            rows, columns = (x.reshape(-1, x.shape[-1]) for x in (operands[0], cotangents))
            return lax.dot_general(rows, columns, (((0,), (0,)), ((), ()))).astype(cotangents.dtype)

        def over_all(constant: Any) -> Any:
            return jax.vmap(lambda *others: tap.apply(constant, others))(*operands)

        _, reverse = jax.vjp(over_all, self.constant_leaves[tap.constant])
        return reverse(cotangents)[0]
