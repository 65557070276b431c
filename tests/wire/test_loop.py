"""The channels of a process are read by the loop's thread, or by the thread that usually waits."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from leaks import leak_check

from penstock.wire import loop as loop_module
from penstock.wire.loop import _LEAD_TO_READ, Loop, Signal

DEADLINE = 60.0


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with leak_check():
        yield


class Reader:
    """One end of a connection: each byte that comes sets a signal, in the thread that reads."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.end, self.other = socket.socketpair()
        self.asked: list[Signal] = []
        self.threads: list[int] = []
        loop.add(self)

    def fileno(self) -> int:
        return self.end.fileno()

    def read(self) -> None:
        for _ in self.end.recv(100, socket.MSG_DONTWAIT):
            self.threads.append(threading.get_ident())
            self.asked.pop(0).set()

    def ask(self) -> Signal:
        self.asked.append(Signal())
        return self.asked[-1]

    def answer(self) -> None:
        self.other.send(b"x")

    def close(self) -> None:
        self.loop.remove(self)
        self.end.close()
        self.other.close()


@pytest.fixture
def reader() -> Iterator[Reader]:
    made = Reader(Loop())
    yield made
    made.close()


def wait_often(reader: Reader, times: int) -> list[bool]:
    """Waits repeatedly. Returns for each answer True if this thread read it."""
    del reader.threads[:]
    for _ in range(times):
        signal = reader.ask()
        reader.answer()
        assert reader.loop.wait(signal, DEADLINE)
    return [thread == threading.get_ident() for thread in reader.threads]


def until(check: Callable[[], bool]) -> None:
    """Waits until `check()`: who reads depends on which thread runs when."""
    end = time.monotonic() + DEADLINE
    while not check():
        assert time.monotonic() < end
        time.sleep(0.001)


def until_the_loop_reads(loop: Loop) -> None:
    """Waits until the loop's own thread reads, as it does when nobody else does."""
    until(lambda: loop._thread is not None and loop._reading_thread == loop._thread.ident)


def test_who_usually_waits_reads(reader: Reader) -> None:
    for _ in range(_LEAD_TO_READ - 1):
        until_the_loop_reads(reader.loop)
        assert wait_often(reader, 1) == [False]
    until(lambda: any(wait_often(reader, 200)))
    # While it does not wait, the loop's thread reads.
    signal = reader.ask()
    reader.answer()
    assert signal.wait(DEADLINE)
    assert reader.threads[-1] != threading.get_ident()


def test_who_usually_waits_reads_though_another_waits_for_long(reader: Reader) -> None:
    slow = Reader(reader.loop)
    late = slow.ask()
    waiting = threading.Thread(target=reader.loop.wait, args=(late, DEADLINE))
    waiting.start()
    until(lambda: sum(wait_often(reader, 200)) > 100)
    slow.answer()
    waiting.join(DEADLINE)
    assert late.is_set and not waiting.is_alive()
    slow.close()


def test_nobody_reads_for_long_who_waits_no_more_than_others(reader: Reader) -> None:
    second = Reader(reader.loop)
    ready, gone = threading.Barrier(2), threading.Barrier(2)
    read: list[list[bool]] = []

    def take_turns(mine: Reader) -> None:
        for _ in range(50):
            ready.wait(DEADLINE)
            signal = mine.ask()
            mine.answer()
            assert mine.loop.wait(signal, DEADLINE)
            gone.wait(DEADLINE)
        read.append([thread == threading.get_ident() for thread in mine.threads])

    other = threading.Thread(target=take_turns, args=(second,))
    other.start()
    take_turns(reader)
    other.join(DEADLINE)
    assert all(len(each) == 50 for each in read)  # every answer came, read by either thread
    second.close()


def test_a_wait_for_two_answers_while_the_thread_of_the_loop_reads(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_often(reader, 50)
    loop = reader.loop
    until_the_loop_reads(loop)
    monkeypatch.setattr("penstock.wire.loop.IDLE_SECS", 2 * DEADLINE)
    first, second = reader.ask(), reader.ask()
    timers = [threading.Timer(seconds, reader.answer) for seconds in (0.05, 0.1)]
    for timer in timers:
        timer.start()
    assert loop.wait(second, DEADLINE) and first.is_set
    for timer in timers:
        timer.join(DEADLINE)


def test_who_waits_seldom_need_not_wait_for_who_reads_usually(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_often(reader, 50)
    monkeypatch.setattr("penstock.wire.loop.IDLE_SECS", 2 * DEADLINE)
    wait_often(reader, 1)
    found: list[bool] = []
    other = threading.Thread(target=lambda: found.extend(wait_often(reader, 2)))
    other.start()
    other.join(DEADLINE)
    assert len(found) == 2


def test_a_signal_of_another_thread_wakes_who_reads(reader: Reader) -> None:
    wait_often(reader, 50)
    for _ in range(20):
        signal = Signal()
        timer = threading.Timer(0.002, signal.set)
        timer.start()
        assert reader.loop.wait(signal, DEADLINE)
        timer.join(DEADLINE)


def test_a_wait_ends_with_its_time(reader: Reader) -> None:
    wait_often(reader, 50)
    for timeout in (0.0, 0.03, -1.0):
        began = time.monotonic()
        assert not reader.loop.wait(Signal(), timeout)
        assert time.monotonic() - began >= timeout
    signal = Signal()
    signal.set()
    signal.set()
    assert reader.loop.wait(signal, 0.0)


def test_all_that_is_added_is_read(reader: Reader) -> None:
    wait_often(reader, 20)
    others = [Reader(reader.loop) for _ in range(20)]
    for other in others:
        signal = other.ask()
        other.answer()
        assert reader.loop.wait(signal, DEADLINE)
    for other in others:
        other.close()
    wait_often(reader, 20)


def test_a_loop_that_has_nothing_to_read_ends_and_begins_anew() -> None:
    loop = Loop()
    for _ in range(3):
        first = Reader(loop)
        wait_often(first, 20)
        thread = loop._thread
        assert thread is not None
        first.close()
        thread.join(DEADLINE)
        assert not thread.is_alive()
        assert loop._thread is None
        assert not loop.wait(Signal(), 0.01)  # it waits even if there is nothing to read


def test_what_is_closed_while_somebody_reads(reader: Reader) -> None:
    """The reading thread continues with the other channels, and does not read a closed descriptor."""
    wait_often(reader, 20)
    signal = reader.ask()
    other = Reader(reader.loop)

    def close_and_answer() -> None:
        other.close()
        for descriptor in [os.dup(0) for _ in range(3)]:  # the same numbers now belong to other files
            os.close(descriptor)
        reader.answer()

    timer = threading.Timer(0.01, close_and_answer)
    timer.start()
    assert reader.loop.wait(signal, DEADLINE)
    timer.join(DEADLINE)


def test_who_reads_stays_awake_while_messages_come_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "cores", lambda: 2)
    monkeypatch.setenv("PENSTOCK_AWAKE_SECS", "5")
    reader = Reader(Loop())
    until(lambda: all(wait_often(reader, 20)) and reader.loop.awake > 0)
    # Nothing comes for longer than it stays awake: so it sleeps then, and begins the next wait asleep.
    reader.loop._awake_secs = 0.001
    assert not reader.loop.wait(reader.ask(), 0.1)
    assert not reader.loop._is_brisk
    reader.close()


@pytest.mark.parametrize(("secs", "of_cores"), [("0", 2), ("5", 1)])
def test_nobody_stays_awake_who_should_not(secs: str, of_cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "cores", lambda: of_cores)
    monkeypatch.setenv("PENSTOCK_AWAKE_SECS", secs)
    reader = Reader(Loop())
    until(lambda: all(wait_often(reader, 20)))
    assert reader.loop.awake == 0.0
    reader.close()


def test_a_core_that_others_want_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "cores", lambda: 2)
    monkeypatch.setattr(loop_module, "_CROWDED_SECS", 0.0)  # as if it got its core back late, each time
    monkeypatch.setenv("PENSTOCK_AWAKE_SECS", "50")
    reader = Reader(Loop())
    until(lambda: all(wait_often(reader, 20)))
    signal = reader.ask()
    threading.Timer(0.2, reader.answer).start()
    awake = reader.loop.awake
    assert reader.loop.wait(signal, DEADLINE)
    assert reader.loop.awake - awake < 0.1  # it has slept meanwhile
    reader.close()
