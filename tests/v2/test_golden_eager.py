"""Golden programs: eager."""

from pathlib import Path
from typing import Any

import pytest
from v2_golden import cases, check, skip_beside_a_gpu

DIFFERENT = {
    "eager_tensor_graph_only_attributes": "to the engine a tensor with a value is the output of a Const of its graph",
    "error_attributes": "the classes of errors are penstock's",
    "numpy_memory_is_not_shared_on_write": "before Python 3.12 no class written in Python has a buffer for memoryview",
}


@pytest.mark.parametrize("case", cases("v2/eager"), ids=lambda case: case["id"])
def test_program(case: dict[str, Any], tmp_path: Path) -> None:
    skip_beside_a_gpu(case["id"], frozenset(("config_queries", "tensor_attributes", "variable_attributes")))
    if case["id"] in DIFFERENT:
        pytest.skip(DIFFERENT[case["id"]])
    check(case, tmp_path)
