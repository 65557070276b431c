"""Parts of Keras models that are penstock's own, such as ops on KerasTensors: they run as they are, not through JAX."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import keras
from keras.src import tree

from penstock.data.structure import TensorSpec
from penstock.eager.function import function
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.sessions import Stack
from penstock.keras.in_jax import NativeCode, on_arrays
from penstock.ops.array.reshaping import expand_dims, squeeze
from penstock.ops.math.casting import cast

_contexts = Stack()  # of calls that run operation by operation: their `training`, and the losses found
_functions: dict[str, Callable[..., Any]] = {}  # by public name: ops that take KerasTensors


# Calls that run operation by operation


def context_training() -> Any:
    """The `training` of the call around this one, if that runs operation by operation."""
    return _contexts.top[0] if _contexts.top else None


def add_losses(losses: Iterable[Any]) -> None:
    """Notes the losses of a layer in the call around it."""
    if _contexts.top:
        _contexts.top[1].extend(losses)


def is_native(layer: Any) -> bool:
    """Tells if a layer has parts that JAX cannot run, such as ops on strings."""
    return any(getattr(inner, "_penstock_native", False) for inner in layer._flatten_layers())


def is_native_code(error: BaseException | None) -> bool:
    """Tells if an error came about because code with ops of penstock was traced by JAX."""
    while error is not None:
        if isinstance(error, NativeCode) or "NativeCode" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def run(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls such a layer: each of its parts is a node, or several."""
    training = kwargs.get("training")
    if training is None:
        training = context_training()
    losses: list[Any] = []
    with _contexts.pushed((training, losses)):
        if isinstance(layer, keras.Sequential):
            outputs = args[0]
            for inner in layer.layers:
                outputs = inner(outputs)
        elif hasattr(layer, "_run_through_graph"):
            outputs = layer._run_through_graph(_inputs_of(layer, args[0]))
            if isinstance(outputs, (list, tuple)) and len(outputs) == 1:
                outputs = outputs[0]
        else:
            outputs = _called(layer, args, kwargs, training)
    layer._losses_override = losses
    add_losses(losses)
    return outputs


def _called(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], training: Any) -> Any:
    if not layer.built and not isinstance(layer, keras.Model):
        layer.build(tree.map_structure(lambda t: tuple(t.shape.as_list()), args[0]))
    if layer._call_has_training_arg and training is not None:
        kwargs = {**kwargs, "training": training}
    elif "training" in kwargs:
        kwargs = {k: v for k, v in kwargs.items() if k != "training"}
    outputs = layer.call(*args, **kwargs)
    layer.built = True
    return outputs


def _inputs_of(model: Any, inputs: Any) -> list[Any]:
    """The inputs of a functional model in its own order, type and rank."""
    expected = model._inputs_struct
    if isinstance(inputs, dict):
        by_name = expected if isinstance(expected, dict) else {k.name: k for k in tree.flatten(expected)}
        inputs = [inputs[name] for name in by_name]
        refs = list(by_name.values())
    else:
        inputs, refs = tree.flatten(inputs), tree.flatten(expected)
    if len(inputs) != len(refs):
        raise ValueError(f"The model '{model.name}' takes {len(refs)} inputs, received {len(inputs)}.")
    found = {id(ref): _fitted(value, ref) for ref, value in zip(refs, inputs, strict=True)}
    return [found[id(ref)] for ref in model._inputs]


def _fitted(value: Any, ref: Any) -> Any:
    tensor = convert_to_tensor(value)
    if tensor.dtype.base_dtype.name != ref.dtype and ref.dtype != "string":
        tensor = cast(tensor, as_dtype(ref.dtype))
    rank, wanted = tensor.shape.rank, len(ref.shape)
    if rank == wanted + 1 and tensor.shape.as_list()[-1] == 1:
        return squeeze(tensor, axis=-1)
    if rank == wanted - 1 and ref.shape[-1] == 1:
        return expand_dims(tensor, axis=-1)
    return tensor  # also examples without a batch axis, as in a dataset before it is batched


# Ops on KerasTensors


@keras.saving.register_keras_serializable("penstock")
class PenstockOperation(keras.Operation):
    """An op of penstock in a functional Keras model: `tf.reduce_mean(layer(x), axis=1)`."""

    def __init__(self, function: str, name: str | None = None) -> None:
        super().__init__(name=name)
        if function not in _functions:
            raise ValueError(f"penstock has no op '{function}' that Keras models can have.")
        self.function = function

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return _called_on_any(_functions[self.function], args, kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=lambda leaf: leaf is None)
        symbolic = [isinstance(leaf, keras.KerasTensor) for leaf in leaves]

        def on_tensors(*tensors: Any) -> Any:
            rest = iter(tensors)
            filled = [next(rest) if is_one else leaf for leaf, is_one in zip(leaves, symbolic, strict=True)]
            own_args, own_kwargs = jax.tree.unflatten(structure, filled)
            return self.call(*own_args, **own_kwargs)

        specs = [TensorSpec(t.shape, as_dtype(t.dtype)) for t, is_one in zip(leaves, symbolic, strict=True) if is_one]
        concrete = function(on_tensors, autograph=False).get_concrete_function(*specs)
        return tree.map_structure(_keras_tensor, concrete.structured_outputs)

    def get_config(self) -> dict[str, Any]:
        return {"function": self.function, "name": self.name}


def _keras_tensor(tensor: Any) -> Any:
    if tensor.shape.rank is None:
        raise ValueError(f"The rank of '{tensor.name}' is not known, so that no layer can take it.")
    return keras.KerasTensor(tuple(tensor.shape.as_list()), tensor.dtype.base_dtype.name)


def taking_keras_tensors(public_name: str, op: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an op that also takes KerasTensors: then it becomes an operation of the model that is made.

    >>> mean = taking_keras_tensors("reduce_mean", tf.reduce_mean)
    >>> mean(keras.Input([3]), axis=1)
    """
    _functions[public_name] = op

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        for leaf in (*args, *kwargs.values()):
            for part in leaf if isinstance(leaf, (list, tuple)) else (leaf,):
                if isinstance(part, keras.KerasTensor):
                    return PenstockOperation(public_name)(*args, **kwargs)
                if isinstance(part, jax.core.Tracer):
                    return on_arrays(op, args, kwargs)
        return op(*args, **kwargs)

    return call


def _called_on_any(op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs)))
    return on_arrays(op, args, kwargs) if traced else op(*args, **kwargs)
