"""Values, shapes, feeds and structures: small programs accept the same ones as TensorFlow, with the same results."""

from __future__ import annotations

from typing import Any

import pytest
from golden_programs import check, parameters

import penstock.v1 as tf

FILES = ("values", "collections", "sparse_batches", "sessions", "structures", "sizes")


@pytest.mark.parametrize("row", [p for f in FILES for p in parameters(f"values/{f}.json", {})])
def test_programs(row: dict[str, Any]) -> None:
    check(row, tf)
