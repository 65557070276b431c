"""Dense, Dropout and Flatten."""

from __future__ import annotations

import inspect
import math
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.dtype import as_dtype
from penstock.graph.opdef import registered
from penstock.graph.operation import Tensor
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.layers.base import InputSpec, Layer, activation_named, functional
from penstock.ops.array import arranging, creation, passthrough, reshaping
from penstock.ops.control.flow import smart_cond
from penstock.ops.linalg import matmul
from penstock.ops.nn import layer_parts
from penstock.variables.initializers import Zeros

_ZEROS = Zeros()


class Dense(Layer):
    """`activation(inputs @ kernel + bias)`, over the last axis of the inputs.

    >>> tf.layers.Dense(10, activation=tf.nn.relu)(x)
    """

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = None,
        bias_initializer: Any = _ZEROS,
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **kwargs)
        self.units, self.activation, self.use_bias = int(units), activation_named(activation), use_bias
        self.kernel_initializer, self.bias_initializer = kernel_initializer, bias_initializer
        self.kernel_regularizer, self.bias_regularizer = kernel_regularizer, bias_regularizer
        self.kernel_constraint, self.bias_constraint = kernel_constraint, bias_constraint
        self.input_spec = InputSpec(min_ndim=2)
        self.kernel: Any = None
        self.bias: Any = None

    def build(self, input_shape: ShapeLike) -> None:
        if not as_dtype(self.dtype or dt.float32).is_floating and not as_dtype(self.dtype or dt.float32).is_complex:
            raise TypeError(f"Unable to build `Dense` layer with non-floating point dtype {self.dtype}")
        last = as_shape(input_shape).as_list()[-1]
        if last is None:
            raise ValueError(
                f"Layer '{self.name}': the last dimension of the inputs to `Dense` should be defined. Found `None`."
            )
        self.input_spec = InputSpec(min_ndim=2, axes={-1: last})
        self.kernel = self.add_weight(
            "kernel",
            [last, self.units],
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
            trainable=True,
        )
        if self.use_bias:
            self.bias = self.add_weight(
                "bias",
                [self.units],
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
                trainable=True,
            )
        self.built = True

    def call(self, inputs: TensorLike) -> Any:
        outputs: Any
        if isinstance(inputs, SparseTensor):
            product = registered("SparseTensorDenseMatMul")
            if product is None:
                raise NotImplementedError("Dense: sparse inputs need the op SparseTensorDenseMatMul.")
            outputs = product(inputs.indices, inputs.values, inputs.dense_shape, self.kernel)
        elif inputs.shape.rank > 2:
            outputs = matmul.tensordot(inputs, self.kernel, [[inputs.shape.rank - 1], [0]])
            outputs.set_shape(self.compute_output_shape(inputs.shape))
        else:
            outputs = matmul.mat_mul(inputs, self.kernel, name="MatMul")
        if self.use_bias:
            outputs = layer_parts.bias_add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        return TensorShape([*as_shape(input_shape).with_rank_at_least(2).as_list()[:-1], self.units])


class Dropout(Layer):
    """Drops elements with probability `rate` while training, and does nothing otherwise.

    >>> tf.layers.Dropout(0.4)(x, training=is_training)
    """

    def __init__(
        self,
        rate: TensorLike = 0.5,
        noise_shape: ShapeLike = None,
        seed: int | None = None,
        name: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.rate, self.noise_shape, self.seed = rate, noise_shape, seed

    def call(self, inputs: TensorLike, training: Any = False) -> Any:
        def dropped() -> Tensor:
            return layer_parts.dropout(inputs, noise_shape=self._noise_shape(inputs), seed=self.seed, rate=self.rate)

        return smart_cond(training, dropped, lambda: passthrough.identity(inputs))

    def _noise_shape(self, inputs: Any) -> Any:
        if not isinstance(self.noise_shape, (list, tuple)):
            return self.noise_shape
        sizes: Any = reshaping.shape(inputs)
        return [sizes[i] if size is None else size for i, size in enumerate(self.noise_shape)]

    def compute_output_shape(self, input_shape: ShapeLike) -> Any:
        return input_shape


class Flatten(Layer):
    """Flattens all axes but the first into one.

    >>> tf.layers.Flatten()(images)
    """

    def __init__(self, data_format: str | None = None, trainable: bool = True, name: Any = None, **kwargs: Any) -> None:
        super().__init__(trainable, name, **kwargs)
        self.data_format = (data_format or "channels_last").lower()
        self.input_spec = InputSpec(min_ndim=1)

    def call(self, inputs: TensorLike) -> Any:
        rank = inputs.shape.rank
        if self.data_format == "channels_first" and rank > 2:
            inputs = arranging.transpose(inputs, [0, *range(2, rank), 1])
        if rank == 1:
            return reshaping.expand_dims(inputs, 1)
        batch, *rest = inputs.shape.as_list()
        if None not in rest:
            # A constant, so that all batch sizes share one program where the batch size is not used.
            shape: Any = creation.constant([-1, math.prod(rest)] if math.prod(rest) else [batch or -1, 0])
        else:
            sizes: Any = reshaping.shape(inputs)
            shape = [batch if batch is not None else sizes[0], -1]
        outputs = reshaping.reshape(inputs, shape)
        outputs.set_shape(self.compute_output_shape(inputs.shape))
        return outputs

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        shape = as_shape(input_shape)
        if shape.rank is None:
            return TensorShape([None, None])
        batch, *rest = shape.as_list()
        return TensorShape([batch, None if None in rest else math.prod(rest)])


dense = functional(Dense)
dropout = functional(Dropout, inspect.Parameter("training", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=False))


def flatten(inputs: TensorLike, name: str | None = None, data_format: str = "channels_last") -> Any:
    """Flattens all axes of `inputs` but the first into one: `tf.layers.flatten(images)`."""
    return Flatten(data_format, name=name, _scope=name).apply(inputs)
