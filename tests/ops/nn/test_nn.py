"""Neural-network ops against NumPy: values, gradients, static shapes and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from penstock.autodiff import gradients
from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.graph import Graph
from penstock.graph.scopes import device
from penstock.graph.sparse_tensor import SparseTensor
from penstock.ops.array import creation, ranges, reshaping
from penstock.ops.conv import conv2d, depthwise, pool
from penstock.ops.math import arithmetic, operators  # noqa: F401
from penstock.ops.nn import activation, embedding, fused_batch_norm, layer_parts, normalization
from penstock.ops.nn import cross_entropy as loss
from penstock.session import Session

RANDOM = np.random.RandomState(0)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test gets the same numbers, independent of the tests before it."""
    RANDOM.seed(0)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def run(build: Callable[..., Any], *arrays: np.ndarray) -> Any:
    """The value of `build(*placeholders)` with `arrays` fed."""
    with Graph().as_default(), Session() as session:
        inputs = [creation.placeholder(dt.as_dtype(a.dtype), a.shape) for a in arrays]
        return session.run(build(*inputs), dict(zip(inputs, arrays, strict=True)))


def slope(function: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """The derivative of an elementwise function, by differences."""
    exact, step = x.astype(np.float64), 1e-5
    return (function(exact + step) - function(exact - step)) / (2 * step)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


ACTIVATIONS: dict[str, tuple[Any, Callable[[np.ndarray], np.ndarray]]] = {
    "relu": (activation.relu, lambda x: np.maximum(x, 0)),
    "relu6": (activation.relu6, lambda x: np.clip(x, 0, 6)),
    "leaky_relu": (activation.leaky_relu, lambda x: np.where(x > 0, x, 0.2 * x)),
    "elu": (activation.elu, lambda x: np.where(x > 0, x, np.expm1(x))),
    "selu": (activation.selu, lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x))),
    "softplus": (activation.softplus, lambda x: np.log1p(np.exp(x))),
    "softsign": (activation.softsign, lambda x: x / (1 + np.abs(x))),
    "swish": (activation.swish, lambda x: x / (1 + np.exp(-x))),
}


def test_activations_and_their_first_and_second_derivatives() -> None:
    x = np.array([-7.5, -2.0, -0.3, 0.4, 1.5, 7.0], np.float32)

    def build(x: Any) -> dict[str, list[Any]]:
        result = {}
        for name, (function, _) in ACTIVATIONS.items():
            y = function(x)
            (first,) = gradients(y, x)
            result[name] = [y, first, gradients(first, x)[0]]
        return result

    for name, (y, first, second) in run(build, x).items():
        reference = ACTIVATIONS[name][1]
        np.testing.assert_allclose(y, reference(x), rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(first, slope(reference, x), rtol=1e-3, atol=1e-5, err_msg=name)
        bend = slope(lambda v, f=reference: slope(f, v), x)
        np.testing.assert_allclose(second, bend, rtol=1e-2, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("axis", [-1, 0, -2])
def test_softmax_along_any_axis(axis: int) -> None:
    x = normal(2, 3, 4)
    expected = np.moveaxis(softmax(np.moveaxis(x, axis, -1)), -1, axis)
    plain, logged = run(lambda x: (layer_parts.softmax(x, axis=axis), layer_parts.log_softmax(x, axis=axis)), x)
    np.testing.assert_allclose(plain, expected, rtol=1e-5)
    np.testing.assert_allclose(logged, np.log(expected), rtol=1e-4, atol=1e-5)


def test_cross_entropies_agree_with_numpy_and_with_each_other() -> None:
    logits, classes = normal(5, 4) * 3, np.array([0, 3, 1, 1, 2])
    labels = np.eye(4, dtype=np.float32)[classes]

    def build(logits: Any, labels: Any, classes: Any) -> list[Any]:
        dense = loss.softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        sparse = loss.sparse_softmax_cross_entropy_with_logits(labels=classes, logits=logits)
        again = gradients(gradients(sparse, logits)[0] * labels, logits)[0]
        return [dense, sparse, *gradients(dense, logits), *gradients(sparse, logits), again]

    dense, sparse, d_dense, d_sparse, again = run(build, logits, labels, classes)
    p = softmax(logits.astype(np.float64))
    for value in (dense, sparse):
        np.testing.assert_allclose(value, -np.log(p[np.arange(5), classes]), rtol=1e-5)
    for value in (d_dense, d_sparse):
        np.testing.assert_allclose(value, p - labels, rtol=1e-4, atol=1e-6)
    chosen = p[np.arange(5), classes][:, None]
    np.testing.assert_allclose(again, chosen * (labels - p), rtol=1e-4, atol=1e-6)


def test_v1_cross_entropy_keeps_gradients_from_the_labels() -> None:
    logits, labels = normal(2, 3), softmax(normal(2, 3))

    def build(logits: Any, labels: Any) -> Any:
        v1 = loss.softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        v2 = loss.softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits)
        assert gradients(v1, labels) == [None]
        return gradients(v2, labels)[0]

    np.testing.assert_allclose(run(build, logits, labels), -np.log(softmax(logits)), rtol=1e-4)


@pytest.mark.parametrize("bad", [-1, 5])
def test_labels_out_of_range_are_named_on_the_cpu(bad: int) -> None:
    def build(logits: Any, labels: Any) -> Any:
        with device("/cpu:0"):
            return loss.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    with pytest.raises(InvalidArgumentError, match=rf"label value of {bad} which is outside .* \[0, 5\)"):
        run(build, normal(2, 5), np.array([0, bad]))


def test_elementwise_losses() -> None:
    x, z = normal(3, 4) * 4, RANDOM.uniform(size=(3, 4)).astype(np.float32)
    p = 1 / (1 + np.exp(-x.astype(np.float64)))
    plain, weighted, square = run(
        lambda x, z: (
            loss.sigmoid_cross_entropy_with_logits(labels=z, logits=x),
            loss.weighted_cross_entropy_with_logits(labels=z, logits=x, pos_weight=3.0),
            loss.l2_loss(x),
        ),
        x,
        z,
    )
    np.testing.assert_allclose(plain, -z * np.log(p) - (1 - z) * np.log1p(-p), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(weighted, -3 * z * np.log(p) - (1 - z) * np.log1p(-p), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(square, (x**2).sum() / 2, rtol=1e-5)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_bias_add_and_its_gradient(data_format: str) -> None:
    x, b = normal(2, 3, 4, 3), normal(3)
    y, db = run(lambda x, b: (y := layer_parts.bias_add(x, b, data_format), gradients(y, b)[0]), x, b)
    np.testing.assert_allclose(y, x + (b if data_format == "NHWC" else b[:, None, None]), rtol=1e-6)
    np.testing.assert_allclose(db, [x.size / 3] * 3)


def test_dropout_drops_and_scales() -> None:
    x = np.ones((200, 50), np.float32)
    plain, columns, tensor, untouched = run(
        lambda x: (
            layer_parts.dropout(x, keep_prob=0.75),
            layer_parts.dropout(x, rate=0.5, noise_shape=[1, 50]),
            layer_parts.dropout(x, arithmetic.add(0.5, 0.25)),
            layer_parts.dropout(x, rate=0),
        ),
        x,
    )
    for value in (plain, tensor):
        assert abs((value != 0).mean() - 0.75) < 0.03
        np.testing.assert_allclose(value[value != 0], 1 / 0.75, rtol=1e-6)
    assert ((columns != 0).all(axis=0) | (columns == 0).all(axis=0)).all()
    np.testing.assert_array_equal(untouched, x)


def test_normalisation() -> None:
    x, scale, offset = normal(4, 3, 5, 2), normal(2), normal(2)
    flat = x.reshape(-1, 2).astype(np.float64)

    def build(x: Any, scale: Any, offset: Any) -> list[Any]:
        mean, variance = normalization.moments(x, [0, 1, 2])
        by_parts = normalization.batch_normalization(x, mean, variance, offset, scale, 1e-3)
        fused, _, unbiased = fused_batch_norm.fused_batch_norm(x, scale, offset)
        weights = reshaping.reshape(ranges.range(120.0), [4, 3, 5, 2])
        inputs = [x, scale, offset]
        # moments() stops the gradient through the mean in the variance, which is zero: both forms have one gradient.
        return [
            mean,
            variance,
            by_parts,
            fused,
            unbiased,
            gradients(by_parts * weights, inputs),
            gradients(fused * weights, inputs),
        ]

    mean, variance, by_parts, fused, unbiased, parts_grads, fused_grads = run(build, x, scale, offset)
    np.testing.assert_allclose(mean, flat.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(variance, flat.var(0), rtol=1e-4)
    np.testing.assert_allclose(unbiased, flat.var(0, ddof=1), rtol=1e-4)
    expected = (x - flat.mean(0)) / np.sqrt(flat.var(0) + 1e-3) * scale + offset
    np.testing.assert_allclose(by_parts, expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(fused, expected, rtol=1e-3, atol=1e-5)
    for a, b in zip(parts_grads, fused_grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-2)


def test_local_response_normalisation() -> None:
    x = normal(1, 2, 2, 7)
    squares = np.stack([(x[..., max(0, c - 2) : c + 3] ** 2).sum(-1) for c in range(7)], axis=-1)
    y = run(lambda x: normalization.lrn(x, 2, bias=1.5, alpha=0.3, beta=0.75), x)
    np.testing.assert_allclose(y, x / (1.5 + 0.3 * squares) ** 0.75, rtol=1e-5)


def test_top_k() -> None:
    x = np.array([[1, 5, 3, 5], [4, 2, 8, 6]], np.float32)
    (values, indices), first, inside = run(
        lambda x: (top := layer_parts.top_k(x, 2), gradients(top.values, x)[0], layer_parts.in_top_k(x, [3, 1], 2)), x
    )
    np.testing.assert_array_equal(values, [[5, 5], [8, 6]])
    np.testing.assert_array_equal(indices, [[1, 3], [2, 3]])
    np.testing.assert_array_equal(first, [[0, 1, 0, 1], [0, 0, 1, 1]])
    np.testing.assert_array_equal(inside, [True, False])


# Convolution and pooling, against loops.


def windows(x: np.ndarray, size: int, stride: int, dilation: int, padding: Any, fill: float) -> np.ndarray:
    """The values under each window of an NHWC image: [batch, rows, columns, size, size, channels]."""
    reach = (size - 1) * dilation + 1
    if padding == "SAME":
        total = [max((-(-n // stride) - 1) * stride + reach - n, 0) for n in x.shape[1:3]]
        around = [(t // 2, t - t // 2) for t in total]
    else:
        around = [(0, 0), (0, 0)] if padding == "VALID" else list(padding[1:3])
    padded = np.pad(x, [(0, 0), *around, (0, 0)], constant_values=fill)
    rows, columns = ((n - reach) // stride + 1 for n in padded.shape[1:3])
    return np.stack(
        [
            np.stack(
                [
                    padded[:, i * stride : i * stride + reach : dilation, j * stride : j * stride + reach : dilation]
                    for j in range(columns)
                ],
                axis=1,
            )
            for i in range(rows)
        ],
        axis=1,
    )


EXPLICIT = [[0, 0], [1, 2], [0, 1], [0, 0]]
CONVOLUTIONS = [("SAME", 1, 1), ("SAME", 2, 1), ("VALID", 1, 1), ("VALID", 1, 2), ("VALID", 3, 1), (EXPLICIT, 2, 1)]


@pytest.mark.parametrize(("padding", "stride", "dilation"), CONVOLUTIONS)
def test_conv2d_and_its_gradients(padding: Any, stride: int, dilation: int) -> None:
    x, w = normal(2, 7, 6, 3), normal(3, 3, 3, 4)
    seen = windows(x, 3, stride, dilation, padding, 0)
    expected = np.einsum("bijhwc,hwco->bijo", seen, w)
    dy = normal(*expected.shape)

    def build(x: Any, w: Any, dy: Any) -> Any:
        y = conv2d.conv2d(x, w, stride, padding, dilations=dilation)
        assert y.shape.as_list() == list(expected.shape)
        return y, gradients(y, [x, w], grad_ys=[dy])

    y, (dx, dw) = run(build, x, w, dy)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dw, np.einsum("bijhwc,bijo->hwco", seen, dy), rtol=1e-4, atol=1e-4)
    # The convolution is linear in x: with the right dx these two sums are equal for every image.
    other = normal(*x.shape)
    answer = np.einsum("bijhwc,hwco->bijo", windows(other, 3, stride, dilation, padding, 0), w)
    np.testing.assert_allclose((dx * other).sum(), (answer * dy).sum(), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize(
    ("padding", "size", "stride"), [("SAME", 2, 2), ("VALID", 2, 2), ("SAME", 3, 1), ("VALID", 3, 2)]
)
def test_pooling_and_its_gradients(padding: str, size: int, stride: int, data_format: str) -> None:
    x = normal(2, 7, 6, 3)
    largest = windows(x, size, stride, 1, padding, -np.inf).max(axis=(3, 4))
    counts = windows(np.ones_like(x), size, stride, 1, padding, 0).sum(axis=(3, 4))
    means = windows(x, size, stride, 1, padding, 0).sum(axis=(3, 4)) / counts
    dy = normal(*largest.shape)
    turn = (0, 1, 2, 3) if data_format == "NHWC" else (0, 3, 1, 2)
    back = np.argsort(turn)

    def build(x: Any, dy: Any) -> Any:
        results = []
        for function in (pool.max_pool, pool.avg_pool):
            y = function(x, size, stride, padding, data_format)
            results.append((y, gradients(y, x, grad_ys=[dy])[0]))
        return results

    (top, d_top), (mean, d_mean) = run(build, x.transpose(turn), dy.transpose(turn))
    np.testing.assert_allclose(top.transpose(back), largest, rtol=1e-6)
    np.testing.assert_allclose(mean.transpose(back), means, rtol=1e-4, atol=1e-5)
    # Each gradient goes to the pixels of its value, and none of it is lost.
    np.testing.assert_allclose((d_top.transpose(back) * x).sum(), (dy * largest).sum(), rtol=1e-3)
    np.testing.assert_allclose((d_mean.transpose(back) * x).sum(), (dy * means).sum(), rtol=1e-3, atol=1e-3)


def test_transposed_grouped_and_depthwise_convolutions() -> None:
    x, w, grouped = normal(1, 5, 5, 4), normal(3, 3, 4, 2), normal(3, 3, 2, 6)

    def build(x: Any, w: Any, grouped: Any) -> Any:
        up = conv2d.conv2d_transpose(conv2d.conv2d(x, w, 2, "SAME"), w, [1, 5, 5, 4], 2)
        return up, conv2d.conv2d(x, grouped, 1, "VALID"), depthwise.depthwise_conv2d(x, w, [1, 1, 1, 1], "VALID")

    up, groups, separate = run(build, x, w, grouped)
    assert up.shape == x.shape
    seen = windows(x, 3, 1, 1, "VALID", 0)
    pairs = [(seen[..., :2], grouped[..., :3]), (seen[..., 2:], grouped[..., 3:])]
    halves = [np.einsum("bijhwc,hwco->bijo", part, kernel) for part, kernel in pairs]
    np.testing.assert_allclose(groups, np.concatenate(halves, axis=-1), rtol=1e-4, atol=1e-4)
    expected = np.einsum("bijhwc,hwcm->bijcm", seen, w).reshape(1, 3, 3, 8)
    np.testing.assert_allclose(separate, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("shards", [1, 3])
def test_embedding_lookup(strategy: str, shards: int) -> None:
    table, ids = normal(8, 2), np.array([[7, 0, 3], [3, 5, 2]])
    parts = [table[i::shards] for i in range(shards)] if strategy == "mod" else np.array_split(table, shards)

    def build(ids: Any, *parts: Any) -> Any:
        rows = embedding.embedding_lookup(list(parts), ids, partition_strategy=strategy)
        assert rows.shape.as_list() == [2, 3, 2]
        return rows, embedding.embedding_lookup(list(parts), ids, partition_strategy=strategy, max_norm=0.5)

    rows, clipped = run(build, ids, *parts)
    np.testing.assert_array_equal(rows, table[ids])
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    np.testing.assert_allclose(clipped, rows * np.minimum(1, 0.5 / lengths), rtol=1e-5)


@pytest.mark.parametrize(("combiner", "power"), [("sum", 0.0), ("mean", 1.0), ("sqrtn", 0.5)])
def test_embedding_lookup_sparse(combiner: str, power: float) -> None:
    table, weights = normal(6, 2), np.array([2.0, 1.0, 3.0], np.float32)

    def build(table: Any, weights: Any) -> Any:
        places = [[0, 0], [1, 0], [1, 2]]
        ids = SparseTensor(places, creation.constant([4, 0, 5], dt.int64), [2, 3])
        weighted = SparseTensor(places, weights, [2, 3])
        return [embedding.embedding_lookup_sparse(table, ids, w, combiner=combiner) for w in (None, weighted)]

    plain, weighted = run(build, table, weights)
    np.testing.assert_allclose(plain, [table[4], (table[0] + table[5]) / 2**power], rtol=1e-5)
    sums = np.array([2 * table[4], table[0] + 3 * table[5]])
    divisor = {"sum": [1, 1], "mean": [2, 4], "sqrtn": [2, 10**0.5]}[combiner]
    np.testing.assert_allclose(weighted, sums / np.array(divisor)[:, None], rtol=1e-5)


def x_of(*shape: int | None) -> Any:
    return creation.placeholder(dt.float32, list(shape))


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: conv2d.conv2d(x_of(None, 28, 28, 1), x_of(5, 5, 1, 32), [1, 1, 1, 1], "SAME"), [None, 28, 28, 32]),
        (
            lambda: conv2d.conv2d(x_of(None, None, 28, 1), x_of(5, 5, 1, 32), [1, 2, 2, 1], "VALID"),
            [None, None, 12, 32],
        ),
        (lambda: pool.max_pool(x_of(None, 7, 7, 3), [1, 2, 2, 1], [1, 2, 2, 1], "SAME"), [None, 4, 4, 3]),
        (lambda: layer_parts.bias_add(x_of(None, None), x_of(10)), [None, 10]),
        (lambda: loss.softmax_cross_entropy_with_logits(labels=x_of(None, 10), logits=x_of(None, 10)), [None]),
        (lambda: layer_parts.top_k(x_of(None, 10), 3).indices, [None, 3]),
    ],
)
def test_static_shapes(build: Callable[[], Any], shape: list[int | None]) -> None:
    with Graph().as_default():
        assert build().shape.as_list() == shape


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: conv2d.conv2d(x_of(1, 6, 6, 2), x_of(3, 3, 3, 2), 1, "SAME"),
            r"input \(2\) is not a multiple .* \(3\)",
        ),
        (lambda: conv2d.conv2d(x_of(1, 2, 2, 2), x_of(3, 3, 2, 2), 1, "VALID"), "subtracting 3 from 2"),
        (lambda: conv2d.conv2d(x_of(1, 6, 6, 2), x_of(3, 3, 2, 2), 1, "same"), "'same' not in: SAME, VALID"),
        (lambda: conv2d.conv2d(x_of(6, 6, 2), x_of(3, 3, 2, 2), 1, "SAME"), "must be rank 4 but is rank 3"),
        (lambda: conv2d.conv2d(x_of(1, 6, 6, 2), x_of(3, 3, 2, 2), [1, 1, 1], "SAME"), "length 1, 2 or 4 but was 3"),
        (lambda: layer_parts.bias_add(x_of(2, 3), x_of(4)), "equal, but are 3 and 4"),
        (lambda: layer_parts.dropout(x_of(2), rate=1.5), r"in \[0, 1\)"),
        (lambda: layer_parts.dropout(x_of(2), keep_prob=0.5, rate=0.5), "both 'keep_prob' and 'rate'"),
        (lambda: loss.softmax_cross_entropy_with_logits(logits=x_of(2, 3)), "both `labels` and `logits`"),
        (lambda: layer_parts.top_k(x_of(2, 3), 4), "last dimension >= k = 4 but is 3"),
        (lambda: embedding.embedding_lookup([x_of(2, 3)] * 2, [0], "modulo"), "partition strategy: modulo"),
    ],
)
def test_misuse_is_refused(build: Callable[[], Any], message: str) -> None:
    with Graph().as_default(), pytest.raises(ValueError, match=message):
        build()


def test_a_label_out_of_range_is_nan_on_other_devices_than_the_cpu():
    from penstock.kernel.types import on_platform
    from penstock.ops.nn.cross_entropy import sparse_softmax_cross_entropy

    with on_platform("gpu"):
        loss, backprop = sparse_softmax_cross_entropy.kernel(np.zeros([2, 3], np.float32), np.array([1, 7]))
    assert np.isfinite(loss[0]) and np.isnan(loss[1])
    assert np.isfinite(backprop[0]).all() and np.isnan(backprop[1]).all()
