"""A closure that runs again writes what it has not written, once."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import AbortedError
from penstock.worker.commits import IDLE_SECS, ClosureId, Commits


class Write:
    """A writing instruction that notes what it does."""

    def __init__(self, log: list[str], name: str, fails: bool = False) -> None:
        self.log, self.name, self.fails = log, name, fails

    def __call__(self, values: list[Any], step: Any) -> None:
        if self.fails:
            raise ValueError(self.name)
        self.log.append(f"write {self.name}")

    def without_writes(self, values: list[Any], step: Any) -> None:
        self.log.append(f"read {self.name}")


def test_a_second_run_only_reads() -> None:
    log: list[str] = []
    commits = Commits()
    for _ in range(2):
        commit = commits.open(ClosureId(1, 1, 1))
        for name in "ab":
            commit.run(Write(log, name), [], None)
    assert log == ["write a", "write b", "read a", "read b"]


def test_a_second_run_goes_on_where_the_first_ended() -> None:
    log: list[str] = []
    commits = Commits()
    commits.open(ClosureId(1, 1, 1)).run(Write(log, "a"), [], None)
    commit = commits.open(ClosureId(1, 1, 1))
    for name in "ab":
        commit.run(Write(log, name), [], None)
    assert log == ["write a", "read a", "write b"]


def test_a_write_that_fails_is_made_again() -> None:
    log: list[str] = []
    commits = Commits()
    with pytest.raises(ValueError, match="a"):
        commits.open(ClosureId(1, 1, 1)).run(Write(log, "a", fails=True), [], None)
    commits.open(ClosureId(1, 1, 1)).run(Write(log, "a"), [], None)
    assert log == ["write a"]


def test_a_run_that_was_overtaken_writes_nothing() -> None:
    log: list[str] = []
    commits = Commits()
    old = commits.open(ClosureId(1, 1, 1))
    commits.open(ClosureId(1, 1, 1))
    with pytest.raises(AbortedError, match="Another worker"):
        old.run(Write(log, "a"), [], None)
    assert log == []


def test_closures_that_have_ended_are_forgotten() -> None:
    log: list[str] = []
    commits = Commits()
    commits.open(ClosureId(1, 1, 1)).run(Write(log, "a"), [], None)
    commits.open(ClosureId(1, 2, 2))
    assert list(commits._writers[1].closures) == [2]


def test_a_run_that_comes_after_its_closure_has_ended_writes_nothing() -> None:
    commits = Commits()
    commits.open(ClosureId(1, 5, 5))
    commits.open(ClosureId(1, 6, 6))
    with pytest.raises(AbortedError, match="Another worker has run"):
        commits.open(ClosureId(1, 5, 5))
    commits.open(ClosureId(2, 5, 5))  # that of another coordinator


def test_coordinators_that_have_gone_are_forgotten() -> None:
    now = 0.0
    commits = Commits(lambda: now)
    for writer in range(1, 100):
        commits.open(ClosureId(writer, 1, 1))
        now += IDLE_SECS / 4
    assert list(commits._writers) == [96, 97, 98, 99]


def test_a_coordinator_that_is_connected_is_remembered() -> None:
    now = 0.0
    log: list[str] = []
    commits = Commits(lambda: now)
    connected = {1}
    commits.is_connected = connected.__contains__
    commits.open(ClosureId(1, 7, 7)).run(Write(log, "a"), [], None)
    for _ in range(3):
        now += 2 * IDLE_SECS
        commits.open(ClosureId(2, 1, 1))
    commits.open(ClosureId(1, 7, 7)).run(Write(log, "a"), [], None)
    assert log == ["write a", "read a"]
    connected.clear()
    now += 2 * IDLE_SECS
    commits.open(ClosureId(2, 1, 1))
    commits.open(ClosureId(2, 2, 2))
    assert list(commits._writers) == [2]
