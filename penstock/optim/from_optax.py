"""from_optax: a gradient transformation of Optax as an optimizer, its state beside the variables."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with, control_dependencies, init_scope, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array.passthrough import identity
from penstock.ops.control.jax_function import from_jax, is_wide
from penstock.ops.state import variable_ops
from penstock.optim.dense_rows import dense_rows
from penstock.optim.optimizer import Optimizer, op_of


def from_optax(transformation: Any, use_locking: bool = False, name: str = "Optax") -> OptaxOptimizer:
    """A transformation of Optax (or any object with its `init` and `update`) as an optimizer.

    What it keeps for a variable are slots of that variable, on the same parameter server, where the update runs too. A
    transformation that looks at all gradients at once, such as a clip by the global norm, is one update on the task of
    the first variable. It sees the variables in a dict, by their names. Gradients of rows become dense.

    >>> train = penstock.from_optax(optax.adamw(1e-3)).minimize(loss, global_step=step)
    """
    return OptaxOptimizer(transformation, use_locking, name)


class OptaxOptimizer(Optimizer):
    """An optimizer that adds to variables what a transformation of Optax makes of their gradients; see `from_optax`."""

    def __init__(self, transformation: Any, use_locking: bool = False, name: str = "Optax") -> None:
        if not callable(getattr(transformation, "init", None)) or not callable(getattr(transformation, "update", None)):
            raise TypeError(
                f"from_optax takes a gradient transformation, with `init` and `update`, received {transformation!r}."
            )
        super().__init__(use_locking, name)
        self._transformation = transformation
        self._init = from_jax(self._initial_state, vjp_order=0, name="init")
        self._transform = from_jax(self._transformed, vjp_order=0, name="transform")

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Operation:
        """The operation that transforms gradients, and adds the results to the variables."""
        pairs = list(grads_and_vars)
        given = [(grad, var) for grad, var in pairs if grad is not None]
        with name_scope(name, self._name):
            for group in self._groups([var for _, var in given]):
                for var, update in zip(group, self._updates(group, given), strict=True):
                    pairs = [(update, v) if v is var else (g, v) for g, v in pairs]
        return super().apply_gradients(pairs, global_step, name)

    def _groups(self, variables: Sequence[Any]) -> list[list[Any]]:
        """The variables that have to be updated together."""
        with jax.enable_x64(is_wide([(var.dtype.base_dtype, ()) for var in variables])):
            if _is_separable(self._transformation, _structs(variables)):
                return [[var] for var in variables]
        return [list(variables)]

    def _updates(self, group: Sequence[Any], given: Sequence[tuple[Any, Any]]) -> list[Tensor]:
        """The numbers to add to the variables of a group; reading them moves the state on."""
        with colocate_with(group[0], ignore_existing=True):
            grads = {_name(v): _dense(g, v) for g, v in given if any(v is member for member in group)}
            state = self._state(group)
            params = {_name(var): var.read_value() for var in group}
            updates, new_state = self._transform(grads, [s.read_value() for s in state], params)
            moved = [op_of(old.assign(new)) for old, new in zip(state, new_state, strict=True)]
            with control_dependencies(moved):
                return [identity(updates[_name(var)]) for var in group]

    def _state(self, group: Sequence[Any]) -> list[Any]:
        """The leaves of the state as variables: slots of the variables that they are for, or of the first."""
        variables = {_name(var): var for var in group}
        leaves = jax.tree.leaves_with_path(jax.eval_shape(self._transformation.init, _structs(group)))
        kept = []
        with init_scope():
            values = self._init({name: var.initialized_value() for name, var in variables.items()})
            for (path, _), value in zip(leaves, values, strict=True):
                owner, slot = _owner(path, variables), _slot_name(path, variables)
                var = group[0] if owner is None else variables[owner]
                kept.append(self._get_or_make_slot(var, value, slot, f"{self._name}/{slot}"))
        return kept

    # Functions of JAX

    def _initial_state(self, params: Any) -> list[Any]:
        return _arrays(self._transformation.init(params))

    def _transformed(self, grads: Any, arrays: Any, params: Any) -> tuple[Any, list[Any]]:
        likes, structure = jax.tree.flatten(jax.eval_shape(self._transformation.init, params))
        leaves = [jax.random.wrap_key_data(a) if _is_key(like) else a for a, like in zip(arrays, likes, strict=True)]
        updates, state = self._transformation.update(grads, jax.tree.unflatten(structure, leaves), params)
        return updates, _arrays(state)

    # Adding to variables

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        return variable_ops.assign_add(var, grad, use_locking=self._use_locking)

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        return variable_ops.assign_add_variable(handle.handle, grad)


def _arrays(state: Any) -> list[Any]:
    """The leaves of a state as arrays that variables can hold, which jax's keys are not."""
    return [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in jax.tree.leaves(state)]


def _is_key(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def _is_separable(transformation: Any, params: dict[str, Any]) -> bool:
    """Tells if the update of a variable, and what is kept for it, depend on no other variable."""
    try:
        for name, struct in params.items():
            jax.eval_shape(transformation.init, {name: struct})
    except ValueError:  # it has a mask or a label for each variable, and wants to see all of them
        return False
    state = jax.eval_shape(transformation.init, params)
    if any(map(_is_key, jax.tree.leaves(state))):  # each variable gets random numbers of its own
        return False
    inputs = params, state, params
    function, outputs = jax.make_jaxpr(transformation.update, return_shape=True)(*inputs)
    of_inputs, of_outputs = _owners(inputs, params), _owners(outputs, params)
    for owner in set(of_outputs):
        _, used = partial_eval.dce_jaxpr(function.jaxpr, [name == owner for name in of_outputs])
        if any(is_used and name not in (None, owner) for is_used, name in zip(used, of_inputs, strict=True)):
            return False
    return True


def _owners(tree: Any, params: Collection[str]) -> list[str | None]:
    return [_owner(path, params) for path, _ in jax.tree.leaves_with_path(tree)]


def _owner(path: Any, params: Collection[str]) -> str | None:
    """The variable that a leaf is for; None if it is for all."""
    return next((key.key for key in path if getattr(key, "key", None) in params), None)


def _slot_name(path: Any, params: Collection[str]) -> str:
    keys = [key for key in path if getattr(key, "key", None) not in params]
    return re.sub(r"[^A-Za-z0-9_.]+", "_", jax.tree_util.keystr(tuple(keys), simple=True, separator="_")) or "state"


def _structs(variables: Sequence[Any]) -> dict[str, Any]:
    """The variables in the form in which a transformation sees them, without values."""
    return {_name(v): jax.ShapeDtypeStruct(v.shape.as_list(), v.dtype.as_numpy_dtype) for v in variables}


def _name(var: Any) -> str:
    return str(var._shared_name)


def _dense(grad: Any, var: Any) -> Any:
    return dense_rows(grad.values, grad.indices, var) if isinstance(grad, IndexedSlices) else grad
