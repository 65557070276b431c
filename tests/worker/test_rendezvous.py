"""Rendezvous: a waiting step is woken once, in any order of the wait, the tensors and the end of the step."""

from __future__ import annotations

import pytest

from penstock.errors import CancelledError
from penstock.worker.cancellation import Cancellation
from penstock.worker.rendezvous import Rendezvous
from penstock.worker.step import Step


class _Woken:
    times = 0

    def __call__(self) -> None:
        self.times += 1


@pytest.fixture
def woken() -> _Woken:
    return _Woken()


@pytest.fixture
def rendezvous() -> Rendezvous:
    return Rendezvous()


def test_tensors_that_are_there(rendezvous: Rendezvous, woken: _Woken) -> None:
    rendezvous.put([1, 2], ["a", "b"])
    assert rendezvous.ready([2, 1], woken)
    assert rendezvous.take([2, 1]) == ["b", "a"]
    assert not rendezvous.ready([1], woken), "each is taken once"
    assert woken.times == 0


def test_the_last_tensor_wakes(rendezvous: Rendezvous, woken: _Woken) -> None:
    assert not rendezvous.ready([1, 2], woken)
    rendezvous.put([1], ["a"])
    assert (woken.times, rendezvous.missing([1, 2])) == (0, [2])
    rendezvous.put([2], ["b"])
    rendezvous.put([3], ["c"])
    assert woken.times == 1


@pytest.mark.parametrize("suspended", [False, True])
def test_the_end_of_the_step_wakes(rendezvous: Rendezvous, woken: _Woken, suspended: bool) -> None:
    rendezvous.on_cancel(woken) if suspended else rendezvous.ready([1], woken)
    rendezvous.cancel()
    rendezvous.cancel()
    assert woken.times == 1


@pytest.mark.parametrize("suspended", [False, True])
def test_who_comes_after_the_end_of_the_step_is_woken_at_once(
    rendezvous: Rendezvous, woken: _Woken, suspended: bool
) -> None:
    rendezvous.cancel()
    rendezvous.on_cancel(woken) if suspended else rendezvous.ready([1], woken)
    assert woken.times == 1


def test_nothing_is_taken_unless_all_is_there(rendezvous: Rendezvous) -> None:
    rendezvous.put([1], ["a"])
    assert rendezvous.take([1, 2]) is None
    rendezvous.put([2], ["b"])
    assert rendezvous.take([1, 2]) == ["a", "b"]
    assert rendezvous.take([1]) is None


class _Recv:
    name, keys, tensors = "recv", [1], {1: "w:0"}


@pytest.mark.timeout(60)
def test_a_step_that_is_cancelled_just_before_it_waits() -> None:
    """It was not cancelled when it looked, and is by the time it has begun to wait."""
    step = Step(Cancellation())
    step.rendezvous = Rendezvous()
    step.cancelled.on_cancel(step.rendezvous.cancel)
    step.check("recv")
    step.cancelled.set()
    with pytest.raises(CancelledError, match="recv"):
        step.wait_for(_Recv(), _Recv.keys)  # type: ignore[arg-type]
