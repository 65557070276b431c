"""Normalizers of contrib.layers."""

from __future__ import annotations

from typing import Any

from penstock.contrib.arg_scope import add_arg_scope
from penstock.contrib.layers.outputs import (
    checked_format,
    collect_variable,
    finished,
    get_variable_collections,
    variable_getter,
)
from penstock.contrib.variables import model_variable
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.keys import GraphKeys
from penstock.graph.scopes import add_to_collections, control_dependencies
from penstock.graph.typing import TensorLike
from penstock.layers.normalization import BatchNormalization
from penstock.ops.array import joining, passthrough, reshaping
from penstock.ops.nn import normalization
from penstock.variables.initializers import Ones, Zeros
from penstock.variables.scope import variable_scope


class _Uncollected(BatchNormalization):
    """Puts its updates where the caller says, not into UPDATE_OPS."""

    collects_updates = False


@add_arg_scope
def batch_norm(
    inputs: TensorLike,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    activation_fn: Any = None,
    param_initializers: Any = None,
    param_regularizers: Any = None,
    updates_collections: Any = GraphKeys.UPDATE_OPS,
    is_training: Any = True,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    batch_weights: Any = None,
    fused: bool | None = None,
    data_format: str | None = "NHWC",
    zero_debias_moving_mean: bool = False,
    scope: Any = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_decay: float = 0.99,
    adjustment: Any = None,
) -> Any:
    """Batch normalization, with `beta` and, if `scale`, `gamma`.

    The updates of the moving averages go to `updates_collections`; with None the layer itself runs them.

    >>> net = slim.batch_norm(net, decay=0.99, is_training=is_training)
    """
    for what, asked in (("batch_weights", batch_weights), ("zero_debias_moving_mean", zero_debias_moving_mean)):
        if asked is not None and asked is not False:
            raise NotImplementedError(f"batch_norm: `{what}` is not supported.")
    first = checked_format(data_format, ("NHWC", "NCHW")) == "channels_first"
    initial, penalties = param_initializers or {}, param_regularizers or {}
    with variable_scope(scope, "BatchNorm", [inputs], reuse=reuse, custom_getter=variable_getter()) as sc:
        inputs = convert_to_tensor(inputs)
        if inputs.shape.rank is None:
            raise ValueError(f"Inputs {inputs.label} has undefined rank")
        layer = _Uncollected(
            axis=1 if first else -1,
            momentum=decay,
            epsilon=epsilon,
            center=center,
            scale=scale,
            beta_initializer=initial.get("beta", Zeros()),
            gamma_initializer=initial.get("gamma", Ones()),
            moving_mean_initializer=initial.get("moving_mean", Zeros()),
            moving_variance_initializer=initial.get("moving_variance", Ones()),
            beta_regularizer=penalties.get("beta"),
            gamma_regularizer=penalties.get("gamma"),
            trainable=trainable,
            renorm=renorm,
            renorm_clipping=renorm_clipping,
            renorm_momentum=renorm_decay,
            adjustment=adjustment,
            name=sc.name,
            fused=fused,
            _scope=sc,
            _reuse=reuse,
        )
        # TensorFlow fuses matrices too, as images of one pixel.
        flat = fused is not False and inputs.shape.rank == 2 and inputs.dtype.base_dtype is dt.float32
        if flat:
            channels = inputs.shape.as_list()[-1]
            if channels is None:
                raise ValueError(f"Inputs {inputs.label} has undefined channels dimension {inputs.shape}.")
            image = reshaping.reshape(inputs, [-1, channels, 1, 1] if first else [-1, 1, 1, channels])
            outputs = reshaping.reshape(layer.apply(image, training=is_training), reshaping.shape(inputs))
            outputs.set_shape(inputs.shape)
        else:
            outputs = layer.apply(inputs, training=is_training)
        if updates_collections is None:
            with control_dependencies(layer.updates):
                outputs = passthrough.identity(outputs)
        else:
            for update in layer.updates:
                add_to_collections(updates_collections, update)
        for name in ("moving_mean", "moving_variance", "beta", "gamma"):
            collect_variable(getattr(layer, name), variables_collections, name)
        return finished(outputs, None, None, activation_fn, outputs_collections, sc.name)


def _parameters(
    inputs: Any, shape: Any, center: bool, scale: bool, initial: Any, penalties: Any, collections: Any, trainable: bool
) -> tuple[Any, Any]:
    """The variables `beta` and `gamma`, if requested."""
    made: dict[str, Any] = {"beta": None, "gamma": None}
    for name, wanted, default in (("beta", center, Zeros()), ("gamma", scale, Ones())):
        if wanted:
            made[name] = model_variable(
                name,
                shape=shape,
                dtype=inputs.dtype.base_dtype,
                initializer=(initial or {}).get(name, default),
                regularizer=(penalties or {}).get(name),
                trainable=trainable,
                collections=get_variable_collections(collections, name),
            )
    return made["beta"], made["gamma"]


@add_arg_scope
def layer_norm(
    inputs: TensorLike,
    center: bool = True,
    scale: bool = True,
    activation_fn: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: Any = None,
) -> Any:
    """Zero mean and unit variance for each example: `tf.contrib.layers.layer_norm(net)`."""
    with variable_scope(scope, "LayerNorm", [inputs], reuse=reuse) as sc:
        inputs = convert_to_tensor(inputs)
        rank = inputs.shape.rank
        if rank is None:
            raise ValueError(f"Inputs {inputs.label} has undefined rank.")
        first = begin_norm_axis + rank if begin_norm_axis < 0 else begin_norm_axis
        if begin_params_axis >= rank or first >= rank:
            raise ValueError(
                f"begin_params_axis ({begin_params_axis}) and begin_norm_axis ({begin_norm_axis}) must be less than "
                f"the rank {rank} of the inputs."
            )
        shape = inputs.shape.as_list()[begin_params_axis:]
        if None in shape:
            raise ValueError(f"Inputs {inputs.label}: shape of inputs beyond begin_params_axis is not defined.")
        beta, gamma = _parameters(inputs, shape, center, scale, None, None, variables_collections, trainable)
        mean, variance = normalization.moments(inputs, list(range(first, rank)), keep_dims=True)
        epsilon = 1e-3 if inputs.dtype.base_dtype is dt.float16 else 1e-12
        outputs = normalization.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)
        outputs.set_shape(inputs.shape)
        return finished(outputs, None, None, activation_fn, outputs_collections, sc.name)


@add_arg_scope
def group_norm(
    inputs: TensorLike,
    groups: int = 32,
    channels_axis: int = -1,
    reduction_axes: Any = (-3, -2),
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    activation_fn: Any = None,
    param_initializers: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
    mean_close_to_zero: bool = False,
) -> Any:
    """Zero mean and unit variance for each group of channels of each example.

    >>> tf.contrib.layers.group_norm(net, groups=8)
    """
    with variable_scope(scope, "GroupNorm", [inputs], reuse=reuse) as sc:
        inputs = convert_to_tensor(inputs)
        rank = inputs.shape.rank
        if rank is None:
            raise ValueError(f"Inputs {inputs.label} has undefined rank.")
        at = channels_axis % rank
        axes = sorted(axis % rank for axis in reduction_axes)
        if at in axes or any(axis == 0 for axis in axes):
            raise ValueError(f"group_norm: the axes {reduction_axes} must not hold the batch or the channels ({at}).")
        channels = inputs.shape.as_list()[at]
        if channels is None or channels % groups:
            raise ValueError(f"group_norm: {groups} groups must divide the number of channels, received {channels}.")
        beta, gamma = _parameters(
            inputs, [channels], center, scale, param_initializers, None, variables_collections, trainable
        )
        # Channels become two axes: the groups, and the channels in each.
        sizes: Any = reshaping.shape(inputs)
        grouped_shape = joining.concat([sizes[:at], [groups, channels // groups], sizes[at + 1 :]], 0)
        spread = [1] * at + [groups, channels // groups] + [1] * (rank - at - 1)
        beta, gamma = (None if p is None else reshaping.reshape(p, spread) for p in (beta, gamma))
        grouped = reshaping.reshape(inputs, grouped_shape)
        moved = [axis if axis < at else axis + 1 for axis in axes]
        mean, variance = normalization.moments(grouped, sorted([*moved, at + 1]), keep_dims=True)
        outputs = normalization.batch_normalization(grouped, mean, variance, beta, gamma, epsilon)
        outputs = reshaping.reshape(outputs, sizes)
        outputs.set_shape(inputs.shape)
        return finished(outputs, None, None, activation_fn, outputs_collections, sc.name)


@add_arg_scope
def instance_norm(
    inputs: TensorLike,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    activation_fn: Any = None,
    param_initializers: Any = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    data_format: str | None = "NHWC",
    scope: Any = None,
) -> Any:
    """Zero mean and unit variance for each channel of each example: `tf.contrib.layers.instance_norm(net)`."""
    with variable_scope(scope, "InstanceNorm", [inputs], reuse=reuse) as sc:
        inputs = convert_to_tensor(inputs)
        rank = inputs.shape.rank
        if rank is None:
            raise ValueError(f"Inputs {inputs.label} has undefined rank.")
        at = 1 if checked_format(data_format, ("NHWC", "NCHW")) == "channels_first" else rank - 1
        channels = inputs.shape.as_list()[at]
        if channels is None:
            raise ValueError(f"Inputs {inputs.label} has undefined channels dimension {inputs.shape}.")
        beta, gamma = _parameters(
            inputs, [channels], center, scale, param_initializers, None, variables_collections, trainable
        )
        if at == 1:
            spread = [channels if i == 1 else 1 for i in range(rank)]
            beta, gamma = (None if p is None else reshaping.reshape(p, spread) for p in (beta, gamma))
        mean, variance = normalization.moments(inputs, [i for i in range(1, rank) if i != at], keep_dims=True)
        outputs = normalization.batch_normalization(inputs, mean, variance, beta, gamma, epsilon, name="instancenorm")
        outputs.set_shape(inputs.shape)
        return finished(outputs, None, None, activation_fn, outputs_collections, sc.name)
