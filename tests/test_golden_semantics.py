"""Devices, shapes, types, initialisation and partitions are as in TensorFlow.

Specs of devices and partitioners alone are in `graph/test_device_spec.py` and `variables/test_partitioners.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from golden_programs import check, parameters

import penstock.v1 as tf

LATER: dict[str, dict[str, str]] = {}
FILES = ("device_nesting", "static_shapes", "dtypes", "variable_init", "partition_programs")


@pytest.mark.parametrize("row", [p for f in FILES for p in parameters(f"semantics/{f}.json", LATER.get(f, {}))])
def test_semantics(row: dict[str, Any]) -> None:
    check(row, tf)
