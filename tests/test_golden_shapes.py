"""One graph, one session, many sizes: programs have TensorFlow's results, or fail for the same sizes.

They do so in every tier. Compiling takes up to 9 seconds for a row, in the exact tier for each size. So `make test` has
some rows in the tiers that compile, and `make long` the others.
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
EVERY = {"interpreted": 1, "padded": 8, "exact": 8}  # of so many rows, `make test` has one in a tier
CASES = [
    pytest.param(tier, *row.values, id=f"{tier}-{row.id}", marks=[pytest.mark.long] if i % every else [])
    for tier, every in EVERY.items()
    for i, row in enumerate(OTHERS)
]


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize(("tier", "row"), CASES)
def test_values(tier: str, row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TIER", tier)
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
