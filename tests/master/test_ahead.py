"""What a step begins with may come with the answer to the one before, and is used if it is what the step would read."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.master import ahead
from penstock.master.ahead import Ahead, Brought

BROUGHT = {"ps": Brought(1, [0], ["weights"])}


@pytest.fixture(autouse=True)
def long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "SOON", 600.0)


def test_the_next_step_gets_what_was_brought_once() -> None:
    kept = Ahead()
    assert kept.take() is None
    kept.keep(BROUGHT)
    assert kept.take() is BROUGHT
    assert kept.take() is None


def test_a_step_that_follows_at_once_asks_though_nothing_was_brought() -> None:
    kept = Ahead()
    kept.keep({})
    assert kept.take() == {}


@pytest.mark.parametrize("other", [Ahead.take, lambda another: another.keep({})], ids=["begins", "ends"])
def test_another_step_comes_between(other: Any) -> None:
    kept = Ahead()
    kept.keep(BROUGHT)
    other(Ahead())
    assert kept.take() is None


def test_a_step_that_ran_meanwhile_has_ended() -> None:
    """Its updates are not in what the other step has brought, though it began earlier."""
    kept, another = Ahead(), Ahead()
    another.take()
    kept.take()
    kept.keep(BROUGHT)
    another.keep({})
    assert kept.take() is None


def test_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Ahead()
    kept.keep(BROUGHT)
    monkeypatch.setattr(ahead, "SOON", -1.0)
    assert kept.take() is None
