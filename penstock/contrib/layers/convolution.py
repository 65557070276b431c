"""Convolutions and pooling of contrib.layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
from penstock.graph.convert import convert_to_tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.layers import convolutional, pooling, separable, transposed
from penstock.layers.windows import for_all_axes, sizes
from penstock.ops.conv import depthwise
from penstock.ops.nn import activation, layer_parts
from penstock.variables.initializers import Zeros
from penstock.variables.scope import variable_scope

_XAVIER, _ZEROS = xavier_initializer(), Zeros()
_FORMATS = {1: ("NWC", "NCW"), 2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}
_CLASSES: dict[int, Any] = {1: convolutional.Conv1D, 2: convolutional.Conv2D, 3: convolutional.Conv3D}


def _variant(
    layer: Callable[..., Any], name: str, docstring: str, fixed: dict[str, Any], **defaults: Any
) -> Callable[..., Any]:
    """`layer` under another name, with the arguments in `fixed` set and other defaults.

    `help`, `inspect.signature` and `arg_scope` see its arguments as if it were written out.
    """
    full = inspect.signature(layer)
    left = [p for p in full.parameters.values() if p.name not in fixed]
    shown = full.replace(parameters=[p.replace(default=defaults.get(p.name, p.default)) for p in left])

    def variant(*args: Any, **kwargs: Any) -> Any:
        try:
            given = shown.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        given.apply_defaults()
        return layer(**given.arguments, **fixed)

    variant.__name__ = variant.__qualname__ = name
    variant.__doc__ = docstring
    variant.__signature__ = shown  # type: ignore[attr-defined]
    return add_arg_scope(variant)


@add_arg_scope
def convolution(
    inputs: TensorLike,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: Any = 1,
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
    conv_dims: int | None = None,
) -> Any:
    """A convolution over one, two or three axes, by the rank of `inputs`, with relu."""
    getter = variable_getter(bias="biases", kernel="weights")
    with variable_scope(scope, "Conv", [inputs], reuse=reuse, custom_getter=getter) as sc:
        inputs = convert_to_tensor(inputs)
        found = None if inputs.shape.rank is None else inputs.shape.rank - 2
        if found not in _CLASSES or conv_dims not in (None, found):
            rank = (conv_dims or 2) + 2
            raise ValueError(f"Convolution expects inputs of rank {rank}, received shape {inputs.shape}.")
        assert found is not None
        layer = _CLASSES[found](
            num_outputs,
            kernel_size,
            strides=stride,
            padding=padding,
            data_format=checked_format(data_format, _FORMATS[found]),
            dilation_rate=rate,
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


_convolution = inspect.unwrap(convolution)  # an arg_scope of `convolution` does not apply to the functions below
convolution1d = _variant(
    _convolution,
    "convolution1d",
    "A convolution along sequences, with relu: `tf.contrib.layers.conv1d(sequences, 64, 3)`.",
    {"conv_dims": 1},
)
convolution2d = _variant(
    _convolution,
    "convolution2d",
    'A convolution over images, with relu: `slim.conv2d(images, 64, [3, 3], scope="conv1")`.',
    {"conv_dims": 2},
)
convolution3d = _variant(
    _convolution,
    "convolution3d",
    "A convolution over volumes, with relu: `slim.conv3d(volumes, 64, 3)`.",
    {"conv_dims": 3},
)


def _transposed(
    inputs: Any,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str | None = None,
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
    *,
    conv_dims: int,
) -> Any:
    getter = variable_getter(bias="biases", kernel="weights")
    with variable_scope(scope, f"Conv{conv_dims}d_transpose", [inputs], reuse=reuse, custom_getter=getter) as sc:
        inputs = convert_to_tensor(inputs)
        kind: Any = transposed.Conv2DTranspose if conv_dims == 2 else transposed.Conv3DTranspose
        layer = kind(
            num_outputs,
            kernel_size,
            strides=stride,
            padding=padding,
            data_format=checked_format(data_format, _FORMATS[conv_dims]),
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


convolution2d_transpose = _variant(
    _transposed,
    "convolution2d_transpose",
    "The transpose of conv2d, with relu: `slim.conv2d_transpose(images, 64, [3, 3], stride=2)`.",
    {"conv_dims": 2},
    data_format="NHWC",
)
convolution3d_transpose = _variant(
    _transposed,
    "convolution3d_transpose",
    "The transpose of conv3d, with relu: `slim.conv3d_transpose(volumes, 64, 3, stride=2)`.",
    {"conv_dims": 3},
    data_format="NDHWC",
)


@add_arg_scope
def separable_convolution2d(
    inputs: TensorLike,
    num_outputs: int | None,
    kernel_size: Any,
    depth_multiplier: int = 1,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str | None = "NHWC",
    rate: Any = 1,
    activation_fn: Any = activation.relu,
    normalizer_fn: Any = None,
    normalizer_params: Any = None,
    weights_initializer: Any = _XAVIER,
    pointwise_initializer: Any = None,
    weights_regularizer: Any = None,
    biases_initializer: Any = _ZEROS,
    biases_regularizer: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """Convolves each channel separately, then mixes channels into `num_outputs`; no mixing if that is None.

    >>> slim.separable_conv2d(images, 64, [3, 3], depth_multiplier=1)
    """
    layout = checked_format(data_format, ("NHWC", "NCHW"))
    getter = variable_getter(bias="biases", depthwise_kernel="depthwise_weights", pointwise_kernel="pointwise_weights")
    use_bias = not normalizer_fn and biases_initializer is not None
    with variable_scope(scope, "SeparableConv2d", [inputs], reuse=reuse, custom_getter=getter) as sc:
        inputs = convert_to_tensor(inputs)
        outputs: Any
        if num_outputs is not None:
            layer = separable.SeparableConv2D(
                num_outputs,
                kernel_size,
                strides=stride,
                padding=padding,
                data_format=layout,
                dilation_rate=sizes(rate, 2, "rate"),
                depth_multiplier=depth_multiplier,
                use_bias=use_bias,
                depthwise_initializer=weights_initializer,
                pointwise_initializer=weights_initializer if pointwise_initializer is None else pointwise_initializer,
                bias_initializer=biases_initializer,
                depthwise_regularizer=weights_regularizer,
                pointwise_regularizer=weights_regularizer,
                bias_regularizer=biases_regularizer,
                trainable=trainable,
                name=sc.name,
                dtype=inputs.dtype.base_dtype,
                _scope=sc,
                _reuse=reuse,
            )
            outputs = layer.apply(inputs)
            # TensorFlow stores both kernels under "weights".
            collect_variable(layer.depthwise_kernel, variables_collections, "weights")
            collect_variable(layer.pointwise_kernel, variables_collections, "weights")
            collect_variable(layer.bias, variables_collections, "biases")
        else:
            kernel, kind = sizes(kernel_size, 2, "kernel_size"), inputs.dtype.base_dtype
            channels = inputs.shape.as_list()[1 if layout == "channels_first" else -1]
            weights = model_variable(
                "depthwise_weights",
                shape=[*kernel, channels, depth_multiplier],
                dtype=kind,
                initializer=weights_initializer,
                regularizer=weights_regularizer,
                trainable=trainable,
                collections=get_variable_collections(variables_collections, "weights"),
            )
            outputs = depthwise.depthwise_conv2d(
                inputs,
                weights,
                for_all_axes(sizes(stride, 2, "stride"), layout),
                padding,
                rate=sizes(rate, 2, "rate"),
                data_format=data_format,
            )
            if use_bias:
                biases = model_variable(
                    "biases",
                    shape=[depth_multiplier * channels],
                    dtype=kind,
                    initializer=biases_initializer,
                    regularizer=biases_regularizer,
                    trainable=trainable,
                    collections=get_variable_collections(variables_collections, "biases"),
                )
                outputs = layer_parts.bias_add(outputs, biases, data_format=data_format)
        return finished(outputs, normalizer_fn, normalizer_params, activation_fn, outputs_collections, sc.name)


def _pooled(
    inputs: Any,
    kernel_size: Any,
    stride: Any = 2,
    padding: str = "VALID",
    data_format: str | None = None,
    outputs_collections: Any = None,
    scope: Any = None,
    *,
    kind: Any,
    default_name: str,
) -> Any:
    layout = checked_format(data_format, _FORMATS[kind.rank])
    with name_scope(scope, default_name, [inputs]) as sc:
        inputs = convert_to_tensor(inputs)
        outputs = kind(kernel_size, stride, padding=padding, data_format=layout, _scope=sc).apply(inputs)
        return collect_named_outputs(outputs_collections, sc, outputs)


avg_pool2d = _variant(
    _pooled,
    "avg_pool2d",
    "The mean of each window: `slim.avg_pool2d(net, [2, 2])`.",
    {"kind": pooling.AveragePooling2D, "default_name": "AvgPool2D"},
    data_format="NHWC",
)
max_pool2d = _variant(
    _pooled,
    "max_pool2d",
    "The largest value of each window: `slim.max_pool2d(net, [2, 2])`.",
    {"kind": pooling.MaxPooling2D, "default_name": "MaxPool2D"},
    data_format="NHWC",
)
avg_pool3d = _variant(
    _pooled,
    "avg_pool3d",
    "The mean of each window of volumes.",
    {"kind": pooling.AveragePooling3D, "default_name": "AvgPool3D"},
    data_format="NDHWC",
)
max_pool3d = _variant(
    _pooled,
    "max_pool3d",
    "The largest value of each window of volumes.",
    {"kind": pooling.MaxPooling3D, "default_name": "MaxPool3D"},
    data_format="NDHWC",
)

conv1d, conv2d, conv3d = convolution1d, convolution2d, convolution3d
conv2d_transpose, conv3d_transpose = convolution2d_transpose, convolution3d_transpose
separable_conv2d = separable_convolution2d
