"""BatchNormalization: uses the statistics of the batch while training, and their moving averages otherwise."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import as_dtype
from penstock.graph.operation import Tensor
from penstock.graph.scopes import colocate_with, name_scope
from penstock.graph.shape import as_shape
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.layers.base import InputSpec, Layer
from penstock.ops.array import creation, reshaping
from penstock.ops.control.flow import smart_cond
from penstock.ops.math import casting
from penstock.ops.nn import normalization
from penstock.ops.nn.fused_batch_norm import fused_batch_norm
from penstock.variables.enums import VariableAggregation, VariableSynchronization
from penstock.variables.initializers import Ones, Zeros
from penstock.variables.updates import assign_sub

_ZEROS, _ONES = Zeros(), Ones()


def _static_training(training: Any) -> bool | None:
    """True or False if `training` is known while the graph is built, else None."""
    value = constant_value(training) if isinstance(training, Tensor) else training
    return None if value is None else bool(value)


class BatchNormalization(Layer):
    """Normalises each channel to zero mean and unit variance, then applies `gamma` and `beta`.

    The updates of the moving averages are in UPDATE_OPS; a training step must run them.

    >>> y = tf.layers.BatchNormalization()(x, training=True)
    >>> with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    ...     train = optimizer.minimize(loss)
    """

    def __init__(
        self,
        axis: Any = -1,
        momentum: Any = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = _ZEROS,
        gamma_initializer: Any = _ONES,
        moving_mean_initializer: Any = _ZEROS,
        moving_variance_initializer: Any = _ONES,
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        renorm: bool = False,
        renorm_clipping: Any = None,
        renorm_momentum: float = 0.99,
        fused: bool | None = None,
        trainable: bool = True,
        virtual_batch_size: int | None = None,
        adjustment: Any = None,
        name: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, **kwargs)
        for what, asked in (("renorm", renorm), ("virtual_batch_size", virtual_batch_size), ("adjustment", adjustment)):
            if asked:
                raise NotImplementedError(f"BatchNormalization '{self.name}': `{what}` is not supported.")
        self.axis: Any = list(axis) if isinstance(axis, (list, tuple)) else axis
        self.momentum, self.epsilon, self.center, self.scale = momentum, epsilon, center, scale
        self.beta_initializer, self.gamma_initializer = beta_initializer, gamma_initializer
        self.moving_mean_initializer = moving_mean_initializer
        self.moving_variance_initializer = moving_variance_initializer
        self.beta_regularizer, self.gamma_regularizer = beta_regularizer, gamma_regularizer
        self.beta_constraint, self.gamma_constraint = beta_constraint, gamma_constraint
        self.fused = True if fused is None else fused
        self.gamma: Any = None
        self.beta: Any = None

    def build(self, input_shape: ShapeLike) -> None:
        shape = as_shape(input_shape)
        if shape.rank is None:
            raise ValueError(f"Input has undefined rank: {shape} (layer '{self.name}').")
        axes = [self.axis] if isinstance(self.axis, int) else list(self.axis)
        self.axis = [axis + shape.rank if axis < 0 else axis for axis in axes]
        if any(not 0 <= axis < shape.rank for axis in self.axis) or len(set(self.axis)) != len(self.axis):
            raise ValueError(f"Invalid axis of batch normalization: {axes} for inputs of shape {shape}.")
        dims = {axis: shape.as_list()[axis] for axis in self.axis}
        if None in dims.values():
            raise ValueError(f"Input has undefined `axis` dimension. Received input with shape {shape}. Axis: {axes}")
        self.input_spec = InputSpec(ndim=shape.rank, axes=dict(dims))
        self.fused = bool(self.fused) and shape.rank == 4 and self.axis in ([1], [3])
        self._data_format = "NCHW" if self.axis == [1] else "NHWC"
        one = len(self.axis) == 1
        sizes = list(dims.values()) if one else [dims.get(i, 1) for i in range(shape.rank)]
        # Statistics of half floats are kept in float32.
        kind = as_dtype(self.dtype or dt.float32)
        kind = dt.float32 if kind in (dt.float16, dt.bfloat16) else kind
        if self.scale:
            self.gamma = self.add_weight(
                "gamma", sizes, kind, self.gamma_initializer, self.gamma_regularizer, True, self.gamma_constraint
            )
        if self.center:
            self.beta = self.add_weight(
                "beta", sizes, kind, self.beta_initializer, self.beta_regularizer, True, self.beta_constraint
            )
        if self.fused and not self.scale:
            self._ones = creation.constant(1.0, dtype=kind, shape=sizes)
        if self.fused and not self.center:
            self._zeros = creation.constant(0.0, dtype=kind, shape=sizes)
        self.moving_mean = self._statistic("moving_mean", sizes, kind, self.moving_mean_initializer)
        self.moving_variance = self._statistic("moving_variance", sizes, kind, self.moving_variance_initializer)
        self.built = True

    def _statistic(self, name: str, shape: list[int], dtype: Any, initializer: Any) -> Any:
        assert self._scope is not None
        partitioner = self._scope.partitioner
        self._scope.set_partitioner(None)  # an average is assigned to as a whole
        try:
            return self.add_weight(
                name,
                shape,
                dtype,
                initializer,
                trainable=False,
                synchronization=VariableSynchronization.ON_READ,
                aggregation=VariableAggregation.MEAN,
            )
        finally:
            self._scope.set_partitioner(partitioner)

    def call(self, inputs: TensorLike, training: Any = False) -> Any:
        training = False if training is None else training
        return self._call_fused(inputs, training) if self.fused else self._call_plain(inputs, training)

    def _call_fused(self, inputs: Any, training: Any) -> Any:
        gamma = self.gamma if self.scale else self._ones
        beta = self.beta if self.center else self._zeros
        averages: tuple[Any, Any] = self.moving_mean, self.moving_variance
        trains = _static_training(training)
        if trains is None:
            # Read before the branches: a branch that reads variables cannot be compiled with the ops around it.
            gamma, beta = convert_to_tensor(gamma), convert_to_tensor(beta)
            averages = convert_to_tensor(self.moving_mean), convert_to_tensor(self.moving_variance)

        def by_batch() -> Any:
            return fused_batch_norm(inputs, gamma, beta, epsilon=self.epsilon, data_format=self._data_format)

        def by_averages() -> Any:
            return fused_batch_norm(
                inputs,
                gamma,
                beta,
                mean=averages[0],
                variance=averages[1],
                epsilon=self.epsilon,
                is_training=False,
                data_format=self._data_format,
            )

        outputs, mean, variance = smart_cond(training, by_batch, by_averages)
        if trains is None:
            # With momentum 1 an update leaves the averages as they are.
            momentum = smart_cond(
                training, lambda: convert_to_tensor(float(self.momentum)), lambda: convert_to_tensor(1.0)
            )
        else:
            momentum = convert_to_tensor(self.momentum)
        if trains is not False:
            self.add_update(_update_average(self.moving_mean, mean, momentum), inputs=inputs)
            self.add_update(_update_average(self.moving_variance, variance, momentum), inputs=inputs)
        return outputs

    def _call_plain(self, inputs: Any, training: Any) -> Any:
        rank = inputs.shape.rank
        others = [i for i in range(rank) if i not in self.axis]
        whole = [inputs.shape.as_list()[i] if i in self.axis else 1 for i in range(rank)]

        def spread(vector: Any) -> Any:
            fits = vector is None or vector.shape.rank == rank or others == list(range(rank - 1))
            return vector if fits else reshaping.reshape(vector, whole)

        scale, offset = spread(self.gamma), spread(self.beta)
        trains = _static_training(training)
        mean: Any = self.moving_mean
        variance: Any = self.moving_variance
        if trains is not False:
            exact = casting.cast(inputs, self.moving_mean.dtype.base_dtype)
            found = normalization.moments(exact, others, keep_dims=len(self.axis) > 1)
            if trains is None:
                kept = convert_to_tensor(self.moving_mean), convert_to_tensor(self.moving_variance)
                mean = smart_cond(training, lambda: found[0], lambda: kept[0])
                variance = smart_cond(training, lambda: found[1], lambda: kept[1])
            else:
                mean, variance = found
            for average, value in ((self.moving_mean, mean), (self.moving_variance, variance)):
                if trains:
                    self.add_update(_update_average(average, value, self.momentum), inputs=inputs)
                else:
                    self.add_update(_update_average_if(training, average, value, self.momentum), inputs=inputs)
        kind = inputs.dtype.base_dtype
        mean, variance = casting.cast(mean, kind), casting.cast(variance, kind)
        offset = None if offset is None else casting.cast(offset, kind)
        scale = None if scale is None else casting.cast(scale, kind)
        outputs = normalization.batch_normalization(inputs, spread(mean), spread(variance), offset, scale, self.epsilon)
        outputs.set_shape(inputs.shape)
        return outputs

    def compute_output_shape(self, input_shape: ShapeLike) -> Any:
        return input_shape


def _update_average(average: Any, value: Any, momentum: Any) -> Any:
    """The update `average -= (average - value) * (1 - momentum)`."""
    with name_scope("AssignMovingAvg") as scope, colocate_with(average):
        decay = convert_to_tensor(1.0 - momentum, name="decay")
        if decay.dtype != average.dtype.base_dtype:
            decay = casting.cast(decay, average.dtype.base_dtype)
        change = (average - casting.cast(value, average.dtype.base_dtype)) * decay
        return assign_sub(average, change, name=scope)


def _update_average_if(training: Any, average: Any, value: Any, momentum: float) -> Any:
    """`_update_average` if `training` is true when it runs; with momentum 1 an update changes nothing."""
    chosen = smart_cond(training, lambda: convert_to_tensor(float(momentum)), lambda: convert_to_tensor(1.0))
    return _update_average(average, value, chosen)


def batch_normalization(
    inputs: TensorLike,
    axis: Any = -1,
    momentum: Any = 0.99,
    epsilon: float = 1e-3,
    center: bool = True,
    scale: bool = True,
    beta_initializer: Any = _ZEROS,
    gamma_initializer: Any = _ONES,
    moving_mean_initializer: Any = _ZEROS,
    moving_variance_initializer: Any = _ONES,
    beta_regularizer: Any = None,
    gamma_regularizer: Any = None,
    beta_constraint: Any = None,
    gamma_constraint: Any = None,
    training: Any = False,
    trainable: bool = True,
    name: str | None = None,
    reuse: Any = None,
    renorm: bool = False,
    renorm_clipping: Any = None,
    renorm_momentum: float = 0.99,
    fused: bool | None = None,
    virtual_batch_size: int | None = None,
    adjustment: Any = None,
) -> Any:
    """`BatchNormalization` applied to `inputs` once: `tf.layers.batch_normalization(x, training=is_training)`."""
    layer = BatchNormalization(
        axis,
        momentum,
        epsilon,
        center,
        scale,
        beta_initializer,
        gamma_initializer,
        moving_mean_initializer,
        moving_variance_initializer,
        beta_regularizer,
        gamma_regularizer,
        beta_constraint,
        gamma_constraint,
        renorm,
        renorm_clipping,
        renorm_momentum,
        fused,
        trainable,
        virtual_batch_size,
        adjustment,
        name,
        _reuse=reuse,
        _scope=name,
    )
    return layer.apply(inputs, training=training)
