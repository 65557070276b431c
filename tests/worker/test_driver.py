"""A driver runs each instruction of a step once and answers once, whatever wakes it, in any order and thread."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CancelledError, InternalError, OpError
from penstock.kernel.waiting import Suspended, Waitable
from penstock.segments.running import Company
from penstock.wire.messages import RunGraph
from penstock.worker.devices import local_devices
from penstock.worker.driver import Driver, Registered
from penstock.worker.executor import Executable
from penstock.worker.needs import Need, Other, Tensors
from penstock.worker.rendezvous import Rendezvous
from penstock.worker.run_queue import RunQueue, run_queue
from penstock.worker.step import Step
from penstock.worker.worker import Worker

DEADLINE = 30.0
STEP = 7


class Gate(Waitable):
    """A resource that lets a step pass once it is open."""

    is_open = False

    def open(self) -> None:
        with self._held():
            self.is_open = True
            self._notify()

    def pass_through(self, step: Step) -> None:
        with self._held():
            self._wait(lambda: self.is_open, step, again=lambda: self.is_open)


class Meeting(Company):
    """Runs an instruction for as many of the steps that have met as it likes, or for none."""

    def __init__(self, name: str, dice: random.Random) -> None:
        self.name = name
        self.dice = dice
        self.ran = 0

    def run(self, every: Sequence[list[Any]]) -> int:
        if self.dice.random() < 0.1:
            raise InternalError("this cannot be run for several steps")
        count = self.dice.randint(0, len(every))
        for values in every[:count]:
            values.append(self.name)
        self.ran += count
        return count


class Instruction:
    """Notes that it has run, after it has had what it needs."""

    blocks = writes = False
    out_slots = ()
    company: Company

    def __init__(self, kind: str, key: int) -> None:
        self.kind = kind
        self.key = key
        self.name = f"{kind} {key}"
        self.gate = Gate(self.name)

    def __call__(self, values: list[Any], step: Step) -> Need | None:
        if self.kind == "receive":
            if step.wake is None:
                step.wait_for(self, [self.key])  # type: ignore[arg-type]
            if step.rendezvous.take([self.key]) is None:
                return Tensors([self.key])
        elif self.kind == "pass":
            try:
                self.gate.pass_through(step)
            except Suspended:
                return Other.CHANGE
        elif self.kind == "compile" and step.wake is not None:
            return Other.THREAD
        elif self.kind == "meet" and step.has_company:
            return self.company
        values.append(self.name)
        return None

    @property
    def tensors(self) -> dict[int, str]:
        return {self.key: self.name}


class Script(Executable):
    """A partition of these instructions, whose only result is the list of those that have run."""

    overwrites_huge = False
    opening = None

    def __init__(self, kinds: list[str]) -> None:
        self.instructions = [Instruction(kind, key) for key, kind in enumerate(kinds)]
        self.ran: list[str] = []

    def begin(self, fed: Any) -> list[Any]:
        self.ran = []
        return self.ran

    def results(self, values: list[Any]) -> list[Any]:
        return list(values)


class Running:
    """A step of a script on a worker. What happens to it comes from outside: its own master is not here."""

    def __init__(self, kinds: list[str]) -> None:
        self.worker = Worker(local_devices("ps"))
        self.script = Script(kinds)
        self.step = self.worker.open_step(STEP)
        self.answers: list[tuple[list[Any] | None, OpError | None]] = []
        self.answered = threading.Event()
        request = RunGraph(STEP, 1, fed=0, keys=[], values=[])
        registered = Registered(self.script, "", False, cost=0.0)
        self.driver = Driver(self.worker, registered, request, self.step, self._on_done)

    def _on_done(self, results: list[Any] | None, error: OpError | None, step: Step) -> None:
        self.answers.append((results, error))
        self.answered.set()

    def events(self) -> list[Callable[[], None]]:
        """All that the step waits for."""
        found: list[Callable[[], None]] = [self.driver.start]
        for instruction in self.script.instructions:
            if instruction.kind == "receive":
                found.append(lambda key=instruction.key: self.worker.deliver(STEP, [key], [key]))  # type: ignore[misc]
            elif instruction.kind == "pass":
                found.append(instruction.gate.open)
        return found

    def names(self) -> list[str]:
        return [instruction.name for instruction in self.script.instructions]


@contextlib.contextmanager
def running(kinds: list[str]) -> Iterator[Running]:
    found = Running(kinds)
    try:
        yield found
    finally:
        found.worker.close()


KINDS = st.lists(st.sampled_from(["compute", "receive", "pass", "compile"]), min_size=1, max_size=6)


@given(KINDS, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_every_order_of_events_runs_each_instruction_once(kinds: list[str], dice: random.Random) -> None:
    with running(kinds) as found:
        events = found.events()
        events += [found.driver.wake for _ in range(dice.randrange(3))]  # for nothing
        dice.shuffle(events)
        for event in events:
            event()
        assert found.answered.wait(DEADLINE)
        found.driver.wake()
        assert found.answers == [(found.names(), None)]


@given(KINDS, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_a_step_that_is_cancelled_anywhere_answers_once(kinds: list[str], dice: random.Random) -> None:
    with running(kinds) as found:
        events = [*found.events(), lambda: found.worker.cancel(STEP), found.driver.wake]
        dice.shuffle(events)
        for event in events:
            event()
        assert found.answered.wait(DEADLINE)
        ((results, error),) = found.answers
        assert results == found.names() if error is None else isinstance(error, CancelledError)
        assert found.script.ran == found.names()[: len(found.script.ran)]


def _met(dice: random.Random, steps: int, kinds: list[str], is_cancelled: bool = False) -> int:
    """Runs steps of the same script in this thread, many at a time. Returns how many instructions ran for several."""
    with contextlib.ExitStack() as opened:
        every = [opened.enter_context(running(kinds)) for _ in range(steps)]
        meetings = [Meeting(name, dice) for name in every[0].names()]
        for found in every:
            for instruction, meeting in zip(found.script.instructions, meetings, strict=True):
                instruction.company = meeting
        events = [event for found in every for event in found.events()]
        if is_cancelled:
            events.append(lambda: every[0].worker.cancel(STEP))
        dice.shuffle(events)
        while events:
            together, events = events[: (count := dice.randint(1, 8))], events[count:]
            run_queue.collect(lambda together=together: [event() for event in together])  # type: ignore[misc]
        for found in every:
            assert found.answered.wait(DEADLINE)
            ((results, error),) = found.answers
            assert results == found.names() if error is None else is_cancelled and found is every[0]
            assert found.script.ran == found.names()[: len(found.script.ran)]
        return sum(meeting.ran for meeting in meetings)


@given(st.lists(st.sampled_from(["meet", "receive", "compile"]), min_size=1, max_size=4), st.booleans(), st.randoms())
@settings(max_examples=60)
def test_steps_that_meet_run_each_instruction_once(kinds: list[str], is_cancelled: bool, dice: random.Random) -> None:
    _met(dice, steps=dice.randint(2, 6), kinds=kinds, is_cancelled=is_cancelled)


def test_steps_at_hand_run_an_instruction_together() -> None:
    dice = random.Random(1)
    assert sum(_met(dice, steps=5, kinds=["meet", "compute", "meet"]) for _ in range(20)) > 40
    assert not any(_met(dice, steps=1, kinds=["meet", "compute", "meet"]) for _ in range(20))


def test_an_interrupt_of_a_joint_call_is_not_lost_and_neither_are_its_steps() -> None:
    class Interrupted(Company):
        def run(self, every: Sequence[list[Any]]) -> int:
            raise KeyboardInterrupt

    with running(["meet"]) as one, running(["meet"]) as other:
        company = Interrupted()
        for found in (one, other):
            found.script.instructions[0].company = company
        with pytest.raises(KeyboardInterrupt):
            run_queue.collect(lambda: [found.driver.start() for found in (one, other)])  # type: ignore[func-returns-value]
        assert [found.answers for found in (one, other)] == [[(["meet 0"], None)]] * 2


def test_a_step_that_has_ended_is_freed_without_the_garbage_collector() -> None:
    """What it refers to may be shared memory that the sender waits for."""

    def run() -> None:
        with running(["pass", "receive", "pass"]) as found:
            for event in found.events():
                event()
            assert found.answered.wait(DEADLINE)
            del found.driver, found.step  # the driver also refers to what asked for it

    def alive() -> int:
        return sum(isinstance(each, (Driver, Step)) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = alive()
        run()
        assert alive() == before
    finally:
        gc.enable()


def _slowly(function: Callable[..., Any], dice: random.Random) -> Callable[..., Any]:
    """The function, with pauses before and after it, so that other threads come in between."""

    def slow(*args: Any) -> Any:
        time.sleep(dice.choice((0, 0, 0.0003, 0.001)))
        result = function(*args)
        time.sleep(dice.choice((0, 0, 0.0003, 0.001)))
        return result

    return slow


@pytest.mark.parametrize("seed", range(40))
def test_events_from_many_threads(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses at the seams: where a thread looks for what has come, waits for it, brings it, and takes the step over."""
    dice = random.Random(seed)
    for owner, names in (
        (Driver, ("wake", "_go_on", "_was_woken", "_proceed")),
        (Rendezvous, ("put", "ready", "take", "on_cancel")),
        (RunQueue, ("run",)),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, _slowly(getattr(owner, name), dice))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(5):
            kinds = dice.choices(["receive", "pass", "compute", "compile"], [6, 4, 2, 1], k=6)
            with running(kinds) as found:
                is_cancelled = dice.random() < 0.3
                events = found.events() + ([lambda: found.worker.cancel(STEP)] if is_cancelled else [])
                pauses = [dice.random() * 0.006 for _ in events]  # so that some come while the step runs
                threads = [threading.Timer(pause, event) for pause, event in zip(pauses, events, strict=True)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(DEADLINE)
                    assert not thread.is_alive()
                assert found.answered.wait(DEADLINE), f"stuck after {found.script.ran} of {kinds}"
                ((results, error),) = found.answers
                assert results == found.names() if error is None else is_cancelled
    finally:
        sys.setswitchinterval(before)
