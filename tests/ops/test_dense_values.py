"""Sorting, counting, blocks, signals, quantization, sets, stateless random numbers: values as in TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf

ROWS: list[tuple[str, Any]] = [
    ("tf.linspace([0.0, 1.0], [1.0, 5.0], 3, axis=-1)", [[0.0, 0.5, 1.0], [1.0, 3.0, 5.0]]),
    ("tf.sort(np.array([3, 1, 2], np.uint8))", [1, 2, 3]),
    ("tf.sort(np.array([-(2**31), 5, 2**31 - 1], np.int32))", [-2147483648, 5, 2147483647]),
    (
        "tf.sort(tf.placeholder_with_default([[3.0, 1.0], [2.0, 7.0]], None), axis=-2, direction='DESCENDING')",
        [[3.0, 7.0], [2.0, 1.0]],
    ),
    ("tf.searchsorted([1.0, 3.0], [1.0, 3.0, 9.0], side='right', out_type=tf.int64)", [1, 2, 2]),
    ("tf.histogram_fixed_width([1, 5, 9, 99], [0, 10], 5, dtype=tf.int64)", [1, 0, 1, 0, 2]),
    ("tf.unravel_index(5, [2, 3])", [1, 2]),
    ("tf.batch_gather([[[1, 2], [3, 4]]], [[[1], [0]]])", [[[2], [3]]]),
    ("tf.math.is_non_decreasing([])", True),
    ("tf.math.is_strictly_increasing([1, 1])", False),
    ("tf.math.polyval([1.0, 2.0], [3.0])", [5.0]),
    ("tf.math.lbeta([[0.5, 2.0]])", [0.28768]),
    ("tf.math.nextafter(np.float64([1.0]), np.float64([2.0])) - 1.0", [0.0]),
    ("tf.math.bessel_i0([1.0, -2.0])", [1.26607, 2.27959]),
    ("tf.math.erfcinv([0.3, 1.5])", [0.73287, -0.47694]),
    (
        "tf.extract_volume_patches(np.arange(8.0).reshape(1, 2, 2, 2, 1), [1, 1, 2, 2, 1], [1, 1, 1, 1, 1], "
        "'SAME')[0, 0, 1]",
        [[2.0, 3.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0]],
    ),
    ("tf.batch_to_space_nd(np.arange(8).reshape(2, 2, 2), [2], [[1, 0]])", [[[4, 5], [2, 3], [6, 7]]]),
    ("tf.signal.dct([1.0, 2.0, 4.0], type=2, norm='ortho')", [4.04145, -2.12132, 0.40825]),
    ("tf.signal.idct([1.0, 2.0, 4.0], type=4)", [6.83083, -7.07107, 5.41662]),
    ("tf.signal.frame([1, 2, 3, 4, 5], 3, 2, pad_end=True, pad_value=9)", [[1, 2, 3], [3, 4, 5], [5, 9, 9]]),
    ("tf.signal.overlap_and_add([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], 2)", [1.0, 2.0, 7.0, 5.0, 6.0]),
    ("tf.abs(tf.signal.stft([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 4, 2))", [[6.0, 3.16228, 0.0], [10.0, 5.09902, 0.0]]),
    ("tf.signal.irfft2d(tf.signal.rfft2d([[1.0, 2.0], [3.0, 5.0]]))", [[1.0, 2.0], [3.0, 5.0]]),
    ("tf.signal.ifftshift([1, 2, 3, 4, 5], axes=[0])", [3, 4, 5, 1, 2]),
    (
        "tf.signal.linear_to_mel_weight_matrix(3, 6, 8000)",
        [
            [0.0, 0.0, 0.0],
            [0.59038, 0.40962, 0.0],
            [0.0, 0.58252, 0.41748],
            [0.0, 0.0, 0.87872],
            [0.0, 0.0, 0.33741],
            [0.0, 0.0, 0.0],
        ],
    ),
    (
        "tf.quantization.fake_quant_with_min_max_vars([-9.0, 0.123, 0.77, 9.0], 0.1, 1.7, num_bits=4, "
        "narrow_range=True)",
        [0.0, 0.11429, 0.8, 1.6],
    ),
    ("tf.quantization.fake_quant_with_min_max_vars([3.0], 0.0, 0.0)", [0.0]),
    (
        "tf.quantization.quantize_and_dequantize([-3.0, 0.3, 0.7], -1.5, 2.0, range_given=True, num_bits=4)",
        [-2.28571, 0.28571, 0.57143],
    ),
    ("tf.dequantize(*tf.quantize([-3.0, 0.3, 9.0], -1.0, 2.0, tf.qint8))", [-1.0, 0.29412, 2.0]),
    (
        "tf.dequantize(*tf.quantize([-3.0, 0.3, 9.0], -1.0, 2.0, tf.qint16, mode='SCALED'), mode='SCALED')",
        [-2.00006, 0.3, 2.0],
    ),
    ("tf.sets.union([[3, 1, 1]], [[2, 3]]).values", [1, 2, 3]),
    ("tf.sets.difference([[3, 1], [5, 6]], [[3, 3], [5, 5]], aminusb=True).dense_shape", [2, 1]),
    ("tf.sets.intersection([['b', 'a']], [['a', 'c']]).values", [b"a"]),
    ("tf.sets.size(tf.SparseTensor([[0, 0], [0, 1], [2, 0]], [7, 7, 5], [3, 2]))", [1, 0, 1]),
    (
        "tf.edit_distance(tf.SparseTensor([[0, 0], [2, 0]], ['a', 'c'], [3, 2]), tf.SparseTensor([[0, 0], [0, "
        "1], [1, 0]], ['a', 'b', 'x'], [3, 3]))",
        [0.5, 1.0, np.inf],
    ),
    (
        "tf.random.stateless_truncated_normal([5], [3, 5], dtype=tf.float64)",
        [-0.28365, 1.19683, -1.31084, 0.55868, 0.19324],
    ),
    (
        "tf.random.stateless_uniform([3], [-1, 2**40], minval=-5, maxval=10**12, dtype=tf.int64)",
        [495865213879, 521033455023, 979488086290],
    ),
    ("tf.random.stateless_normal([3], [1, 2], mean=10.0, dtype=tf.float16)", [10.54688, 10.21094, 10.07031]),
    ("tf.space_to_batch_nd(np.zeros((0, 4, 4, 1), np.float32), [2, 2], [[0, 0], [0, 0]])", []),
    ("tf.signal.rfft(np.zeros((0, 4), np.float32))", []),
]


@pytest.mark.parametrize(("expression", "wanted"), ROWS, ids=[row[0] for row in ROWS])
def test_as_tensorflow(expression: str, wanted: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        found = session.run(eval(expression, {"tf": tf, "np": np}))
    if found.dtype.kind in "fc":
        coarse = 1e-2 if found.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(found, np.reshape(wanted, found.shape), rtol=coarse, atol=2e-5)
    else:
        assert found.tolist() == wanted


# A call on fed values, and if it fails when it is built or when it runs.
REFUSED = [
    ("tf.quantization.fake_quant_with_min_max_args(x, min=1.0, max=0.0)", tf.errors.InvalidArgumentError),
    ("tf.quantization.fake_quant_with_min_max_args(x, num_bits=1)", tf.errors.InvalidArgumentError),
    ("tf.raw_ops.NthElement(input=x, n=5)", tf.errors.InvalidArgumentError),
    ("tf.space_to_depth(tf.reshape(x, [1, 1, 4, 1]), 1)", ValueError),
    ("tf.space_to_depth(tf.reshape(x, [n, 1, 4, 1]), 2)", ValueError),
    ("tf.batch_to_space_nd(tf.reshape(x, [4, n]), [2], [[9, 0]])", tf.errors.InvalidArgumentError),
    ("tf.unravel_index([7 * n], [2, 3])", tf.errors.InvalidArgumentError),
    ("tf.histogram_fixed_width(x, [x[0], x[0]])", tf.errors.InvalidArgumentError),
    ("tf.confusion_matrix([n], [n], num_classes=1)", tf.errors.InvalidArgumentError),
    ("tf.searchsorted(tf.reshape(x, [2 * n, 2]), tf.reshape(x, [1, 4]))", tf.errors.InvalidArgumentError),
    ("tf.sets.union(tf.fill([2 * n, 1], 1), [[1]]).values", tf.errors.InvalidArgumentError),
    ("tf.sets.size(tf.SparseTensor([[0, 1], [0, 0]], [2, 7], [2, 4]))", tf.errors.InvalidArgumentError),
    ("tf.sets.union([[1, 2]], [[1.0, 2.0]]).values", TypeError),
    ("tf.edit_distance(x, x)", TypeError),
    ("tf.signal.rfft(x, [-1])", (ValueError, tf.errors.InvalidArgumentError)),
    ("tf.random.stateless_uniform([2], [1, 2, 3])", (ValueError, tf.errors.InvalidArgumentError)),
    ("tf.random.stateless_uniform([2], [1, 2], minval=5, maxval=n, dtype=tf.int32)", tf.errors.InvalidArgumentError),
    ("tf.debugging.assert_near(x, x + 1.0)", tf.errors.InvalidArgumentError),
    ("tf.debugging.assert_shapes([(x, ('N', 2))])", tf.errors.InvalidArgumentError),
    ("tf.debugging.assert_shapes([(tf.zeros([3, 4]), ('N', 'N'))])", ValueError),
    ("tf.debugging.assert_same_float_dtype([tf.constant(1)])", ValueError),
    ("tf.raw_ops.NoSuchOp", AttributeError),
]


@pytest.mark.parametrize(("expression", "error"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refused(expression: str, error: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x, n = tf.placeholder(tf.float32), tf.placeholder(tf.int32, [])
        with pytest.raises(error):
            session.run(eval(expression, {"tf": tf, "x": x, "n": n}), {x: np.arange(4.0), n: 1})


# An index of v = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], what it is assigned, and the row 1 after that.
SLICES = [
    (lambda i: np.s_[0:2], [[5] * 4] * 2, [5, 5, 5, 5]),
    (lambda i: np.s_[1, 2], 7, [4, 5, 7, 7]),
    (lambda i: np.s_[::-1, 1], [1, 2, 3], [4, 2, 6, 7]),
    (lambda i: np.s_[..., 0], [9, 9, 9], [9, 5, 6, 7]),
    (lambda i: (i, np.s_[1:3]), [8, 8], [4, 8, 8, 7]),
    (lambda i: np.s_[1:2, tf.newaxis], [[[3] * 4]], [3, 3, 3, 3]),
    (lambda i: np.s_[0:2], [1, 2], None),
    (lambda i: (i + 5,), [1, 1, 1, 1], None),
]


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize(("index", "value", "row"), SLICES)
def test_assigning_to_a_slice_of_a_variable(index: Any, value: Any, row: Any, use_resource: bool) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable(np.arange(12.0).reshape(3, 4), use_resource=use_resource, dtype=tf.float32)
        i = tf.placeholder(tf.int32, [])
        part = v[index(i)]
        update = part.assign(np.array(value, np.float32))
        session.run(v.initializer)
        if row is None:
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(update, {i: 1})
            assert session.run(v)[1].tolist() == [4, 5, 6, 7]
            return
        assert session.run(update, {i: 1})[1].tolist() == row
        assert session.run(v)[1].tolist() == row
        assert not hasattr(v.read_value()[0], "assign")


def test_what_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(np.arange(8).reshape(2, 4) / 3, tf.float32)
        counted = tf.Print(0, [tf.constant([True, False]), "text"], "first ", first_n=2)
        for _ in range(3):
            session.run(counted)
        session.run(tf.Print(0, [x], summarize=3))
        session.run(tf.Print(0, [x], summarize=-1))
        session.run(tf.print("x", x, {"b": (tf.constant("s"), 1), "a": "{}"}, sep="|", summarize=1))
        session.run(tf.print(tf.constant("whole"), end="!\n"))
    assert capfd.readouterr().err.splitlines() == [
        "first [1 0][text]",
        "first [1 0][text]",
        "[[0 0.333333343 0.666666687...]...]",
        "[[0 0.333333343 0.666666687 1][1.33333337 1.66666663 2 2.33333325]]",
        "x|[[0 ... 1]",
        " [1.33333337 ... 2.33333325]]|{'a': '{}', 'b': (\"s\", 1)}",
        "whole!",
    ]


def test_gradients_of_quantization_go_to_input_or_bounds() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x, low, high = tf.constant([-9.0, 0.5, 9.0, 9.0]), tf.constant(-1.0), tf.constant(1.0)
        y = tf.quantization.fake_quant_with_min_max_vars(x, low, high)
        found = session.run(tf.gradients(y, [x, low, high]))
    assert [np.asarray(g).tolist() for g in found] == [[0, 1, 0, 0], 1, 2]


def test_a_control_edge_from_a_fed_placeholder_is_no_demand_to_run_it() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x, y = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
        a, b = tf.tuple([x, y])
        assert session.run([a, b], {x: 1.0, y: 2.0}) == [1.0, 2.0]
