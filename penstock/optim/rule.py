"""RuleOptimizer: the base of optimizers whose update of a variable is one op."""

from __future__ import annotations

from typing import Any, ClassVar

from penstock.graph.convert import convert_to_tensor
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Tensor
from penstock.ops.array import creation, reshaping
from penstock.ops.math.casting import cast
from penstock.ops.state.update_forms import Rule
from penstock.optim.optimizer import Optimizer
from penstock.variables.initializers import Constant


class RuleOptimizer(Optimizer):
    """Base class of rules that are one op. A subclass names the op, its slots and its settings.

    `_rule` is the op. `_slot_inputs` maps its inputs to the names of slots. `_settings` maps the inputs that are
    settings to (value or function that returns it, name of the tensor).
    """

    _rule: Rule
    _slot_inputs: ClassVar[dict[str, str]] = {}

    def __init__(self, use_locking: bool, name: str, settings: dict[str, tuple[Any, str]]) -> None:
        super().__init__(use_locking, name)
        self._settings = settings
        self._tensors: dict[str, Tensor] = {}

    def _prepare(self) -> None:
        self._tensors = {
            key: convert_to_tensor(self._call_if_callable(value), name=name)
            for key, (value, name) in self._settings.items()
        }

    def _filled_slot(self, var: Any, value: float, slot_name: str, op_name: str) -> Any:
        """The slot of a variable, made and filled with `value` if there is none."""
        shape, dtype = var.get_shape(), var.dtype.base_dtype
        if shape.is_fully_defined():
            return self._get_or_make_slot_with_initializer(var, Constant(value), shape, dtype, slot_name, op_name)
        filled = creation.fill(reshaping.shape(var.initialized_value()), cast(value, dtype))
        return self._get_or_make_slot(var, filled, slot_name, op_name)

    def _attrs(self) -> dict[str, Any]:
        """Attrs of the op besides `use_locking`."""
        return {}

    def _inputs(self, var: Any) -> dict[str, Any]:
        """The op's inputs except the variable, the gradient and the indices."""
        dtype = var.dtype.base_dtype
        slots = {key: self.get_slot(var, slot) for key, slot in self._slot_inputs.items()}
        return {**slots, **{key: cast(tensor, dtype) for key, tensor in self._tensors.items()}}

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        return self._add(self._rule.dense.ref, var, grad)

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        return self._add(self._rule.dense.resource, handle, grad)

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        return self._add(self._rule.sparse.ref, var, grad.values, grad.indices)

    def _resource_apply_sparse(self, grad: Tensor, handle: Any, indices: Tensor) -> Any:
        return self._add(self._rule.sparse.resource, handle, grad, indices)

    def _add(self, op: Any, var: Any, grad: Tensor, indices: Tensor | None = None, **instead: Any) -> Any:
        """The op on a variable; `instead` replaces inputs by name."""
        inputs = {"var": var, "grad": grad, "delta": grad, "indices": indices, **self._inputs(var), **instead}
        if op.name.startswith("Resource"):
            inputs.update({key: inputs[key].handle for key in op.writes})
        arguments = [inputs[arg.name] for arg in op.inputs]
        return op(*arguments, use_locking=self._use_locking, **self._attrs())


def require_positive(**settings: float) -> None:
    """Raises ValueError for a setting that is not greater than zero."""
    for name, value in settings.items():
        if value <= 0.0:
            raise ValueError(f"{name} must be positive: {value}")


def require_not_negative(**settings: float) -> None:
    """Raises ValueError for a setting that is less than zero."""
    for name, value in settings.items():
        if value < 0.0:
            raise ValueError(f"{name} needs to be greater than or equal to zero, received {value}")


def require_whole(least: int, **settings: Any) -> None:
    """Raises ValueError for a setting that is no whole number of at least `least`."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, received {value!r}.")
