"""Golden programs: autograph."""

from pathlib import Path
from typing import Any

import pytest
from v2_golden import cases, check


@pytest.mark.parametrize("case", cases("v2/autograph"), ids=lambda case: case["id"])
def test_program(case: dict[str, Any], tmp_path: Path) -> None:
    check(case, tmp_path)
