"""Sparse tensors: values as dense ones in NumPy, errors for bad arguments, no memory for missing entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.ops.sparse import dense as sparse_dense

A = np.array([[0, 1.5, 0, 0], [2, 0, 0, -3], [0, 0, 0.5, 0]], np.float32)
B = np.array([[0, 1, 0, 0], [0, 4, 0, 0], [0, 0, -0.5, 2]], np.float32)


def sparse(dense: np.ndarray) -> tf.SparseTensor:
    places = np.argwhere(dense)
    return tf.SparseTensor(places, dense[tuple(places.T)], dense.shape)


def run(fetch: Any, feed: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetch, feed)


def dense_of(value: Any) -> np.ndarray:
    if not hasattr(value, "dense_shape"):
        return np.asarray(value)
    result = np.zeros(value.dense_shape, value.values.dtype)
    result[tuple(value.indices.T)] = value.values
    return result


SOFT = np.exp(A) * (A != 0)
SAME = {
    "to_dense": (lambda: tf.sparse.to_dense(sparse(A)), A),
    "from_dense": (lambda: tf.sparse.from_dense(A), A),
    "reorder": (
        lambda: tf.sparse.reorder(tf.SparseTensor([[2, 2], [0, 1]], [1.0, 2.0], [3, 4])).indices,
        [[0, 1], [2, 2]],
    ),
    "transpose": (lambda: tf.sparse.transpose(sparse(A)), A.T),
    "reshape": (lambda: tf.sparse.reshape(sparse(A), [2, -1, 2]), A.reshape(2, 3, 2)),
    "expand_dims": (lambda: tf.sparse.expand_dims(sparse(A), 1), A[:, None]),
    "concat": (lambda: tf.sparse.concat(1, [sparse(A), sparse(B)]), np.concatenate([A, B], 1)),
    "split": (lambda: tf.sparse.split(sp_input=sparse(A), num_split=3, axis=1)[0], A[:, :2]),
    "slice": (lambda: tf.sparse.slice(sparse(A), [1, 0], [2, 3]), A[1:, :3]),
    "reset_shape": (lambda: tf.sparse.reset_shape(sparse(A), [4, 5]), np.pad(A, [(0, 1), (0, 1)])),
    "add": (lambda: tf.sparse.add(sparse(A), sparse(B)), A + B),
    "add dense": (lambda: tf.sparse.add(B, sparse(A)), A + B),
    "maximum": (lambda: tf.sparse.maximum(sparse(A), sparse(B)), np.maximum(A, B)),
    "minimum": (lambda: tf.sparse.minimum(sparse(A), sparse(B)), np.minimum(A, B)),
    "reduce_sum": (lambda: tf.sparse.reduce_sum(sparse(A), 1), A.sum(1)),
    "reduce_sum_sparse": (lambda: tf.sparse.reduce_sum_sparse(sparse(A), 0), A.sum(0)),
    "reduce_max": (lambda: tf.sparse.reduce_max(sparse(B), 1, keepdims=True), [[1], [4], [2]]),
    "softmax": (lambda: tf.sparse.softmax(sparse(A)), SOFT / SOFT.sum(1, keepdims=True)),
    "times": (lambda: sparse(A) * np.float32([[1], [2], [3]]), A * np.float32([[1], [2], [3]])),
    "over": (lambda: sparse(A) / 2.0, A / 2),
    "dense times": (lambda: tf.constant(B) * sparse(A), A * B),
    "fill_empty_rows": (
        lambda: tf.sparse.fill_empty_rows(sparse(A * [[1], [0], [1]]), 7.0)[0],
        A * [[1], [0], [1]] + np.float32([[0] * 4, [7, 0, 0, 0], [0] * 4]),
    ),
    "to_indicator": (
        lambda: tf.sparse.to_indicator(tf.SparseTensor([[0, 0], [1, 1]], np.int64([2, 0]), [2, 2]), 3),
        [[False, False, True], [True, False, False]],
    ),
    "eye": (lambda: tf.sparse.eye(2, 3), np.eye(2, 3)),
}


@pytest.mark.parametrize("name", SAME)
def test_as_the_dense_tensor(name: str) -> None:
    with tf.Graph().as_default():
        function, wanted = SAME[name]
        np.testing.assert_allclose(dense_of(run(function())), wanted, rtol=1e-6)


@pytest.mark.parametrize("at_once", [1 << 22, 4])
@pytest.mark.parametrize("adjoint_a", [False, True])
@pytest.mark.parametrize("adjoint_b", [False, True])
def test_products(adjoint_a: bool, adjoint_b: bool, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece and in several; the gradients are those of the dense product."""
    monkeypatch.setattr(sparse_dense, "_AT_ONCE", at_once)
    b = np.arange(8 if not adjoint_a else 6, dtype=np.float32).reshape(-1, 2) / 3
    b = b.T.copy() if adjoint_b else b
    left, right = A.T if adjoint_a else A, b.T if adjoint_b else b
    with tf.Graph().as_default():
        x, y = sparse(A), tf.constant(b)
        product = tf.sparse.sparse_dense_matmul(x, y, adjoint_a=adjoint_a, adjoint_b=adjoint_b)
        found, values_grad, b_grad = run([product, *tf.gradients(product**2, [x.values, y])])
    upstream = 2 * left @ right
    a_grad = (upstream @ right.T).T if adjoint_a else upstream @ right.T
    wanted_b = left.T @ upstream
    np.testing.assert_allclose(found, left @ right, rtol=1e-5)
    np.testing.assert_allclose(values_grad, a_grad[np.nonzero(A)], rtol=1e-5)
    np.testing.assert_allclose(b_grad, wanted_b.T if adjoint_b else wanted_b, rtol=1e-5)


def test_what_is_not_there_takes_no_memory() -> None:
    side = 10**6
    with tf.Graph().as_default():
        x = tf.SparseTensor([[5, side - 1, 7], [3, 2, side - 1]], [1.0, 2.0], [side] * 3)
        x = tf.sparse.concat(0, [tf.sparse.transpose(x, [1, 0, 2]), tf.sparse.reorder(x)])
        x = tf.sparse.slice(tf.sparse.add(x, x), [0, 0, 0], [side, side, side])
        flat = tf.sparse.reduce_sum_sparse(tf.sparse.softmax(x), 2)
        flat = tf.SparseTensor(flat.indices, flat.values, [side, side])
        product = tf.sparse.sparse_dense_matmul(flat, tf.ones([side, 1]))
        total, entries = run([tf.reduce_sum(product), flat])
    assert total == len(entries.values) == 2


ERRORS = {
    "to_dense": (lambda x: tf.sparse.to_dense(x), "out of bounds"),
    "matmul": (lambda x: tf.sparse.sparse_dense_matmul(x, tf.ones([4, 2])), "out of bounds"),
    "matmul grad": (lambda x: tf.gradients(tf.sparse.sparse_dense_matmul(x, tf.ones([4, 2])), x.values)[0], "9"),
    "add": (lambda x: tf.sparse.add(x, tf.ones([3, 4])), "invalid index"),
    "reduce_sum": (lambda x: tf.sparse.reduce_sum(x, 1), "out of bounds"),
    "reshape": (lambda x: tf.sparse.reshape(x, [4, 3]), "out of bounds"),
    "times": (lambda x: x * tf.ones([3, 4]), "out-of-bounds"),
    "shapes": (lambda x: tf.sparse.add(x, tf.SparseTensor([[0, 0]], [1.0], tf.identity(np.int64([9, 9])))), "match"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_does_not_fit(name: str) -> None:
    function, message = ERRORS[name]
    with tf.Graph().as_default(), pytest.raises(tf.errors.InvalidArgumentError, match=message):
        x = tf.sparse_placeholder(tf.float32)
        run(function(x), {x: ([[0, 9]], [1.0], [3, 4])})


def test_crossed_features() -> None:
    """The hashes are TensorFlow's, so that models that were trained with them still work."""
    with tf.Graph().as_default():
        letters = tf.SparseTensor([[0, 0], [1, 0], [1, 1]], ["a", "b", "c"], [2, 2])
        features = [letters, tf.constant([["x"], ["y"]]), tf.constant([[1, 2], [3, 4]])]
        texts, hashes = run([tf.sparse.cross(features), tf.sparse.cross_hashed(features, num_buckets=1000)])
    assert texts.values.tolist()[:3] == [b"a_X_x_X_1", b"a_X_x_X_2", b"b_X_y_X_3"]
    assert texts.indices.tolist() == hashes.indices.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [1, 3]]
    assert hashes.values.tolist() == [350, 920, 373, 441, 527, 632]


def test_order_matters_to_dense_tensors() -> None:
    with tf.Graph().as_default():
        for indices, message in (([[1, 0], [0, 1]], "out of order"), ([[1, 0], [1, 0]], "repeated")):
            x = tf.SparseTensor(indices, [1.0, 2.0], [3, 4])
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                run(tf.sparse.to_dense(x))
        assert run(tf.sparse.to_dense(x, validate_indices=False))[1, 0] in (1, 2)


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_lookups_train_the_rows_they_use(combiner: str, use_resource: bool) -> None:
    """The gradient is sparse, and an update touches only its rows."""
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    with tf.Graph().as_default(), tf.variable_scope("s", use_resource=use_resource):
        embeddings = tf.get_variable("t", initializer=table)
        ids = tf.sparse_placeholder(tf.int64, [3, 2])
        found = tf.nn.safe_embedding_lookup_sparse(embeddings, ids, combiner=combiner)
        gradient = tf.gradients(found, embeddings)[0]
        assert isinstance(gradient, tf.IndexedSlices)
        train = tf.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(found))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            feed = {ids: ([[0, 0], [0, 1], [2, 0]], [1, 4, 1], [3, 2])}
            rows, _ = session.run([found, train], feed)
            after = session.run(embeddings)
    scale = {"sum": 1, "mean": 2, "sqrtn": np.sqrt(2)}[combiner]
    np.testing.assert_allclose(rows, [(table[1] + table[4]) / scale, [0, 0], table[1]], rtol=1e-6)
    wanted = table.copy()
    wanted[4] -= 1 / scale
    wanted[1] -= 1 + 1 / scale
    np.testing.assert_allclose(after, wanted, rtol=1e-6)


def test_a_lookup_sees_the_table_as_it_was_read() -> None:
    """An assignment that waits for the read, but not for the lookup, does not change the result of the lookup."""
    with tf.Graph().as_default(), tf.variable_scope("s", use_resource=True):
        table = tf.get_variable("t", initializer=np.ones((3, 2), np.float32))
        ids = tf.sparse_placeholder(tf.int64, [1, 2])
        found = tf.nn.safe_embedding_lookup_sparse(table.read_value(), ids, combiner="sum")
        with tf.control_dependencies([found.graph.get_operations()[-1]]):
            later = table.assign(tf.zeros([3, 2]))
        rows, _ = run([found, later.op], {ids: ([[0, 0]], [1], [1, 2])})
    np.testing.assert_array_equal(rows, [[1, 1]])
