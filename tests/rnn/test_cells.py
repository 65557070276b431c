"""Cells against NumPy, and the names of their variables."""

from __future__ import annotations

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.v1.contrib import rnn

rnn_cell = tf.nn.rnn_cell
BATCH, TIME, DEPTH, UNITS = 3, 4, 5, 4


@pytest.fixture(autouse=True)
def fresh_graph():
    with tf.Graph().as_default():
        yield


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def np_rnn(w, x, h):
    h = np.tanh(np.concatenate([x, h], 1) @ w["kernel"] + w["bias"])
    return h, h


def np_gru(w, x, h, names=("gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias")):
    gk, gb, ck, cb = (w[n] for n in names)
    r, u = np.split(sigmoid(np.concatenate([x, h], 1) @ gk + gb), 2, 1)
    c = np.tanh(np.concatenate([x, r * h], 1) @ ck + cb)
    h = u * h + (1 - u) * c
    return h, h


def np_lstm(w, x, state, clip=None, proj_clip=None):
    c, h = state
    i, j, f, o = np.split(np.concatenate([x, h], 1) @ w["kernel"] + w["bias"], 4, 1)
    i, f = i + w.get("w_i_diag", 0) * c, f + w.get("w_f_diag", 0) * c
    c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
    c = c if clip is None else np.clip(c, -clip, clip)
    h = sigmoid(o + w.get("w_o_diag", 0) * c) * np.tanh(c)
    if "projection/kernel" in w:
        h = h @ w["projection/kernel"]
        h = h if proj_clip is None else np.clip(h, -proj_clip, proj_clip)
    return h, (c, h)


def np_layer_norm_lstm(w, x, state):
    def norm(v, name):
        v = (v - v.mean(1, keepdims=True)) / np.sqrt(v.var(1, keepdims=True) + 1e-12)
        return v * w[f"{name}/gamma"] + w[f"{name}/beta"]

    c, h = state
    i, j, f, o = np.split(np.concatenate([x, h], 1) @ w["kernel"], 4, 1)
    i, j, f, o = norm(i, "input"), norm(j, "transform"), norm(f, "forget"), norm(o, "output")
    c = norm(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j), "state")
    h = np.tanh(c) * sigmoid(o)
    return h, (c, h)


LSTM_STATE, PROJECTED = (UNITS, UNITS), (UNITS, 2)
CELLS = {  # cell, its scope, the step in NumPy, sizes of the state
    "basic_rnn": (lambda: rnn_cell.BasicRNNCell(UNITS), "basic_rnn_cell", np_rnn, UNITS),
    "gru": (lambda: rnn_cell.GRUCell(UNITS), "gru_cell", np_gru, UNITS),
    "basic_lstm": (lambda: rnn_cell.BasicLSTMCell(UNITS), "basic_lstm_cell", np_lstm, LSTM_STATE),
    "lstm": (lambda: rnn_cell.LSTMCell(UNITS), "lstm_cell", np_lstm, LSTM_STATE),
    "lstm_peepholes": (lambda: rnn_cell.LSTMCell(UNITS, use_peepholes=True), "lstm_cell", np_lstm, LSTM_STATE),
    "lstm_projection": (
        lambda: rnn_cell.LSTMCell(UNITS, num_proj=2, cell_clip=0.5, proj_clip=0.2),
        "lstm_cell",
        lambda w, x, s: np_lstm(w, x, s, 0.5, 0.2),
        PROJECTED,
    ),
    "lstm_block": (lambda: rnn.LSTMBlockCell(UNITS, use_peephole=True), "lstm_cell", np_lstm, LSTM_STATE),
    "gru_block": (
        lambda: rnn.GRUBlockCell(UNITS),
        "gru_cell",
        lambda w, x, h: np_gru(w, x, h, ("w_ru", "b_ru", "w_c", "b_c")),
        UNITS,
    ),
    "layer_norm": (
        lambda: rnn.LayerNormBasicLSTMCell(UNITS),
        "layer_norm_basic_lstm_cell",
        np_layer_norm_lstm,
        LSTM_STATE,
    ),
}


def randomised(sess, prefix):
    """Gives all variables random values, and returns them by the name after `prefix`."""
    values = {}
    for i, variable in enumerate(tf.global_variables()):
        value = np.random.RandomState(i).uniform(-1, 1, variable.shape.as_list()).astype(np.float32)
        sess.run(variable.initializer)
        variable.load(value, sess)
        assert variable.op.name.startswith(prefix), variable.op.name
        values[variable.op.name[len(prefix) :]] = value
    return values


def zeros(sizes):
    return tuple(map(zeros, sizes)) if isinstance(sizes, tuple) else np.zeros([BATCH, sizes], np.float32)


def flat(structure):
    return [leaf for part in structure for leaf in flat(part)] if isinstance(structure, (list, tuple)) else [structure]


@pytest.mark.parametrize(("name", "way"), [*((n, "dynamic") for n in CELLS), ("lstm", "static")])
def test_cell(name, way):
    make, scope, step, sizes = CELLS[name]
    x = np.random.RandomState(7).randn(BATCH, TIME, DEPTH).astype(np.float32)
    cell = make()
    if way == "dynamic":
        outputs, state = tf.nn.dynamic_rnn(cell, tf.constant(x), dtype=tf.float32)
    else:
        steps, state = tf.nn.static_rnn(cell, tf.unstack(tf.constant(x), axis=1), dtype=tf.float32)
        outputs = tf.stack(steps, axis=1)
    assert outputs.shape.as_list() == [BATCH, TIME, cell.output_size]
    assert cell.variables == cell.trainable_weights == tf.trainable_variables()
    with tf.Session() as sess:
        weights = randomised(sess, f"rnn/{scope}/")
        got, got_state = sess.run([outputs, state])
    expected = zeros(sizes)
    for t in range(TIME):
        output, expected = step(weights, x[:, t], expected)
        np.testing.assert_allclose(got[:, t], output, atol=2e-5)
    for a, b in zip(flat(got_state), flat(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_state_as_one_tensor():
    x = tf.constant(np.random.RandomState(0).randn(BATCH, DEPTH), tf.float32)
    for cell in (rnn_cell.BasicLSTMCell(UNITS, state_is_tuple=False), rnn_cell.LSTMCell(UNITS, state_is_tuple=False)):
        output, state = cell(x, cell.zero_state(BATCH, tf.float32))
        assert cell.state_size == 2 * UNITS and state.shape.as_list() == [BATCH, 2 * UNITS]
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            got, whole = sess.run([output, state])
        np.testing.assert_array_equal(got, whole[:, UNITS:])


NAMES = {
    "multi": (
        lambda: rnn_cell.MultiRNNCell([rnn_cell.DropoutWrapper(rnn_cell.GRUCell(UNITS)), rnn_cell.LSTMCell(UNITS)]),
        [
            "multi_rnn_cell/cell_0/gru_cell/gates/kernel",
            "multi_rnn_cell/cell_0/gru_cell/gates/bias",
            "multi_rnn_cell/cell_0/gru_cell/candidate/kernel",
            "multi_rnn_cell/cell_0/gru_cell/candidate/bias",
            "multi_rnn_cell/cell_1/lstm_cell/kernel",
            "multi_rnn_cell/cell_1/lstm_cell/bias",
        ],
    ),
    "named": (lambda: rnn_cell.BasicLSTMCell(UNITS, name="mine"), ["mine/kernel", "mine/bias"]),
    "residual": (
        lambda: rnn_cell.ResidualWrapper(rnn_cell.BasicRNNCell(DEPTH)),
        ["basic_rnn_cell/kernel", "basic_rnn_cell/bias"],
    ),
    "projections": (
        lambda: rnn.OutputProjectionWrapper(rnn.InputProjectionWrapper(rnn_cell.BasicRNNCell(UNITS), 7), 2),
        [
            f"output_projection_wrapper/{n}"
            for n in (
                "input_projection_wrapper/kernel",
                "input_projection_wrapper/bias",
                "input_projection_wrapper/basic_rnn_cell/kernel",
                "input_projection_wrapper/basic_rnn_cell/bias",
                "kernel",
                "bias",
            )
        ],
    ),
    "attention": (
        lambda: rnn.AttentionCellWrapper(rnn_cell.BasicRNNCell(UNITS), 3),
        [
            f"attention_cell_wrapper/{n}"
            for n in (
                "kernel",
                "bias",
                "basic_rnn_cell/kernel",
                "basic_rnn_cell/bias",
                "attention/attn_w",
                "attention/attn_v",
                "attention/kernel",
                "attention/bias",
                "attn_output_projection/kernel",
                "attn_output_projection/bias",
            )
        ],
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name):
    make, names = NAMES[name]
    cell = make()
    tf.nn.dynamic_rnn(cell, tf.placeholder(tf.float32, [None, None, DEPTH]), dtype=tf.float32)
    assert [v.op.name for v in tf.trainable_variables()] == [f"rnn/{n}" for n in names]
    assert sorted(v.op.name for v in cell.variables) == sorted(f"rnn/{n}" for n in names)
    # The same cell in another place has the same variables; another cell of its class has its own.
    tf.nn.dynamic_rnn(cell, tf.placeholder(tf.float32, [None, None, DEPTH]), dtype=tf.float32, scope="again")
    assert len(tf.trainable_variables()) == len(names)
    tf.nn.dynamic_rnn(make(), tf.placeholder(tf.float32, [None, None, DEPTH]), dtype=tf.float32, scope="other")
    assert len(tf.trainable_variables()) == 2 * len(names)


def test_own_cells():
    """Subclasses that make variables in call, or that override __call__ and do not call our __init__."""

    class Called(rnn_cell.RNNCell):
        def __init__(self, units):
            self._units = units

        state_size = output_size = property(lambda self: self._units)

        def __call__(self, inputs, state, scope=None):
            with tf.variable_scope(scope or type(self).__name__):
                w = tf.get_variable("w", [DEPTH, self._units])
                return tf.matmul(inputs, w) + state, tf.matmul(inputs, w) + state

    class Calls(rnn_cell.RNNCell):
        state_size = output_size = property(lambda self: UNITS)

        def call(self, inputs, state):
            w = tf.get_variable("w", [DEPTH, UNITS])
            return tf.matmul(inputs, w) + state, tf.matmul(inputs, w) + state

    x = tf.ones([BATCH, TIME, DEPTH])
    tf.nn.dynamic_rnn(Called(UNITS), x, dtype=tf.float32)
    cell = Calls()
    outputs, state = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)
    assert [v.op.name for v in tf.global_variables()] == ["rnn/Called/w", "rnn/calls/w"]
    assert cell.variables == tf.global_variables()[1:] and cell.name == "calls"
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        out, last, w = sess.run([outputs, state, cell.variables[0]])
    np.testing.assert_allclose(out[0, -1], TIME * w.sum(0), rtol=1e-5)
    np.testing.assert_array_equal(out[:, -1], last)


def test_dropout():
    x = tf.ones([1, 20, 64])

    class Passes(rnn_cell.RNNCell):
        state_size = output_size = property(lambda self: 64)

        def call(self, inputs, state):
            return inputs, state

    with tf.Session() as sess:
        for variational in (False, True):
            cell = rnn_cell.DropoutWrapper(
                Passes(), output_keep_prob=0.5, variational_recurrent=variational, dtype=tf.float32, seed=3
            )
            out = sess.run(tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)[0])[0]
            assert set(np.unique(out)) <= {0.0, 2.0} and 0.2 < out.mean() / 2 < 0.8
            assert (len(np.unique(out, axis=0)) == 1) == variational


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda x: tf.nn.dynamic_rnn("cell", x, dtype=tf.float32), TypeError),
        (lambda x: tf.nn.dynamic_rnn(rnn_cell.GRUCell(2), x), ValueError),
        (lambda x: tf.nn.dynamic_rnn(rnn_cell.GRUCell(2), x, sequence_length=[[1]], dtype=tf.float32), ValueError),
        (lambda x: tf.nn.static_rnn(rnn_cell.GRUCell(2), x, dtype=tf.float32), TypeError),
        (lambda x: tf.nn.static_rnn(rnn_cell.GRUCell(2), [], dtype=tf.float32), ValueError),
        (lambda x: rnn_cell.MultiRNNCell([]), ValueError),
        (lambda x: rnn_cell.DropoutWrapper(rnn_cell.GRUCell(2), 1.5), ValueError),
        (lambda x: rnn_cell.GRUCell(2)(tf.placeholder(tf.float32, [3, None]), tf.zeros([3, 2])), ValueError),
    ],
)
def test_refused(call, error):
    with pytest.raises(error):
        call(tf.placeholder(tf.float32, [3, 4, 5]))
