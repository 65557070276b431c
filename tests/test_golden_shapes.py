"""One graph, one session, many sizes: programs have TensorFlow's results, or fail for the same sizes.

They do so in every tier. Compiling each size in the exact tier takes most of the time. The slowest rows take
4 to 9 seconds there: `random_gamma_sizes`, `stateless_sizes`, `linalg_sizes`, `losses_batches` and those of
`safe_embedding_lookup_sparse`.
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


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize("tier", ["interpreted", "padded", "exact"])
@pytest.mark.parametrize("row", [row for row in ROWS if row not in RANDOM])
def test_values(row: dict[str, Any], tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
