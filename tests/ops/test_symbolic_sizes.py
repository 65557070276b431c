"""Programs with sizes that change are traced once for all sizes, and have the same results in every tier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.segments import tiers

SIZES = (5, 3, 8)
Feed = Callable[[int], np.ndarray]  # the value for a size
Program = Callable[[], tuple[list[Any], dict[Any, Feed]]]

PROGRAMS: dict[str, Program] = {}
SLOW = {  # these take 5 to 20 seconds each, and resemble others
    "batch_norm_and_layers",
    "bidirectional",
    "convolutions_of_any_size",
    "convolutions_of_many_images",
    "depthwise_and_transposed",
    "embedding_of_a_sequence",
    "losses_and_metrics",
    "lstm",
    "masked_losses",
    "reductions",
    "sequences",
    "sparse_matrices",
}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__.strip("_")] = function
    return function


def _rng(size: int, salt: int = 0) -> np.random.RandomState:
    return np.random.RandomState(1000 * salt + size)


def _normal(*tail: int, salt: int = 0, head: Callable[[int], tuple[int, ...]] = lambda n: (n,)) -> Feed:
    return lambda n: _rng(n, salt).standard_normal((*head(n), *tail)).astype(np.float32)


def _ids(limit: int, *tail: int, salt: int = 0, dtype: Any = np.int32) -> Feed:
    return lambda n: _rng(n, salt).randint(0, limit, (n, *tail)).astype(dtype)


def _weights(name: str, *shape: int) -> Any:
    return tf.get_variable(name, shape, initializer=tf.random_normal_initializer(stddev=0.3, seed=len(name)))


def _trained(loss: Any, optimizer: Any = None) -> list[Any]:
    """The loss, all gradients, and the variables after a step."""
    optimizer = optimizer or tf.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss)
    with tf.control_dependencies([loss]):
        step = optimizer.apply_gradients(pairs)
    with tf.control_dependencies([step]):
        return [loss, *(tf.convert_to_tensor(g) for g, _ in pairs if g is not None)]


@program
def _regression() -> Any:
    x, y = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 1])
    predicted = tf.matmul(tf.nn.relu(tf.matmul(x, _weights("w1", 4, 6)) + _weights("b1", 6)), _weights("w2", 6, 1))
    return _trained(tf.reduce_mean(tf.square(predicted - y))), {x: _normal(4), y: _normal(1, salt=1)}


@program
def _narrow_layer() -> Any:
    x, y = tf.placeholder(tf.float32, [None, 16]), tf.placeholder(tf.float32, [None, 1])
    predicted = tf.matmul(tf.matmul(x, _weights("wide", 16, 2)), _weights("narrow", 2, 1))
    return _trained(tf.reduce_mean(tf.square(predicted - y))), {x: _normal(16), y: _normal(1, salt=1)}


@program
def _classifier() -> Any:
    x, y = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.int32, [None])
    logits = tf.matmul(x, _weights("w", 4, 3)) + _weights("b", 3)
    loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
    hits = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y), tf.float32))
    return [hits, *_trained(loss, tf.train.AdamOptimizer(0.01))], {x: _normal(4), y: _ids(3)}


@program
def _batch_norm_and_layers() -> Any:
    x = tf.placeholder(tf.float32, [None, 4])
    hidden = tf.layers.dense(x, 6, kernel_initializer=tf.random_normal_initializer(seed=1))
    hidden = tf.nn.relu(tf.layers.batch_normalization(hidden, training=True))
    hidden = tf.nn.l2_normalize(hidden, 1)
    return _trained(tf.reduce_sum(tf.nn.elu(hidden) ** 2 * tf.constant(np.arange(6.0, dtype=np.float32)))), {
        x: _normal(4)
    }


@program
def _dropout() -> Any:
    # The numbers may differ from tier to tier, but the kept share does not.
    x = tf.placeholder(tf.float32, [None, 400])
    kept = tf.cast(tf.not_equal(tf.nn.dropout(tf.ones_like(x), keep_prob=0.5, seed=1), 0.0), tf.float32)
    noise = tf.random_normal(tf.shape(x), seed=2)
    return [tf.round(2 * tf.reduce_mean(kept)), tf.shape(noise), tf.round(tf.reduce_mean(noise))], {x: _normal(400)}


@program
def _convolutions_of_many_images() -> Any:
    x = tf.placeholder(tf.float32, [None, 8, 8, 3])
    a = tf.nn.relu(tf.nn.conv2d(x, _weights("k1", 3, 3, 3, 4), [1, 2, 2, 1], "SAME"))
    b = tf.nn.max_pool(a, [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
    c = tf.nn.conv2d(b, _weights("k22", 2, 2, 4, 8), [1, 1, 1, 1], "VALID")
    d = tf.reshape(tf.nn.avg_pool(c, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"), [-1, 8])
    return _trained(tf.reduce_sum(tf.matmul(d, _weights("w", 8, 2)) ** 2)), {x: _normal(8, 8, 3)}


@program
def _convolutions_of_any_size() -> Any:
    x = tf.placeholder(tf.float32, [None, None, None, 3])
    a = tf.nn.relu(tf.nn.conv2d(x, _weights("k1", 3, 3, 3, 4), [1, 1, 1, 1], "SAME"))
    b = tf.nn.max_pool(a, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    c = tf.nn.conv2d(b, _weights("k22", 3, 3, 4, 8), [1, 1, 1, 1], "SAME")
    pooled = tf.reduce_mean(c, [1, 2])
    return _trained(tf.reduce_sum(tf.matmul(pooled, _weights("w", 8, 2)) ** 2)), {
        x: _normal(3, head=lambda n: (2, n + 3, n + 4))
    }


@program
def _depthwise_and_transposed() -> Any:
    x = tf.placeholder(tf.float32, [None, 6, 6, 3])
    a = tf.nn.depthwise_conv2d(x, _weights("k1", 3, 3, 3, 2), [1, 1, 1, 1], "SAME")
    up = tf.nn.conv2d_transpose(a, _weights("k22", 2, 2, 4, 6), tf.stack([tf.shape(a)[0], 12, 12, 4]), [1, 2, 2, 1])
    return _trained(tf.reduce_sum(up**2)), {x: _normal(6, 6, 3)}


@program
def _resized_images() -> Any:
    x = tf.placeholder(tf.float32, [None, None, None, 3])
    small = tf.image.resize_bilinear(x, [4, 4])
    nearest = tf.image.resize_nearest_neighbor(x, [4, 5])
    return [small, nearest], {x: _normal(3, head=lambda n: (2, n + 3, n + 4))}


@program
def _embeddings_in_parts() -> Any:
    ids = tf.placeholder(tf.int64, [None])
    rows = tf.placeholder(tf.int64, [None])
    table = tf.get_variable(
        "t", [10, 4], initializer=tf.random_normal_initializer(seed=3), partitioner=tf.fixed_size_partitioner(2)
    )
    sparse = tf.SparseTensor(tf.stack([rows, tf.zeros_like(rows)], 1), ids, [4, 1])
    mean = tf.nn.embedding_lookup_sparse(table, sparse, None, combiner="mean", partition_strategy="div")
    return _trained(tf.reduce_sum(mean**2), tf.train.AdagradOptimizer(0.1)), {
        ids: lambda n: np.arange(3 * n).astype(np.int64) * 7 % 10,
        rows: lambda n: np.sort(np.arange(3 * n) % 4).astype(np.int64),
    }


@program
def _embedding_of_a_sequence() -> Any:
    ids = tf.placeholder(tf.int32, [None, None])
    seen = tf.nn.embedding_lookup(_weights("t", 9, 5), ids)
    mask = tf.cast(tf.not_equal(ids, 0), tf.float32)[:, :, None]
    mean = tf.reduce_sum(seen * mask, 1) / (tf.reduce_sum(mask, 1) + 1e-3)
    return _trained(tf.reduce_sum(mean**2)), {ids: lambda n: _rng(n).randint(0, 9, (n, n + 2)).astype(np.int32)}


@program
def _lstm() -> Any:
    x = tf.placeholder(tf.float32, [None, None, 3])
    lengths = tf.placeholder(tf.int32, [None])
    cell = tf.nn.rnn_cell.LSTMCell(4, initializer=tf.random_normal_initializer(stddev=0.3, seed=5))
    outputs, _ = tf.nn.dynamic_rnn(cell, x, lengths, dtype=tf.float32)
    return _trained(tf.reduce_sum(outputs**2)), {
        x: _normal(3, head=lambda n: (n, n + 2)),
        lengths: lambda n: (np.arange(n) % (n + 2) + 1).astype(np.int32),
    }


@program
def _bidirectional() -> Any:
    x = tf.placeholder(tf.float32, [None, 5, 3])
    cells = [tf.nn.rnn_cell.GRUCell(4, kernel_initializer=tf.random_normal_initializer(seed=i)) for i in range(2)]
    outputs, _ = tf.nn.bidirectional_dynamic_rnn(*cells, x, dtype=tf.float32)
    return _trained(tf.reduce_sum(tf.concat(outputs, 2) ** 2)), {x: _normal(5, 3)}


@program
def _loop_with_tensor_arrays() -> Any:
    x = tf.placeholder(tf.float32, [None, 3])
    count = tf.shape(x)[0]
    rows = tf.TensorArray(tf.float32, count).unstack(x)
    results = tf.TensorArray(tf.float32, count)

    def body(i: Any, total: Any, out: Any) -> Any:
        total = total + rows.read(i)
        return i + 1, total, out.write(i, tf.tanh(total))

    _, total, out = tf.while_loop(lambda i, *_: i < count, body, (0, tf.zeros([3]), results))
    stacked = out.stack()
    return [total, stacked, tf.gradients(tf.reduce_sum(stacked**2), x)[0]], {x: _normal(3)}


@program
def _attention() -> Any:
    x = tf.placeholder(tf.float32, [None, None, 4])
    query, key, value = (tf.tensordot(x, _weights("w" * i, 4, 4), 1) for i in (1, 2, 3))
    scores = tf.matmul(query, key, transpose_b=True) / 2.0
    causal = tf.matrix_band_part(tf.ones_like(scores), -1, 0)
    scores = tf.where(causal > 0, scores, tf.fill(tf.shape(scores), -1e9))
    read = tf.einsum("bij,bjd->bid", tf.nn.softmax(scores), value)
    return _trained(tf.reduce_sum(read**2)), {x: _normal(4, head=lambda n: (2, n))}


@program
def _masked_losses() -> Any:
    x, lengths = tf.placeholder(tf.float32, [None, 6]), tf.placeholder(tf.int32, [None])
    mask = tf.sequence_mask(lengths, 6, dtype=tf.float32)
    logits = tf.layers.dense(x[:, :, None], 3, kernel_initializer=tf.random_normal_initializer(seed=2))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.cast(x > 0, tf.int32), logits=logits)
    kept = tf.boolean_mask(losses, mask > 0)
    huber = tf.losses.huber_loss(tf.zeros_like(x), x, weights=mask)
    return [tf.reduce_mean(kept), huber, *_trained(tf.reduce_sum(losses * mask) / tf.reduce_sum(mask))], {
        x: _normal(6),
        lengths: _ids(7),
    }


@program
def _segments() -> Any:
    x, ids = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.int32, [None])
    count = tf.shape(x)[0] + 2
    sums = tf.unsorted_segment_sum(x, ids, count)
    outputs = [sums, tf.unsorted_segment_max(x, ids, 4), tf.unsorted_segment_mean(x, ids, 4), tf.segment_sum(x, ids)]
    return [*outputs, tf.gradients(tf.reduce_sum(sums**2), x)[0]], {x: _normal(3), ids: lambda n: np.sort(_ids(4)(n))}


@program
def _gathering_and_scattering() -> Any:
    x, ids = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.int32, [None])
    rows = tf.gather(x, ids)
    pairs = tf.stack([tf.range(tf.shape(x)[0]), tf.zeros_like(ids) + 1], 1)
    picked = tf.gather_nd(x, pairs)
    spread = tf.scatter_nd(ids[:, None], rows, tf.shape(x))
    by_batch = tf.gather(x, tf.zeros_like(ids)[:, None], batch_dims=1)
    first = tf.gather(x, [1, 0])
    total = tf.reduce_sum(spread * x) + tf.reduce_sum(picked)
    return [rows, picked, spread, by_batch, first, tf.gradients(total, x)[0]], {
        x: _normal(3),
        ids: lambda n: _rng(n).permutation(n).astype(np.int32),
    }


@program
def _made_by_size() -> Any:
    x = tf.placeholder(tf.float32, [None, 3])
    count = tf.shape(x)[0]
    outputs = [
        tf.fill([count, 2], 7.0),
        tf.range(count),
        tf.range(1, count * 2, 2),
        tf.zeros([count + 1]),
        tf.one_hot(tf.range(count), count),
        tf.one_hot([0, 1], 4),
        tf.tile(x, [2, 2]),
        tf.tile(x[None], [count, 1, 1]),
        tf.pad(x, [[1, 2], [0, 1]]),
        tf.eye(count),
        tf.shape(x),
        tf.size(x),
        tf.shape(x, out_type=tf.int64) * 2,
        tf.broadcast_to(x[0], tf.shape(x)),
        tf.cast(count, tf.float32) * 0.5,
        tf.ones_like(x) * x,
    ]
    return outputs, {x: _normal(3)}


@program
def _slices() -> Any:
    x = tf.placeholder(tf.float32, [None, 4])
    parts = [x[1:], x[:-1], x[::2], x[::-1], x[-1], x[:, 1:3], x[1:3], tf.slice(x, [1, 0], [-1, 2]), x[:, None, :1]]
    return [*parts, tf.gradients([tf.reduce_sum(p**2) for p in parts], x)[0]], {x: _normal(4)}


@program
def _joining_and_splitting() -> Any:
    x, y = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 4])
    joined = tf.concat([x, y], 0)
    halves = tf.split(x, 2, axis=1)
    first, rest = tf.split(joined, [tf.shape(x)[0], -1])
    outputs = [
        joined,
        *halves,
        first,
        rest,
        tf.stack([x, x], 1),
        *tf.unstack(x, axis=1),
        tf.transpose(x),
        tf.reshape(x, [-1, 2]),
        tf.reverse(x, [0]),
        tf.expand_dims(x, 0),
    ]
    return [*outputs, *tf.gradients([tf.reduce_sum(o**2) for o in outputs], [x, y])], {
        x: _normal(4),
        y: lambda n: _normal(4, salt=1)(n + 3),
    }


@program
def _reductions() -> Any:
    x = tf.placeholder(tf.float32, [None, 3, None])
    outputs = []
    for reduce in (tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min, tf.reduce_prod, tf.reduce_logsumexp):
        outputs += [reduce(x), reduce(x, 0), reduce(x, [0, 2], keepdims=True), reduce(x, -1)]
    outputs += [*tf.nn.moments(x, [0, 2]), tf.norm(x), tf.reduce_any(x > 1, 0), tf.reduce_all(x > -1)]
    of = [outputs[0], outputs[5], outputs[10], outputs[15], outputs[21]]
    grads = tf.gradients([tf.reduce_sum(o) for o in of], x)
    return [*outputs, *grads], {x: lambda n: _rng(n).standard_normal((n, 3, n + 1)).astype(np.float32)}


@program
def _ordering() -> Any:
    x = tf.placeholder(tf.float32, [None, 5])
    values, places = tf.nn.top_k(x, 2)
    outputs = [
        values,
        places,
        tf.sort(x, axis=0),
        tf.argsort(x),
        tf.argmax(x, 0),
        tf.cumsum(x, 0),
        tf.cumprod(x, 1),
        tf.cumsum(x, 0, exclusive=True, reverse=True),
        tf.nn.in_top_k(x, tf.zeros_like(places[:, 0]), 2),
    ]
    return [*outputs, tf.gradients(tf.reduce_sum(values**2) + tf.reduce_sum(outputs[5] ** 2), x)[0]], {x: _normal(5)}


@program
def _products() -> Any:
    x = tf.placeholder(tf.float32, [None, None, 4])
    square = tf.matmul(x, x, transpose_a=True)
    outputs = [
        square,
        tf.matmul(x, x, adjoint_b=True),
        tf.einsum("bik,bjk->bij", x, x),
        tf.tensordot(x, x, [[0, 2]] * 2),
        tf.linalg.diag_part(square),
        tf.trace(square),
    ]
    return [*outputs, tf.gradients([tf.reduce_sum(o) for o in outputs], x)[0]], {
        x: lambda n: _rng(n).standard_normal((2, n, 4)).astype(np.float32)
    }


@program
def _sequences() -> Any:
    x, lengths = tf.placeholder(tf.float32, [None, None, 2]), tf.placeholder(tf.int32, [None])
    turned = tf.reverse_sequence(x, lengths, 1, 0)
    mask = tf.sequence_mask(lengths, tf.shape(x)[1])
    outputs = [turned, mask, tf.where(mask, x[:, :, 0], -tf.ones_like(x[:, :, 0]))]
    return [*outputs, tf.gradients(tf.reduce_sum(turned[:, 0] ** 2), x)[0]], {
        x: lambda n: _rng(n).standard_normal((n, n + 1, 2)).astype(np.float32),
        lengths: lambda n: (np.arange(n) % (n + 1) + 1).astype(np.int32),
    }


@program
def _sparse_matrices() -> Any:
    indices, values = tf.placeholder(tf.int64, [None, 2]), tf.placeholder(tf.float32, [None])
    matrix = tf.SparseTensor(indices, values, [40, 3])
    dense = tf.sparse_tensor_to_dense(matrix, validate_indices=False)
    product = tf.sparse_tensor_dense_matmul(matrix, _weights("w", 3, 2))
    return [dense, *_trained(tf.reduce_sum(product**2)), tf.gradients(product, values)[0]], {
        indices: lambda n: np.stack([np.arange(n), np.arange(n) % 3], 1).astype(np.int64),
        values: lambda n: _normal()(n),
    }


@program
def _losses_and_metrics() -> Any:
    x, y = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [None, 3])
    losses = [
        tf.losses.mean_squared_error(y, x),
        tf.losses.absolute_difference(y, x),
        tf.losses.hinge_loss(y, x),
        tf.losses.log_loss(tf.sigmoid(y), tf.sigmoid(x)),
        tf.losses.sigmoid_cross_entropy(tf.sigmoid(y), x),
        tf.losses.softmax_cross_entropy(tf.nn.softmax(y), x),
        tf.losses.cosine_distance(y, x, axis=1),
        tf.losses.mean_squared_error(y, x, reduction=tf.losses.Reduction.NONE),
    ]
    _, mean = tf.metrics.mean(x)
    _, accuracy = tf.metrics.accuracy(tf.argmax(x, 1), tf.argmax(y, 1))
    grads = tf.gradients([tf.reduce_sum(loss) for loss in losses], x)
    clipped, norm = tf.clip_by_global_norm(grads, 0.1)
    return [*losses, mean, accuracy, *clipped, norm], {x: _normal(3), y: _normal(3, salt=2)}


class _Counts:
    def __init__(self) -> None:
        self.traced: list[str] = []
        self.refused: list[str] = []


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> _Counts:
    """Counts the segments that were traced with symbols, and those that could not be."""
    found = _Counts()
    make = tiers.Traced

    def counted(segment: Any, *arguments: Any) -> Any:
        try:
            traced = make(segment, *arguments)
        except Exception as error:
            found.refused.append(f"{segment.name}: {error!r}"[:400])
            raise
        found.traced.append(segment.name)
        return traced

    monkeypatch.setattr(tiers, "Traced", counted)
    return found


Results = list[list[np.ndarray]]


def _run(name: str, monkeypatch: pytest.MonkeyPatch, tier: str) -> Results:
    monkeypatch.setenv("PENSTOCK_TIER", tier)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(7)
        outputs, feeds = PROGRAMS[name]()
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        return [session.run(outputs, {t: feed(size) for t, feed in feeds.items()}) for size in SIZES]


def _assert_equal(found: Results, wanted: Results, tier: str) -> None:
    for size, ours, theirs in zip(SIZES, found, wanted, strict=True):
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            what = f"output {i} at size {size}, {tier}"
            assert np.shape(a) == np.shape(b) and np.asarray(a).dtype == np.asarray(b).dtype, what
            largest = float(np.max(np.abs(b), initial=0))
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(largest, 1), err_msg=what)


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in SLOW else []) for name in PROGRAMS]
)
def test_one_trace_serves_all_sizes(name: str, monkeypatch: pytest.MonkeyPatch, counts: _Counts) -> None:
    wanted = _run(name, monkeypatch, "exact")
    for tier in ("interpreted", "padded"):
        _assert_equal(_run(name, monkeypatch, tier), wanted, tier)
    assert counts.traced and not counts.refused


@pytest.mark.parametrize("tier", ["exact", "interpreted", "padded"])
def test_errors_tell_sizes_not_symbols(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TIER", tier)
    with tf.Graph().as_default(), tf.Session() as session:
        x, ids = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.int32, [None])
        rows = tf.gather(tf.sqrt(x[1:]), ids)
        for size in SIZES:
            good, bad = np.zeros(2, np.int32), np.full(3, 9, np.int32)
            session.run(rows, {x: _normal(4)(size), ids: good})
            with pytest.raises(tf.errors.InvalidArgumentError, match=rf"9 is not in \[0, {size - 1}\)"):
                session.run(rows, {x: _normal(4)(size), ids: bad})


@pytest.mark.parametrize("tier", ["exact", "interpreted", "padded"])
def test_sizes_for_which_an_answer_differs_have_a_program_of_their_own(
    tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows at the border of small images, and slices that end before the images do."""
    monkeypatch.setenv("PENSTOCK_TIER", tier)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, None])
        first = x[:4, 2:]
        gradient = tf.gradients(tf.reduce_sum(first**2), x)[0]
        for size in (9, 3, 2, 7, 4, 12, 3):
            value = _normal(head=lambda n: (n, n + 1))(size)
            wanted = np.zeros_like(value)
            wanted[:4, 2:] = 2 * value[:4, 2:]
            got, slope = session.run([first, gradient], {x: value})
            np.testing.assert_array_equal(got, value[:4, 2:])
            np.testing.assert_allclose(slope, wanted, rtol=1e-6)
