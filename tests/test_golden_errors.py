"""What TensorFlow refuses is refused with the same exception, and what it takes is taken."""

from __future__ import annotations

from typing import Any

import pytest
from golden_programs import check, parameters

import penstock.v1 as tf

LATER = {
    "runtime_iterator_end": "tf.data",
    "runtime_iterator_uninit": "tf.data",
}


@pytest.mark.parametrize("row", parameters("ops/errors.json", LATER))
def test_errors(row: dict[str, Any]) -> None:
    check(row, tf)
