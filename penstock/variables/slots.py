"""Slots: variables that an optimizer keeps for each variable it trains, named and placed after that variable."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from penstock.graph.scopes import colocate_with
from penstock.ops.array import creation, reshaping
from penstock.variables.initializers import Zeros
from penstock.variables.ref import RefVariable
from penstock.variables.resource import ResourceVariable
from penstock.variables.scope import get_variable, get_variable_scope, variable_scope
from penstock.variables.slices import SaveSliceInfo
from penstock.variables.variable import Variable


def create_slot(primary: Any, val: Any, name: str, colocate_with_primary: bool = True) -> Any:
    """A slot of `primary` (a variable or a tensor) that starts as `val`.

    >>> create_slot(w, tf.ones([2]), "Adam").name
    'w/Adam:0'
    """
    validate = val.get_shape().is_fully_defined()
    with _named(primary, name), _placed(primary, colocate_with_primary):
        return _make(primary, val, validate_shape=validate)


def create_slot_with_initializer(
    primary: Any, initializer: Any, shape: Any, dtype: Any, name: str, colocate_with_primary: bool = True
) -> Any:
    """A slot of `primary` with the initial value of `initializer`."""
    with _named(primary, name), _placed(primary, colocate_with_primary):
        return _make(primary, initializer, shape=shape, dtype=dtype, validate_shape=shape.is_fully_defined())


def create_zeros_slot(primary: Any, name: str, dtype: Any = None, colocate_with_primary: bool = True) -> Any:
    """A slot of `primary` that starts as zeros of its shape."""
    dtype = primary.dtype if dtype is None else dtype
    shape = primary.get_shape()
    if shape.is_fully_defined():
        return create_slot_with_initializer(primary, Zeros(), shape, dtype, name, colocate_with_primary)
    known = primary.initialized_value() if isinstance(primary, Variable) else primary
    return create_slot(primary, creation.zeros(reshaping.shape(known), dtype=dtype), name, colocate_with_primary)


def _named(primary: Any, name: str) -> variable_scope:
    prefix = primary._shared_name if isinstance(primary, Variable) else primary.op.name
    return variable_scope(None, f"{prefix}/{name}")


def _placed(primary: Any, colocate: bool) -> AbstractContextManager[None]:
    return colocate_with(primary) if colocate else nullcontext()


def _make(primary: Any, initial: Any, **settings: Any) -> Any:
    kinds = {ResourceVariable: True, RefVariable: False}
    kind = next((use for cls, use in kinds.items() if isinstance(primary, cls)), None)
    scope = get_variable_scope()
    # The slot of a partition has the size of the partition and is not partitioned again.
    partitioner = scope.partitioner
    scope.set_partitioner(None)
    try:
        slot = get_variable("", initializer=initial, trainable=False, use_resource=kind, **settings)
    finally:
        scope.set_partitioner(partitioner)
    whole = primary._get_save_slice_info() if isinstance(primary, Variable) else None
    rank = slot.shape.rank
    if whole is not None and rank != 0:
        own_name = slot.op.name.removeprefix(primary.op.name + "/")
        where = (whole.full_shape[:rank], whole.var_offset[:rank], whole.var_shape[:rank])
        slot._set_save_slice_info(SaveSliceInfo(f"{whole.full_name}/{own_name}", *where))
    return slot
