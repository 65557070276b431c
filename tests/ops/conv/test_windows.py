"""Windows over volumes, dilated windows, morphology, and places of maxima; against loops and each other."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.graph.opdef import registered

RANDOM = np.random.RandomState(0)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test gets the same numbers, independent of the tests before it."""
    RANDOM.seed(0)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def run(build: Any, *arrays: np.ndarray) -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = [tf.placeholder(a.dtype, [None, *a.shape[1:]]) for a in arrays]
        return session.run(build(*inputs), dict(zip(inputs, arrays, strict=True)))


def seen(x: np.ndarray, sizes: tuple[int, ...], strides: tuple[int, ...], padding: str, fill: float) -> np.ndarray:
    """The values under each window over NDHWC volumes: [batch, windows..., taps, channels]."""
    around, counts = [], []
    for size, window, stride in zip(x.shape[1:-1], sizes, strides, strict=True):
        count = -(-size // stride) if padding == "SAME" else (size - window) // stride + 1
        extra = max((count - 1) * stride + window - size, 0) if padding == "SAME" else 0
        around.append((extra // 2, extra - extra // 2))
        counts.append(count)
    x = np.pad(x, [(0, 0), *around, (0, 0)], constant_values=fill)
    taps = []
    for tap in itertools.product(*map(range, sizes)):
        cut = [slice(t, t + (n - 1) * s + 1, s) for t, n, s in zip(tap, counts, strides, strict=True)]
        taps.append(x[(slice(None), *cut)])
    return np.stack(taps, axis=-2)


VOLUMES = [("SAME", (3, 2, 3), (2, 1, 2)), ("VALID", (2, 3, 1), (1, 2, 1)), ("SAME", (2, 2, 2), (2, 2, 2))]


@pytest.mark.parametrize("data_format", ["NDHWC", "NCDHW"])
@pytest.mark.parametrize(("padding", "sizes", "strides"), VOLUMES)
def test_conv3d(padding: str, sizes: tuple[int, ...], strides: tuple[int, ...], data_format: str) -> None:
    x, kernel = normal(2, 5, 6, 4, 3), normal(*sizes, 3, 2)
    wanted = np.einsum("...tc,tco->...o", seen(x, sizes, strides, padding, 0), kernel.reshape(-1, 3, 2))
    dy = normal(*wanted.shape)
    turn, back = ((0, 1, 2, 3, 4), (0, 1, 2, 3, 4)) if data_format == "NDHWC" else ((0, 4, 1, 2, 3), (0, 2, 3, 4, 1))
    steps = [1, *strides, 1] if data_format == "NDHWC" else [1, 1, *strides]

    def build(x: Any, dy: Any) -> Any:
        weights = tf.constant(kernel)
        y = tf.nn.conv3d(x, weights, steps, padding, data_format=data_format)
        assert y.shape.as_list()[1:] == list(wanted.transpose(turn).shape[1:])
        return [y, *tf.gradients(y, [x, weights], dy)]

    y, dx, dk = run(build, x.transpose(turn), dy.transpose(turn))
    np.testing.assert_allclose(y.transpose(back), wanted, rtol=1e-4, atol=1e-4)
    # The op is linear in both arguments: with the right gradients these sums are equal.
    other = normal(*x.shape)
    answer = np.einsum("...tc,tco->...o", seen(other, sizes, strides, padding, 0), kernel.reshape(-1, 3, 2))
    np.testing.assert_allclose((dx.transpose(back) * other).sum(), (answer * dy).sum(), rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose((dk * kernel).sum(), (wanted * dy).sum(), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(("padding", "sizes", "strides"), VOLUMES)
def test_pooling_of_volumes(padding: str, sizes: tuple[int, ...], strides: tuple[int, ...]) -> None:
    x = normal(2, 5, 6, 4, 3)
    largest = seen(x, sizes, strides, padding, -np.inf).max(-2)
    counts = seen(np.ones_like(x), sizes, strides, padding, 0).sum(-2)
    means = seen(x, sizes, strides, padding, 0).sum(-2) / counts

    def build(x: Any) -> Any:
        top = tf.nn.max_pool3d(x, [1, *sizes, 1], [1, *strides, 1], padding)
        mean = tf.nn.avg_pool3d(x, [1, *sizes, 1], [1, *strides, 1], padding)
        return [top, mean, *tf.gradients(top, x), *tf.gradients(mean, x)]

    top, mean, d_top, d_mean = run(build, x)
    np.testing.assert_allclose(top, largest, rtol=1e-6)
    np.testing.assert_allclose(mean, means, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose((d_top * x).sum(), largest.sum(), rtol=1e-3)
    np.testing.assert_allclose((d_mean * x).sum(), means.sum(), rtol=1e-3, atol=1e-3)


def test_dilated_convolutions_agree() -> None:
    x, w, depthwise = normal(2, 9, 8, 3), normal(3, 3, 3, 4), normal(3, 3, 3, 2)

    def build(x: Any) -> Any:
        direct = tf.nn.conv2d(x, w, [1, 1, 1, 1], "SAME", dilations=[1, 2, 2, 1])
        native = tf.nn.depthwise_conv2d_native(x, depthwise, [1, 1, 1, 1], "SAME", dilations=[1, 2, 2, 1])
        up = tf.nn.atrous_conv2d_transpose(direct, w, [2, 9, 8, 3], 2, "SAME")
        assert tf.nn.atrous_conv2d(x, w, 2, "SAME").op.type == "BatchToSpaceND"
        return [
            (direct, tf.nn.atrous_conv2d(x, w, 2, "SAME")),
            (native, tf.nn.depthwise_conv2d(x, depthwise, [1, 1, 1, 1], "SAME", rate=[2, 2])),
            (up, tf.gradients(direct, x, direct)[0]),
            (
                tf.gradients(native, x)[0],
                tf.gradients(tf.nn.depthwise_conv2d(x, depthwise, [1, 1, 1, 1], "SAME", rate=[2, 2]), x)[0],
            ),
        ]

    for one, other in run(build, x):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("include_batch", [False, True])
def test_max_pool_with_argmax(include_batch: bool) -> None:
    x = normal(2, 5, 6, 3)

    def build(x: Any) -> Any:
        y, at = tf.nn.max_pool_with_argmax(x, 3, 2, "SAME", include_batch_in_index=include_batch)
        plain = tf.nn.max_pool(x, 3, 2, "SAME")
        return y, at, tf.gradients(y * y, x)[0], tf.gradients(plain * plain, x)[0]

    y, at, dx, wanted = run(build, x)
    flat = x.reshape(-1) if include_batch else x.reshape(2, -1)
    found = flat[at] if include_batch else np.stack([flat[b][at[b]] for b in range(2)])
    np.testing.assert_array_equal(found, y)
    np.testing.assert_allclose(dx, wanted, rtol=1e-5)


def test_dilation_and_erosion() -> None:
    x, element = normal(2, 5, 6, 3), normal(3, 2, 3)
    taps = seen(x, (3, 2), (1, 1), "SAME", -np.inf) + element.reshape(-1, 3)

    def build(x: Any) -> Any:
        settings: Any = {"strides": [1, 1, 1, 1], "rates": [1, 1, 1, 1], "padding": "SAME"}
        y = tf.nn.dilation2d(x, element, **settings)
        turned = tf.nn.erosion2d(-x, element[::-1, ::-1], **settings)
        return y, turned, tf.gradients(y, x)[0]

    y, turned, dx = run(build, x)
    np.testing.assert_allclose(y, taps.max(-2), rtol=1e-5)
    np.testing.assert_allclose(turned, -y, rtol=1e-5)
    np.testing.assert_allclose(dx.sum(), y.size)


def test_max_pooling_passes_nan_by() -> None:
    x = np.array([1, np.nan, 3, 2], np.float32).reshape(1, 2, 2, 1)
    assert run(lambda x: tf.nn.max_pool(x, 2, 2, "VALID"), x).item() == 3


@pytest.mark.parametrize(
    "build",
    [
        lambda x: tf.nn.conv2d(x, np.ones((3, 3, 2, 4), np.float32), 1, "SAME"),
        lambda x: tf.nn.depthwise_conv2d(x, np.ones((3, 3, 2, 4), np.float32), [1, 1, 1, 1], "SAME"),
        lambda x: tf.nn.max_pool(x, 2, 2, "SAME"),
        lambda x: tf.nn.avg_pool(x, 2, 2, "SAME"),
    ],
)
def test_empty_batches(build: Any) -> None:
    y, dx = run(lambda x: (y := build(x), tf.gradients(y, x)[0]), np.zeros((0, 5, 6, 2), np.float32))
    assert y.shape[0] == 0 and dx.shape == (0, 5, 6, 2)


def test_second_derivatives() -> None:
    # So far apart that no difference step changes the maximum of a window.
    x, step = RANDOM.permutation(32).reshape(1, 4, 4, 2).astype(np.float32) / 8, 1e-2
    functions = [
        lambda x: tf.square(tf.nn.fused_batch_norm(x, [1.0, 2.0], [0.5, -0.5])[0]),
        lambda x: tf.square(tf.nn.avg_pool(x, 2, 1, "SAME")),
        lambda x: tf.square(tf.nn.max_pool(x, 2, 2, "SAME")),
    ]
    for function in functions:
        weights = normal(1, 4, 4, 2)

        def build(x: Any, function: Any = function, weights: Any = weights) -> Any:
            y = function(x)
            first = tf.gradients(y, x, tf.reshape(weights.reshape(-1)[: np.prod(y.shape.as_list()[1:])], tf.shape(y)))
            return first[0], tf.gradients(first[0] * weights, x)[0]

        _, second = run(build, x)
        ahead, behind = (run(build, x + sign * step * weights)[0] for sign in (1, -1))
        slope = ((ahead - behind) / (2 * step) * weights).sum()
        np.testing.assert_allclose((second * weights).sum(), slope, rtol=0.05, atol=0.05)


OP_TYPES = """
AvgPool3D AvgPool3DGrad AvgPoolGrad BatchNormWithGlobalNormalization BiasAddGrad BiasAddV1 Conv2DBackpropFilter
Conv2DBackpropFilterV2 Conv2DBackpropInput Conv2DBackpropInputV2 Conv3D Conv3DBackpropFilter Conv3DBackpropFilterV2
Conv3DBackpropInput Conv3DBackpropInputV2 CTCBeamSearchDecoder CTCGreedyDecoder CTCLoss ComputeAccidentalHits
DepthwiseConv2dNativeBackpropFilter DepthwiseConv2dNativeBackpropInput Dilation2D Dilation2DBackpropFilter
Dilation2DBackpropInput FusedBatchNorm FusedBatchNormGrad FusedBatchNormGradV2 FusedBatchNormGradV3 FusedBatchNormV2
FusedBatchNormV3 InTopK LRNGrad MaxPool3D MaxPool3DGrad MaxPool3DGradGrad MaxPoolGrad MaxPoolGradGrad
MaxPoolGradGradWithArgmax MaxPoolGradV2 MaxPoolGradWithArgmax MaxPoolV2 MaxPoolWithArgmax TopK
ThreadUnsafeUnigramCandidateSampler
"""


def test_graphs_of_others_find_these_op_types() -> None:
    assert [name for name in OP_TYPES.split() if registered(name) is None] == []


@pytest.mark.parametrize("pseudo_random", [False, True])
@pytest.mark.parametrize("overlapping", [False, True])
def test_fractional_pooling(pseudo_random: bool, overlapping: bool) -> None:
    x = normal(2, 9, 7, 3)

    def build(x: Any) -> Any:
        settings: Any = {"pseudo_random": pseudo_random, "overlapping": overlapping, "seed": 5}
        top = tf.nn.fractional_max_pool(x, [1.0, 1.5, 1.4, 1.0], **settings)
        mean = tf.nn.fractional_avg_pool(x, [1.0, 1.5, 1.4, 1.0], **settings)
        assert top.output.shape.as_list() == [None, 6, 5, 3]
        return top, mean, tf.gradients(top.output, x)[0], tf.gradients(mean.output, x)[0]

    (top, rows, columns), (mean, *edges), d_top, d_mean = run(build, x)
    for sequence, size in ((rows, 9), (columns, 7)):
        assert sequence[0] == 0 and sequence[-1] == size and set(np.diff(sequence)) <= {1, 2}
    more = int(overlapping)
    np.testing.assert_allclose(top[:, 1, 2], x[:, rows[1] : rows[2] + more, columns[2] : columns[3] + more].max((1, 2)))
    below, beside = edges
    window = x[:, below[1] : below[2] + more, beside[2] : beside[3] + more]
    np.testing.assert_allclose(mean[:, 1, 2], window.mean((1, 2)), rtol=1e-5)
    np.testing.assert_allclose((d_top * x).sum(), top.sum(), rtol=1e-4)
    np.testing.assert_allclose((d_mean * x).sum(), mean.sum(), rtol=1e-3, atol=1e-3)
