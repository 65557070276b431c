"""Calls that TensorFlow refuses raise the same exception, and those that it accepts work."""

from __future__ import annotations

from typing import Any

import pytest
from golden_programs import check, parameters

import penstock.v1 as tf


@pytest.mark.parametrize("row", parameters("ops/errors.json", {}))
def test_errors(row: dict[str, Any]) -> None:
    check(row, tf)
