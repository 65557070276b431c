"""Decoders, helpers, attention, beam search and losses of tf.contrib.seq2seq."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.v1.contrib import legacy_seq2seq, seq2seq

WORDS, UNITS, BATCH, TIME = 5, 4, 3, 4
LENGTHS = [4, 2, 3]


@pytest.fixture
def sess():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


class Projection:
    """A layer for the output of decoders."""

    def compute_output_shape(self, shape):
        return tf.TensorShape([*shape.as_list()[:-1], WORDS])

    def __call__(self, x):
        with tf.variable_scope("words", reuse=tf.AUTO_REUSE):
            return tf.matmul(x, tf.get_variable("kernel", [x.shape.as_list()[-1], WORDS]))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_training_decoder(sess):
    """The same as dynamic_rnn with the same cell, trimmed to the longest row; with gradients."""
    cell = tf.nn.rnn_cell.GRUCell(UNITS)
    x = tf.placeholder(tf.float32, [None, None, WORDS])
    lengths = tf.placeholder(tf.int32, [None])
    start = cell.zero_state(BATCH, tf.float32)
    decoder = seq2seq.BasicDecoder(cell, seq2seq.TrainingHelper(x, lengths), start, Projection())
    outputs, state, out_lengths = seq2seq.dynamic_decode(decoder, impute_finished=True)
    reference, final = tf.nn.dynamic_rnn(cell, x, lengths, dtype=tf.float32)
    logits = tf.tensordot(reference, tf.global_variables()[-1], 1)
    assert [v.op.name for v in tf.global_variables()][-1] == "decoder/words/kernel"
    assert outputs.rnn_output.shape.as_list() == [BATCH, None, WORDS]
    loss, other = tf.reduce_sum(outputs.rnn_output**2.0), tf.reduce_sum(logits**2.0)
    sess.run(tf.global_variables_initializer())
    feed = {x: np.random.RandomState(0).randn(BATCH, TIME + 2, WORDS), lengths: LENGTHS}
    got, ids, last, n = sess.run([outputs.rnn_output, outputs.sample_id, state, out_lengths], feed)
    expected, expected_last = sess.run([logits, final], feed)
    assert got.shape == (BATCH, TIME, WORDS) and list(n) == LENGTHS
    np.testing.assert_allclose(got, expected[:, :TIME], atol=1e-5)
    np.testing.assert_allclose(last, expected_last, atol=1e-5)
    assert (ids == got.argmax(-1)).all()
    variables = tf.trainable_variables()
    for a, b in sess.run(list(zip(tf.gradients(loss, variables), tf.gradients(other, variables), strict=True)), feed):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("limit", [6, None])
def test_greedy_and_sampled(limit, sess):
    """A chain of words whose transitions are known: 0 1 2 3 4, where 4 ends a row."""

    class Next(tf.nn.rnn_cell.RNNCell):
        state_size = property(lambda self: 1)
        output_size = property(lambda self: WORDS)

        def call(self, inputs, state):
            return tf.concat([inputs[:, -1:], inputs[:, :-1]], 1) * 100.0, state

    table = tf.eye(WORDS)
    cell = Next()
    for kind in (seq2seq.GreedyEmbeddingHelper, seq2seq.SampleEmbeddingHelper):
        helper = kind(table, start_tokens=[0, 2, 3], end_token=4)
        decoder = seq2seq.BasicDecoder(cell, helper, cell.zero_state(3, tf.float32))
        outputs, _, lengths = seq2seq.dynamic_decode(decoder, maximum_iterations=limit, impute_finished=True)
        ids, n = sess.run([outputs.sample_id, lengths])
        np.testing.assert_array_equal(ids, [[1, 2, 3, 4], [3, 4, 0, 0], [4, 0, 0, 0]])
        np.testing.assert_array_equal(n, [4, 2, 1])


def attention_in_numpy(kind, w, memory, query, lengths):
    keys = memory @ w["memory_layer/kernel"]
    if kind == "luong":
        score = np.einsum("bd,btd->bt", query, keys) * w["luong_attention/attention_g"]
    else:
        v = w["bahdanau_attention/attention_v"]
        v = w["bahdanau_attention/attention_g"] * v / np.sqrt((v**2).sum())
        total = keys + (query @ w["bahdanau_attention/query_layer/kernel"])[:, None]
        score = (v * np.tanh(total + w["bahdanau_attention/attention_b"])).sum(-1)
    score = np.where(np.arange(memory.shape[1]) < np.array(lengths)[:, None], score, -np.inf)
    return softmax(score)


@pytest.mark.parametrize("kind", ["luong", "bahdanau"])
def test_attention(kind, sess):
    memory = np.random.RandomState(0).randn(BATCH, 6, 3).astype(np.float32)
    query = np.random.RandomState(1).randn(BATCH, UNITS).astype(np.float32)
    for t, n in enumerate(LENGTHS):
        memory[t, n:] = 0
    if kind == "luong":
        mechanism = seq2seq.LuongAttention(UNITS, memory, LENGTHS, scale=True)
    else:
        mechanism = seq2seq.BahdanauAttention(7, memory, LENGTHS, normalize=True)
    alignments, _ = mechanism(tf.constant(query), None)
    sess.run(tf.global_variables_initializer())
    weights = {v.op.name: sess.run(v) for v in tf.global_variables()}
    expected = attention_in_numpy(kind, weights, memory, query, LENGTHS)
    np.testing.assert_allclose(sess.run(alignments), expected, atol=1e-5)


def test_attention_wrapper(sess):
    memory = tf.constant(np.random.RandomState(0).randn(BATCH, 6, 3), tf.float32)
    cell = seq2seq.AttentionWrapper(
        tf.nn.rnn_cell.GRUCell(UNITS),
        seq2seq.BahdanauAttention(7, memory, [6, 5, 4]),
        attention_layer_size=2,
        alignment_history=True,
    )
    start = cell.zero_state(BATCH, tf.float32)
    inputs = tf.constant(np.random.RandomState(1).randn(BATCH, TIME, WORDS), tf.float32)
    helper = seq2seq.TrainingHelper(inputs, LENGTHS)
    outputs, state, _ = seq2seq.dynamic_decode(seq2seq.BasicDecoder(cell, helper, start))
    prefix = "decoder/attention_wrapper"
    assert {v.op.name for v in tf.global_variables()} == {
        "memory_layer/kernel",
        f"{prefix}/gru_cell/gates/kernel",
        f"{prefix}/gru_cell/gates/bias",
        f"{prefix}/gru_cell/candidate/kernel",
        f"{prefix}/gru_cell/candidate/bias",
        f"{prefix}/bahdanau_attention/query_layer/kernel",
        f"{prefix}/bahdanau_attention/attention_v",
        f"{prefix}/attention_layer/kernel",
    }
    gradients = tf.gradients(outputs.rnn_output, tf.trainable_variables())
    sess.run(tf.global_variables_initializer())
    got, history, attention, *changes = sess.run(
        [outputs.rnn_output, state.alignment_history.stack(), state.attention, *gradients]
    )
    assert got.shape == (BATCH, TIME, 2) and history.shape == (TIME, BATCH, 6)
    np.testing.assert_allclose(history.sum(-1), 1, atol=1e-5)
    assert not history[:, 2, 4:].any() and all(c.any() for c in changes)
    np.testing.assert_allclose(got[:, -1], attention, atol=1e-6)
    clone = start.clone(cell_state=tf.ones([BATCH, UNITS]))
    assert clone.attention is start.attention and clone.cell_state is not start.cell_state


def test_beam_search_finds_the_best(sess):
    """All sequences of two words, scored by hand."""
    chances = np.random.RandomState(3).uniform(size=(WORDS, WORDS)).astype(np.float32)
    chances /= chances.sum(1, keepdims=True)

    class Chain(tf.nn.rnn_cell.RNNCell):
        state_size = property(lambda self: 1)
        output_size = property(lambda self: WORDS)

        def call(self, inputs, state):
            return tf.matmul(inputs, tf.constant(np.log(chances))), state + 1.0

    cell, width = Chain(), WORDS
    state = seq2seq.tile_batch(cell.zero_state(2, tf.float32), width)
    decoder = seq2seq.BeamSearchDecoder(cell, tf.eye(WORDS), [0, 1], 4, state, width)
    outputs, final, lengths = seq2seq.dynamic_decode(decoder, maximum_iterations=2)
    ids, scores, n = sess.run([outputs.predicted_ids, final.log_probs, lengths])
    for row, start in enumerate((0, 1)):
        found = {(4, 4): chances[start, 4]}
        for a, b in itertools.product(range(WORDS - 1), range(WORDS)):
            found[a, b] = chances[start, a] * chances[a, b]
        best = sorted(found, key=found.get, reverse=True)[:width]
        assert [tuple(ids[row, :, k]) for k in range(width)] == best
        np.testing.assert_allclose(np.exp(scores[row]), [found[b] for b in best], rtol=1e-4)
        assert list(n[row]) == [1 if b == (4, 4) else 2 for b in best]


def test_gather_tree(sess):
    ids = np.transpose([[[1, 2, 3], [4, 5, 6], [7, 8, 9], [-1, -1, -1]]], [1, 0, 2]).astype(np.int32)
    parents = np.transpose([[[0, 0, 0], [0, 1, 1], [2, 1, 2], [-1, -1, -1]]], [1, 0, 2]).astype(np.int32)
    beams = sess.run(seq2seq.gather_tree(ids, parents, [3], 10))
    np.testing.assert_array_equal(beams[:, 0], [[2, 2, 2], [6, 5, 6], [7, 8, 9], [10, 10, 10]])


def test_sequence_loss(sess):
    logits = np.random.RandomState(0).randn(2, 3, WORDS).astype(np.float32)
    targets, weights = np.array([[0, 1, 2], [3, 4, 0]]), np.array([[1, 1, 0], [2, 0, 0]], np.float32)
    losses = -np.log(softmax(logits))[np.arange(2)[:, None], np.arange(3), targets] * weights
    with np.errstate(all="ignore"):
        by_step = np.nan_to_num(losses.sum(0) / weights.sum(0))
        summed_by_step = np.nan_to_num(losses.sum(0) / (weights != 0).sum(0))
    table = [
        ({}, losses.sum() / weights.sum()),
        ({"average_across_timesteps": False, "average_across_batch": False}, losses),
        ({"average_across_timesteps": False}, by_step),
        ({"average_across_batch": False}, losses.sum(1) / weights.sum(1)),
        (
            {
                "average_across_timesteps": False,
                "average_across_batch": False,
                "sum_over_timesteps": True,
                "sum_over_batch": True,
            },
            losses.sum() / (weights != 0).sum(),
        ),
        ({"average_across_timesteps": False, "average_across_batch": False, "sum_over_batch": True}, summed_by_step),
    ]
    for options, expected in table:
        got = sess.run(seq2seq.sequence_loss(logits, targets, weights, **options))
        np.testing.assert_allclose(got, expected, atol=1e-5)
    steps = [[array[:, t] for t in range(3)] for array in (logits, targets, weights)]
    by_row, whole = sess.run([legacy_seq2seq.sequence_loss_by_example(*steps), legacy_seq2seq.sequence_loss(*steps)])
    np.testing.assert_allclose(by_row, losses.sum(1) / weights.sum(1), atol=1e-5)
    np.testing.assert_allclose(whole, by_row.mean(), atol=1e-5)
    with pytest.raises(ValueError, match="Logits must be"):
        seq2seq.sequence_loss(logits[0], targets, weights)


def test_legacy_seq2seq(sess):
    steps = [tf.ones([BATCH, 2])] * 3
    outputs, state = legacy_seq2seq.basic_rnn_seq2seq(steps, steps, tf.nn.rnn_cell.GRUCell(UNITS))
    prefixes = ["basic_rnn_seq2seq/rnn/gru_cell", "basic_rnn_seq2seq/rnn_decoder/gru_cell"]
    assert [v.op.name for v in tf.global_variables()] == [
        f"{p}/{n}" for p in prefixes for n in ("gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias")
    ]
    sess.run(tf.global_variables_initializer())
    *all_outputs, last = sess.run([*outputs, state])
    assert len(all_outputs) == 3
    np.testing.assert_array_equal(all_outputs[-1], last)
