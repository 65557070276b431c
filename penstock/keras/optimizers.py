"""Keras optimizers on penstock variables: one update for each variable, run where the variable is."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras.src.optimizers.base_optimizer import BaseOptimizer

from penstock.distribute.synchronous import synchronized
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import get_default_graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Tensor
from penstock.graph.scopes import device, init_scope
from penstock.keras.calls import plans_of
from penstock.keras.checkpoints import restore_slots
from penstock.keras.lifted import lift, lifted_scope
from penstock.keras.strategies import in_scope_of
from penstock.keras.variables import BackedVariable, as_keras, back, beside
from penstock.ops.array.gathering import gather
from penstock.ops.array.padding import pad
from penstock.ops.array.reshaping import shape as shape_of
from penstock.ops.array.selection import unique
from penstock.ops.math.clip import clip_by_global_norm
from penstock.ops.math.segments import unsorted_segment_sum
from penstock.variables.creation import Kinds


def apply_on_tensors(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
    """Applies gradients that are penstock tensors, each on the device of its variable; nothing else travels."""
    pairs = [(g, as_keras(v)) for g, v in zip(grads, variables, strict=True)]
    whole = [back(v) for _, v in pairs]
    if not optimizer.built:
        with init_scope(), in_scope_of(whole[0].strategy):
            optimizer.build(whole)
    restore_slots(optimizer)
    optimizer._check_variables_are_known(whole)
    given = [(g, v) for g, v in pairs if g is not None]
    if not given:
        raise ValueError(f"No gradients provided for any variable: {[v.path for v in whole]}.")
    if missing := [v.path for g, v in pairs if g is None]:
        warnings.warn(
            f"Gradients do not exist for variables {missing} when minimizing the loss. If using `model.compile()`, did "
            "you forget to provide a `loss` argument?"
        )
    found = [g for g, _ in given]
    if optimizer.loss_scale_factor is not None:
        found = [_scaled(g, 1.0 / optimizer.loss_scale_factor) for g in found]
    if optimizer.global_clipnorm:
        found, _ = clip_by_global_norm(found, optimizer.global_clipnorm)
    updates = [_Update(optimizer, variable) for _, variable in given]
    for update in updates:
        update.prepare()

    def apply(gradients: Sequence[Any]) -> None:
        for update, gradient in zip(updates, gradients, strict=True):
            update.apply(gradient)
        _count(optimizer, [u.variable for u in updates])

    strategy = whole[0].strategy
    if getattr(strategy, "synchronous", False) and not get_default_graph().is_eager:
        synchronized(strategy, (id(optimizer), len(found)), found, [u.variable.backing for u in updates], apply)
    else:
        apply(found)


def _scaled(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def _count(optimizer: Any, variables: Sequence[BackedVariable]) -> None:
    """Counts the step, on each device that has updated variables in it."""
    iterations = back(optimizer._iterations)
    for where in dict.fromkeys([iterations.device, *(v.device for v in variables)]):
        _copy_on(iterations, where).assign_add(np.asarray(1, iterations._dtype), read_value=False)


def _copy_on(variable: BackedVariable, where: str) -> Any:
    """The copy of a variable on a device, so that no other device is asked for it."""
    return variable.backing if variable.device == where else _copy(variable, where, where)


def _copy(variable: BackedVariable, key: Any, where: str) -> Any:
    found = variable.copies.get(key)
    if found is None:
        kept = getattr(variable.strategy, "kept_state", None)
        make = Kinds.eager if kept is None else functools.partial(kept.create, Kinds.eager, where)
        with init_scope(), device(None), device(where):
            name = f"{variable.path}/copy_{len(variable.copies)}"
            found = make(initial_value=variable.numpy(), trainable=False, name=name)
        variable.copies[key] = found
    return found


class _Update:
    """The update of one variable by an optimizer."""

    def __init__(self, optimizer: Any, variable: BackedVariable) -> None:
        self.optimizer, self.variable = optimizer, variable
        own = [s for s in optimizer._variables if getattr(s, "_reference", None) is variable]
        self.slots = [back(s) for s in own]

    def prepare(self) -> None:
        """Makes the copies of what all updates share, before the first of them changes any."""
        for variable in self.optimizer._variables:
            if not hasattr(variable, "_reference"):
                self._resolve(back(variable))

    def apply(self, gradient: Any) -> None:
        """Changes the variable and its slots."""
        with device(None), device(self.variable.device):
            if not isinstance(gradient, IndexedSlices):
                self._lifted(self._code, (convert_to_tensor(gradient),), "dense", self._resolve)
            elif self._is_row_wise():
                self._apply_to_rows(gradient)
            else:
                # Rows without a gradient change too, by momentum for example. Only the rows came from elsewhere.
                dense = unsorted_segment_sum(gradient.values, gradient.indices, self.variable.shape[0])
                self._lifted(self._code, (dense,), "dense", self._resolve)

    def _lifted(self, code: Callable[..., Any], args: tuple[Any, ...], kind: str, resolve: Any) -> None:
        name = f"{self.optimizer.name}_{self.variable.name}"
        state = (id(self.optimizer), kind)
        lift(code, args, {}, plans_of(self.variable), name, state, resolve=resolve, has_gradient=False)

    def _code(self, gradient: Any) -> None:
        """Keras' own code for a step, with this variable as the only one of the optimizer."""
        optimizer, variable = self.optimizer, self.variable
        with self._alone():
            optimizer._backend_apply_gradients([gradient], [variable])
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        optimizer, index = self.optimizer, self.optimizer._get_variable_index(self.variable)
        changed = {
            "_trainable_variables": [self.variable],
            "global_clipnorm": None,
            "_variables": [*self.slots, *(v for v in optimizer._variables if not hasattr(v, "_reference"))],
        }
        if optimizer.use_ema:
            changed["_model_variables_moving_average"] = [optimizer._model_variables_moving_average[index]]
        before = {name: vars(optimizer)[name] for name in changed}
        vars(optimizer).update(changed)
        try:
            yield
        finally:
            vars(optimizer).update(before)

    def _resolve(self, variable: BackedVariable) -> Any:
        """The penstock variable for one that the code uses: what all updates share is copied to where they run."""
        if variable is self.variable or any(variable is s for s in self.slots):
            return variable.backing
        if variable is self.optimizer._iterations or variable is self.optimizer._learning_rate:
            return _copy_on(variable, self.variable.device)
        # Each update changes its own copy; the first variable's is the one that is saved.
        first = self.optimizer._get_variable_index(self.variable) == 0
        return variable.backing if first else _copy(variable, id(self.variable), self.variable.device)

    # Rows

    def _is_row_wise(self) -> bool:
        """Tells if rows without a gradient stay as they are, and no row depends on another."""
        optimizer = self.optimizer
        if optimizer.weight_decay or optimizer.use_ema or optimizer.gradient_accumulation_steps:
            return False
        if optimizer.clipnorm or self.variable.constraint is not None:
            return False
        return (type(optimizer) is keras.optimizers.SGD and not optimizer.momentum) or (
            type(optimizer) is keras.optimizers.Adagrad
        )

    def _apply_to_rows(self, gradient: IndexedSlices) -> None:
        ids, positions = unique(gradient.indices)
        # As many sums as there were rows, so that shapes stay the same: the last ones are zero, and add nothing.
        rows_given: Any = shape_of(gradient.indices)
        count = rows_given[0]
        sums = unsorted_segment_sum(gradient.values, positions, count)
        distinct: Any = shape_of(ids)
        padded = pad(ids, [[0, count - distinct[0]]])
        sums.set_shape(gradient.values.shape)
        padded.set_shape(gradient.indices.shape)
        changing = [self.variable, *self.slots]
        rows = [gather(v.backing, padded) for v in changing]

        def resolve(variable: BackedVariable) -> Any:
            return _Rows(variable.backing, padded) if any(variable is c for c in changing) else self._resolve(variable)

        self._lifted(self._code_on_rows, (sums, *rows), "rows", resolve)

    def _code_on_rows(self, gradient: Any, *rows: Any) -> None:
        scope = lifted_scope()
        assert scope is not None
        for variable, values in zip([self.variable, *self.slots], rows, strict=True):
            scope.state_mapping[id(variable)] = values
        self._code(gradient)


class _Rows:
    """The rows of a variable at some ids, for additions."""

    def __init__(self, variable: Any, ids: Tensor) -> None:
        self._variable, self._ids = variable, ids

    def assign_add(self, value: Tensor, read_value: bool = False) -> None:
        """Adds to the rows."""
        self._variable.scatter_add(IndexedSlices(value, self._ids))


def install() -> None:
    """Has Keras optimizers take penstock tensors, and put their slots beside the variables."""
    apply, add = BaseOptimizer.apply, BaseOptimizer.add_variable_from_reference

    @functools.wraps(apply)
    def apply_any(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        grads = list(grads)
        if lifted_scope() is not None or not any(isinstance(g, (Tensor, IndexedSlices)) for g in grads):
            apply(self, grads, trainable_variables)
        else:
            apply_on_tensors(self, grads, trainable_variables or self._trainable_variables)

    @functools.wraps(add)
    def add_beside(self: Any, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(reference_variable, BackedVariable):
            return add(self, reference_variable, *args, **kwargs)
        with beside(reference_variable):
            slot = add(self, reference_variable, *args, **kwargs)
        slot._reference = reference_variable
        return slot

    BaseOptimizer.apply, BaseOptimizer.add_variable_from_reference = apply_any, add_beside
