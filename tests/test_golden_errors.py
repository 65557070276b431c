"""What TensorFlow refuses is refused with the same exception, and what it takes is taken."""

from __future__ import annotations

from typing import Any

import pytest
from golden_programs import check, parameters

import penstock.v1 as tf

LATER = {
    "cholesky_not_square": "tf.linalg.cholesky",
    "runtime_cholesky": "tf.linalg.cholesky",
    "runtime_inv_singular": "tf.linalg.inv",
    "einsum_dim": "tf.einsum",
    "einsum_labels": "tf.einsum",
    "resize_size": "tf.image.resize_images",
    "flip_rank": "tf.image.flip_left_right",
    "gradients_no_registered": "tf.image.resize_area",
    "saver_no_vars": "tf.train.Saver",
    "saver_dup_names": "tf.train.Saver",
    "runtime_restore_missing": "tf.train.Saver",
    "runtime_string_to_number": "tf.string_to_number",
    "runtime_iterator_end": "tf.data",
    "runtime_iterator_uninit": "tf.data",
}


@pytest.mark.parametrize("row", parameters("ops/errors.json", LATER))
def test_errors(row: dict[str, Any]) -> None:
    check(row, tf)
