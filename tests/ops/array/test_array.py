"""Array ops: values against NumPy, static shapes of partly known inputs, errors while building, gradients."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis.extra import numpy as arrays

import penstock.v1 as tf
from penstock.graph.constant import constant_value
from penstock.graph.indexed_slices import IndexedSlices

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
M = np.arange(6, dtype=np.float32).reshape(2, 3)
WORDS = np.array([[b"a", b"b"], [b"c", b"d"]], object)

# An expression of `tf` with x = X, m = M, w = WORDS fed, and the same in NumPy.
VALUES: list[tuple[Any, Any]] = [
    (lambda x, m, w: tf.reshape(x, [-1, 6]), X.reshape(-1, 6)),
    (lambda x, m, w: tf.reshape(x, tf.stack([tf.shape(x)[0], -1])), X.reshape(2, -1)),
    (lambda x, m, w: tf.transpose(x), X.T),
    (lambda x, m, w: tf.transpose(x, [1, 0, 2]), X.transpose(1, 0, 2)),
    (lambda x, m, w: tf.matrix_transpose(x), np.swapaxes(X, 1, 2)),
    (lambda x, m, w: tf.expand_dims(m, -1), M[..., None]),
    (lambda x, m, w: tf.squeeze(tf.expand_dims(m, 1), [1]), M),
    (lambda x, m, w: tf.concat([m, m + 1], 1), np.concatenate([M, M + 1], 1)),
    (lambda x, m, w: tf.stack([m, m], axis=-1), np.stack([M, M], -1)),
    (lambda x, m, w: tf.unstack(x, num=3, axis=1)[2], X[:, 2]),
    (lambda x, m, w: tf.split(m, 3, axis=1)[1], M[:, 1:2]),
    (lambda x, m, w: tf.split(m, [1, -1], axis=1)[1], M[:, 1:]),
    (lambda x, m, w: tf.tile(m, [2, 1]), np.tile(M, (2, 1))),
    (lambda x, m, w: tf.pad(m, [[1, 0], [0, 2]]), np.pad(M, [(1, 0), (0, 2)])),
    (lambda x, m, w: tf.pad(m, [[1, 1], [2, 2]], "REFLECT"), np.pad(M, [(1, 1), (2, 2)], "reflect")),
    (lambda x, m, w: tf.pad(m, [[1, 0], [0, 0]], constant_values=7.0), np.pad(M, [(1, 0), (0, 0)], constant_values=7)),
    (lambda x, m, w: tf.slice(x, [0, 1, 0], [-1, 1, 2]), X[:, 1:2, :2]),
    (lambda x, m, w: tf.slice(x, [tf.rank(m) - 1, 1, 0], [1, 1, 2]), X[1:2, 1:2, :2]),
    (lambda x, m, w: tf.strided_slice(m, [1, 2], [-3, -4], [-1, -2]), M[::-1, ::-2]),
    (lambda x, m, w: tf.gather(x, [[1, 0]]), X[[[1, 0]]]),
    (lambda x, m, w: tf.gather(x, [2, 0], axis=1), X[:, [2, 0]]),
    (lambda x, m, w: tf.gather(m, [[0], [2]], axis=1, batch_dims=1), np.array([[0], [5]], np.float32)),
    (lambda x, m, w: tf.gather_nd(x, [[0, 1], [1, 2]]), X[[0, 1], [1, 2]]),
    (lambda x, m, w: tf.gather_nd(x, [[1], [0]], batch_dims=1), X[[0, 1], [1, 0]]),
    (lambda x, m, w: tf.scatter_nd([[1], [1], [3]], [1.0, 2.0, 4.0], [5]), np.array([0, 3, 0, 4, 0], np.float32)),
    (lambda x, m, w: tf.where(m > 2), np.argwhere(M > 2)),
    (lambda x, m, w: tf.where([True, False], m, -m), np.stack([M[0], -M[1]])),
    (lambda x, m, w: tf.where_v2(m > 2, m, 0.0), np.where(M > 2, M, 0)),
    (lambda x, m, w: tf.boolean_mask(x, m > 2), X[M > 2]),
    (lambda x, m, w: tf.one_hot([2, -1, 0], 3), np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]], np.float32)),
    (lambda x, m, w: tf.sequence_mask([1, 3], 4), np.arange(4) < np.array([[1], [3]])),
    (lambda x, m, w: tf.reverse(x, [0, -1]), X[::-1, :, ::-1]),
    (lambda x, m, w: tf.roll(m, 1, 1), np.roll(M, 1, 1)),
    (lambda x, m, w: tf.unique([3, 1, 3, 2])[0], np.array([3, 1, 2], np.int32)),
    (lambda x, m, w: tf.setdiff1d([3, 1, 3, 2], [1])[1], np.array([0, 2, 3], np.int32)),
    (lambda x, m, w: tf.invert_permutation([2, 0, 1]), np.array([1, 2, 0], np.int32)),
    (lambda x, m, w: tf.dynamic_partition(m, [1, 0], 2)[1], M[:1]),
    (lambda x, m, w: tf.dynamic_stitch([[2], [0, 1]], [m[:1], m]), np.stack([M[0], M[1], M[0]])),
    (lambda x, m, w: tf.meshgrid([1, 2], [3, 4, 5])[1], np.meshgrid([1, 2], [3, 4, 5])[1].astype(np.int32)),
    (lambda x, m, w: tf.broadcast_to(m, [2, 2, 3]), np.broadcast_to(M, (2, 2, 3))),
    (lambda x, m, w: tf.broadcast_dynamic_shape([2, 1], tf.shape(m)), np.array([2, 3], np.int32)),
    (lambda x, m, w: tf.eye(2, 3), np.eye(2, 3, dtype=np.float32)),
    (lambda x, m, w: tf.matrix_band_part(m, 0, 1), np.triu(M) - np.triu(M, 2)),
    (lambda x, m, w: tf.fill([2, 2], 3), np.full((2, 2), 3, np.int32)),
    (lambda x, m, w: tf.zeros([50, 50]), np.zeros((50, 50), np.float32)),
    (lambda x, m, w: tf.ones_like(m, tf.int64), np.ones((2, 3), np.int64)),
    (lambda x, m, w: tf.size(x), np.int32(24)),
    (lambda x, m, w: tf.unsorted_segment_sum(m, [1, -1], 2), np.stack([0 * M[0], M[0]])),
    (lambda x, m, w: tf.segment_max(m, [1, 1]), np.stack([0 * M[0], M[1]])),
    (lambda x, m, w: tf.bitcast(m, tf.int32), M.view(np.int32)),
    (lambda x, m, w: w[1], WORDS[1]),
    (lambda x, m, w: tf.transpose(tf.concat([w, w], 0)), np.concatenate([WORDS, WORDS]).T),
    (lambda x, m, w: tf.gather(tf.reshape(w, [-1]), [3, 0]), WORDS.reshape(-1)[[3, 0]]),
    (lambda x, m, w: tf.where([True, False], w, tf.stack([w[1], w[0]])), np.stack([WORDS[0], WORDS[0]])),
]


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_values(known: bool) -> None:
    """All in one run; with and without known static shapes."""
    with tf.Graph().as_default() as graph:
        inputs = [
            tf.placeholder(kind, list(value.shape) if known else [None] * value.ndim)
            for kind, value in ((tf.float32, X), (tf.float32, M), (tf.string, WORDS))
        ]
        results = [ask(*inputs) for ask, _ in VALUES]
        with tf.Session(graph=graph) as session:
            found = session.run(results, dict(zip(inputs, (X, M, WORDS), strict=True)))
    for number, (value, (_, expected)) in enumerate(zip(found, VALUES, strict=True)):
        assert value.dtype == expected.dtype, f"row {number}"
        np.testing.assert_array_equal(value, expected, err_msg=f"row {number}")
        assert results[number].shape.is_compatible_with(value.shape)


@hypothesis.given(arrays.basic_indices((3, 4, 2), allow_newaxis=True, max_dims=6))
@hypothesis.settings(max_examples=150, deadline=None)
def test_getitem_is_numpy_basic_indexing(index: Any) -> None:
    """Value and static shape; the kernel is called as it is when constants fold."""
    array = np.arange(24, dtype=np.int32).reshape(3, 4, 2)
    with tf.Graph().as_default():
        result = tf.constant(array)[index]
        assert result.shape.as_list() == list(array[index].shape)
        np.testing.assert_array_equal(constant_value(result), array[index])


# A row and a column given by a tensor, next to known ones.
DYNAMIC: list[tuple[Any, Any]] = [
    (lambda x, i: x[i], lambda i: M[i]),
    (lambda x, i: x[i, 1:], lambda i: M[i, 1:]),
    (lambda x, i: x[:, i], lambda i: M[:, i]),
    (lambda x, i: x[tf.newaxis, ..., i], lambda i: M[None, ..., i]),
    (lambda x, i: x[i, i], lambda i: M[i, i]),
    (lambda x, i: tf.gradients(x[i, 1:], [x])[0], lambda i: np.eye(2, dtype=np.float32)[i][:, None] * [0, 1, 1]),
]


def test_getitem_with_tensors() -> None:
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        x, i = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.int32, [])
        results = [ask(x, i) for ask, _ in DYNAMIC]
        for at in (1, 0, -1):
            for value, (_, expected) in zip(session.run(results, {x: M, i: at}), DYNAMIC, strict=True):
                np.testing.assert_array_equal(value, expected(at))
        with pytest.raises(tf.errors.InvalidArgumentError, match="slice index 2 of dimension 0 out of bounds"):
            session.run(results[0], {x: M, i: 2})


# Inputs: u of unknown rank, a [?, 3], b [2, ?], k [2, 3], n an int32 scalar.
STATIC: list[tuple[Any, Any]] = [
    (lambda u, a, b, k, n: tf.reshape(a, [-1, 6]), [None, 6]),
    (lambda u, a, b, k, n: tf.reshape(k, [3, -1]), [3, 2]),
    (lambda u, a, b, k, n: tf.reshape(u, tf.stack([tf.shape(u)[0], 10])), [None, 10]),
    (lambda u, a, b, k, n: tf.reshape(u, tf.concat([tf.shape(a)[1:], [4]], 0)), [3, 4]),
    (lambda u, a, b, k, n: a[:, 1:], [None, 2]),
    (lambda u, a, b, k, n: a[1:, tf.newaxis, -1], [None, 1]),
    (lambda u, a, b, k, n: k[n, :], [3]),
    (lambda u, a, b, k, n: k[n:, 0], [None]),
    (lambda u, a, b, k, n: k[::-2], [1, 3]),
    (lambda u, a, b, k, n: tf.concat([a, b], 0), [None, 3]),
    (lambda u, a, b, k, n: tf.concat([a, b], 1), [2, None]),
    (lambda u, a, b, k, n: tf.concat([a, u], 1), [None, None]),
    (lambda u, a, b, k, n: tf.stack([u, a, b]), [3, 2, 3]),
    (lambda u, a, b, k, n: tf.transpose(a), [3, None]),
    (lambda u, a, b, k, n: tf.transpose(u, [1, 0]), [None, None]),
    (lambda u, a, b, k, n: tf.tile(a, [n, 2]), [None, 6]),
    (lambda u, a, b, k, n: tf.pad(b, [[1, 1], [0, 0]]), [4, None]),
    (lambda u, a, b, k, n: tf.slice(b, [0, 1], [-1, 1]), [2, 1]),
    (lambda u, a, b, k, n: tf.slice(k, [n, 0], [1, 2]), [1, 2]),
    (lambda u, a, b, k, n: tf.gather(a, [[0, 1]]), [1, 2, 3]),
    (lambda u, a, b, k, n: tf.gather(b, n, axis=1), [2]),
    (lambda u, a, b, k, n: tf.gather_nd(a, [[0], [1]]), [2, 3]),
    (lambda u, a, b, k, n: tf.squeeze(tf.expand_dims(a, 1)), None),
    (lambda u, a, b, k, n: tf.split(b, 2)[0], [1, None]),
    (lambda u, a, b, k, n: tf.fill([n, 2], 0.0), [None, 2]),
    (lambda u, a, b, k, n: tf.zeros(tf.shape(a)), [None, 3]),
    (lambda u, a, b, k, n: tf.one_hot(tf.shape(a), n), [2, None]),
    (lambda u, a, b, k, n: tf.where(a > 0), [None, 2]),
    (lambda u, a, b, k, n: tf.where(a > 0, b, u), [2, 3]),
    (lambda u, a, b, k, n: tf.boolean_mask(a, b[:, 0] > 0), [None, 3]),
    (lambda u, a, b, k, n: tf.broadcast_to(a, [4, 2, 3]), [4, 2, 3]),
    (lambda u, a, b, k, n: tf.ensure_shape(b, [None, 5]), [2, 5]),
    (lambda u, a, b, k, n: tf.placeholder_with_default(k, [None, 3]), [None, 3]),
]


def test_static_shapes() -> None:
    with tf.Graph().as_default():
        inputs = [tf.placeholder(tf.float32, s) for s in (None, [None, 3], [2, None], [2, 3])]
        inputs.append(tf.placeholder(tf.int32, []))
        found = [ask(*inputs).shape for ask, _ in STATIC]
    assert [None if s.rank is None else s.as_list() for s in found] == [expected for _, expected in STATIC]


ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda x: tf.reshape(x, [4, 2]), ValueError, "Cannot reshape a tensor with 6 elements to shape .4,2."),
    (lambda x: tf.reshape(x, [4, -1]), ValueError, "evenly divisible by 4 but is 6"),
    (lambda x: tf.concat([x, tf.zeros([4, 5])], 0), ValueError, "must be equal, but are 3 and 5"),
    (lambda x: tf.concat([x, x], 2), ValueError, "at least rank 3 but is rank 2"),
    (lambda x: tf.stack([x, tf.zeros([4, 5])]), ValueError, "must be equal, but are 2 and 4"),
    (lambda x: tf.split(x, 2, axis=1), ValueError, "evenly divisible by 2 but is 3"),
    (lambda x: tf.squeeze(x, [1]), ValueError, "Can not squeeze dim.1., expected a dimension of 1, got 3"),
    (lambda x: tf.expand_dims(x, 5), ValueError, "dim 5 not in the interval .-3, 2."),
    (lambda x: tf.transpose(x, [0, 5]), ValueError, "perm dim 5 is out of range"),
    (lambda x: tf.tile(x, [2]), ValueError, "rank 2 but is rank 1"),
    (lambda x: tf.pad(x, [[1, 1]]), ValueError, "rank"),
    (lambda x: tf.unstack(tf.placeholder(tf.float32)), ValueError, "Cannot infer argument `num`"),
    (lambda x: x[0, 0, 0], ValueError, "input has only 2 dims"),
    (lambda x: x[5], ValueError, "slice index 5 of dimension 0 out of bounds"),
    (lambda x: x[..., ...], ValueError, "Multiple ellipses"),
    (lambda x: x[1.5], TypeError, "Only integers, slices"),
    (lambda x: tf.where(x > 0, x, tf.zeros([4, 5])), ValueError, "must be equal, but are 2 and 4"),
    (lambda x: tf.boolean_mask(x, True), ValueError, "mask cannot be scalar"),
    (lambda x: tf.gather(x, [0.0]), TypeError, "float32 not in list of allowed"),
    (lambda x: tf.broadcast_to(x, [2, 4]), ValueError, "must be equal, but are 3 and 4"),
    (lambda x: tf.zeros([-1, 2]), ValueError, "must be >= 0"),
    (lambda x: tf.constant([1, 2], shape=[3], verify_shape=True), TypeError, "Expected Tensor's shape"),
]


def test_errors_while_building() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2, 3])
        for build, kind, message in ERRORS:
            with pytest.raises(kind, match=message):
                build(x)


RUN_ERRORS: list[tuple[Any, str]] = [
    (lambda u: tf.reshape(u, [4]), "3 values, but the requested shape has 4"),
    (lambda u: tf.gather(u, [5]), r"= 5 is not in \[0, 3\)|value 5 is not in \[0, 3\)"),
    (lambda u: tf.gather_nd(u, [[7]]), "does not index into"),
    (lambda u: tf.concat([u, tf.zeros([1, 1])], 0), "Ranks of all inputs should match"),
    (lambda u: tf.check_numerics(u, "bad {value}"), "bad {value} : Tensor had NaN values"),
    (lambda u: tf.ensure_shape(u, [2]), "not compatible with expected shape"),
    (lambda u: tf.segment_sum(u, [1, 0, 2]), "segment ids are not increasing"),
]


@pytest.mark.parametrize("row", RUN_ERRORS, ids=[message for _, message in RUN_ERRORS])
def test_errors_at_run_time(row: tuple[Any, str]) -> None:
    build, message = row
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        u = tf.placeholder(tf.float32)
        result = build(u)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(result, {u: [1.0, np.nan, 2.0]})


def test_names_of_helper_nodes() -> None:
    with tf.Graph().as_default() as graph:
        a, i = tf.placeholder(tf.float32, [None, 3], "a"), tf.placeholder(tf.int32, [], "i")
        tf.zeros([2000])
        tf.ones_like(a)
        tf.stack([i, 2])
        a[i:, 0]
        tf.one_hot([1], 3, on_value=5.0)
        names = [op.name for op in graph.get_operations()][2:]
    assert names == [
        "zeros/shape_as_tensor",
        "zeros/Const",
        "zeros",
        "ones_like/Shape",
        "ones_like/Const",
        "ones_like",
        "stack/1",
        "stack",
        "Const",
        "Const_1",
        "strided_slice/stack/1",
        "strided_slice/stack",
        "strided_slice/stack_1/1",
        "strided_slice/stack_1",
        "strided_slice/stack_2/1",
        "strided_slice/stack_2",
        "strided_slice",
        "one_hot/Const",
        "one_hot/off_value",
        "one_hot/indices",
        "one_hot/depth",
        "one_hot",
    ]


def test_gradient_of_rows_is_indexed_slices() -> None:
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        x = tf.placeholder(tf.float32, [None, 3])
        (grad,) = tf.gradients(tf.gather(x, [[1, 1]]), [x])
        assert isinstance(grad, IndexedSlices)
        with pytest.warns(UserWarning, match="of unknown shape"):
            dense = session.run(tf.convert_to_tensor(grad), {x: M})
    np.testing.assert_array_equal(dense, [[0, 0, 0], [2, 2, 2]])


def test_gradients() -> None:
    """Each op moves elements, so the gradient of a weighted sum is the weights moved back."""
    moves = [
        lambda x: tf.transpose(tf.reshape(x, [3, 2])),
        lambda x: tf.concat([x[:, :1], x[:, 1:]], 1),
        lambda x: tf.stack(tf.unstack(x, axis=1), axis=1),
        lambda x: tf.concat(tf.split(x, [1, 2], axis=1), 1),
        lambda x: tf.slice(tf.pad(x, [[1, 2], [0, 1]]), [1, 0], [2, 3]),
        lambda x: tf.squeeze(tf.expand_dims(x, 0)),
        lambda x: tf.reverse(tf.roll(x, 1, 0), [1]),
        lambda x: tf.gather(x, [1, 0, 2], axis=1),
        lambda x: tf.reshape(tf.gather_nd(x, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]), [2, 3]),
        lambda x: tf.where(x > 2, x, x),
        lambda x: tf.dynamic_stitch([[1], [0]], tf.dynamic_partition(x, [0, 1], 2)),
        lambda x: x[::-1, tf.newaxis, ::-1],
    ]
    with tf.Graph().as_default() as graph, tf.Session(graph=graph) as session:
        x = tf.placeholder(tf.float32, [2, 3])
        results = [move(x) for move in moves]
        weights = [tf.placeholder(tf.float32, r.shape) for r in results]
        grads = [tf.gradients(r, [x], grad_ys=[w])[0] for r, w in zip(results, weights, strict=True)]
        values = session.run(results, {x: M})
        # Weighted by the moved elements themselves, each element gets back its own value.
        found = session.run(grads, {x: M, **dict(zip(weights, values, strict=True))})
    for number, grad in enumerate(found):
        np.testing.assert_array_equal(grad, M, err_msg=f"move {number}")
