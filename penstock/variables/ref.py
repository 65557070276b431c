"""RefVariable: a VariableV2 node whose output refers to the value, its initializer Assign, and its snapshot `read`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.graph import get_default_graph
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with, device, init_scope, name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.ops.array.gathering import gather, gather_nd
from penstock.ops.state import variable_ops
from penstock.ops.state.scatter import SCATTER, SCATTER_ND
from penstock.ops.state.slice_assign import strided_slice_assign
from penstock.variables.creation import kind
from penstock.variables.guard import without_uninitialized_inputs
from penstock.variables.variable import Variable, declared_shape, identity_of


@kind(resource=False)
class RefVariable(Variable):
    """A variable of the reference kind; see `Variable`."""

    def __init__(
        self,
        initial_value: TensorLike = None,
        trainable: bool | None = None,
        collections: Any = None,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: DTypeLike | None = None,
        expected_shape: ShapeLike = None,
        import_scope: str | None = None,
        constraint: Any = None,
        synchronization: Any = None,
        aggregation: Any = None,
        shape: ShapeLike = None,
    ) -> None:
        if self._is_adopted(initial_value, variable_def, import_scope):
            return
        collections = self._set_options(trainable, collections, constraint, synchronization, aggregation)
        self._caching_device = caching_device
        from_function = callable(initial_value)
        with init_scope(), name_scope(name, "Variable", [] if from_function else [initial_value]) as scope:
            with ExitStack() as stack:
                if from_function:
                    # The initial value is made on the variable's device, although the variable does not exist yet.
                    stack.enter_context(get_default_graph().attr_scope({"_class": [f"loc:@{scope[:-1]}"]}))
                    with name_scope("Initializer"), device(None):
                        value = convert_to_tensor(initial_value(), name="initial_value", dtype=dtype)
                else:
                    value = convert_to_tensor(initial_value, name="initial_value", dtype=dtype)
                declared = declared_shape(shape, value, validate_shape)
                self._variable: Tensor = variable_ops.variable_v2(
                    shape=declared, dtype=value.dtype.base_dtype, name=scope
                )
            if validate_shape and not value.shape.is_fully_defined():
                raise ValueError(f"initial_value must have a shape specified: {value}")
            self._initial_value = value
            self._name = self._variable.name
            self._initializer_op = variable_ops.assign(
                self._variable, without_uninitialized_inputs(scope, value), validate_shape=validate_shape, name="Assign"
            ).op
            with device(caching_device) if caching_device is not None else colocate_with(self._variable.op):
                self._snapshot: Tensor = identity_of(self._variable, name="read")
        get_default_graph().add_to_collections(collections, self)

    def _use_nodes(self, variable: Tensor, snapshot: Tensor) -> None:
        self._variable, self._snapshot, self._name = variable, snapshot, variable.name

    @property
    def op(self) -> Operation:
        return self._variable.op

    @property
    def dtype(self) -> DType:
        return self._variable.dtype

    @property
    def shape(self) -> TensorShape:
        return self._variable.shape

    def set_shape(self, shape: Any) -> None:
        """Merges knowledge from elsewhere into the static shape."""
        self._variable.set_shape(shape)
        self._snapshot.set_shape(shape)

    def value(self) -> Tensor:
        return self._snapshot

    def read_value(self) -> Tensor:
        return identity_of(self._variable, name="read")

    def is_initialized(self, name: str | None = None) -> Tensor:
        tensor: Tensor = variable_ops.is_variable_initialized(self._variable, name=name)
        return tensor

    def eval(self, session: Any = None) -> Any:
        return self._variable.eval(session=session)

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        assigned = variable_ops.assign(self._variable, value, use_locking=use_locking, name=name)
        return assigned if read_value else assigned.op

    def assign_add(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        assigned = variable_ops.assign_add(self._variable, delta, use_locking=use_locking, name=name)
        return assigned if read_value else assigned.op

    def assign_sub(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        assigned = variable_ops.assign_sub(self._variable, delta, use_locking=use_locking, name=name)
        return assigned if read_value else assigned.op

    def _scatter(self, kind: str, sparse_delta: Any, use_locking: bool, name: str | None) -> Any:
        indices, values = slices_of(sparse_delta)
        return SCATTER[kind][0](self._variable, indices, values, use_locking=use_locking, name=name)

    def _scatter_nd(self, kind: str, indices: Any, updates: Any, name: str | None) -> Any:
        return SCATTER_ND[kind][0](self._variable, indices, updates, use_locking=True, name=name)

    def _assign_slice(self, bounds: dict[str, Any], masks: dict[str, Any], value: Any, name: str | None) -> Any:
        return strided_slice_assign(self._variable, *bounds.values(), value, **masks, name=name)

    def count_up_to(self, limit: int) -> Tensor:
        tensor: Tensor = variable_ops.count_up_to(self._variable, limit=limit)
        return tensor

    def sparse_read(self, indices: Any, name: str | None = None) -> Tensor:
        tensor: Tensor = gather(self.value(), indices, name=name)
        return tensor

    def gather_nd(self, indices: Any, name: str | None = None) -> Tensor:
        tensor: Tensor = gather_nd(self.value(), indices, name=name)
        return tensor

    def _as_tensor(self, dtype: DType | None = None, name: str | None = None, as_ref: bool = False) -> Tensor:
        if dtype is not None and not dtype.is_compatible_with(self.dtype):
            raise ValueError(
                f"Incompatible type conversion requested to type '{dtype.name}' for variable '{self.name}' of type "
                f"'{self.dtype.name}'"
            )
        return self._variable if as_ref else self._snapshot

    def _as_graph_element(self) -> Tensor:
        return self._variable

    def _ref(self) -> Tensor:
        return self._variable


def slices_of(sparse_delta: Any) -> tuple[Any, Any]:
    """Indices and values of an IndexedSlices."""
    if not (hasattr(sparse_delta, "indices") and hasattr(sparse_delta, "values")):
        raise TypeError(f"sparse_delta is not IndexedSlices: {sparse_delta!r}")
    return sparse_delta.indices, sparse_delta.values
