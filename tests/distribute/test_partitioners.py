"""The partitioners of `tf.distribute` return the same pieces and raise the same errors as TensorFlow's."""

from __future__ import annotations

from typing import Any

import pytest
from distribute.names import tf
from golden_programs import load

from penstock.graph.shape import TensorShape

partitioners = tf.distribute.experimental.partitioners
ROWS = load("distribute/partitioners.json")["cases"]


def _axis(row: dict[str, Any]) -> dict[str, int]:
    return {} if row["axis"] is None else {"axis": row["axis"]}


def _name(row: dict[str, Any]) -> str:
    return f"{row['partitioner']}-{row['kwargs']}-{row['shape']}-{row['dtype']}-{row['axis']}"


@pytest.mark.parametrize("row", [row for row in ROWS if "partitions" in row], ids=_name)
def test_pieces(row: dict[str, Any]) -> None:
    make = getattr(partitioners, row["partitioner"])(**row["kwargs"])
    assert make(TensorShape(row["shape"]), row["dtype"], **_axis(row)) == row["partitions"]


@pytest.mark.parametrize("row", [row for row in ROWS if "raises" in row], ids=_name)
def test_errors(row: dict[str, Any]) -> None:
    kind, expected = getattr(partitioners, row["partitioner"]), row["raises"]
    make = None if expected["where"] == "constructor" else kind(**row["kwargs"])
    with pytest.raises(Exception) as caught:
        if make is None:
            kind(**row["kwargs"])
        else:
            make(TensorShape(row["shape"]), row["dtype"], **_axis(row))
    assert type(caught.value).__name__ == expected["exception"]
    if make is not None:
        # TensorFlow's messages are those of the Python expression that failed. These say which shape was received.
        assert str(TensorShape(row["shape"])) in str(caught.value)


def test_a_partitioner_of_the_program() -> None:
    class Halves(partitioners.Partitioner):
        def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
            return [2 if i == axis else 1 for i in range(len(shape))]

    assert Halves()(TensorShape([4, 4]), "float32", axis=1) == [1, 2]
    assert isinstance(partitioners.FixedShardsPartitioner(2), partitioners.Partitioner)
    with pytest.raises(NotImplementedError, match="Partitioner must define __call__"):
        partitioners.Partitioner()(TensorShape([4, 4]), "float32")


def test_unknown_sizes_off_the_axis_do_not_matter_to_a_fixed_number() -> None:
    assert partitioners.FixedShardsPartitioner(3)(TensorShape([4, None]), "float32") == [3, 1]
