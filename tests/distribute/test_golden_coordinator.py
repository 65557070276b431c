"""Golden programs: coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distribute.golden import Clusters, clusters, rows, run_row

# Programs that give something else here, and the reason.
DIFFERENT = {
    "schedule/returns_structure": "TensorFlow's fetch loses a structure with None in it, here it keeps its form",
    "dataset/distribute_from_function_two_workers": "every worker's InputContext says 1 pipeline in TensorFlow; here "
    "each is told which of how many it is",
}


@pytest.fixture(scope="module")
def known() -> Iterator[Clusters]:
    with clusters() as found:
        yield found


@pytest.mark.parametrize("row", rows("distribute/coordinator"))
def test_program(row: dict[str, Any], known: Clusters, tmp_path: Path) -> None:
    run_row(row, known, tmp_path, DIFFERENT)
