"""One graph, one session, many sizes: programs have TensorFlow's results, or fail for the same sizes.

They do so in every tier. The exact tier compiles each size, which takes up to 9 seconds for a row, so `make test` has
every fourth row there, and `make long` the others.
"""

from __future__ import annotations

from typing import Any

import pytest
from golden_programs import check, difference, parameters, run_program, view

import penstock.v1 as tf

# Sums that almost cancel: float32 leaves four digits of them, here and in TensorFlow.
ROUNDED = ("batch_norm_training", "fused_batch_norm_sizes")
ROWS = parameters("loops/shapes.json", {})
# The numbers of a seed differ from TensorFlow's.
RANDOM = [row for row in ROWS if row.id.startswith(("random_", "dropout_"))]
OTHERS = [row for row in ROWS if row not in RANDOM]
OTHERS_EXACT = [
    pytest.param(*row.values, id=row.id, marks=[*row.marks, *([pytest.mark.long] if i % 4 else [])])
    for i, row in enumerate(OTHERS)
]


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize("tier", ["interpreted", "padded"])
@pytest.mark.parametrize("row", OTHERS)
def test_values(row: dict[str, Any], tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TIER", tier)
    _has_the_values(row)


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize("row", OTHERS_EXACT)
def test_values_in_the_exact_tier(row: dict[str, Any], exact_tier: None) -> None:
    _has_the_values(row)


def _has_the_values(row: dict[str, Any]) -> None:
    if row["id"] not in ROUNDED:
        check(row, tf)
        return
    found = difference(view(run_program(row, tf)), row["result"], rtol=1e-4, atol=5e-6)
    assert found is None, f"{row['id']}: {found}"


@pytest.mark.parametrize("row", RANDOM)
def test_shapes_of_random_numbers(row: dict[str, Any]) -> None:
    assert _form(view(run_program(row, tf))) == _form(row["result"])


def _form(value: Any) -> Any:
    return [_form(item) for item in value] if isinstance(value, list) else type(value).__name__
