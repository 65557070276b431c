"""Saveables: the variables that a Saver saves, each with its name, the op that reads it and the op that sets it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.checkpoint.saveable_object import SaveableObject, SaveSpec
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with, device
from penstock.ops.array import reshaping
from penstock.ops.array.passthrough import identity
from penstock.ops.state import variable_ops
from penstock.variables.partitioned import PartitionedVariable
from penstock.variables.resource import ResourceVariable
from penstock.variables.variable import Variable


class VariableSaveable(SaveableObject):
    """A variable, or a part of a partitioned one."""

    def __init__(self, var: Variable, slice_spec: str, name: str) -> None:
        self._variable = var
        tensor: Any
        if isinstance(var, ResourceVariable):
            tensor = var._snapshot
        else:
            tensor = var._ref() if not slice_spec else var._snapshot
        dtype = var.dtype.base_dtype
        super().__init__(var, [SaveSpec(tensor, slice_spec, name, dtype, var.device)], name)

    @property
    def device(self) -> str:
        return self._variable.device

    def restore(self, restored_tensors: Sequence[Tensor], restored_shapes: Sequence[Any] | None) -> Operation:
        var, (tensor,) = self._variable, restored_tensors
        if restored_shapes is not None:
            tensor = reshaping.reshape(tensor, restored_shapes[0])
        if isinstance(var, ResourceVariable):
            with device(var.device):
                tensor = identity(tensor)
                return variable_ops.assign_variable(var.handle, tensor)  # type: ignore[no-any-return]
        whole = restored_shapes is None and var.get_shape().is_fully_defined()
        with colocate_with(var):
            return variable_ops.assign(var._ref(), tensor, validate_shape=whole).op  # type: ignore[no-any-return]


def saveables_of(var_list: Any) -> list[SaveableObject]:
    """The saveables of a list or a dict of variables, in the order of their names.

    >>> [s.name for s in saveables_of({"weights": w, "biases": b})]
    ['biases', 'weights']
    """
    named = var_list if isinstance(var_list, Mapping) else by_name(var_list)
    saveables: list[SaveableObject] = []
    for name in sorted(named):
        if not isinstance(name, str):
            raise TypeError(f"Names to save under must be strings, received {name!r}.")
        saveables += _saveables(name, named[name])
    seen: dict[int, str] = {}
    for saveable in saveables:
        other = seen.setdefault(id(saveable.op), saveable.name)
        if other != saveable.name and not isinstance(var_list, Mapping):
            raise ValueError(f"The same saveable will be restored with two names: {other} and {saveable.name}")
    return saveables


def by_name(variables: Iterable[Any]) -> dict[str, Any]:
    """Maps the names in the checkpoint to variables; the parts of a partitioned variable are together."""
    named: dict[str, Any] = {}
    for var in variables:
        if isinstance(var, PartitionedVariable):
            named[var.name] = var
            continue
        if isinstance(var, SaveableObject):
            named[var.name] = var
            continue
        if not isinstance(var, Variable):
            raise TypeError(f"Variable to save is not a Variable: {var!r}")
        info = var._get_save_slice_info()
        if info is not None:
            named.setdefault(info.full_name, []).append(var)
            continue
        name = var._shared_name
        if name in named:
            raise ValueError(f"At least two variables have the same name: {name}")
        named[name] = var
    return named


def _saveables(name: str, var: Any) -> list[SaveableObject]:
    if isinstance(var, SaveableObject):
        return [var]
    if isinstance(var, (PartitionedVariable, list, tuple)):
        parts = []
        for part in var:
            info = part._get_save_slice_info()
            if info is None:
                raise ValueError(f"Slices must all be slices of one variable: '{part.name}' is not.")
            parts.append(VariableSaveable(part, info.spec, name))
        return list(parts)
    if isinstance(var, Variable):
        info = var._get_save_slice_info()
        return [VariableSaveable(var, info.spec if info is not None else "", name)]
    convert_to_tensor(var)  # raises a clear error for an object that is no tensor
    raise TypeError(f"names_to_saveables must be a dict mapping string names to Variables; '{name}' is {var!r}.")
