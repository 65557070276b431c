"""Transposes of convolutions over two and three axes."""

from __future__ import annotations

from typing import Any

from penstock.graph.shape import TensorShape
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.layers.base import functional
from penstock.layers.convolutional import Conv, op_named
from penstock.layers.windows import for_all_axes, layout_of, transposed_size
from penstock.ops.array import joining, reshaping
from penstock.ops.conv import conv2d as conv
from penstock.variables.initializers import Zeros

_ZEROS = Zeros()


class _Transposed(Conv):
    """The transpose of a convolution: the kernel is [*sizes, filters, channels]."""

    def build(self, input_shape: ShapeLike) -> None:
        self.kernel = self._make_kernel("kernel", [*self.kernel_size, self.filters, self.channels_in(input_shape)])
        self._make_bias()
        self.built = True

    def call(self, inputs: TensorLike) -> Any:
        at_run_time: Any = reshaping.shape(inputs)
        batch = at_run_time[0]
        _, static = self._spatial(inputs.shape)
        first = 1 if self.data_format == "channels_last" else 2
        spatial = [at_run_time[first + i] if n is None else n for i, n in enumerate(static)]
        windows = zip(spatial, self.kernel_size, self.strides, strict=True)
        shape = joining.stack(self._shape(batch, [transposed_size(n, k, self.padding, s) for n, k, s in windows]))
        layout, padding = layout_of(self.data_format, self.rank), self.padding.upper()
        outputs: Any
        if self.rank == 2:
            strides = for_all_axes(self.strides, self.data_format)
            outputs = conv.conv2d_transpose(inputs, self.kernel, shape, strides, padding, layout)
        else:
            outputs = op_named("Conv3DBackpropInputV2")(
                shape,
                self.kernel,
                inputs,
                strides=for_all_axes(self.strides, self.data_format),
                padding=padding,
                data_format=layout,
                name="conv3d_transpose",
            )
        outputs.set_shape(self.compute_output_shape(inputs.shape))
        return self.finish(outputs)

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        batch, spatial = self._spatial(input_shape)
        windows = zip(spatial, self.kernel_size, self.strides, strict=True)
        return TensorShape(self._shape(batch, [transposed_size(n, k, self.padding, s) for n, k, s in windows]))


class Conv2DTranspose(_Transposed):
    """The transpose of a Conv2D, which makes images larger: `tf.layers.Conv2DTranspose(32, 5, strides=2)(images)`."""

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = (1, 1),
        padding: str = "valid",
        data_format: str | None = "channels_last",
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
            1,
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


class Conv3DTranspose(_Transposed):
    """The transpose of a Conv3D: `tf.layers.Conv3DTranspose(32, 3, strides=2)(volumes)`."""

    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = (1, 1, 1),
        padding: str = "valid",
        data_format: str | None = "channels_last",
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
            1,
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


conv2d_transpose = functional(Conv2DTranspose)
conv3d_transpose = functional(Conv3DTranspose)
