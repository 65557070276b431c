"""Golden programs: custom_loop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distribute.golden import Clusters, clusters, rows, run_row

# Programs that give something else here, and the reason.
DIFFERENT: dict[str, str] = {}


@pytest.fixture(scope="module")
def known() -> Iterator[Clusters]:
    with clusters() as found:
        yield found


@pytest.mark.parametrize("row", rows("distribute/custom_loop"))
def test_program(row: dict[str, Any], known: Clusters, tmp_path: Path) -> None:
    run_row(row, known, tmp_path, DIFFERENT)
