"""lift: Keras code as one node on penstock tensors. The variables that it reads and writes are found by tracing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from keras.src import backend
from keras.src.backend.common.stateless_scope import StatelessScope, get_stateless_scope
from keras.src.backend.jax.core import JaxVariable

from penstock.eager.tape import GradientTape
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.recording import recorders
from penstock.keras.lookups import Lookup, independent, rows_of
from penstock.keras.variables import BackedVariable, back
from penstock.ops.control.jax_function import from_jax, is_wide, spec_of, traced

Resolve = Callable[[BackedVariable], Any]


class LiftedScope(StatelessScope):
    """Gives Keras code the values of variables, and notes which it reads, adds to and replaces."""

    def __init__(self, start: Callable[[Any], Any], plan: Plan) -> None:
        super().__init__(collect_losses=True)
        self._start = start  # the value of a variable at its first use
        self._plan = plan
        self.seed: Any = None  # what rows are made of, where only ids are wanted
        self.has_unset = False  # a variable has no value yet
        self.reset()

    def reset(self) -> None:
        """Forgets all values and changes."""
        self.state_mapping.clear()
        self.losses.clear()
        self.added: dict[int, Any] = {}
        self.replaced: dict[int, Any] = {}
        self.written: dict[int, Any] = {}  # by id: the variable
        self.lookups: list[Any] = []  # the ids of each
        self._totals: dict[int, tuple[Any, Any, Any]] = {}  # by id: a sum, its variable, and what was added

    def get_current_value(self, variable: Any) -> Any:
        if not isinstance(variable, BackedVariable) and variable._value is None:
            self.has_unset = True  # it is made in this trace, and gets a value after it
            return jnp.zeros(variable.shape, variable._dtype)
        if id(variable) not in self.state_mapping:
            self.state_mapping[id(variable)] = self._start(variable)
        return self.state_mapping[id(variable)]

    def add_update(self, update: Any) -> None:
        variable, value = update
        self.written[id(variable)] = variable
        self.state_mapping[id(variable)] = self.replaced[id(variable)] = value
        self.added.pop(id(variable), None)

    def add_delta(self, variable: Any, value: Any) -> Any:
        """Adds to a variable; it stays an addition unless the variable is also replaced."""
        current = self.get_current_value(variable)
        value = jnp.broadcast_to(jnp.asarray(value).astype(variable._dtype), current.shape)
        total = current + value
        if id(variable) in self.replaced:
            self.add_update((variable, total))
            return total
        before = self.added.get(id(variable))
        self.added[id(variable)] = value if before is None else before + value
        self.written[id(variable)] = variable
        self.state_mapping[id(variable)] = total
        return total

    def note_sum(self, variable: Any, addend: Any, total: Any) -> None:
        """Notes a sum of a variable as it is now, so that `v.assign(v + x)` is an addition."""
        if getattr(total, "shape", None) == variable.shape and id(variable) not in self.written:
            self._totals[id(total)] = (total, variable, addend)

    def addend_of(self, variable: Any, total: Any) -> Any:
        """The value that was added to a variable to give `total`; None if that is not how it came about."""
        _, summed, addend = self._totals.get(id(total), (None, None, None))
        return addend if summed is variable and id(variable) not in self.written else None

    def rows(self, table: BackedVariable, ids: Any) -> Any:
        """The rows of a table, gathered outside of this code; None: it must gather them itself."""
        return self._plan.rows(self, table, ids)


def lifted_scope() -> LiftedScope | None:
    """The scope of the Keras code that is traced now, if any is."""
    scope = get_stateless_scope()
    return scope if isinstance(scope, LiftedScope) else None


class Plan:
    """Keras code for one form of its arguments: what it reads and writes, and the node that runs it."""

    def __init__(
        self, code: Callable[..., Any], losses: Callable[[], Sequence[Any]], name: str, derivatives: int
    ) -> None:
        self._code, self._losses, self._name = code, losses, name
        self.reads: dict[int, BackedVariable] = {}
        self.lookups: list[Lookup] = []
        self._row_values: list[Any] | None = None  # while the node is traced
        self.sums: list[BackedVariable] = []  # in the order of the node's outputs
        self.replaced: list[BackedVariable] = []
        self._node = from_jax(self._run, vjp_order=derivatives, name=name)
        self._ids = from_jax(self._ids_of, vjp_order=0, name=f"{name}_ids")

    # Finding out

    def discover(self, tensors: Sequence[Tensor]) -> None:
        """Traces the code with values that stand for its variables."""
        specs = [spec_of(self._name, f"input {i}", t) for i, t in enumerate(tensors)]
        complete = False
        while not complete:  # again after variables were made, or got their penstock variables
            unbacked: list[Any] = []
            scope = LiftedScope(lambda v, new=unbacked: self._stand_in(v, new), self)  # type: ignore[misc]
            # Variables that the code makes get their values when the scope ends, outside of the trace.
            with jax.enable_x64(is_wide(specs)), scope:
                structs, _ = traced(
                    lambda *values, s=scope: self._looked_at(s, values), self._name, specs, ["input"] * len(specs)
                )
            for variable in unbacked:
                back(variable)
            complete = not unbacked and not scope.has_unset
        if self.lookups:
            with jax.enable_x64(is_wide(specs)):
                self.lookups = independent(self.lookups, lambda seed, *values: self._ids_from(seed, values), structs)
        self.reads |= {id(lookup.table): lookup.table for lookup in self.lookups if lookup.is_dense}

    def _looked_at(self, scope: LiftedScope, values: Sequence[Any]) -> None:
        scope.reset()
        self.reads, self.lookups = {}, []
        self._called(values)

    def _stand_in(self, variable: Any, unbacked: list[Any]) -> Any:
        if isinstance(variable, BackedVariable):
            self.reads[id(variable)] = variable
        else:
            unbacked.append(variable)
        return jnp.zeros(variable.shape, variable._dtype)

    def rows(self, scope: LiftedScope, table: BackedVariable, ids: Any) -> Any:
        """See LiftedScope.rows."""
        number = len(scope.lookups)
        scope.lookups.append(ids)
        if self._row_values is not None:
            lookup = self.lookups[number]
            return None if lookup.is_dense else self._row_values[lookup.position]
        if scope.seed is None:
            self.lookups.append(Lookup(table))
            return jnp.zeros((*ids.shape, *table.shape[1:]), table._dtype)
        return jnp.broadcast_to(scope.seed, (*ids.shape, *table.shape[1:])).astype(table._dtype)

    # Code on arrays

    def _called(self, values: Sequence[Any]) -> tuple[Any, Any]:
        outputs = self._code(values)
        losses = list(self._losses())
        masks = [backend.get_keras_mask(o) if hasattr(o, "shape") else None for o in jax.tree.leaves(outputs)]
        return outputs, (losses, masks)

    def _ids_from(self, seed: Any, values: Sequence[Any]) -> list[Any]:
        scope = LiftedScope(lambda v: jnp.broadcast_to(seed, v.shape).astype(v._dtype), self)
        scope.seed = seed
        with scope:
            self._called(values)
        return scope.lookups

    def _ids_of(self, *values: Any) -> list[Any]:
        ids = self._ids_from(jnp.zeros(()), values)
        return [i for i, lookup in zip(ids, self.lookups, strict=True) if not lookup.is_dense]

    def _run(self, variables: Sequence[Any], rows: Sequence[Any], values: Sequence[Any]) -> Any:
        given = dict(zip(self.reads, variables, strict=True))
        self._row_values = list(rows)
        try:
            with LiftedScope(lambda v: given[id(v)], self) as scope:
                outputs, extra = self._called(values)
        finally:
            self._row_values = None
        self.sums = [scope.written[i] for i in scope.added]
        self.replaced = [scope.written[i] for i in scope.replaced]
        return outputs, extra, list(scope.added.values()), list(scope.replaced.values())

    # Code on tensors

    def call(self, tensors: Sequence[Tensor], resolve: Resolve) -> tuple[Any, list[Any]]:
        """Adds the node, and the changes of variables. Returns the results, and the losses that the code added."""
        sparse = [lookup for lookup in self.lookups if not lookup.is_dense]
        rows = (
            [rows_of(lookup.table, i) for lookup, i in zip(sparse, self._ids(*tensors), strict=True)] if sparse else []
        )
        values = [convert_to_tensor(resolve(v)) for v in self.reads.values()]
        outputs, (losses, masks), added, replaced = self._node(values, rows, list(tensors))
        for variable, value in zip(self.sums, added, strict=True):
            resolve(variable).assign_add(value, read_value=False)
        for variable, value in zip(self.replaced, replaced, strict=True):
            resolve(variable).assign(value, read_value=False)
        for output, mask in zip(jax.tree.leaves(outputs), masks, strict=False):
            if mask is not None:
                backend.set_keras_mask(output, mask)
        return outputs, losses


def lift(
    code: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    plans: dict[Any, Plan],
    name: str,
    state: Any = None,
    losses: Callable[[], Sequence[Any]] = list,
    resolve: Resolve = lambda variable: variable.backing,
    has_gradient: bool = True,
) -> tuple[Any, list[Any]]:
    """Runs `code(*args, **kwargs)`, whose arguments have penstock tensors in them, as one node.

    `plans` keeps what was found out about the code; `state` is anything else that the code depends on. Each gradient
    tape around the call may take one more derivative.

    >>> lift(layer, (x,), {"training": True}, {}, "dense")
    """
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=lambda leaf: leaf is None)
    tensors: list[Tensor] = []
    form: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, (Tensor, np.ndarray, np.generic, jax.Array, JaxVariable)):
            tensor = convert_to_tensor(leaf if not isinstance(leaf, JaxVariable) else back(leaf))
            mask = backend.get_keras_mask(leaf) if isinstance(leaf, Tensor) else None
            tensors.append(tensor)
            if mask is not None:
                tensors.append(convert_to_tensor(mask))
            form.append(
                (tensor.dtype, tuple(tensor.shape.as_list() if tensor.shape.rank is not None else ()), mask is not None)
            )
        else:
            form.append(_Static(leaf))
    derivatives = max(1, sum(isinstance(r, GradientTape) for r in recorders.items)) if has_gradient else 0
    key = (tree, tuple(form), state, derivatives)
    plan = plans.get(key)
    if plan is None:

        def on_arrays(values: Sequence[Any]) -> Any:
            rest = iter(values)
            filled = []
            for entry in form:
                if isinstance(entry, _Static):
                    filled.append(entry.value)
                    continue
                value = next(rest)
                if entry[2]:
                    backend.set_keras_mask(value, next(rest))
                filled.append(value)
            own_args, own_kwargs = jax.tree.unflatten(tree, filled)
            return code(*own_args, **own_kwargs)

        plan = Plan(on_arrays, losses, name, derivatives)
        plan.discover(tensors)
        plans[key] = plan
    return plan.call(tensors, resolve)


class _Static:
    """An argument that is no tensor. It is the same as another if both are equal and of one type."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Static) or type(self.value) is not type(other.value):
            return False
        same = self.value is other.value
        return same or (isinstance(self.value, (bool, int, float, str, tuple)) and self.value == other.value)

    def __hash__(self) -> int:
        try:
            return hash(self.value)
        except TypeError:
            return id(self.value)
