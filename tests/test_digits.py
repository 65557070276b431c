"""The digits that come with penstock."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.data_files import load_digits

ROOT = Path(__file__).resolve().parents[1]


def test_shapes_types_and_ranges():
    (train_x, train_y), (test_x, test_y) = load_digits()
    assert train_x.shape == (1500, 8, 8) and test_x.shape == (297, 8, 8)
    assert train_y.shape == (1500,) and test_y.shape == (297,)
    assert train_x.dtype == test_x.dtype == np.float32
    assert train_y.dtype == test_y.dtype == np.int64
    assert train_x.min() == test_x.min() == 0 and train_x.max() == test_x.max() == 1
    assert set(train_y) == set(test_y) == set(range(10))


def test_the_split_is_fixed():
    (train_x, train_y), (_, test_y) = load_digits()
    (again_x, again_y), _ = load_digits()
    np.testing.assert_array_equal(train_x, again_x)
    np.testing.assert_array_equal(train_y, again_y)
    assert train_y[:10].tolist() == [2, 8, 2, 6, 6, 7, 1, 9, 8, 5]
    assert test_y[:10].tolist() == [2, 2, 9, 8, 8, 3, 6, 0, 4, 4]


def test_no_example_is_in_both_parts():
    (train_x, _), (test_x, _) = load_digits()
    # A few images occur more than once in the data itself, so count instead of comparing.
    everything = np.concatenate([train_x, test_x])
    assert len(everything) == 1797
    assert everything.sum(dtype=np.float64) * 16 == 561718


def test_the_digits_can_be_told_apart():
    """The nearest training image gets almost all test images right: labels belong to their images."""
    (train_x, train_y), (test_x, test_y) = load_digits()
    train, test = train_x.reshape(-1, 64), test_x.reshape(-1, 64)
    distance = (test**2).sum(1)[:, None] - 2 * test @ train.T + (train**2).sum(1)
    assert (train_y[distance.argmin(1)] == test_y).mean() > 0.97


def test_loading_needs_no_scikit_learn():
    code = "import sys; from penstock.data_files import load_digits; load_digits(); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed")
def test_the_file_is_what_the_script_makes():
    from sklearn import datasets

    digits = datasets.load_digits()
    with np.load(ROOT / "penstock" / "data_files" / "digits.npz") as stored:
        assert stored["images"].dtype == stored["labels"].dtype == np.uint8
        np.testing.assert_array_equal(stored["images"], digits.images)
        np.testing.assert_array_equal(stored["labels"], digits.target)
