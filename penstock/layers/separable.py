"""Separable convolutions: they convolve each channel by itself, then mix the channels of each place."""

from __future__ import annotations

from typing import Any

from penstock.graph.typing import ShapeLike, TensorLike
from penstock.layers.base import functional
from penstock.layers.convolutional import Conv
from penstock.layers.windows import for_all_axes, layout_of
from penstock.ops.array import reshaping
from penstock.ops.conv import depthwise as ops
from penstock.variables.initializers import Zeros

_ZEROS = Zeros()


class _Separable(Conv):
    def __init__(
        self,
        rank: int,
        filters: int,
        kernel_size: Any,
        strides: Any,
        padding: str,
        data_format: str | None,
        dilation_rate: Any,
        depth_multiplier: int,
        activation: Any,
        use_bias: bool,
        depthwise_initializer: Any,
        pointwise_initializer: Any,
        bias_initializer: Any,
        depthwise_regularizer: Any,
        pointwise_regularizer: Any,
        bias_regularizer: Any,
        activity_regularizer: Any,
        depthwise_constraint: Any,
        pointwise_constraint: Any,
        bias_constraint: Any,
        trainable: bool,
        name: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            rank,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            None,
            bias_initializer,
            None,
            bias_regularizer,
            activity_regularizer,
            None,
            bias_constraint,
            trainable,
            name,
            **kwargs,
        )
        self.depth_multiplier = depth_multiplier
        self.depthwise_initializer, self.pointwise_initializer = depthwise_initializer, pointwise_initializer
        self.depthwise_regularizer, self.pointwise_regularizer = depthwise_regularizer, pointwise_regularizer
        self.depthwise_constraint, self.pointwise_constraint = depthwise_constraint, pointwise_constraint
        self.depthwise_kernel: Any = None
        self.pointwise_kernel: Any = None

    def build(self, input_shape: ShapeLike) -> None:
        channels = self.channels_in(input_shape)
        self.depthwise_kernel = self.add_weight(
            "depthwise_kernel",
            [*self.kernel_size, channels, self.depth_multiplier],
            initializer=self.depthwise_initializer,
            regularizer=self.depthwise_regularizer,
            constraint=self.depthwise_constraint,
            trainable=True,
        )
        self.pointwise_kernel = self.add_weight(
            "pointwise_kernel",
            [1] * self.rank + [self.depth_multiplier * channels, self.filters],
            initializer=self.pointwise_initializer,
            regularizer=self.pointwise_regularizer,
            constraint=self.pointwise_constraint,
            trainable=True,
        )
        self._make_bias()
        self.built = True

    def call(self, inputs: TensorLike) -> Any:
        padding, layout = self.padding.upper(), layout_of(self.data_format, 2)
        if self.rank == 2:
            strides = for_all_axes(self.strides, self.data_format)
            outputs = ops.separable_conv2d(
                inputs,
                self.depthwise_kernel,
                self.pointwise_kernel,
                strides,
                padding,
                rate=self.dilation_rate,
                data_format=layout,
            )
            return self.finish(outputs)
        # Sequences are images of height 1.
        axis = 1 if self.data_format == "channels_last" else 2
        strides, rate = for_all_axes(self.strides * 2, self.data_format), (1, *self.dilation_rate)
        inputs = reshaping.expand_dims(inputs, axis)
        depthwise, pointwise = (reshaping.expand_dims(k, 0) for k in (self.depthwise_kernel, self.pointwise_kernel))
        outputs = ops.separable_conv2d(inputs, depthwise, pointwise, strides, padding, rate=rate, data_format=layout)
        activation, self.activation = self.activation, None
        rank, self.rank = self.rank, 2
        try:
            outputs = reshaping.squeeze(self.finish(outputs), [axis])
        finally:
            self.activation, self.rank = activation, rank
        return outputs if activation is None else activation(outputs)


class SeparableConv1D(_Separable):
    """A separable convolution along sequences: `tf.layers.SeparableConv1D(32, 3)(sequences)`."""

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = "channels_last",
        dilation_rate: Any = 1,
        depth_multiplier: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = None,
        pointwise_initializer: Any = None,
        bias_initializer: Any = _ZEROS,
        depthwise_regularizer: Any = None,
        pointwise_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        depthwise_constraint: Any = None,
        pointwise_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            1,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            depth_multiplier,
            activation,
            use_bias,
            depthwise_initializer,
            pointwise_initializer,
            bias_initializer,
            depthwise_regularizer,
            pointwise_regularizer,
            bias_regularizer,
            activity_regularizer,
            depthwise_constraint,
            pointwise_constraint,
            bias_constraint,
            trainable,
            name,
            **kwargs,
        )


class SeparableConv2D(_Separable):
    """A separable convolution over images: `tf.layers.SeparableConv2D(32, 3)(images)`."""

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = (1, 1),
        padding: str = "valid",
        data_format: str | None = "channels_last",
        dilation_rate: Any = (1, 1),
        depth_multiplier: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = None,
        pointwise_initializer: Any = None,
        bias_initializer: Any = _ZEROS,
        depthwise_regularizer: Any = None,
        pointwise_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        depthwise_constraint: Any = None,
        pointwise_constraint: Any = None,
        bias_constraint: Any = None,
        trainable: bool = True,
        name: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            2,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            depth_multiplier,
            activation,
            use_bias,
            depthwise_initializer,
            pointwise_initializer,
            bias_initializer,
            depthwise_regularizer,
            pointwise_regularizer,
            bias_regularizer,
            activity_regularizer,
            depthwise_constraint,
            pointwise_constraint,
            bias_constraint,
            trainable,
            name,
            **kwargs,
        )


separable_conv1d = functional(SeparableConv1D)
separable_conv2d = functional(SeparableConv2D)
