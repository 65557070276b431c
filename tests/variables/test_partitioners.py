"""Partitioners return the same pieces as TensorFlow's."""

from __future__ import annotations

import pytest
from golden_programs import load

from penstock.distribute import partitioners as distributed
from penstock.graph.shape import TensorShape
from penstock.variables import partitioners


def _group(row: dict) -> str:
    return row["partitioner"].rpartition(".")[2]


_ROWS = load("semantics/partitioners.json")["cases"]


@pytest.mark.parametrize("name", sorted({_group(row) for row in _ROWS}))
def test_partitioners(name: str) -> None:
    rows = [row for row in _ROWS if _group(row) == name]
    for row in rows:

        def partitions(row: dict = row) -> list[int]:
            make = getattr(distributed if row["partitioner"].startswith("tf2.distribute.") else partitioners, name)
            return make(**row["kwargs"])(shape=TensorShape(row["shape"]), dtype=row["dtype"])

        if "raises" in row:
            with pytest.raises(Exception) as error:
                partitions()
            assert type(error.value).__name__ == row["raises"]["exception"], row
        else:
            assert partitions() == row["partitions"], row
