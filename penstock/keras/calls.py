"""Keras layers, losses, metrics and operations called on penstock tensors: each call is one node."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import keras
from keras.src import backend, tree
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.ops.operation import Operation
from keras.src.trainers.compile_utils import CompileLoss

from penstock.graph.operation import Tensor
from penstock.keras import native
from penstock.keras.lifted import Plan, lift, lifted_scope
from penstock.keras.strategies import current_strategy, in_scope_of
from penstock.keras.variables import BackedVariable


class _Plans(dict[Any, Plan]):
    """The plans of one object. A copy of the object has none."""

    def __deepcopy__(self, memo: Any) -> _Plans:
        return _Plans()

    def __reduce__(self) -> Any:
        return _Plans, ()


def plans_of(owner: Any) -> dict[Any, Plan]:
    """The plans for calls of an object."""
    found: dict[Any, Plan] = vars(owner).setdefault("_penstock_plans", _Plans())
    return found


def has_tensors(*values: Any) -> bool:
    """Tells if there are penstock tensors in a structure."""
    return any(isinstance(leaf, Tensor) for leaf in tree.flatten(values))


def call_layer(layer: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a layer on tensors: as one node, or operation by operation if parts of it are penstock's own."""
    with in_scope_of(getattr(layer, "_penstock_strategy", None)):
        if native.is_native(layer):
            return native.run(layer, args, kwargs)
        if not layer.built:
            _build(layer, original, args, kwargs)
            if native.is_native(layer):
                return native.run(layer, args, kwargs)
        try:
            return _call_lifted(layer, original, args, kwargs)
        except Exception as error:
            if not native.is_native_code(error):
                raise
        object.__setattr__(layer, "_penstock_native", True)
        return native.run(layer, args, kwargs)


def _build(layer: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Makes the variables of a layer from the shapes of its inputs, outside of what JAX traces."""

    def symbolic(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.shape.rank is None:
            return leaf
        return keras.KerasTensor(tuple(leaf.shape.as_list()), leaf.dtype.base_dtype.name)

    try:
        original(layer, *tree.map_structure(symbolic, args), **tree.map_structure(symbolic, kwargs))
    except Exception as error:
        if not native.is_native_code(error):
            raise
        object.__setattr__(layer, "_penstock_native", True)


def _call_lifted(layer: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    context = native.context_training()
    if context is not None and kwargs.get("training") is None and layer._call_has_training_arg:
        kwargs = {**kwargs, "training": context}
    outputs, losses = lift(
        functools.partial(original, layer),
        args,
        kwargs,
        plans_of(layer),
        layer.name,
        state=tuple([inner.trainable for inner in layer._flatten_layers()]),
        losses=lambda: _losses_of(layer),
    )
    layer._losses_override = losses
    native.add_losses(losses)
    return outputs


def _losses_of(layer: Any) -> list[Any]:
    before, layer._losses_override = layer._losses_override, []
    try:
        return list(layer.losses)
    finally:
        layer._losses_override = before


def install() -> None:
    """Has Keras objects take penstock tensors."""
    _install_layers()
    _install_embeddings()
    _install_operations()
    _on_tensors(keras.losses.Loss, "__call__")
    _on_tensors(CompileLoss, "__call__")
    _install_metrics()


def _install_layers() -> None:
    layer_type = keras.layers.Layer
    call, new, maybe_build = layer_type.__call__, layer_type.__new__, layer_type._maybe_build

    @functools.wraps(call)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not in_stateless_scope() and has_tensors(args, kwargs):
            return call_layer(self, call, args, kwargs)
        return call(self, *args, **kwargs)

    # Not in __init__: Keras reads its signature for the configs of layers.
    @functools.wraps(new)
    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        layer = new(cls, *args, **kwargs)
        if isinstance(layer, layer_type):
            object.__setattr__(layer, "_penstock_strategy", current_strategy())
        return layer

    @functools.wraps(maybe_build)
    def _maybe_build(self: Any, call_spec: Any) -> None:
        with in_scope_of(getattr(self, "_penstock_strategy", None)):
            maybe_build(self, call_spec)

    layer_type.__call__, layer_type.__new__, layer_type._maybe_build = __call__, __new__, _maybe_build
    for name in ("weights", "trainable_weights", "trainable_variables", "non_trainable_weights"):
        setattr(layer_type, name, _with_shards(getattr(layer_type, name)))


def _with_shards(original: property) -> property:
    """A property of layers that lists the shards of variables that have some, as TensorFlow does."""

    def listed(self: Any) -> list[Any]:
        assert original.fget is not None
        found = original.fget(self)
        if in_stateless_scope():
            return list(found)
        return [s for v in found for s in (v.shards if isinstance(v, BackedVariable) and v.whole is None else [v])]

    return property(listed, doc=original.__doc__)


def _install_embeddings() -> None:
    call = keras.layers.Embedding.call

    @functools.wraps(call)
    def lookup(self: Any, inputs: Any) -> Any:
        scope = lifted_scope()
        if scope is None or self.lora_enabled or self.quantization_mode:
            return call(self, inputs)
        if not isinstance(self._embeddings, BackedVariable):
            return call(self, inputs)
        ids = inputs if inputs.dtype in ("int32", "int64") else keras.ops.cast(inputs, "int32")
        rows = scope.rows(self._embeddings, ids)
        return call(self, inputs) if rows is None else keras.ops.cast(rows, self.compute_dtype)

    keras.layers.Embedding.call = lookup


def _install_operations() -> None:
    symbolic_call, original = Operation.symbolic_call, backend.common.keras_tensor.any_symbolic_tensors

    def any_symbolic_tensors(args: Any = None, kwargs: Any = None) -> bool:
        return original(args, kwargs) or (not in_stateless_scope() and has_tensors(args, kwargs))

    # Keras' modules have the function under its own name.
    for name, module in list(sys.modules.items()):
        if name.startswith("keras.src") and vars(module).get("any_symbolic_tensors") is original:
            module.any_symbolic_tensors = any_symbolic_tensors  # type: ignore[attr-defined]

    @functools.wraps(symbolic_call)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if original(args, kwargs) or not has_tensors(args, kwargs):
            return symbolic_call(self, *args, **kwargs)
        if isinstance(self, native.PenstockOperation):
            return self.call(*args, **kwargs)
        return lift(self.call, args, kwargs, _operation_plans(self), type(self).__name__)[0]

    Operation.symbolic_call = call


_by_operation: dict[Any, dict[Any, Plan]] = {}


def _operation_plans(operation: Any) -> dict[Any, Plan]:
    """The plans of operations that are made for one call: those with equal settings share them."""
    settings = {k: v for k, v in vars(operation).items() if k not in ("name", "_inbound_nodes", "_outbound_nodes")}
    settings.pop("_auto_config", None)
    try:
        key = (type(operation), tuple(sorted(settings.items(), key=lambda kv: kv[0])))
        return _by_operation.setdefault(key, {})
    except TypeError:  # a setting that cannot be a key
        return {}


def _on_tensors(cls: Any, method: str, needs_tensors: bool = True) -> None:
    """Makes a method of a class one node where it is called on tensors, or on state that penstock holds."""
    original = cls.__dict__[method]

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if in_stateless_scope():
            return original(self, *args, **kwargs)
        if not has_tensors(args, kwargs) and (needs_tensors or not _is_backed(self)):
            return original(self, *args, **kwargs)
        code = functools.partial(original, self)
        name = f"{self.name}_{method.strip('_')}"
        with in_scope_of(getattr(self, "_penstock_strategy", None)):
            return lift(code, args, kwargs, plans_of(self), name, state=call, has_gradient=needs_tensors)[0]

    setattr(cls, method, call)


def _is_backed(metric: Any) -> bool:
    return any(isinstance(v, BackedVariable) for v in metric.variables)


def _install_metrics() -> None:
    metric_type = keras.metrics.Metric
    init, init_subclass = metric_type.__init__, metric_type.__init_subclass__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "_penstock_strategy", current_strategy())
        init(self, *args, **kwargs)

    metric_type.__init__ = __init__

    def wrap(cls: Any) -> None:
        for method in ("update_state", "result"):
            if method in cls.__dict__:
                _on_tensors(cls, method, needs_tensors=False)

    def every(cls: Any) -> None:
        wrap(cls)
        for inner in cls.__subclasses__():
            every(inner)

    def __init_subclass__(cls: Any, /, **kwargs: Any) -> None:
        init_subclass(**kwargs)
        wrap(cls)

    every(metric_type)
    metric_type.__init_subclass__ = classmethod(__init_subclass__)
    metric_type.reset_states = lambda self: self.reset_state()  # the name in Keras 2
