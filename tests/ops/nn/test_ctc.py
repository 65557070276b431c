"""CTC against sums over all paths."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf

TIMES, CLASSES = 4, 3  # two labels and the blank
LOGITS = np.random.default_rng(0).normal(size=(TIMES, 2, CLASSES)).astype(np.float32) * 2
LENGTHS = np.array([4, 3], np.int32)


def likelihoods(logits: np.ndarray) -> dict[tuple[int, ...], float]:
    """The probability of each label sequence."""
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(-1, keepdims=True)
    found: dict[tuple[int, ...], float] = defaultdict(float)
    for path in itertools.product(range(CLASSES), repeat=len(logits)):
        merged = [c for i, c in enumerate(path) if i == 0 or c != path[i - 1]]
        label = tuple(c for c in merged if c != CLASSES - 1)
        found[label] += float(np.prod([p[t, c] for t, c in enumerate(path)]))
    return found


def expected_loss(logits: np.ndarray, labels: list[tuple[int, ...]]) -> np.ndarray:
    return np.array([-np.log(likelihoods(logits[:n, b])[labels[b]]) for b, n in enumerate(LENGTHS)])


def sparse(labels: list[tuple[int, ...]]) -> tf.SparseTensor:
    places = [(b, i) for b, row in enumerate(labels) for i in range(len(row))]
    return tf.SparseTensor(np.array(places, np.int64), np.array(sum(labels, ()), np.int32), [2, 3])


@pytest.mark.parametrize("labels", [[(0, 1), (1,)], [(1, 1), (0, 1, 0)]])
def test_loss_and_gradient(labels: list[tuple[int, ...]]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        logits = tf.constant(LOGITS)
        loss = tf.nn.ctc_loss(sparse(labels), logits, LENGTHS)
        value, gradient = session.run([loss, tf.gradients(loss, logits)[0]])
    np.testing.assert_allclose(value, expected_loss(LOGITS, labels), rtol=1e-5)
    step = 1e-4
    for place in [(0, 0, 0), (2, 0, 1), (1, 1, 2), (3, 1, 0)]:
        moved = LOGITS.astype(np.float64)
        moved[place] += step
        slope = (expected_loss(moved, labels) - expected_loss(LOGITS, labels)).sum() / step
        np.testing.assert_allclose(gradient[place], slope, atol=1e-3)


def test_decoders() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        [greedy], score = tf.nn.ctc_greedy_decoder(LOGITS, LENGTHS)
        beams, scores = tf.nn.ctc_beam_search_decoder(LOGITS, LENGTHS, 50, 3, merge_repeated=False)
        first, score, beams, scores = session.run([greedy, score, beams, scores])
    np.testing.assert_allclose(score[:, 0], [-LOGITS[:n, b].max(-1).sum() for b, n in enumerate(LENGTHS)], rtol=1e-5)
    best = LOGITS[:, 0].argmax(-1)
    wanted = [c for i, c in enumerate(best) if c != CLASSES - 1 and (i == 0 or c != best[i - 1])]
    assert first.values[first.indices[:, 0] == 0].tolist() == wanted
    for b, n in enumerate(LENGTHS):
        ranked = sorted(likelihoods(LOGITS[:n, b]).items(), key=lambda item: -item[1])[:3]
        np.testing.assert_allclose(scores[b], [np.log(p) for _, p in ranked], rtol=1e-5)
        assert [tuple(beam.values[beam.indices[:, 0] == b]) for beam in beams] == [label for label, _ in ranked]


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: tf.nn.ctc_loss(sparse([(0, 1, 0), (1, 1, 1)]), LOGITS, np.array([2, 3])), "InvalidArgument", "time"),
        (lambda: tf.nn.ctc_loss(sparse([(0,), ()]), LOGITS, LENGTHS), "InvalidArgument", "zero in batch 1"),
        (lambda: tf.nn.ctc_loss(sparse([(-1,), (0,)]), LOGITS, LENGTHS), "InvalidArgument", "nonnegative"),
        (lambda: tf.nn.ctc_greedy_decoder(LOGITS, LENGTHS + 1)[1], "FailedPrecondition", "sequence_length"),
        (lambda: tf.nn.ctc_beam_search_decoder(LOGITS, LENGTHS, 1, 2)[1], "InvalidArgument", "top_paths"),
    ],
)
def test_misuse_is_refused(build: Any, error: str, message: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session, pytest.raises(tf.errors.OpError, match=message) as raised:
        session.run(build())
    assert type(raised.value).__name__.startswith(error)
