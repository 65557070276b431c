"""Bad input (wrong indices, sizes and bytes, empty input, NaN) gives TensorFlow's exception or value, not a crash."""

from __future__ import annotations

from typing import Any

import pytest
from golden_programs import check, parameters

import penstock.v1 as tf

# Cases that differ, and the reason.
DIFFERENT = {
    "integer_division_by_zero": "TensorFlow gives InternalError for truncatediv alone",
    "map_fn_empty": "TensorFlow does not know the shape of elements that it never sees; here they are traced",
}


@pytest.mark.parametrize("row", parameters("ops/bad_input.json", DIFFERENT))
def test_as_tensorflow(row: dict[str, Any]) -> None:
    check(row, tf)
