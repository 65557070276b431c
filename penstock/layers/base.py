"""Layer: a computation together with the variables that it makes when it first sees an input."""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import add_to_collection, get_collection_ref, name_scope
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.layers.inputs import InputSpec, check_inputs
from penstock.layers.names import activation_named, initializer_named
from penstock.ops.array import reshaping
from penstock.ops.math import casting
from penstock.variables.enums import VariableSynchronization
from penstock.variables.initialize import global_variables, trainable_variables
from penstock.variables.partitioned import PartitionedVariable
from penstock.variables.scope import VariableScope, get_variable, variable_scope

_NAMES = ("__layer_names",)  # not a string, so that users do not see it among the collections


def snake_case(name: str) -> str:
    """The name of a layer, from the name of its class.

    >>> snake_case("MaxPooling2D")
    'max_pooling2d'
    """
    spread = re.sub("(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    plain = re.sub("([a-z])([A-Z])", r"\1_\2", spread).lower()
    return "private" + plain if plain.startswith("_") else plain


def _unique_name(base: str) -> str:
    """A name that no layer of the graph has yet: `dense_1`, `dense_2`, ..."""
    found = get_collection_ref(_NAMES)
    if not found:
        found.append({})
    counts: dict[str, int] = found[0]
    counts[base] = counts.get(base, 0) + 1
    return f"{base}_{counts[base]}"


def _collect(elements: Iterable[Any], key: str) -> None:
    present = get_collection_ref(key)
    for element in elements:
        if not any(element is each for each in present):
            add_to_collection(key, element)


class Layer:
    """The base of all layers: subclasses make variables in `build` and compute in `call`.

    The first call opens a variable scope named after the layer, and all calls share its variables.

    >>> class Scale(tf.layers.Layer):
    ...     def build(self, input_shape):
    ...         self.factor = self.add_weight("factor", [])
    ...         self.built = True
    ...     def call(self, inputs):
    ...         return inputs * self.factor
    """

    input_spec: Any = None
    collects_updates = True  # True if updates go to UPDATE_OPS

    def __init__(self, trainable: bool = True, name: Any = None, dtype: DTypeLike | None = None, **kwargs: Any) -> None:
        self._reuse = kwargs.pop("_reuse", None)
        scope = kwargs.pop("_scope", None)
        self._activity_regularizer = kwargs.pop("activity_regularizer", None)
        if kwargs:
            raise TypeError(f"{type(self).__name__}: unknown keyword arguments {sorted(kwargs)}.")
        self.built = False
        self.trainable = trainable
        self._dtype = None if dtype is None else as_dtype(dtype).base_dtype.name
        self._trainable_weights: list[Any] = []
        self._non_trainable_weights: list[Any] = []
        self._losses: list[tuple[Any, Any]] = []  # each with the inputs that it depends on
        self._updates: list[tuple[Any, Any]] = []
        self._graph = get_default_graph()
        if name:
            base = name.name if isinstance(name, VariableScope) else name
            self._name = base
        else:
            base = snake_case(type(self).__name__)
            self._name = _unique_name(base)
        self._base_name: str = base
        self._scope: VariableScope | None = None
        self._current_scope: VariableScope | None = None
        if scope:
            with variable_scope(scope) as captured:
                self._scope = captured

    # Properties of a layer.

    @property
    def name(self) -> str:
        return self._name

    @property
    def dtype(self) -> str | None:
        return self._dtype

    @property
    def graph(self) -> Graph:
        return self._graph

    @property
    def scope_name(self) -> str:
        if self._scope is None:
            raise ValueError(f"Layer '{self.name}' has no scope before it is called: its name is decided then.")
        return self._scope.name

    @property
    def activity_regularizer(self) -> Any:
        return self._activity_regularizer

    @property
    def trainable_weights(self) -> list[Any]:
        return list(self._trainable_weights) if self.trainable else []

    @property
    def non_trainable_weights(self) -> list[Any]:
        rest = list(self._non_trainable_weights)
        return rest if self.trainable else [*self._trainable_weights, *rest]

    @property
    def weights(self) -> list[Any]:
        return self.trainable_weights + self.non_trainable_weights

    @property
    def variables(self) -> list[Any]:
        return self.weights

    @property
    def trainable_variables(self) -> list[Any]:
        return self.trainable_weights

    @property
    def non_trainable_variables(self) -> list[Any]:
        return self.non_trainable_weights

    @property
    def losses(self) -> list[Any]:
        return [loss for loss, _ in self._losses]

    @property
    def updates(self) -> list[Any]:
        return [update for update, _ in self._updates] if self.trainable else []

    def count_params(self) -> int:
        """The number of values in all variables."""
        if not self.built:
            raise ValueError(f"Layer '{self.name}' is not built: call it, or `build` it, before counting parameters.")
        return sum(math.prod(v.shape.as_list()) for v in self.weights)

    def get_config(self) -> dict[str, Any]:
        """The settings common to all layers."""
        return {"name": self.name, "trainable": self.trainable, "dtype": self.dtype}

    # Methods that subclasses write and use.

    def build(self, input_shape: ShapeLike) -> None:
        """Makes the variables; called once, with the shape (or shapes) of the first inputs."""
        self.built = True

    def call(self, inputs: TensorLike, *args: Any, **kwargs: Any) -> Any:
        """Computes the outputs."""
        return inputs

    def compute_output_shape(self, input_shape: ShapeLike) -> Any:
        """The shape of the outputs for inputs of a given shape."""
        raise NotImplementedError(f"{type(self).__name__} does not say its output shape.")

    def add_weight(
        self,
        name: str,
        shape: ShapeLike = None,
        dtype: DTypeLike | None = None,
        initializer: Any = None,
        regularizer: Callable[[Any], Any] | None = None,
        trainable: bool | None = None,
        constraint: Any = None,
        use_resource: bool | None = None,
        synchronization: Any = None,
        aggregation: Any = None,
        partitioner: Any = None,
        collections: Any = None,
    ) -> Any:
        """A variable of this layer, made or found by `get_variable` in the layer's scope."""
        if synchronization is VariableSynchronization.ON_READ:
            if trainable:
                raise ValueError(f"Variable '{name}': one that is synchronized on read cannot be trainable.")
            trainable = False
        trains = (trainable is None or trainable) and self.trainable
        before = set(map(id, global_variables())) if regularizer else set()
        self._set_scope(None)
        assert self._scope is not None
        reuse = True if self.built else self._reuse
        with variable_scope(self._scope, reuse=reuse, auxiliary_name_scope=False) as scope:
            self._current_scope = scope
            with name_scope(self._name_scope()):
                variable = get_variable(
                    name,
                    [] if shape is None else shape,
                    dtype=as_dtype(dtype or self.dtype or dt.float32),
                    initializer=initializer_named(scope.initializer if initializer is None else initializer),
                    trainable=trains,
                    constraint=constraint,
                    partitioner=partitioner,
                    collections=collections,
                    use_resource=use_resource or scope.use_resource,
                    synchronization=synchronization,
                    aggregation=aggregation,
                )
                parts = list(variable) if isinstance(variable, PartitionedVariable) else [variable]
                if regularizer and not any(id(part) in before for part in parts):
                    for part in parts:
                        with name_scope(f"{name}/Regularizer"):
                            penalty = regularizer(part)
                        if penalty is not None:
                            self.add_loss(penalty)
        # A custom getter may have made it not trainable.
        if trains and all(any(part is each for each in trainable_variables()) for part in parts):
            self._trainable_weights += parts
        else:
            self._non_trainable_weights += parts
        return variable

    def add_variable(self, *args: Any, **kwargs: Any) -> Any:
        """`add_weight` under its old name."""
        return self.add_weight(*args, **kwargs)

    def add_loss(self, losses: Any, inputs: TensorLike = None) -> None:
        """Adds to the layer's losses and to REGULARIZATION_LOSSES; `inputs` are the inputs they depend on, if any.

        >>> self.add_loss(0.01 * tf.reduce_sum(outputs), inputs=inputs)
        """
        found = [loss() if callable(loss) else loss for loss in nest.flatten(losses)]
        new = [loss if isinstance(loss, Tensor) else convert_to_tensor(loss) for loss in found if loss is not None]
        self._losses += [(loss, inputs) for loss in new]
        _collect(new, GraphKeys.REGULARIZATION_LOSSES)

    def add_update(self, updates: Any, inputs: TensorLike = None) -> None:
        """Adds ops that belong to a training step, such as those of moving averages; they go to UPDATE_OPS.

        >>> self.add_update(tf.assign_add(self.seen, 1), inputs=inputs)
        """
        for update in nest.flatten(updates):
            found = update() if callable(update) else update
            if found is not None:
                op = found if isinstance(found, Operation) else getattr(found, "op", found)
                self._updates.append((op, inputs))

    def get_updates_for(self, inputs: TensorLike) -> list[Any]:
        """The updates that depend on `inputs`; with None those that depend on none."""
        return _depending(self._updates, inputs)

    def get_losses_for(self, inputs: TensorLike) -> list[Any]:
        """The losses that depend on `inputs`; with None those that depend on none."""
        return _depending(self._losses, inputs)

    # Calling.

    def __call__(self, inputs: TensorLike, *args: Any, **kwargs: Any) -> Any:
        """The layer applied to `inputs`: a tensor, or a structure of tensors."""
        self._set_scope(kwargs.pop("scope", None))
        assert self._scope is not None
        reuse = True if self.built else self._reuse
        with variable_scope(self._scope, reuse=reuse, auxiliary_name_scope=False) as scope:
            self._current_scope = scope
            if "scope" in inspect.signature(self.call).parameters:
                kwargs["scope"] = scope
            with name_scope(self._name_scope()):
                inputs = nest.map_structure(_as_tensor, inputs)
                check_inputs(self.input_spec, inputs, self.name)
                if not self.built:
                    self._build_for(inputs)
                    check_inputs(self.input_spec, inputs, self.name)
                outputs = self.call(inputs, *args, **kwargs)
                if self._activity_regularizer is not None:
                    self._regularize(outputs, inputs)
        if self.collects_updates:
            _collect(self.updates, GraphKeys.UPDATE_OPS)
        return outputs

    def apply(self, inputs: TensorLike, *args: Any, **kwargs: Any) -> Any:
        """The same as calling the layer."""
        return self(inputs, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        """A layer with the same settings; it shares the graph, scope and variables."""
        made = copy.copy(self)
        memo[id(self)] = made
        for key, value in vars(self).items():
            if isinstance(value, (list, dict)):
                setattr(made, key, copy.copy(value))
            elif isinstance(value, (Layer, tuple)):
                setattr(made, key, copy.deepcopy(value, memo))
        return made

    def _set_scope(self, scope: Any) -> None:
        if self._scope is not None:
            return
        if self._reuse:
            with variable_scope(self._base_name if scope is None else scope) as captured:
                self._scope = captured
        else:
            with variable_scope(scope, default_name=self._base_name) as captured:
                self._scope = captured

    def _name_scope(self) -> str:
        assert self._current_scope is not None
        return self._current_scope.original_name_scope

    def _build_for(self, inputs: Any) -> None:
        tensors = nest.flatten(inputs)
        if self._dtype is None and tensors and hasattr(tensors[0], "dtype"):
            self._dtype = tensors[0].dtype.base_dtype.name
        self.build(nest.map_structure(lambda x: getattr(x, "shape", None), inputs))
        self.built = True

    def _regularize(self, outputs: Any, inputs: Any) -> None:
        with name_scope("ActivityRegularizer"):
            for output in nest.flatten(outputs):
                loss = self._activity_regularizer(output)
                # Per example, so that the strength does not depend on the size of the batch.
                first: Any = reshaping.shape(output)
                self.add_loss(loss / casting.cast(first[0], loss.dtype), inputs=inputs)


def _as_tensor(value: Any) -> Any:
    is_data = isinstance(value, (np.ndarray, np.generic, float, int)) or hasattr(value, "_as_tensor")
    return convert_to_tensor(value) if is_data else value


def _depending(entries: list[tuple[Any, Any]], inputs: Any) -> list[Any]:
    if inputs is None:
        return [entry for entry, source in entries if source is None]
    sources = {tensor.op for tensor in nest.flatten(inputs)}
    return [entry for entry, source in entries if source is not None and _depends_on(entry, sources)]


def _depends_on(element: Any, sources: set[Operation]) -> bool:
    """True if `element` is computed from an output of one of `sources`."""
    seen: set[Operation] = set()
    todo = [element if isinstance(element, Operation) else element.op]
    while todo:
        op = todo.pop()
        if op in sources:
            return True
        if op not in seen:
            seen.add(op)
            todo += [tensor.op for tensor in op.input_list]
    return False


def functional(layer: type[Layer], *extra: inspect.Parameter) -> Callable[..., Any]:
    """The function form of a layer class: `inputs`, the arguments of the class, and `reuse`.

    `extra` are arguments of `call`; they stand before `trainable` and `name`, as in TensorFlow.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = list(inspect.signature(layer.__init__).parameters.values())[1:]
    settings = [p for p in own if p.kind is kind]
    at = next((i for i, p in enumerate(settings) if p.name in ("trainable", "name")), len(settings)) if extra else 0
    settings[at:at] = extra
    names = inspect.Parameter("inputs", kind), *settings, inspect.Parameter("reuse", kind, default=None)
    # Pooling has no variables to reuse; a trailing `reuse` is harmless there.
    signature = inspect.Signature(names)
    for_call = [p.name for p in extra]

    def apply(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        inputs, reuse = given.pop("inputs"), given.pop("reuse", None)
        called_with = {key: given.pop(key) for key in for_call if key in given}
        made = layer(**given, _reuse=reuse, _scope=given.get("name"))
        return made.apply(inputs, **called_with)

    apply.__name__ = apply.__qualname__ = snake_case(layer.__name__)
    apply.__module__ = layer.__module__
    apply.__doc__ = f"`{layer.__name__}` applied to `inputs` once; a second call with `reuse` shares its variables."
    apply.__signature__ = signature  # type: ignore[attr-defined]
    return apply


__all__ = ["InputSpec", "Layer", "activation_named", "functional", "initializer_named", "snake_case"]
