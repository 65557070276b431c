"""ResourceVariable: a VarHandleOp node, whose output is a handle; a read is a separate op."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.graph import get_default_graph
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with, control_dependencies, device, init_scope, name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.ops.state import variable_ops
from penstock.ops.state.scatter import SCATTER, SCATTER_ND
from penstock.ops.state.slice_assign import resource_strided_slice_assign
from penstock.variables.creation import kind
from penstock.variables.guard import without_uninitialized_inputs
from penstock.variables.ref import slices_of
from penstock.variables.variable import Variable, declared_shape, identity_of


@kind(resource=True)
class ResourceVariable(Variable):
    """A variable of the resource kind; see `Variable`."""

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
        import_scope: str | None = None,
        constraint: Any = None,
        synchronization: Any = None,
        aggregation: Any = None,
        shape: ShapeLike = None,
    ) -> None:
        if self._is_adopted(initial_value, variable_def, import_scope):
            return
        collections = self._set_options(trainable, collections, constraint, synchronization, aggregation)
        self._caching_device, self._validate_shape = caching_device, validate_shape
        from_function = callable(initial_value)
        with init_scope(), name_scope(name, "Variable", [] if from_function else [initial_value]) as scope:
            graph = get_default_graph()
            handle_name = scope[:-1]
            # The initial value is made on the variable's device, although the variable does not exist yet.
            with graph.attr_scope({"_class": [f"loc:@{handle_name}"]}):
                with name_scope("Initializer"), device(None):
                    value = initial_value() if from_function else initial_value
                    value = convert_to_tensor(value, name="initial_value", dtype=dtype)
                declared = declared_shape(shape, value, validate_shape)
                if not declared.is_compatible_with(value.shape):
                    raise ValueError(
                        f"In this `tf.Variable` creation, the initial value's shape ({value.shape}) is not compatible "
                        f"with the explicitly supplied `shape` argument ({declared})."
                    )
                self._handle: Tensor = variable_ops.var_handle(
                    shape=declared, dtype=value.dtype.base_dtype, shared_name=handle_name, debug_name=scope, name=scope
                )
            self._initial_value, self._name = value, self._handle.name
            self._dtype, self._shape = value.dtype.base_dtype, declared
            with name_scope("IsInitialized"):
                variable_ops.var_is_initialized(self._handle)
            with (
                name_scope("Assign") as assign_scope,
                colocate_with(None, ignore_existing=True),
                device(self._handle.device),
            ):
                safe = without_uninitialized_inputs(scope, value)
                self._initializer_op = variable_ops.assign_variable(self._handle, safe, name=assign_scope)
            with name_scope("Read"):
                with device(self._handle.device):
                    self._snapshot: Tensor = variable_ops.read_variable(self._handle, dtype=self._dtype)
                self._cached: Tensor | None = None
                if caching_device is not None:
                    with colocate_with(None, ignore_existing=True), device(caching_device):
                        self._cached = identity_of(self._snapshot)
        get_default_graph().add_to_collections(collections, self)

    def _use_nodes(self, handle: Tensor, snapshot: Tensor) -> None:
        self._handle, self._snapshot, self._name = handle, snapshot, handle.name
        self._cached = snapshot if snapshot.op.type == "Identity" else None
        self._dtype, self._shape = handle.op.attrs["dtype"], handle.op.attrs["shape"]
        self._validate_shape = True

    @property
    def handle(self) -> Tensor:
        return self._handle

    @property
    def op(self) -> Operation:
        return self._handle.op

    @property
    def dtype(self) -> DType:
        return self._dtype

    @property
    def shape(self) -> TensorShape:
        return self._shape

    @property
    def create(self) -> Any:
        return self._initializer_op

    def set_shape(self, shape: Any) -> None:
        """Merges knowledge from elsewhere into the static shape."""
        self._shape = self._shape.merge_with(shape)

    # Reading

    def _after_parent(self) -> AbstractContextManager[None]:
        """The op that reads and writes of this object wait for: none, unless it stands for a write."""
        return nullcontext()

    def _read(self) -> Tensor:
        with self._after_parent():
            if self._caching_device is not None:
                with colocate_with(None, ignore_existing=True), device(self._caching_device):
                    tensor: Tensor = variable_ops.read_variable(self._handle, dtype=self._dtype)
            else:
                tensor = variable_ops.read_variable(self._handle, dtype=self._dtype)
        return self._with_shape(tensor)

    def _with_shape(self, tensor: Tensor) -> Tensor:
        if tensor.shape.rank is None and self._shape.rank is not None:
            tensor.set_shape(self._shape)
        return tensor

    def value(self) -> Tensor:
        if self._cached is not None:
            return self._cached
        graph = get_default_graph()
        if graph.is_function and not self._used_in(graph):
            # This body does not change the variable, so it can use a read from outside.
            while graph.outer_graph is not None and not graph.outlives_step and not graph.is_branch:
                graph = graph.outer_graph
            with graph.as_default(), colocate_with(None, ignore_existing=True):
                return self._read()
        with colocate_with(None, ignore_existing=True):
            return self._read()

    def _used_in(self, graph: Any) -> bool:
        return self._handle in graph._capture_of or bool(graph._scopes.control)

    def read_value(self) -> Tensor:
        with name_scope("Read"):
            value = self._read()
        return identity_of(value)

    def is_initialized(self, name: str | None = None) -> Tensor:
        tensor: Tensor = variable_ops.var_is_initialized(self._handle, name=name)
        return tensor

    def eval(self, session: Any = None) -> Any:
        return self._as_graph_element().eval(session=session)

    def sparse_read(self, indices: Any, name: str | None = None) -> Tensor:
        with self._after_parent():
            tensor: Tensor = variable_ops.resource_gather(
                self._handle, indices, dtype=self._dtype, name=name or "Gather"
            )
        return tensor

    def gather_nd(self, indices: Any, name: str | None = None) -> Tensor:
        with self._after_parent():
            tensor = variable_ops.resource_gather_nd(self._handle, indices, dtype=self._dtype, name=name or "GatherNd")
        return identity_of(tensor)

    # Changing

    def _written(self, op: Operation, read_value: bool = True) -> Any:
        return _Unread(self, op) if read_value else op

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        tensor = convert_to_tensor(value, dtype=self._dtype)
        if not self._shape.is_compatible_with(tensor.shape):
            raise ValueError(
                f"Cannot assign value to variable '{self.name}': Shape mismatch. The variable shape {self._shape}, and "
                f"the assigned value shape {tensor.shape} are incompatible."
            )
        validate = self._validate_shape and self._shape.is_fully_defined()
        with self._after_parent():
            op = variable_ops.assign_variable(self._handle, tensor, validate_shape=validate, name=name)
        return self._written(op, read_value)

    def _assign_by(self, update: Callable[..., Operation], delta: Any, name: str | None, read_value: bool) -> Any:
        tensor = convert_to_tensor(delta, dtype=self._dtype)
        if not self._shape.is_compatible_with(tensor.shape):
            raise ValueError(
                f"Cannot update variable '{self.name}' of shape {self._shape} by a value of shape {tensor.shape}."
            )
        with self._after_parent():
            op = update(self._handle, tensor, name=name)
        return self._written(op, read_value)

    def assign_add(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        return self._assign_by(variable_ops.assign_add_variable, delta, name, read_value)

    def assign_sub(
        self, delta: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        return self._assign_by(variable_ops.assign_sub_variable, delta, name, read_value)

    def _scatter(self, kind: str, sparse_delta: Any, use_locking: bool, name: str | None) -> Any:
        return self._scatter_rows(kind, *slices_of(sparse_delta), name)

    def _scatter_rows(self, kind: str, indices: Any, updates: Any, name: str | None) -> Any:
        tensor = convert_to_tensor(updates, dtype=self._dtype)
        with self._after_parent():
            return self._written(SCATTER[kind][1](self._handle, indices, tensor, name=name))

    def _scatter_nd(self, kind: str, indices: Any, updates: Any, name: str | None) -> Any:
        tensor = convert_to_tensor(updates, dtype=self._dtype)
        with self._after_parent():
            return self._written(SCATTER_ND[kind][1](self._handle, indices, tensor, name=name))

    def _assign_slice(self, bounds: dict[str, Any], masks: dict[str, Any], value: Any, name: str | None) -> Any:
        tensor = convert_to_tensor(value, dtype=self._dtype)
        with self._after_parent():
            op = resource_strided_slice_assign(self._handle, *bounds.values(), tensor, **masks, name=name)
        return self._written(op)

    def count_up_to(self, limit: int) -> Tensor:
        tensor: Tensor = variable_ops.resource_count_up_to(self._handle, limit=limit, T=self._dtype)
        return tensor

    # Tensors

    def _as_tensor(self, dtype: DType | None = None, name: str | None = None, as_ref: bool = False) -> Tensor:
        if dtype is not None and not dtype.is_compatible_with(self._dtype):
            raise ValueError(
                f"Incompatible type conversion requested to type {dtype.name} for variable '{self.name}' of type "
                f"{self._dtype.name}"
            )
        return self.read_value().op.input_list[0] if as_ref else self.value()

    def _as_graph_element(self) -> Tensor:
        return self._snapshot

    def _ref(self) -> Any:
        return self._handle


class _Unread(ResourceVariable):
    """A variable after a write: its reads wait for that write."""

    def __init__(self, variable: ResourceVariable, parent: Operation) -> None:
        self.__dict__ = dict(variable.__dict__)
        self._parent, self._name, self._cached = parent, parent.name, None
        with control_dependencies([parent]):
            self._snapshot = self._with_shape(variable_ops.read_variable(self._handle, dtype=self._dtype))

    @property
    def op(self) -> Operation:
        return self._parent

    def _after_parent(self) -> AbstractContextManager[None]:
        return control_dependencies([self._parent])

    def _used_in(self, graph: Any) -> bool:
        return True
