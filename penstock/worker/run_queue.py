"""A run queue holds the steps that a thread has at hand, in the order in which they run."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from penstock import logging
from penstock.segments.running import Company


class Member(Protocol):
    """A step that waits for others before an instruction."""

    values: list[Any]

    def go_on_after(self, seconds: float) -> None:
        """Goes on after the instruction, which was run for several steps, of which this one's part took so long."""

    def go_on_alone(self) -> None:
        """Goes on at the instruction, and runs it for itself."""


class RunQueue(threading.local):
    """Holds the steps that this thread has to run, one after the other. None begins inside another one.

    Some meet before an instruction that can be run for all of them. It is, when no other step could join them.

    >>> run_queue.collect(read_all_messages)  # the steps that these start run afterwards
    """

    pending: deque[Callable[[], None]] | None = None  # None while the thread runs no step

    def __init__(self) -> None:
        self._meetings: dict[Company, list[Member]] = {}

    def has_company(self) -> bool:
        """Tells if the step that runs now may meet others."""
        return bool(self.pending or self._meetings)

    def meet(self, company: Company, member: Member) -> None:
        """Has a step wait for others that are about to run the same."""
        self._meetings.setdefault(company, []).append(member)

    def collect(self, act: Callable[[], None]) -> None:
        """Runs `act` at once, and then what it put into the queue."""
        if self.pending is None:
            self.run(act)
        else:
            act()

    def run(self, act: Callable[[], None]) -> None:
        """Runs `act`, then all that it put into the queue. Inside another `run` it only puts `act` into the queue."""
        if self.pending is not None:
            self.pending.append(act)
            return
        self.pending = deque((act,))
        try:
            self._run_all(self.pending)
        finally:
            self.pending = None

    def _run_all(self, pending: deque[Callable[[], None]]) -> None:
        try:
            while pending or self._meetings:
                if pending:
                    pending.popleft()()
                else:
                    _run_together(*self._meetings.popitem())
        finally:
            if pending or self._meetings:  # one has failed, and the others must still run
                self._run_all(pending)


run_queue = RunQueue()


def _run_together(company: Company, members: list[Member]) -> None:
    """Runs the instruction before which these steps have met, and has them go on."""
    try:
        while members:
            began = time.perf_counter()
            count = company.run([member.values for member in members])
            if not count:
                break
            for member in members[:count]:
                member.go_on_after((time.perf_counter() - began) / count)
            members = members[count:]
    except Exception as error:  # nothing has changed for those that are left, and each meets its own error
        logging.debug("%d steps do not run together: %s", len(members), error)
    finally:
        for member in members:
            member.go_on_alone()
