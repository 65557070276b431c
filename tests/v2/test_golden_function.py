"""Golden programs: function."""

from pathlib import Path
from typing import Any

import pytest
from v2_golden import cases, check

# Programs that give something else here, and the reason.
DIFFERENT = {
    "cond_in_function": "branches of different structure fail an assertion of TensorFlow's own; here ValueError"
}


# One program leaves a file open, as in TensorFlow.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", cases("v2/function"), ids=lambda case: case["id"])
def test_program(case: dict[str, Any], tmp_path: Path) -> None:
    if case["id"] in DIFFERENT:
        pytest.skip(DIFFERENT[case["id"]])
    check(case, tmp_path)
