"""Turns: how a thread that brings tensors runs the steps that they let go on, one after the other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Turns(threading.local):
    """What a thread that runs steps for others does next. A step whose turn has come does not begin within another."""

    waiting: deque[Callable[[], None]] | None = None  # None: the thread runs none

    def take(self, act: Callable[[], None]) -> None:
        """Does `act` and all that it gives cause to; if this thread is at that already, `act` comes after the rest."""
        if self.waiting is not None:
            self.waiting.append(act)
            return
        self.waiting = deque((act,))
        try:
            self._take_all(self.waiting)
        finally:
            self.waiting = None

    def _take_all(self, waiting: deque[Callable[[], None]]) -> None:
        try:
            while waiting:
                waiting.popleft()()
        finally:
            if waiting:  # one of them failed as none should: that is not the others' fault
                self._take_all(waiting)


turns = Turns()
