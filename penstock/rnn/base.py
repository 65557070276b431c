"""RNNCell: the base class of recurrent cells, which finds its variables again in later calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from penstock.graph import nest
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.ops.array.creation import zeros
from penstock.ops.array.indexing import get_item
from penstock.ops.array.joining import concat
from penstock.ops.array.reshaping import expand_dims, shape
from penstock.variables.partitioned import PartitionedVariable
from penstock.variables.scope import VariableScope, get_variable, get_variable_scope, variable_scope

_NAMES = ("__rnn_cell_names",)  # not a string, so that users do not see it among the collections


def size_at(tensor: Any, axis: int) -> Any:
    """The size of a tensor along an axis, as a tensor."""
    return get_item(shape(tensor), axis)


def assert_like_rnncell(cell_name: str, cell: Any) -> None:
    """Raises TypeError unless `cell` has the attributes that the loops use."""
    lacking = [
        what
        for what, there in (
            ("'output_size' property is missing", hasattr(cell, "output_size")),
            ("'state_size' property is missing", hasattr(cell, "state_size")),
            (
                "either 'zero_state' or 'get_initial_state' method is required",
                hasattr(cell, "zero_state") or hasattr(cell, "get_initial_state"),
            ),
            ("is not callable", callable(cell)),
        )
        if not there
    ]
    if lacking:
        raise TypeError(f"The argument {cell_name!r} ({cell}) is not an RNNCell: {', '.join(lacking)}.")


def with_batch(batch_size: Any, size: Any) -> Any:
    """The shape `[batch_size, *size]`: a list if all of it is known, else a tensor.

    >>> with_batch(32, 128)
    [32, 128]
    """
    static = _static(batch_size)
    rest = constant_value(size) if isinstance(size, Tensor) else size
    if rest is not None and not isinstance(rest, Tensor):
        dims = as_shape([int(rest)] if _is_number(rest) else rest).as_list()
        if static is not None:
            return [static, *dims]
        rest = convert_to_tensor(dims, dtype="int32")
    else:
        rest = size if size.shape.rank else expand_dims(size, 0)
    first = batch_size if isinstance(batch_size, Tensor) else convert_to_tensor(batch_size, dtype="int32")
    return concat([expand_dims(first, 0) if first.shape.rank == 0 else first, rest], 0)


def _is_number(size: Any) -> bool:
    return not isinstance(size, TensorShape) and not hasattr(size, "__len__")


def _static(batch_size: Any) -> int | None:
    value = constant_value(batch_size) if isinstance(batch_size, Tensor) else batch_size
    if value is None:
        return None
    value = getattr(value, "value", value)
    return None if value is None else int(value)


def static_shape(batch_size: Any, size: Any) -> TensorShape:
    """The part of `[batch_size, *size]` that is known while the graph is built."""
    rest = constant_value(size) if isinstance(size, Tensor) else size
    if rest is None:
        return TensorShape(None)
    return TensorShape([_static(batch_size)]).concatenate(as_shape([int(rest)] if _is_number(rest) else rest))


def zero_tensors(size: Any, batch_size: Any, dtype: Any) -> Any:
    """Zeros for a state of the given sizes; `dtype` is one type, or one per tensor."""

    def one(part: Any, kind: Any) -> Tensor:
        tensor: Tensor = zeros(with_batch(batch_size, part), dtype=kind)
        tensor.set_shape(static_shape(batch_size, part))
        return tensor

    sizes = nest.flatten(size)
    kinds = nest.flatten(dtype) if nest.is_nested(dtype) else [dtype] * len(sizes)
    return nest.pack_sequence_as(size, [one(s, k) for s, k in zip(sizes, kinds, strict=True)])


def snake_case(name: str) -> str:
    """`BasicLSTMCell` as `basic_lstm_cell`."""
    name = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    name = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
    return f"private{name}" if name.startswith("_") else name


class RNNCell:
    """Base class of recurrent cells: `output, new_state = cell(inputs, state)`.

    A subclass has `state_size`, `output_size` and `call(inputs, state)`; it makes variables with `tf.get_variable` in
    `call`, or with `self.add_variable` in `build`. The first call decides their variable scope; later
    calls find them again.

    >>> class Sum(tf.nn.rnn_cell.RNNCell):
    ...     state_size = output_size = property(lambda self: 3)
    ...     def call(self, inputs, state):
    ...         return inputs + state, inputs + state
    """

    # Class-level defaults: subclasses often do not call __init__.
    built = False
    trainable = True
    input_spec: Any = None
    _own_name: str | None = None
    _base_name: str | None = None
    _own_dtype: DType | None = None
    _reuse: Any = None
    _scope: VariableScope | None = None
    _outer_scope: VariableScope | None = None
    _graph: Graph | None = None

    def __init__(self, trainable: bool = True, name: Any = None, dtype: DTypeLike | None = None, **kwargs: Any) -> None:
        self.trainable = trainable
        self._reuse = kwargs.pop("_reuse", None)
        self._scope_given = kwargs.pop("_scope", None)
        if kwargs:
            raise TypeError(f"{type(self).__name__}: unexpected keyword arguments {sorted(kwargs)}.")
        self._own_dtype = None if dtype is None else as_dtype(dtype).base_dtype
        if isinstance(name, VariableScope):
            self._base_name = name.name
        elif name:
            self._base_name = self._own_name = str(name)
        _ = self.name

    # Sizes

    @property
    def state_size(self) -> Any:
        """Size of each tensor of the state: an int, a TensorShape, or a structure of them."""
        raise NotImplementedError("Abstract method")

    @property
    def output_size(self) -> Any:
        """Size of the output: an int, a TensorShape, or a structure of them."""
        raise NotImplementedError("Abstract method")

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """A state of zeros.

        >>> cell.zero_state(32, tf.float32)
        """
        with name_scope(f"{type(self).__name__}ZeroState", values=[batch_size]):
            return zero_tensors(self.state_size, batch_size, dtype)

    def get_initial_state(
        self, inputs: TensorLike = None, batch_size: TensorLike = None, dtype: DTypeLike | None = None
    ) -> Any:
        """The initial state; batch size and type default to those of `inputs`."""
        if inputs is not None:
            tensor = convert_to_tensor(inputs, name="inputs")
            batch_size = size_at(tensor, 0) if batch_size is None else batch_size
            dtype = tensor.dtype if dtype is None else dtype
        if batch_size is None or dtype is None:
            raise ValueError(
                "batch_size and dtype cannot be None while constructing initial state: "
                f"batch_size={batch_size}, dtype={dtype}"
            )
        return self.zero_state(batch_size, dtype)

    # Names and variables

    @property
    def name(self) -> str:
        if self._own_name is None:
            base = snake_case(type(self).__name__)
            self._base_name = self._base_name or base
            counts = get_default_graph().get_collection_ref(_NAMES)
            if not counts:
                counts.append({})
            number = counts[0].get(base, 0)
            counts[0][base] = number + 1
            self._own_name = f"{base}_{number}" if number else base
        return self._own_name

    @property
    def graph(self) -> Graph:
        return self._graph or get_default_graph()

    @property
    def dtype(self) -> DType | None:
        return self._own_dtype

    @property
    def scope_name(self) -> str:
        """The variable scope of this cell, which is known after the first call."""
        if self._scope is None:
            raise ValueError(f"No name available for {self.name}: the cell was not called yet.")
        return self._scope.name

    def _own_weights(self) -> list[Any]:
        weights: list[Any] = self.__dict__.setdefault("_weights", [])
        return weights

    def _inner_cells(self) -> list[Any]:
        """The cells that this cell is made of."""
        cell = self.__dict__.get("_cell")
        return [] if cell is None else [cell]

    @property
    def variables(self) -> list[Any]:
        found = self._own_weights() + [v for c in self._inner_cells() for v in getattr(c, "variables", ())]
        return list({id(v): v for v in found}.values())

    weights = variables

    @property
    def trainable_variables(self) -> list[Any]:
        if not self.trainable:
            return []
        trained = {id(v) for v in self.graph.get_collection(GraphKeys.TRAINABLE_VARIABLES)}
        return [v for v in self.variables if id(v) in trained]

    trainable_weights = trainable_variables

    @property
    def non_trainable_variables(self) -> list[Any]:
        trained = {id(v) for v in self.trainable_variables}
        return [v for v in self.variables if id(v) not in trained]

    non_trainable_weights = non_trainable_variables

    def _remembered(self, getter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A custom getter that records each variable made or found in this cell."""
        variable = getter(*args, **kwargs)
        known = {id(v) for v in self._own_weights()}
        parts = list(variable) if isinstance(variable, PartitionedVariable) else [variable]
        self._own_weights().extend(v for v in parts if id(v) not in known)
        return variable

    def add_variable(
        self,
        name: str,
        shape: ShapeLike = None,
        dtype: DTypeLike | None = None,
        initializer: Any = None,
        regularizer: Any = None,
        trainable: bool | None = None,
        constraint: Any = None,
        use_resource: bool | None = None,
        partitioner: Any = None,
        **_: Any,
    ) -> Any:
        """A variable of this cell, for use in `build`."""
        return get_variable(
            name,
            shape=shape,
            dtype=dtype or self._own_dtype or "float32",
            initializer=initializer,
            regularizer=regularizer,
            trainable=self.trainable if trainable is None else trainable and self.trainable,
            constraint=constraint,
            use_resource=use_resource,
            partitioner=partitioner,
        )

    add_weight = add_variable

    def build(self, inputs_shape: ShapeLike) -> None:
        """Makes the variables, given the shape of the inputs."""
        self.built = True

    def call(self, inputs: TensorLike, state: Any) -> Any:
        """One step: the output and the new state."""
        raise NotImplementedError("Abstract method")

    # Calling

    def __call__(self, inputs: TensorLike, state: Any, scope: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Runs one step from `state`; returns the output and the new state."""
        if scope is not None:
            with variable_scope(scope, custom_getter=self._remembered) as given:
                return self._call_in(given, inputs, state, *args, **kwargs)
        if self._outer_scope is None:
            self._outer_scope = get_variable_scope()
        with variable_scope(self._outer_scope, custom_getter=self._remembered):
            return self._call_in(None, inputs, state, *args, **kwargs)

    def _call_in(self, scope: VariableScope | None, inputs: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        _ = self.name  # sets the base name
        if self._scope is None:
            self._settle_scope(scope)
        assert self._scope is not None
        reuse = True if self.built else self._reuse
        inputs = nest.map_structure(convert_to_tensor, inputs) if inputs is not None else None
        flat = [t for t in nest.flatten(inputs) if t is not None]
        if self._own_dtype is None and flat:
            self._own_dtype = flat[0].dtype.base_dtype
        with (
            variable_scope(
                self._scope, reuse=reuse, auxiliary_name_scope=False, custom_getter=self._remembered
            ) as inner,
            _names_under(inner),
        ):
            if not self.built:
                self._graph = _outermost(get_default_graph())
                self.build(nest.map_structure(lambda t: t.shape, inputs))
                self.built = True
            return self.call(inputs, state, *args, **kwargs)

    def _settle_scope(self, scope: VariableScope | None) -> None:
        if self._reuse:
            with variable_scope(self._base_name if scope is None else scope) as found:
                self._scope = found
        else:
            with variable_scope(scope, default_name=self._base_name) as found:
                self._scope = found


def _names_under(scope: VariableScope) -> AbstractContextManager[Any]:
    return name_scope(scope.original_name_scope) if scope.original_name_scope else nullcontext()


def _outermost(graph: Graph) -> Graph:
    while graph.outer_graph is not None:
        graph = graph.outer_graph
    return graph


class LayerRNNCell(RNNCell):
    """A cell that makes its variables in `build`."""


def last_dimension(inputs_shape: Any, cell: str) -> int:
    """The size of the inputs, which must be known for variables to be made."""
    depth = as_shape(inputs_shape).as_list()[-1]
    if depth is None:
        raise ValueError(f"{cell}: expected inputs.shape[-1] to be known, saw shape: {inputs_shape}")
    return int(depth)
