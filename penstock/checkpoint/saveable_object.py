"""SaveableObject: an object that a Saver can save, as named tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.graph.operation import Operation, Tensor


@dataclass(frozen=True)
class SaveSpec:
    """One tensor to save: the tensor, its name, and the slice of that name that it is ("" for all)."""

    tensor: Any
    slice_spec: str
    name: str
    dtype: Any = None
    device: str = ""


class SaveableObject:
    """An object that is saved as one or more tensors, and set from them when it is restored."""

    def __init__(self, op: Any, specs: Sequence[SaveSpec], name: str) -> None:
        self.op = op
        self.specs = list(specs)
        self.name = name

    @property
    def device(self) -> str:
        """The device of its tensors."""
        return str(self.specs[0].tensor.device)

    def restore(self, restored_tensors: Sequence[Tensor], restored_shapes: Sequence[Any] | None) -> Operation:
        """The operation that sets it to the tensors read; `restored_shapes` are shapes to give to the tensors first."""
        raise NotImplementedError
