"""What TensorFlow refuses is refused with the same exception, and what it takes is taken."""

from __future__ import annotations

from typing import Any

import pytest
from golden_programs import check, parameters

import penstock.v1 as tf


@pytest.mark.parametrize("row", parameters("ops/errors.json", {}))
def test_errors(row: dict[str, Any]) -> None:
    check(row, tf)
