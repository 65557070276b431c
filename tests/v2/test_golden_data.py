"""Golden programs: data."""

from pathlib import Path
from typing import Any

import pytest
from v2_golden import cases, check


# A program leaves files open, which is nothing to complain about here.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", cases("v2/data"), ids=lambda case: case["id"])
def test_program(case: dict[str, Any], tmp_path: Path) -> None:
    check(case, tmp_path)
