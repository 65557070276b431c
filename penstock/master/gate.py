"""A gate holds the steps of one master while resources move between parameter servers.

A parameter server closes the gates of all sessions that use it. A master then begins no step that touches a parameter
server, and answers once none is in flight. Steps in flight may wait for others, in a queue say, that are held: so
held steps are admitted, each once, round after round, until all have ended. When all parameter servers have opened the
gate, steps go on; those that were placed by an older membership are placed anew first.

Before that, in the round SETTLING, coordinators have the functions end that they have sent to workers, and send no
others until all servers have opened. A master that a coordinator drives places nothing anew: it is given all functions
anew.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from penstock.errors import AbortedError, DeadlineExceededError, OutOfRangeError
from penstock.master.membership import Membership
from penstock.master.tasks import session_closed
from penstock.progress import under_way
from penstock.worker.cancellation import Cancellation

HELD = -1  # the version of a master whose gate is closed: no signature has it
SETTLING = 0  # the round before those in which gates are closed


class Closable(Protocol):
    """Holds something while parameter servers change: a gate the steps of a master, a coordinator its functions."""

    def uses(self, server: int) -> bool:
        """Tells if it has anything to do with a server."""

    def close(self, server: int, round_: int, on_idle: Callable[[], None]) -> None:
        """Begins nothing more, and calls `on_idle` when all has ended. It does not wait."""

    def open(self, server: int, membership: Membership | None) -> None:
        """Takes back that a server has closed it."""


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()
_coordinators: weakref.WeakSet[Closable] = weakref.WeakSet()
_lock = threading.Lock()


def settle_first(coordinator: Closable) -> None:
    """Has a coordinator closed before the gates are, and opened with them."""
    with _lock:
        _coordinators.add(coordinator)


def _all() -> list[Closable]:
    with _lock:
        return [*_gates, *_coordinators]


def close_all(server: int, round_: int, on_idle: Callable[[], None]) -> None:
    """Closes all gates to a server, or admits what they hold if `round_` is new. Calls `on_idle` when all are idle.

    If `round_` is SETTLING, it closes the coordinators.
    """
    with _lock:
        found: list[Closable] = list(_coordinators) if round_ == SETTLING else list(_gates)
    gates = [gate for gate in found if gate.uses(server)]
    left = len(gates)
    counting = threading.Lock()

    def one_is_idle() -> None:
        nonlocal left
        with counting:
            left -= 1
            last = left == 0
        if last:
            on_idle()

    for gate in gates:
        gate.close(server, round_, one_is_idle)
    if not gates:
        on_idle()


def open_all(server: int, membership: Membership) -> None:
    """Opens all gates that a server has closed. The server tells them the membership."""
    for gate in _all():
        gate.open(server, membership)


def server_lost(server: int) -> None:
    """Opens all gates that a server has closed, since it cannot do so any more."""
    for gate in _all():
        gate.open(server, None)


class Gate:
    """Holds the steps of a master. It is closed while at least one parameter server says so."""

    def __init__(self, master: Any) -> None:
        self._master = weakref.ref(master)  # which has this gate
        self._changed = threading.Condition()
        self._closed_by: set[int] = set()
        self._round = 0
        self._held: dict[Cancellation, Any] = {}  # steps that wait here, with their signatures
        self._admitted: set[Cancellation] = set()
        self._on_idle: list[Callable[[], None]] = []
        with _lock:
            _gates.add(self)

    def uses(self, server: int) -> bool:
        """Tells if the session has a connection to the process of that incarnation."""
        master = self._master()
        return master is not None and any(task.incarnation == server for task in master.tasks.connected())

    def close(self, server: int, round_: int, on_idle: Callable[[], None]) -> None:
        """Closes the gate. In a new round, each step that it holds may run. Calls `on_idle` when none is running."""
        master = self._master()
        with self._changed:
            if not self._closed_by:
                self._round = round_
            self._closed_by.add(server)
            if master is not None and not master.is_closed:
                master.version = HELD
            if round_ > self._round and master is not None:
                self._round = round_
                admitted = {step: signature for step, signature in self._held.items() if not signature.joins}
                master.running.update(admitted)
                self._admitted.update(admitted)
                self._held = {step: signature for step, signature in self._held.items() if signature.joins}
                self._changed.notify_all()
            self._on_idle.append(on_idle)
        self.step_ended()

    def open(self, server: int, membership: Membership | None) -> None:
        """Takes back that a server has closed the gate, and follows the membership if that is newer."""
        master = self._master()
        with self._changed:
            if master is None or server not in self._closed_by:
                return
            self._closed_by.discard(server)
            if membership is not None and membership.version > master.tasks.membership.version:
                master.follow(membership)
            if not self._closed_by and not master.is_closed:
                # The version of a master whose task has left stays HELD: all its steps come here.
                master.version = HELD if master.tasks.has_left else master.tasks.membership.version
                self._on_idle.clear()
            self._changed.notify_all()

    def wake(self) -> None:
        """Has held steps look again: the session is closed, or the step is cancelled."""
        with self._changed:
            self._changed.notify_all()

    def step_ended(self) -> None:
        """Tells those who wait for it if no step is running any more that touches a parameter server."""
        master = self._master()
        with self._changed:
            if master is not None and any(signature.on_servers for signature in list(master.running.values())):
                return
            told, self._on_idle = self._on_idle, []
        for each in told:
            each()

    def _holds(self, signature: Any) -> bool:
        """Tells if steps of a signature may not begin."""
        master = self._master()
        joining = master is not None and signature.joins and master.tasks.is_joining
        return bool(joining or (self._closed_by and signature.on_servers))

    def pass_through(self, signature: Any, step: Cancellation, deadline: float | None) -> bool:
        """Waits until a step may run, which the master has noted as running. False: the signature must be placed anew.

        Raises OutOfRangeError, which ends the training of a MonitoredSession, if this task has left the job.
        """
        master = self._master()
        assert master is not None  # it calls
        step.on_cancel(self.wake)
        try:
            while True:
                with self._changed:
                    if not self._holds(signature):
                        master.running[step] = signature
                        break
                    if step in self._admitted:
                        self._admitted.discard(step)
                        return True
                    self._held[step] = master.running.pop(step, signature)
                self.step_ended()
                if signature.joins:
                    under_way()  # it is ready to become a member
                with self._changed:
                    in_time = self._changed.wait_for(
                        lambda: step not in self._held or not self._holds(signature) or step.is_set or master.is_closed,
                        None if deadline is None else deadline - time.monotonic(),
                    )
                    self._held.pop(step, None)
                    if step.is_set or master.is_closed:
                        self._admitted.discard(step)
                        raise session_closed()
                    if not in_time:
                        raise DeadlineExceededError("The time limit has passed while parameter servers join or leave.")
        finally:
            step.forget(self.wake)
        if not signature.on_servers:  # it is where it was
            if master.version != HELD:
                signature.version = master.version
            return True
        if master.tasks.has_left:
            raise OutOfRangeError(f"{master.tasks.default.name} has left the job: its training ends here.")
        is_placed = bool(signature.version == master.version)
        if master.tasks.is_driven and not is_placed:
            # The servers count its writes by how it was placed, so that another placement would make them twice.
            raise AbortedError("The parameter servers have changed since the coordinator has sent this function.")
        return is_placed
