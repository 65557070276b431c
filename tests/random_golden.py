"""Runs the programs of tests/golden/random, which says how they were made, and compares what they give."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from penstock.graph.opdef import op_of
from penstock.graph.scopes import get_seed

_FOLDER = pathlib.Path(__file__).parent / "golden" / "random"


class _RawOps:
    """All op types, by name."""

    def __getattr__(self, name: str) -> Any:
        return op_of(name)


def rows(name: str) -> list[Any]:
    """The rows of a file, as parameters of a test."""
    return [pytest.param(row, id=row["id"]) for row in json.loads((_FOLDER / name).read_text())]


def check(row: dict[str, Any], tf: Any) -> None:
    """Runs a row's program on `tf`."""
    names: dict[str, Any] = {"tf": tf, "np": np, "get_seed": get_seed, "raw_ops": _RawOps()}
    exec(row["program"], names)
    _compare(names["result"], row["result"])


def _compare(found: Any, expected: Any) -> None:
    """Fails if numbers differ by more than functions such as the logarithm may, or anything else differs."""
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _compare(one, other)
    elif isinstance(expected, float):
        np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
    else:
        assert found == expected
