"""Threads for steps that block or take long."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from penstock import logging

Act = Callable[[], None]


class Threads:
    """Runs each function at once, in a thread that is free or in a new one; the others wait if there are `most`.

    Steps wait for each other, so that none may wait for a thread while there could be one more. A ThreadPoolExecutor
    lets one wait: from Python 3.12 on it counts a thread as free twice if a function comes just when the thread has
    found that there is nothing to do.

    >>> Threads("penstock-step", 1024).run(step)
    """

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._lock = threading.Lock()
        self._count = 0
        self._free: list[SimpleQueue[Act | None]] = []  # one for each free thread
        self._waiting: deque[Act] = deque()
        self._is_closed = False

    def run(self, act: Act) -> None:
        """Runs a function in a thread. Raises RuntimeError after `close`."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"{self._name} has been closed.")
            if self._free:
                self._free.pop().put(act)
                return
            if self._count == self._most:
                self._waiting.append(act)
                return
            self._count += 1
            name = f"{self._name}_{self._count}"
        threading.Thread(target=self._work, args=(act,), name=name, daemon=True).start()

    def close(self) -> None:
        """Lets free threads end, and the others when their functions do. Functions that wait are not run."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            free, self._free = self._free, []
        for each in free:
            each.put(None)

    def _work(self, first: Act) -> None:
        mine: SimpleQueue[Act | None] = SimpleQueue()
        act: Act | None = first
        del first  # what it holds is free once it has run
        while act is not None:
            try:
                act()
            except BaseException as error:  # nobody waits for its result
                logging.error("penstock: a function of %s failed", self._name, exc_info=error)
            act = None
            with self._lock:
                if self._waiting:
                    act = self._waiting.popleft()
                    continue
                if self._is_closed:
                    return
                self._free.append(mine)
            act = mine.get()
