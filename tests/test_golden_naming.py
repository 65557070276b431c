"""The names of all nodes and variables that programs make are TensorFlow's."""

from __future__ import annotations

from typing import Any

import pytest
from golden_programs import check, load, parameters, run_program

import penstock.v1 as tf

# TensorFlow lowers cond and while_loop to Switch and Merge nodes; here each is one node, called `cond` or `while`.
CONTROL_FLOW = ("control_flow_names", "assign_names")


@pytest.mark.parametrize("row", [p for p in parameters("graphdef/naming.json", {}) if p.id not in CONTROL_FLOW])
def test_names(row: dict[str, Any]) -> None:
    check(row, tf)


@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_names_outside_control_flow(name: str) -> None:
    row = next(row for row in load("graphdef/naming.json")["cases"] if row["id"] == name)
    actual, expected = run_program(row, tf), row["result"]
    inside = ("cond", "while")
    assert actual["vars"] == expected["vars"]
    assert {n.split("/")[0] for n in actual["ops"]} == {n.split("/")[0] for n in expected["ops"]}
    assert [n for n in actual["ops"] if not n.startswith(inside)] == [
        n for n in expected["ops"] if not n.startswith(inside)
    ]
