"""Golden programs: ParameterServerStrategy, its scope, its arguments, replicas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distribute.golden import Clusters, clusters, rows, run_row

# Programs that give something else here, and the reason.
DIFFERENT = {
    "basic/cluster_resolver_property": "TensorFlow forgets the resolver that it was given; here it is this property",
    "errors/coordinator_with_other_strategy": "TensorFlow misses a private attribute; here a ValueError says why",
    "replica_context/all_reduce": "TensorFlow refuses to reduce the value of one replica; here it is that value",
}


@pytest.fixture(scope="module")
def known() -> Iterator[Clusters]:
    with clusters() as found:
        yield found


@pytest.mark.parametrize("row", rows("distribute/strategy"))
def test_program(row: dict[str, Any], known: Clusters, tmp_path: Path) -> None:
    run_row(row, known, tmp_path, DIFFERENT)
