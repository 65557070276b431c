"""A thread that resumes several steps runs them one after the other, from its run queue."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class RunQueue(threading.local):
    """Holds the steps that this thread has to run. A step never begins inside another one."""

    pending: deque[Callable[[], None]] | None = None  # None while the thread runs no step

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
            while pending:
                pending.popleft()()
        finally:
            if pending:  # one has failed, and the others must still run
                self._run_all(pending)


run_queue = RunQueue()
