"""Boundary: the moment between functions at which the parameter servers of a coordinator change.

Servers count the writes of each function, so that one that is run again makes them once. They count by where variables
are. So no function may be half done when variables move: those that workers have had end first, whoever runs them, and
no others are sent until the servers are done. Then workers get all functions anew, for the places that variables have.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.distribute.coordinator.queue import ClosureQueue
from penstock.distribute.coordinator.waiting import Waits
from penstock.eager.cluster import membership_version
from penstock.master.gate import settle_first
from penstock.master.membership import Membership


class Boundary:
    """Holds what a coordinator's queue has while at least one parameter server says so."""

    def __init__(
        self, changed: threading.Condition, queue: ClosureQueue, waits: Waits, go_on: Callable[[bool], None]
    ) -> None:
        self.changes = 0  # of the parameter servers so far
        self._changed = changed
        self._queue = queue
        self._waits = waits
        self._go_on = go_on  # sends functions again; it is told if servers have changed, and has the lock
        self._closed_by: set[int] = set()
        self._version = 0  # of the membership before
        self._are_changed = False  # some server has told of a newer one
        settle_first(self)

    def uses(self, server: int) -> bool:
        """Tells if the functions have anything to do with a server: they may use any, while there are some."""
        return not self._waits.is_stopped

    def close(self, server: int, round_: int, on_idle: Callable[[], None]) -> None:
        """Holds all functions that no worker has had. Calls `on_idle`, from another thread, when the others ended."""
        with self._changed:
            if not self._closed_by:
                self._version = membership_version()
            self._closed_by.add(server)
            self._queue.is_held = True
            self._changed.notify_all()

        def settle() -> None:
            with self._changed:
                self._waits.until(
                    lambda: self._queue.is_idle or server not in self._closed_by, "A change of the parameter servers"
                )
            on_idle()

        self._waits.begin("settles", settle)

    def open(self, server: int, membership: Membership | None) -> None:
        """Takes back that a server has closed it. When all have, functions go on."""
        with self._changed:
            if server not in self._closed_by:
                return
            self._closed_by.discard(server)
            self._are_changed |= membership is not None and membership.version > self._version
            if self._closed_by:
                return
            are_changed, self._are_changed = self._are_changed, False
            self.changes += are_changed
            self._queue.is_held = False
            self._go_on(are_changed)
            self._changed.notify_all()

    def passed_since(self, changes: int) -> bool:
        """Tells if the servers have changed since there were so many changes, which it waits for if it is under way."""
        with self._changed:
            self._waits.until(lambda: not self._queue.is_held, "A worker's resource")
            return self.changes != changes
