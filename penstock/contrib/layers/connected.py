"""Fully connected layers, and functions that change shapes: flatten, dropout, one-hot, stacks of layers."""

from __future__ import annotations

import functools
from typing import Any

from penstock.contrib.arg_scope import add_arg_scope
from penstock.contrib.layers.initializers import xavier_initializer
from penstock.contrib.layers.outputs import (
    checked_format,
    collect_named_outputs,
    collect_variable,
    finished,
    get_variable_collections,
    variable_getter,
)
from penstock.contrib.variables import model_variable
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.layers import core
from penstock.ops.array import gathering, joining, reshaping, selection
from penstock.ops.math import arithmetic, casting, reduce, unary
from penstock.ops.nn import activation, embedding, layer_parts
from penstock.variables.initializers import Zeros
from penstock.variables.scope import variable_scope

_XAVIER, _ZEROS = xavier_initializer(), Zeros()


@add_arg_scope
def fully_connected(
    inputs: TensorLike,
    num_outputs: Any,
    activation_fn: Any = activation.relu,
    normalizer_fn: Any = None,
    normalizer_params: Any = None,
    weights_initializer: Any = _XAVIER,
    weights_regularizer: Any = None,
    biases_initializer: Any = _ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """A dense layer with relu; a normalizer replaces the biases.

    >>> logits = tf.contrib.layers.fully_connected(net, 10, activation_fn=None, scope="logits")
    """
    if not isinstance(num_outputs, int) and not hasattr(num_outputs, "__index__"):
        raise ValueError(f"num_outputs should be an integer, got {num_outputs!r}.")
    getter = variable_getter(bias="biases", kernel="weights")
    with variable_scope(scope, "fully_connected", [inputs], reuse=reuse, custom_getter=getter) as sc:
        inputs = convert_to_tensor(inputs)
        layer = core.Dense(
            num_outputs,
            use_bias=not normalizer_fn and biases_initializer is not None,
            kernel_initializer=weights_initializer,
            bias_initializer=biases_initializer,
            kernel_regularizer=weights_regularizer,
            bias_regularizer=biases_regularizer,
            trainable=trainable,
            name=sc.name,
            dtype=inputs.dtype.base_dtype,
            _scope=sc,
            _reuse=reuse,
        )
        outputs = layer.apply(inputs)
        collect_variable(layer.kernel, variables_collections, "weights")
        collect_variable(layer.bias, variables_collections, "biases")
        return finished(outputs, normalizer_fn, normalizer_params, activation_fn, outputs_collections, sc.name)


# The same function with another activation. They share its arg_scope, as in TensorFlow.
relu = functools.partial(fully_connected, activation_fn=activation.relu)
relu6 = functools.partial(fully_connected, activation_fn=activation.relu6)
linear = functools.partial(fully_connected, activation_fn=None)


@add_arg_scope
def dropout(
    inputs: TensorLike,
    keep_prob: TensorLike = 0.5,
    noise_shape: ShapeLike = None,
    is_training: Any = True,
    outputs_collections: Any = None,
    scope: Any = None,
    seed: int | None = None,
) -> Any:
    """Keeps elements with probability `keep_prob` while training: `slim.dropout(net, 0.5, is_training=True)`."""
    with variable_scope(scope, "Dropout", [inputs], custom_getter=variable_getter()) as sc:
        inputs = convert_to_tensor(inputs)
        layer = core.Dropout(1 - keep_prob, noise_shape, seed, name=sc.name, _scope=sc)
        outputs = layer.apply(inputs, training=is_training)
        return collect_named_outputs(outputs_collections, sc.name, outputs)


@add_arg_scope
def flatten(inputs: TensorLike, outputs_collections: Any = None, scope: Any = None) -> Any:
    """Merges all axes but the first: `tf.contrib.layers.flatten(images)`."""
    with name_scope(scope, "Flatten", [inputs]) as sc:
        inputs = convert_to_tensor(inputs)
        if inputs.shape.rank is not None and inputs.shape.rank < 2:
            raise ValueError(f"flatten: the inputs must have at least 2 dimensions, received shape {inputs.shape}.")
        return collect_named_outputs(outputs_collections, sc, core.flatten(inputs))


@add_arg_scope
def bias_add(
    inputs: TensorLike,
    activation_fn: Any = None,
    initializer: Any = _ZEROS,
    regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    data_format: str | None = "NHWC",
    scope: Any = None,
) -> Any:
    """Adds a variable called `biases` to the channels."""
    first = checked_format(data_format, ("NHWC", "NCHW")) == "channels_first"
    with variable_scope(scope, "BiasAdd", [inputs], reuse=reuse) as sc:
        inputs = convert_to_tensor(inputs)
        if first and inputs.shape.rank != 4:
            raise ValueError(f"data_format=NCHW needs inputs of rank 4, received shape {inputs.shape}.")
        features = inputs.shape.as_list()[1 if first else -1]
        if features is None:
            raise ValueError("`C` dimension must be known but is None")
        biases = model_variable(
            "biases",
            shape=[features],
            dtype=inputs.dtype.base_dtype,
            initializer=initializer,
            regularizer=regularizer,
            trainable=trainable,
            collections=get_variable_collections(variables_collections, "biases"),
        )
        outputs = layer_parts.bias_add(inputs, biases, data_format=data_format)
        return finished(outputs, None, None, activation_fn, outputs_collections, sc.name)


@add_arg_scope
def one_hot_encoding(
    labels: TensorLike,
    num_classes: int,
    on_value: TensorLike = 1.0,
    off_value: TensorLike = 0.0,
    outputs_collections: Any = None,
    scope: Any = None,
) -> Any:
    """A vector for each label, with 1 at its class: `slim.one_hot_encoding(labels, 10)`."""
    with name_scope(scope, "OneHotEncoding", [labels, num_classes]) as sc:
        labels = convert_to_tensor(labels)
        if labels.dtype.base_dtype is dt.int32:
            labels = casting.cast(labels, dt.int64)
        outputs = selection.one_hot(labels, num_classes, on_value=on_value, off_value=off_value)
        return collect_named_outputs(outputs_collections, sc, outputs)


@add_arg_scope
def softmax(logits: TensorLike, scope: Any = None) -> Any:
    """Softmax over the last axis, for any number of axes."""
    with variable_scope(scope, "softmax", [logits]):
        logits = convert_to_tensor(logits)
        classes = logits.shape.as_list()[-1]
        flat = layer_parts.softmax(reshaping.reshape(logits, [-1, classes]))
        predictions = reshaping.reshape(flat, reshaping.shape(logits))
        predictions.set_shape(logits.shape)
        return predictions


@add_arg_scope
def unit_norm(inputs: TensorLike, dim: int, epsilon: float = 1e-7, scope: Any = None) -> Any:
    """Scales the vectors of `inputs` along `dim` to length 1."""
    with variable_scope(scope, "UnitNorm", [inputs]):
        inputs = convert_to_tensor(inputs)
        if inputs.shape.rank is None:
            raise ValueError("The input rank must be known.")
        if dim < 0 or dim >= inputs.shape.rank:
            raise ValueError(f"dim must be positive but smaller than the input rank {inputs.shape.rank}, got {dim}.")
        squares: Any = reduce.reduce_sum(unary.square(inputs), dim, keepdims=True)
        return arithmetic.divide(inputs, unary.sqrt(squares + epsilon))


@add_arg_scope
def maxout(inputs: TensorLike, num_units: int, axis: int = -1, scope: Any = None) -> Any:
    """The largest of each group of channels, `num_units` groups in all: `tf.contrib.layers.maxout(net, 64)`."""
    with variable_scope(scope, "MaxOut", [inputs]):
        inputs = convert_to_tensor(inputs)
        dims = inputs.shape.as_list()
        at = axis % len(dims)
        if dims[at] is None or dims[at] % num_units:
            raise ValueError(f"maxout: {dims[at]} features are not a multiple of num_units ({num_units}).")
        sizes: Any = reshaping.shape(inputs)
        shape = joining.concat([sizes[:at], [num_units, dims[at] // num_units], sizes[at + 1 :]], 0)
        outputs = reduce.reduce_max(reshaping.reshape(inputs, shape), at + 1)
        dims[at] = num_units
        outputs.set_shape(dims)
        return outputs


def _named(layer: Any, default: str) -> str:
    return str(getattr(layer, "__name__", None) or getattr(getattr(layer, "func", None), "__name__", None) or default)


@add_arg_scope
def repeat(inputs: TensorLike, repetitions: int, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Applies the same layer several times, in scopes called `scope_1`, `scope_2` and so on.

    >>> net = slim.repeat(net, 3, slim.conv2d, 256, [3, 3], scope="conv3")
    """
    scope = kwargs.pop("scope", None)
    with variable_scope(scope, "Repeat", [inputs]):
        outputs = convert_to_tensor(inputs)
        prefix = scope or _named(layer, "repeat")
        for i in range(repetitions):
            outputs = layer(outputs, *args, **{**kwargs, "scope": f"{prefix}_{i + 1}"})
        return outputs


@add_arg_scope
def stack(inputs: TensorLike, layer: Any, stack_args: Any, **kwargs: Any) -> Any:
    """Applies a layer several times with different arguments, in scopes called `scope_1`, `scope_2` and so on.

    >>> net = slim.stack(net, slim.fully_connected, [32, 64, 128], scope="fc")
    """
    scope = kwargs.pop("scope", None)
    if not isinstance(stack_args, (list, tuple)):
        raise TypeError("stack_args need to be a list or tuple")
    with variable_scope(scope, "Stack", [inputs]):
        outputs = convert_to_tensor(inputs)
        prefix = scope or _named(layer, "stack")
        for i, given in enumerate(stack_args):
            positional = given if isinstance(given, (list, tuple)) else [given]
            outputs = layer(outputs, *positional, **{**kwargs, "scope": f"{prefix}_{i + 1}"})
        return outputs


def embedding_lookup_unique(
    params: TensorLike, ids: TensorLike, partition_strategy: str = "mod", name: str | None = None
) -> Any:
    """`embedding_lookup` that looks up each id once."""
    with name_scope(name, "EmbeddingLookupUnique", [params, ids]):
        ids = convert_to_tensor(ids)
        sizes = reshaping.shape(ids)
        distinct, positions = selection.unique(reshaping.reshape(ids, [-1]))
        rows = embedding.embedding_lookup(params, distinct, partition_strategy)
        flat: Any = gathering.gather(rows, positions)
        tail: Any = reshaping.shape(flat)
        outputs = reshaping.reshape(flat, joining.concat([sizes, tail[1:]], 0))
        outputs.set_shape(ids.shape.concatenate(TensorShape(flat.shape.as_list()[1:])))
        return outputs


def embed_sequence(
    ids: TensorLike,
    vocab_size: int | None = None,
    embed_dim: int | None = None,
    unique: bool = False,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    scope: Any = None,
    reuse: Any = None,
) -> Any:
    """Vectors for symbols, from a variable called `embeddings`.

    >>> tf.contrib.layers.embed_sequence(ids, vocab_size=10000, embed_dim=128)
    """
    if not (reuse or (vocab_size and embed_dim)):
        raise ValueError(
            f"Must specify vocab size and embedding dimension when not reusing. Got {vocab_size} and {embed_dim}."
        )
    with variable_scope(scope, "EmbedSequence", [ids], reuse=reuse):
        shape = [vocab_size, embed_dim] if vocab_size is not None and embed_dim is not None else None
        table = model_variable(
            "embeddings", shape=shape, initializer=initializer, regularizer=regularizer, trainable=trainable
        )
        return embedding_lookup_unique(table, ids) if unique else embedding.embedding_lookup(table, ids)
