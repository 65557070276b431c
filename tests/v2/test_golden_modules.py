"""Golden programs: modules, checkpoints, SavedModels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from v2_golden import cases, check

from penstock.compat import alias


@pytest.fixture(autouse=True)
def _alias() -> Iterator[None]:
    """Some programs import messages from tensorflow."""
    alias.install()
    yield
    alias.uninstall()


# A program opens a file and leaves it to Python to close it.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", cases("v2/modules"), ids=lambda case: case["id"])
def test_program(case: dict[str, Any], tmp_path: Path) -> None:
    check(case, tmp_path)
