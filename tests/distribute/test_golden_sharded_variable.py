"""Golden programs: sharded variables, and where a ParameterServerStrategy puts variables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distribute.golden import Clusters, clusters, rows, run_row

# Programs that give something else here, and the reason.
DIFFERENT = {
    "assign/wrong_shape": "TensorFlow writes some shards and then fails, or cuts the value in silence; here ValueError",
    "assign/wrong_inner_shape": "TensorFlow cuts the value in silence; here ValueError",
    "slice/ellipsis_newaxis": "v[tf.newaxis, 1:3] slices each shard in TensorFlow, here the whole variable",
    "gather/sparse_read": "TensorFlow gives rows in the order of the shards, here they are in that of the indices",
    "read/identity": "TensorFlow raises TypeError, here it is the whole tensor",
}


@pytest.fixture(scope="module")
def known() -> Iterator[Clusters]:
    with clusters() as found:
        yield found


@pytest.mark.parametrize("row", rows("distribute/sharded_variable"))
def test_program(row: dict[str, Any], known: Clusters, tmp_path: Path) -> None:
    run_row(row, known, tmp_path, DIFFERENT)
