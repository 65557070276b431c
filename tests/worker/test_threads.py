"""Threads: no function waits for a thread while there could be one more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from penstock.worker.threads import Threads

DEADLINE = 60.0
NAME = "penstock-test-threads"


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(NAME, 20)
    yield made
    made.close()
    for thread in threading.enumerate():
        if thread.name.startswith(NAME):
            thread.join(DEADLINE)
            assert not thread.is_alive()


class Meeting:
    """Functions that end when all are there."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count)
        self.over = threading.Semaphore(0)

    def __call__(self) -> None:
        self._barrier.wait(DEADLINE)
        self.over.release()

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self.over.acquire(timeout=DEADLINE)


def test_functions_that_wait_for_each_other_all_run(threads: Threads) -> None:
    for round_ in range(50):
        short = threading.Semaphore(0)
        for _ in range(round_ % 4):  # so that threads become free just now
            threads.run(lambda: short.release())  # noqa: B023
        meeting = Meeting(20)
        for _ in range(20):
            threads.run(meeting)
        meeting.wait(20)


def test_free_threads_are_used_again(threads: Threads) -> None:
    seen: set[int | None] = set()
    for _ in range(5):
        done = threading.Event()
        threads.run(lambda: (seen.add(threading.current_thread().ident), done.set())[1])  # type: ignore[func-returns-value]  # noqa: B023
        assert done.wait(DEADLINE)
        end = time.monotonic() + DEADLINE
        while not threads._free and time.monotonic() < end:
            time.sleep(0.001)
    assert len(seen) == 1


def test_more_than_there_may_be_wait_for_one_to_end() -> None:
    few = Threads(NAME, 2)
    go, over = threading.Event(), threading.Semaphore(0)
    for _ in range(5):
        few.run(lambda: (go.wait(DEADLINE), over.release())[1])
    assert not over.acquire(timeout=0.05)
    go.set()
    for _ in range(5):
        assert over.acquire(timeout=DEADLINE)
    few.close()


def test_after_an_error_the_thread_goes_on(threads: Threads, caplog: pytest.LogCaptureFixture) -> None:
    threads.run(lambda: 1 // 0)  # type: ignore[arg-type]
    meeting = Meeting(20)
    for _ in range(20):
        threads.run(meeting)
    meeting.wait(20)
    assert "ZeroDivisionError" in caplog.text


def test_nothing_runs_after_the_end(threads: Threads) -> None:
    threads.close()
    with pytest.raises(RuntimeError, match=f"{NAME} has been closed"):
        threads.run(lambda: None)
