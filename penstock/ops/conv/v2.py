"""The functions of this room under the parameters of TensorFlow 2, where these differ."""

from penstock.graph.adapted import adapted
from penstock.ops.conv import batch_space, blocks, depthwise, dilated, fractional_pool, morphology, pool_argmax
from penstock.ops.conv import conv1d as one
from penstock.ops.conv import conv2d as two
from penstock.ops.conv import conv3d as three
from penstock.ops.conv import pool as pools

avg_pool2d = adapted(pools.avg_pool2d, "input: value, ksize, strides, padding, data_format='NHWC', name=None")
batch_to_space = adapted(batch_space.batch_to_space, "input, block_shape, crops, name=None")
conv1d = adapted(one.conv1d, "input, filters, stride, padding, data_format='NWC', dilations=None, name=None")
conv2d = adapted(two.conv2d, "input, filters, strides, padding, data_format='NHWC', dilations=None, name=None")
conv2d_transpose = adapted(
    two.conv2d_transpose,
    "input, filters, output_shape, strides, padding='SAME', data_format='NHWC', dilations=None, name=None",
)
conv3d = adapted(three.conv3d, "input, filters, strides, padding, data_format='NDHWC', dilations=None, name=None")
conv3d_transpose = adapted(
    three.conv3d_transpose,
    "input: value, filters: filter, output_shape, strides, padding='SAME', data_format='NDHWC', dilations=None, "
    "name=None",
)
convolution = adapted(
    dilated.convolution,
    "input, filters: filter, strides=None, padding='VALID', data_format=None, dilations=None, name=None",
    padding="VALID",
)
depth_to_space = adapted(blocks.depth_to_space, "input, block_size, data_format='NHWC', name=None")
depthwise_conv2d = adapted(
    depthwise.depthwise_conv2d, "input, filter, strides, padding, data_format=None, dilations=None, name=None"
)
dilation2d = adapted(
    morphology.dilation2d, "input, filters, strides, padding, data_format: _ = 'NHWC', dilations=None, name=None"
)
erosion2d = adapted(
    morphology.erosion2d,
    "value, filters: kernel, strides, padding, data_format: _ = 'NHWC', dilations: rates = None, name=None",
)
fractional_avg_pool = adapted(
    fractional_pool.fractional_avg_pool,
    "value, pooling_ratio, pseudo_random=False, overlapping=False, seed=0, name=None",
)
fractional_max_pool = adapted(
    fractional_pool.fractional_max_pool,
    "value, pooling_ratio, pseudo_random=False, overlapping=False, seed=0, name=None",
)
max_pool_with_argmax = adapted(
    pool_argmax.max_pool_with_argmax,
    "input, ksize, strides, padding, data_format='NHWC', output_dtype='int64', include_batch_in_index=False, name=None",
)
pool = adapted(
    pools.pool,
    "input, window_shape, pooling_type, strides=None, padding='VALID', data_format=None, dilations=None, name=None",
    padding="VALID",
)
separable_conv2d = adapted(
    depthwise.separable_conv2d,
    "input, depthwise_filter, pointwise_filter, strides, padding, data_format=None, dilations=None, name=None",
)
space_to_batch = adapted(batch_space.space_to_batch, "input, block_shape, paddings, name=None")
space_to_depth = adapted(blocks.space_to_depth, "input, block_size, data_format='NHWC', name=None")
