"""Waits of a coordinator: they have no deadline, since a training may take hours, and say what they wait for.

They end when the coordinator stops: it was closed, or one of its threads has failed by a defect.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from penstock import logging
from penstock.distribute.coordinator.closures import Closure
from penstock.distribute.coordinator.queue import ClosureQueue
from penstock.errors import InternalError, OpError

SAY_SECS = 60.0
_MANY = 8  # workers that a line names


class Waits:
    """Waits for changes of a coordinator's queue.

    >>> with changed:
    ...     Waits(changed, queue).until(lambda: queue.is_empty, "join")
    """

    def __init__(
        self, changed: threading.Condition, queue: ClosureQueue, others: Sequence[threading.Condition] = ()
    ) -> None:
        self._changed = changed
        self._others = others  # on which threads wait that end when the coordinator stops; of the same lock
        self._queue = queue
        self.answers = 0  # functions that have ended so far
        self._stopped: OpError | None = None  # the reason why no function will run any more

    @property
    def is_stopped(self) -> bool:
        """Tells if no function will run any more."""
        return self._stopped is not None

    def stop(self, why: OpError) -> None:
        """Ends all waits. All results that are not there fail."""
        with self._changed:
            self._stopped = self._stopped or why
            for closure in self._queue.clear():
                closure.result._fail(why)
            for condition in (self._changed, *self._others):
                condition.notify_all()

    def raise_if_stopped(self) -> None:
        """Raises the reason why no function will run any more, if there is one."""
        if self._stopped is not None:
            raise type(self._stopped)(self._stopped.message) from self._stopped

    def watched(self, act: Callable[..., None], *args: Any) -> None:
        """Runs a part of a thread. If it fails in a way that nobody has thought of, the program hears of it."""
        try:
            act(*args)
        except Exception as error:
            logging.error("penstock: the coordinator has failed", exc_info=error)
            why = f"The coordinator has failed in {threading.current_thread().name}: {type(error).__name__}: {error}"
            self.stop(InternalError(f"{why}. No function will run any more. This is a defect of penstock."))

    def begin(self, name: str, act: Callable[..., None], *args: Any) -> None:
        """Runs a part in a thread of its own. The calling one may hold the lock of a connection, or must not wait."""
        threading.Thread(target=self.watched, args=(act, *args), name=f"penstock-coordinator-{name}").start()

    def until(self, ready: Callable[[], bool], what: str, every_second: Callable[[], None] | None = None) -> None:
        """Waits until `ready()` or stopped, with the lock held. Calls `every_second()` meanwhile, without the lock.

        After SAY_SECS, and again after as long, it logs what it waits for: as a warning if no function has ended since.
        """
        answers, said = self.answers, time.monotonic()
        while True:
            if every_second is not None:
                self._changed.release()
                try:
                    every_second()
                finally:
                    self._changed.acquire()
            if self._changed.wait_for(
                lambda: self.is_stopped or ready(), SAY_SECS if every_second is None else min(1.0, SAY_SECS)
            ):
                return
            if time.monotonic() - said >= SAY_SECS:
                say = logging.warning if self.answers == answers else logging.info
                say("%s waits: %s.", what, state_of(self._queue, time.monotonic()))
                answers, said = self.answers, time.monotonic()


def state_of(queue: ClosureQueue, now: float) -> str:
    """Says which functions are left, and what the workers do.

    >>> state_of(queue, time.monotonic())
    "12 functions are left; worker 0 is not connected; worker 1 has had 'step' for 75 s"
    """
    left = queue.waiting + sum(map(len, queue.running))
    parts = ["1 function is left" if left == 1 else f"{left} functions are left"]
    members = [(n, running) for n, running in enumerate(queue.running) if n < queue.workers or running]
    for number, running in members[:_MANY]:
        if not queue.present[number]:
            parts.append(f"worker {number} is not connected")
        elif running:
            parts.append(f"worker {number} has had {_longest(list(running.values()), now)}")
        else:
            parts.append(f"worker {number} has nothing to run")
    if len(members) > _MANY:
        parts.append(f"there are {len(members) - _MANY} more workers")
    if queue.is_paused:
        parts.append("no function is sent now, since variables are saved, restored or updated")
    return "; ".join(parts)


def _longest(running: Sequence[Closure], now: float) -> str:
    first = min(running, key=lambda closure: closure.sent_at)
    return f"'{first.function.name}' for {now - first.sent_at:.0f} s"
