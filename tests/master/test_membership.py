"""The membership record, and its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import DataLossError
from penstock.graph.device import task_name
from penstock.master.cluster import ClusterSpec
from penstock.master.membership import FIRST, Membership, load

HOME = ("/job:ps/replica:0/task:1", "", "w")
RECORD = Membership(
    3, {"ps": {0: "a:1"}, "worker": {0: "b:1", 1: "b:2", 2: "b:3"}}, {HOME: FIRST}, frozenset([HOME[0]])
)


def test_it_survives_as_text() -> None:
    assert Membership.from_json(RECORD.to_json()) == RECORD


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1, "tasks": {"ps": 3}, "homes": []}', "nonsense"])
def test_a_damaged_record_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(DataLossError, match="record in here cannot be read"):
        Membership.from_json(text, "here")


def test_it_is_found_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().version == 0
    monkeypatch.setenv("PENSTOCK_MEMBERSHIP", str(tmp_path / "record"))
    assert load().version == 0
    (tmp_path / "record").write_text(RECORD.to_json())
    assert load() == RECORD


def test_who_is_there() -> None:
    told = ClusterSpec({"ps": ["a:1", "a:2"], "worker": ["b:1", "b:2"]})
    assert RECORD.added_workers(told) == 1
    assert RECORD.has_left(task_name("ps", 1)) and not RECORD.has_left(FIRST)
    assert not RECORD.has_left(task_name("evaluator", 0))
    homes = RECORD.places
    assert homes.find(task_name("ps", 1), ("", "w")) == homes.find(task_name("ps", 1), ("", "new")) == FIRST
    assert homes.wish_for("/job:ps/task:1/device:CPU:0") == "/job:ps/task:0/device:CPU:0"
