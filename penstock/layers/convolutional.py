"""Convolutions over one, two and three axes."""

from __future__ import annotations

from typing import Any

from penstock.graph.opdef import OpDef, registered
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.layers.base import InputSpec, Layer, activation_named, functional
from penstock.layers.windows import conv_size, for_all_axes, format_named, layout_of, padding_named, sizes
from penstock.ops.array import reshaping
from penstock.ops.conv import conv2d as conv
from penstock.ops.conv import dilated
from penstock.ops.conv.conv1d import conv1d as conv1d_op
from penstock.ops.nn import layer_parts
from penstock.variables.initializers import Zeros

_ZEROS = Zeros()


def op_named(op_type: str) -> OpDef:
    """The op of that type; ops over three spatial axes are declared in a separate module."""
    found = registered(op_type)
    if found is None:
        raise NotImplementedError(f"The op {op_type} is not there.")
    return found


class Conv(Layer):
    """A convolution over `rank` axes: the base of Conv1D, Conv2D and Conv3D."""

    def __init__(
        self,
        rank: int,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
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
        self.rank, self.filters = rank, None if filters is None else int(filters)
        self.kernel_size = sizes(kernel_size, rank, "kernel_size")
        self.strides = sizes(strides, rank, "strides")
        self.dilation_rate = sizes(dilation_rate, rank, "dilation_rate")
        if max(self.strides) > 1 and max(self.dilation_rate) > 1:
            raise ValueError("`strides > 1` not supported in conjunction with `dilation_rate > 1`")
        self.padding, self.data_format = padding_named(padding), format_named(data_format)
        self.activation, self.use_bias = activation_named(activation), use_bias
        self.kernel_initializer, self.bias_initializer = kernel_initializer, bias_initializer
        self.kernel_regularizer, self.bias_regularizer = kernel_regularizer, bias_regularizer
        self.kernel_constraint, self.bias_constraint = kernel_constraint, bias_constraint
        self.input_spec = InputSpec(ndim=rank + 2)
        self.kernel: Any = None
        self.bias: Any = None

    @property
    def channel_axis(self) -> int:
        """The axis of the inputs that holds the channels."""
        return 1 if self.data_format == "channels_first" else -1

    def channels_in(self, input_shape: ShapeLike) -> int:
        """The number of channels. It must be known, and later inputs must have the same number."""
        channels = as_shape(input_shape).as_list()[self.channel_axis]
        if channels is None:
            raise ValueError(
                f"Layer '{self.name}': the channel dimension of the inputs should be defined. Found `None`."
            )
        self.input_spec = InputSpec(ndim=self.rank + 2, axes={self.channel_axis: channels})
        return channels

    def build(self, input_shape: ShapeLike) -> None:
        self.kernel = self._make_kernel("kernel", [*self.kernel_size, self.channels_in(input_shape), self.filters])
        self._make_bias()
        self.built = True

    def _make_kernel(self, name: str, shape: list[Any]) -> Any:
        return self.add_weight(
            name,
            shape,
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
            trainable=True,
        )

    def _make_bias(self) -> None:
        if self.use_bias:
            self.bias = self.add_weight(
                "bias",
                [self.filters],
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
                trainable=True,
            )

    def call(self, inputs: TensorLike) -> Any:
        layout, padding = layout_of(self.data_format, self.rank), self.padding.upper()
        if self.rank == 3:
            outputs = op_named("Conv3D")(
                inputs,
                self.kernel,
                strides=for_all_axes(self.strides, self.data_format),
                padding=padding,
                data_format=layout,
                dilations=for_all_axes(self.dilation_rate, self.data_format),
                name="Conv3D",
            )
        elif max(self.dilation_rate) > 1:
            names = {1: "conv1d", 2: "Conv2D"}
            outputs = dilated.convolution(
                inputs,
                self.kernel,
                padding,
                dilation_rate=self.dilation_rate,
                data_format=layout,
                name=names[self.rank],
            )
        elif self.rank == 2:
            outputs = conv.conv2d(inputs, self.kernel, self.strides, padding, data_format=layout, name="Conv2D")
        else:
            outputs = conv1d_op(inputs, self.kernel, self.strides[0], padding, data_format=layout)
        return self.finish(outputs)

    def finish(self, outputs: Any) -> Any:
        """Adds the bias and applies the activation."""
        if self.use_bias:
            if self.data_format == "channels_last":
                outputs = layer_parts.bias_add(outputs, self.bias)
            elif self.rank == 1:
                outputs = outputs + reshaping.reshape(self.bias, [1, self.filters, 1])
            else:
                outputs = layer_parts.bias_add(outputs, self.bias, data_format="NCHW")
        return outputs if self.activation is None else self.activation(outputs)

    def _spatial(self, input_shape: Any) -> tuple[int | None, list[int | None]]:
        dims = as_shape(input_shape).with_rank(self.rank + 2).as_list()
        return dims[0], dims[1:-1] if self.data_format == "channels_last" else dims[2:]

    def _shape(self, batch: int | None, spatial: list[Any]) -> list[Any]:
        if self.data_format == "channels_last":
            return [batch, *spatial, self.filters]
        return [batch, self.filters, *spatial]

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        batch, spatial = self._spatial(input_shape)
        windows = zip(spatial, self.kernel_size, self.strides, self.dilation_rate, strict=True)
        return TensorShape(self._shape(batch, [conv_size(n, k, self.padding, s, d) for n, k, s, d in windows]))


class Conv1D(Conv):
    """A convolution along sequences: `tf.layers.Conv1D(32, 3)(sequences)`."""

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: str = "valid",
        data_format: str | None = "channels_last",
        dilation_rate: Any = 1,
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
        super().__init__(
            1,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            activity_regularizer,
            kernel_constraint,
            bias_constraint,
            trainable,
            name,
            **kwargs,
        )


class Conv2D(Conv):
    """A convolution over images: `tf.layers.Conv2D(32, 5, padding="same")(images)`."""

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = (1, 1),
        padding: str = "valid",
        data_format: str | None = "channels_last",
        dilation_rate: Any = (1, 1),
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
        super().__init__(
            2,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            activity_regularizer,
            kernel_constraint,
            bias_constraint,
            trainable,
            name,
            **kwargs,
        )


class Conv3D(Conv):
    """A convolution over volumes: `tf.layers.Conv3D(32, 3)(volumes)`."""

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = (1, 1, 1),
        padding: str = "valid",
        data_format: str | None = "channels_last",
        dilation_rate: Any = (1, 1, 1),
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
        super().__init__(
            3,
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            activity_regularizer,
            kernel_constraint,
            bias_constraint,
            trainable,
            name,
            **kwargs,
        )


conv1d = functional(Conv1D)
conv2d = functional(Conv2D)
conv3d = functional(Conv3D)
