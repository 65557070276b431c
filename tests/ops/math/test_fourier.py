"""Spectrograms, with values of TensorFlow 2.21."""

import numpy as np
import pytest

import penstock.v1 as tf


def spectrogram(samples: np.ndarray, **attrs: object) -> np.ndarray:
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(tf.raw_ops.AudioSpectrogram(input=samples, **attrs))


def test_spectrogram() -> None:
    samples = np.array([[3.0], [1.0], [2.0], [0.0]], np.float32)
    assert spectrogram(samples, window_size=2, stride=1).tolist() == [[[1.0, 1.0], [2.0, 2.0], [0.0, 0.0]]]
    squared = spectrogram(samples, window_size=3, stride=1, magnitude_squared=True)
    np.testing.assert_allclose(squared, [[[5.0625, 2.8125, 0.5625], [2.25, 2.25, 2.25]]], atol=1e-5)


def test_spectrogram_of_too_few_samples() -> None:
    assert spectrogram(np.zeros((1, 1), np.float32), window_size=2, stride=1).shape == (1, 0, 2)


def test_spectrogram_refuses_a_window_of_one() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="window_size"):
        spectrogram(np.zeros((3, 1), np.float32), window_size=1, stride=1)
