"""Pooling: the largest value or the mean of each window."""

from __future__ import annotations

from typing import Any

from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.typing import ShapeLike, TensorLike
from penstock.layers.base import InputSpec, Layer, functional
from penstock.layers.convolutional import op_named
from penstock.layers.windows import conv_size, for_all_axes, format_named, layout_of, padding_named, sizes
from penstock.ops.array import reshaping
from penstock.ops.conv import pool


class _Pooling(Layer):
    rank = 2
    kind = "MaxPool"

    def __init__(
        self,
        pool_size: Any,
        strides: Any,
        padding: str = "valid",
        data_format: str | None = "channels_last",
        name: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.pool_size = sizes(pool_size, self.rank, "pool_size")
        self.strides = self.pool_size if strides is None else sizes(strides, self.rank, "strides")
        self.padding, self.data_format = padding_named(padding), format_named(data_format)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    def call(self, inputs: TensorLike) -> Any:
        window, strides = for_all_axes(self.pool_size, self.data_format), for_all_axes(self.strides, self.data_format)
        padding, layout = self.padding.upper(), layout_of(self.data_format, max(self.rank, 2))
        if self.rank == 3:
            return op_named(f"{self.kind}3D")(
                inputs, ksize=window, strides=strides, padding=padding, data_format=layout, name=f"{self.kind}3D"
            )
        function = pool.max_pool if self.kind == "MaxPool" else pool.avg_pool
        if self.rank == 2:
            return function(inputs, window, strides, padding, layout)
        # Sequences are images one pixel wide.
        axis = 2 if self.data_format == "channels_last" else 3
        window.insert(axis, 1)
        strides.insert(axis, 1)
        wide = function(reshaping.expand_dims(inputs, axis), window, strides, padding, layout)
        return reshaping.squeeze(wide, [axis])

    def compute_output_shape(self, input_shape: ShapeLike) -> TensorShape:
        dims = as_shape(input_shape).with_rank(self.rank + 2).as_list()
        first = 1 if self.data_format == "channels_last" else 2
        windows = zip(dims[first : first + self.rank], self.pool_size, self.strides, strict=True)
        dims[first : first + self.rank] = [conv_size(n, k, self.padding, s) for n, k, s in windows]
        return TensorShape(dims)


class MaxPooling1D(_Pooling):
    """The largest value of each window of sequences: `tf.layers.MaxPooling1D(2, 2)(x)`."""

    rank, kind = 1, "MaxPool"


class AveragePooling1D(_Pooling):
    """The mean of each window of sequences: `tf.layers.AveragePooling1D(2, 2)(x)`."""

    rank, kind = 1, "AvgPool"


class MaxPooling2D(_Pooling):
    """The largest value of each window of images: `tf.layers.MaxPooling2D(2, 2)(x)`."""

    rank, kind = 2, "MaxPool"


class AveragePooling2D(_Pooling):
    """The mean of each window of images: `tf.layers.AveragePooling2D(2, 2)(x)`."""

    rank, kind = 2, "AvgPool"


class MaxPooling3D(_Pooling):
    """The largest value of each window of volumes: `tf.layers.MaxPooling3D(2, 2)(x)`."""

    rank, kind = 3, "MaxPool"


class AveragePooling3D(_Pooling):
    """The mean of each window of volumes: `tf.layers.AveragePooling3D(2, 2)(x)`."""

    rank, kind = 3, "AvgPool"


max_pooling1d = functional(MaxPooling1D)
average_pooling1d = functional(AveragePooling1D)
max_pooling2d = functional(MaxPooling2D)
average_pooling2d = functional(AveragePooling2D)
max_pooling3d = functional(MaxPooling3D)
average_pooling3d = functional(AveragePooling3D)
