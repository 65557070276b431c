"""Candidate samplers, and the losses over their samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf

LABELS = np.array([[1], [4], [1]], np.int64)
WEIGHTS, BIASES, HIDDEN = (
    np.random.default_rng(i).normal(size=size).astype(np.float32) for i, size in enumerate([(6, 4), (6,), (3, 4)])
)


def run(build: Any) -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(build())


def samplers(unique: bool, count: int, classes: int) -> dict[str, Any]:
    settings: Any = {"num_true": 1, "num_sampled": count, "unique": unique, "range_max": classes, "seed": 3}
    return {
        "uniform": lambda: tf.nn.uniform_candidate_sampler(LABELS, **settings),
        "log": lambda: tf.nn.log_uniform_candidate_sampler(LABELS, **settings),
        "fixed": lambda: tf.nn.fixed_unigram_candidate_sampler(LABELS, **settings, unigrams=range(1, classes + 1)),
        "learned": lambda: tf.nn.learned_unigram_candidate_sampler(LABELS, **settings),
    }


def shares(name: str, classes: int) -> np.ndarray:
    weights = {"log": np.log(np.arange(2, classes + 2) / np.arange(1, classes + 1)), "fixed": np.arange(1, classes + 1)}
    found = weights.get(name, np.ones(classes))
    return found / found.sum()


@pytest.mark.parametrize("name", ["uniform", "log", "fixed", "learned"])
def test_samplers_follow_their_distribution(name: str) -> None:
    sampled, true, own = run(samplers(False, 20000, 6)[name])
    p = shares(name, 6)
    np.testing.assert_allclose(np.bincount(sampled, minlength=6) / 20000, p, atol=0.015)
    np.testing.assert_allclose(true, 20000 * p[LABELS], rtol=1e-5)
    np.testing.assert_allclose(own, 20000 * p[sampled], rtol=1e-5)


@pytest.mark.parametrize("name", ["uniform", "log", "fixed", "learned"])
def test_unique_samples_have_no_repetitions(name: str) -> None:
    sampled, true, own = run(samplers(True, 6, 6)[name])
    assert sorted(sampled.tolist()) == list(range(6))
    p = shares(name, 6)
    # All have the same number of tries: 1 - (1 - p) ** tries.
    tries = np.log1p(-own.astype(np.float64)) / np.log1p(-p[sampled])
    assert tries.min() >= 5.9
    np.testing.assert_allclose(true, -np.expm1(np.median(tries) * np.log1p(-p[LABELS])), rtol=1e-2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="too small"):
        run(samplers(True, 7, 6)[name])


def test_the_learned_sampler_learns() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        _, true, _ = tf.nn.learned_unigram_candidate_sampler(LABELS, 1, 2, False, 6, seed=1)
        counts = [session.run(true) for _ in range(2)]
    np.testing.assert_allclose(counts[0], np.full((3, 1), 2 / 6), rtol=1e-5)
    np.testing.assert_allclose(counts[1][:, 0], [2 * 3 / 9, 2 * 2 / 9, 2 * 3 / 9], rtol=1e-5)


def test_accidental_hits() -> None:
    rows, positions, weights = run(lambda: tf.nn.compute_accidental_hits([[1, 2], [7, 3]], [3, 1, 5], 2))
    assert list(zip(rows, positions, strict=True)) == [(0, 1), (1, 0)]
    assert (weights < -1e38).all()


def test_sampled_softmax_over_all_classes_is_the_softmax() -> None:
    def build() -> Any:
        everything = tf.nn.all_candidate_sampler(LABELS, 1, 6, True)
        table = tf.constant(WEIGHTS)
        sampled = tf.nn.sampled_softmax_loss(
            table, BIASES, tf.constant(LABELS), tf.constant(HIDDEN), 6, 6, sampled_values=everything
        )
        logits = tf.matmul(HIDDEN, table, transpose_b=True) + BIASES
        whole = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=LABELS[:, 0], logits=logits)
        dense = [tf.convert_to_tensor(tf.gradients(y, table)[0]) for y in (sampled, whole)]
        return sampled, whole, dense

    sampled, whole, (d_sampled, d_whole) = run(build)
    np.testing.assert_allclose(sampled, whole, rtol=1e-4)
    np.testing.assert_allclose(d_sampled, d_whole, rtol=1e-3, atol=1e-5)


def test_nce_loss() -> None:
    sampled, counts = np.array([0, 5]), np.array([0.5, 0.25], np.float32)
    true_counts = np.array([[0.1], [0.2], [0.1]], np.float32)
    loss = run(
        lambda: tf.nn.nce_loss(
            [tf.constant(WEIGHTS[0::2]), tf.constant(WEIGHTS[1::2])],
            tf.constant(BIASES),
            tf.constant(LABELS),
            tf.constant(HIDDEN),
            2,
            6,
            sampled_values=(tf.constant(sampled), true_counts, counts),
        )
    )
    logits = HIDDEN @ WEIGHTS.T + BIASES
    true = np.take_along_axis(logits, LABELS, 1) - np.log(true_counts)
    noise = logits[:, sampled] - np.log(counts)
    np.testing.assert_allclose(loss, np.log1p(np.exp(-true))[:, 0] + np.log1p(np.exp(noise)).sum(1), rtol=1e-4)
