"""Variable: a value that lives across steps. `tf.Variable(...)` makes a RefVariable or a ResourceVariable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from penstock.graph.dtype import DType
from penstock.graph.graph import Graph, home_of
from penstock.graph.keys import GraphKeys
from penstock.graph.opdef import registered
from penstock.graph.operation import OPERATORS, Operation, Tensor
from penstock.graph.reference import Reference
from penstock.graph.scopes import init_scope
from penstock.graph.sessions import session_for
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.typing import FeedValue, TensorLike
from penstock.ops.control.flow import cond
from penstock.variables import protos, slices
from penstock.variables.creation import Kinds, create
from penstock.variables.enums import VariableAggregation, VariableSynchronization
from penstock.variables.updates import batch_scatter_update


class _VariableType(type):
    """Calling `Variable` itself calls the current creators, innermost first."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return create(*args, **kwargs) if cls is Variable else super().__call__(*args, **kwargs)


class Variable(metaclass=_VariableType):
    """A tensor whose value lives across steps and changes by assignment.

    `initial_value` (a tensor, a value that converts to one, or a function without arguments) gives type and shape;
    the variable holds it after its `initializer` has run. `use_resource` chooses between the two kinds.

    >>> w = tf.Variable(tf.zeros([784, 10]), name="w")
    >>> sess.run(w.initializer)
    """

    __array_priority__: ClassVar[int] = 100  # NumPy leaves `array + variable` to the variable.

    SaveSliceInfo = slices.SaveSliceInfo

    _name: str
    _initial_value: Tensor | None
    _initializer_op: Operation | None
    _trainable: bool
    _constraint: Callable[[Any], Any] | None
    _synchronization: VariableSynchronization
    _aggregation: VariableAggregation
    _save_slice_info: slices.SaveSliceInfo | None
    _caching_device: Any
    _snapshot: Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError  # tf.Variable(...) makes a subclass

    def _is_adopted(self, initial_value: Any, variable_def: Any, import_scope: str | None) -> bool:
        """Takes over the variable of a VariableDef, if one is given; else demands an initial value."""
        if variable_def is None:
            if initial_value is None:
                raise ValueError("initial_value must be specified.")
            return False
        if initial_value is not None:
            raise ValueError("variable_def and initial_value are mutually exclusive.")
        self.__dict__ = Variable.from_proto(variable_def, import_scope).__dict__
        return True

    def _set_options(
        self, trainable: bool | None, collections: Any, constraint: Any, synchronization: Any, aggregation: Any
    ) -> list[str]:
        """Checks and stores the settings that both kinds of variable have; returns the collections to join."""
        if collections is None:
            collections = [GraphKeys.GLOBAL_VARIABLES]
        if not isinstance(collections, (list, tuple, set)):
            raise ValueError(
                f"collections argument to Variable constructor must be a list, tuple, or set. Got {collections!r} of "
                f"type {type(collections)}"
            )
        if constraint is not None and not callable(constraint):
            raise ValueError("The `constraint` argument must be a callable.")
        for what, value, kind in (
            ("synchronization", synchronization, VariableSynchronization),
            ("aggregation", aggregation, VariableAggregation),
        ):
            if value is not None and not isinstance(value, kind):
                raise ValueError(f"The {what} of a variable must be a tf.{kind.__name__}, received {value!r}.")
        self._synchronization = synchronization or VariableSynchronization.AUTO
        self._aggregation = aggregation or VariableAggregation.NONE
        if trainable is None:
            trainable = self._synchronization is not VariableSynchronization.ON_READ
        self._trainable = trainable
        self._constraint = constraint
        self._save_slice_info = None
        if trainable and GraphKeys.TRAINABLE_VARIABLES not in collections:
            return [*collections, GraphKeys.TRAINABLE_VARIABLES]
        return list(collections)

    # Properties

    @property
    def name(self) -> str:
        return self._name

    @property
    def _shared_name(self) -> str:
        return self._name.partition(":")[0]

    @property
    def op(self) -> Operation:
        raise NotImplementedError

    @property
    def graph(self) -> Graph:
        return home_of(self.op)

    @property
    def device(self) -> str:
        return self.op.device

    @property
    def dtype(self) -> DType:
        raise NotImplementedError

    @property
    def shape(self) -> TensorShape:
        raise NotImplementedError

    def get_shape(self) -> TensorShape:
        """The static shape."""
        return self.shape

    @property
    def trainable(self) -> bool:
        return self._trainable

    @property
    def constraint(self) -> Callable[[Any], Any] | None:
        return self._constraint

    @property
    def synchronization(self) -> VariableSynchronization:
        return self._synchronization

    @property
    def aggregation(self) -> VariableAggregation:
        return self._aggregation

    @property
    def initializer(self) -> Any:
        return self._initializer_op

    @property
    def initial_value(self) -> Any:
        return self._initial_value

    # The value

    def value(self) -> Tensor:
        """The value as a tensor: the snapshot that other ops use."""
        raise NotImplementedError

    def read_value(self) -> Tensor:
        """The value read at this point, so after the current control dependencies."""
        raise NotImplementedError

    def is_initialized(self, name: str | None = None) -> Tensor:
        """Tells if the variable holds a value."""
        raise NotImplementedError

    def eval(self, session: Any = None) -> Any:
        """The value in `session` or the default session."""
        raise NotImplementedError

    def initialized_value(self) -> Tensor:
        """The value, or the initial value if the variable is not initialized yet: for initial values of others.

        >>> v = tf.Variable(w.initialized_value() * 2.0)
        """
        with init_scope():
            result: Tensor = cond(self.is_initialized(), self.read_value, lambda: self.initial_value)
            return result

    def load(self, value: FeedValue, session: Any = None) -> None:
        """Sets the value in `session` or the default session, without adding an op to the graph."""
        assert self._initializer_op is not None
        session_for(session, self.graph, "load a variable").run(
            self._initializer_op, {self._initializer_op.input_list[1]: value}
        )

    # Changes

    def assign(
        self, value: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Replaces the value. Returns the new value, or the operation with `read_value=False`."""
        raise NotImplementedError

    def assign_add(
        self, delta: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Adds `delta`."""
        raise NotImplementedError

    def assign_sub(
        self, delta: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtracts `delta`."""
        raise NotImplementedError

    def _scatter(self, kind: str, sparse_delta: Any, use_locking: bool, name: str | None) -> Any:
        raise NotImplementedError

    def _scatter_nd(self, kind: str, indices: Any, updates: Any, name: str | None) -> Any:
        raise NotImplementedError

    def ref(self) -> Reference:
        """A reference to this variable that can be a key of a dict: `{v.ref(): 1}[v.ref()]`."""
        return Reference(self)

    experimental_ref = ref

    def scatter_update(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Replaces the rows of an IndexedSlices."""
        return self._scatter("Update", sparse_delta, use_locking, name)

    def scatter_add(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Adds an IndexedSlices."""
        return self._scatter("Add", sparse_delta, use_locking, name)

    def scatter_sub(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Subtracts an IndexedSlices."""
        return self._scatter("Sub", sparse_delta, use_locking, name)

    def scatter_mul(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Multiplies rows by an IndexedSlices."""
        return self._scatter("Mul", sparse_delta, use_locking, name)

    def scatter_div(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Divides rows by an IndexedSlices."""
        return self._scatter("Div", sparse_delta, use_locking, name)

    def scatter_min(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Replaces rows by the minimum of them and an IndexedSlices."""
        return self._scatter("Min", sparse_delta, use_locking, name)

    def scatter_max(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Replaces rows by the maximum of them and an IndexedSlices."""
        return self._scatter("Max", sparse_delta, use_locking, name)

    def batch_scatter_update(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Replaces rows in each batch: all dimensions of the indices but the last are batches."""
        return batch_scatter_update(self, sparse_delta.indices, sparse_delta.values, use_locking, name)

    def scatter_nd_update(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> Any:
        """Replaces the slices at `indices`."""
        return self._scatter_nd("Update", indices, updates, name)

    def scatter_nd_add(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> Any:
        """Adds to the slices at `indices`."""
        return self._scatter_nd("Add", indices, updates, name)

    def scatter_nd_sub(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> Any:
        """Subtracts from the slices at `indices`."""
        return self._scatter_nd("Sub", indices, updates, name)

    def count_up_to(self, limit: int) -> Tensor:
        """Increments the variable and returns the value before; OutOfRangeError once it has reached `limit`."""
        raise NotImplementedError

    def sparse_read(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """The rows at `indices`."""
        raise NotImplementedError

    def gather_nd(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """The slices at `indices`."""
        raise NotImplementedError

    # Conversion to tensors

    def _as_tensor(self, dtype: DType | None = None, name: str | None = None, as_ref: bool = False) -> Tensor:
        raise NotImplementedError

    def _as_graph_element(self) -> Tensor:
        raise NotImplementedError

    def _ref(self) -> Any:
        raise NotImplementedError

    def _use_nodes(self, element: Tensor, snapshot: Tensor) -> None:
        """Takes over nodes that are already in the graph: the variable's, and its value for other ops."""
        raise NotImplementedError

    # Saving

    def _set_save_slice_info(self, save_slice_info: slices.SaveSliceInfo) -> None:
        """Marks this variable as a slice of a larger one, under whose name it is saved."""
        self._save_slice_info = save_slice_info

    def _get_save_slice_info(self) -> slices.SaveSliceInfo | None:
        return self._save_slice_info

    def to_proto(self, export_scope: str | None = None) -> Any:
        """This variable as a VariableDef, or None if it is not under `export_scope`."""
        return protos.to_proto(self, export_scope)

    @staticmethod
    def from_proto(variable_def: Any, import_scope: str | None = None) -> Any:
        """The variable that a VariableDef describes, in the default graph."""
        cls: type[Variable] = Kinds.classes[variable_def.is_resource]
        variable = cls.__new__(cls)
        protos.fill_in(variable, variable_def, import_scope)
        return variable

    def __hash__(self) -> int:
        return id(self)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"Variable '{self.name}' is not iterable; use tf.unstack, or index it.")

    def __repr__(self) -> str:
        return f"<tf.Variable '{self.name}' shape={self.shape} dtype={self.dtype.name}>"


# TensorFlow's name for the class of `tf.Variable` in the 1.x API.
VariableV1 = Variable


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: Variable, *args: Any) -> Any:
        # The variable is read first, as a separate op, and then the tensor's operator decides.
        return getattr(Tensor, name)(self.value(), *args)

    operate.__name__ = name
    return operate


for _name in OPERATORS:
    setattr(Variable, f"__{_name}__", _operator(f"__{_name}__"))


def _equality(operator: str, negated: bool) -> Callable[[Any, Any], Any]:
    by_value = _operator(operator)

    def method(self: Variable, other: object) -> Any:
        if other is None or not self.graph.equals_by_value:
            return (self is other) is not negated
        return by_value(self, other)

    return method


setattr(Variable, "__eq__", _equality("__eq__", negated=False))  # noqa: B010
setattr(Variable, "__ne__", _equality("__ne__", negated=True))  # noqa: B010


def _item(self: Variable, slice_spec: Any) -> Any:
    # The tensor knows its variable, so that a slice can be assigned to.
    return getattr(Tensor, "__getitem__")(self.value(), slice_spec, self)  # noqa: B009


setattr(Variable, "__getitem__", _item)  # noqa: B010


def declared_shape(shape: Any, initial_value: Tensor, validate_shape: bool) -> TensorShape:
    """The shape of a new variable: the given one, else that of its initial value, or unknown if it may change."""
    if shape is not None:
        return as_shape(shape)
    return initial_value.shape if validate_shape else TensorShape(None)


def identity_of(tensor: TensorLike, name: str | None = None) -> Tensor:
    """A plain Identity node; `tf.identity` does more for tensors that are not dense."""
    identity = registered("Identity")
    assert identity is not None
    copy: Tensor = identity(tensor, name=name)
    return copy
