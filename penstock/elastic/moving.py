"""A Mover is the part of one parameter server in a change of the membership: it holds steps, and moves resources.

The first parameter server (resize.py) asks for each act in turn: close, list, send and take, ready, commit, open. What
a server has got is kept aside until the commit, and what it has sent is kept until then, too. A server that hears
nothing for LEASE_SECS asks the first one for its record, which says whether the commit has happened. A first server
that was started again has the record that the launcher has kept.

Nothing but a ClusterCoordinator depends on the number of its workers. So if only that changes, the servers note the
record, tell it to their clients, and hold nothing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock import logging
from penstock.elastic.packing import Packed, bytes_of, can_move, packed, unpacked
from penstock.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
)
from penstock.kernel.waiting import Waitable
from penstock.master.gate import SETTLING, close_all, open_all
from penstock.master.links import Links
from penstock.master.membership import FIRST, NOTHING_CHANGED, Membership, load, refused
from penstock.passes.relocate import on_task
from penstock.segments.stored_variable import StoredVariable
from penstock.wire.control import ControlClient, messages
from penstock.wire.loop import Signal
from penstock.wire.messages import GateClosed, GateOpen
from penstock.worker.worker import Worker

LEASE_SECS = 10.0  # without a word from the first parameter server
TRANSFER_SECS = 60.0  # for what one server sends to another
HELD_SECS = 60.0  # for a graph of a new session, and for the first server to be back
_ASK_SECS = 2.0  # for its answer, and between two questions
FIRST_WAIT_SECS = 0.015  # for sessions to become idle; doubles with each round
_OF_SESSIONS = "session "  # how the containers of sessions begin, which do not move


class Mover:
    """Changes the membership of a parameter server. `sessions` are the names of those that it serves, by client."""

    def __init__(
        self, worker: Worker, links: Links, sessions: dict[int, set[str]], learn: Callable[[Membership], None]
    ) -> None:
        self.membership = load()
        self._placed = self.membership.version  # graphs that were placed by older ones are refused
        self._worker = worker
        self._links = links
        self._sessions = sessions
        self._learn = learn  # notes the addresses of other tasks
        self._changed = threading.Condition()
        self._proposed: Membership | None = None  # while closed
        self._round = 0
        self._known: set[str] = set()  # the sessions that were there when it closed
        self._asked: set[int] = set()  # clients that have not answered in this round; 0 is this process
        self._staged: dict[tuple[str, str, str], Any] = {}  # by device, container and name
        self._sent: list[tuple[str, str, str]] = []
        self._lease: threading.Timer | None = None
        self._heard = 0.0  # when the first server was last heard of
        links.on_idle = self._is_idle

    # For graphs

    def check_graph(self, session: str, version: int) -> None:
        """Refuses a graph that was placed by an older membership. One of a new session waits for a move to end."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._is_closed or session in self._known, HELD_SECS):
                raise UnavailableError(f"{self._worker.name} has been moving resources for {HELD_SECS:g} s.")
            if version < self._placed:
                raise refused(self._worker.name, version, self.membership.version)

    @property
    def _is_closed(self) -> bool:
        return self._proposed is not None and self._round != SETTLING

    # Acts

    def act(self, request: Any) -> Any:
        """Does what the first parameter server asks for (a MoveRequest), and answers (a MoveReply)."""
        proposed = Membership.from_json(request.membership)
        if request.act == "close":
            return self._close(proposed, request.round)
        if request.act in ("ask", "note"):
            self._require_still()
            if request.act == "note":
                self._note(proposed)
            return messages["MoveReply"](idle=True, driven=self._worker.commits.in_use)
        with self._changed:
            if self._proposed is None and request.act == "open":
                return messages["MoveReply"](idle=True)
            if self._proposed is None or self._proposed.version != proposed.version:
                raise FailedPreconditionError(
                    f"{self._worker.name} is not moving to version {proposed.version} of the membership any more."
                )
            self._extend_lease()
        reply = messages["MoveReply"](idle=True)
        match request.act:
            case "list":
                self._list(reply)
            case "send":
                self._send(request, reply)
            case "take":
                self._take(request)
            case "ready":
                pass
            case "commit":
                self._commit(proposed)
            case "open":
                self._open()
            case other:
                raise InvalidArgumentError(f"A move has no act '{other}'.")
        return reply

    def _close(self, proposed: Membership, round_: int) -> Any:
        """Has all sessions hold their steps, or in a later round run each held one, and waits a moment.

        In the round SETTLING, which is the first, it has coordinators end what they run.
        """
        with self._changed:
            if self._proposed is not None and self._proposed.version != proposed.version:
                raise FailedPreconditionError(f"{self._worker.name} is moving already.")
            first = self._proposed is None
            if first and proposed.version <= self.membership.version:
                raise FailedPreconditionError(
                    f"{self._worker.name} has version {self.membership.version} of the membership, and was asked for "
                    f"version {proposed.version}."
                )
            if first:
                self._proposed = proposed
                self._learn(proposed)
            if round_ != SETTLING and not self._worker.is_moving:
                self._worker.is_moving = True
                self._known = {name for names in list(self._sessions.values()) for name in names}
            clients = {client for client, names in list(self._sessions.items()) if names and self._links.has(client)}
            asks = first or round_ != self._round
            if asks:
                self._round, self._asked = round_, {0, *clients}
            self._extend_lease()
        if asks:
            for client in clients:
                link = self._links.to(client)
                if link is not None:
                    link.tell(GateClosed(round_))
            close_all(self._worker.incarnation, round_, lambda: self._is_idle(0, round_))
        with self._changed:
            wait = min(LEASE_SECS / 2, 1.0 if round_ == SETTLING else FIRST_WAIT_SECS * 2**round_)
            idle = self._changed.wait_for(self._all_idle, wait)
        busy = sorted(link.peer for client in list(self._asked) if (link := self._links.to(client)) is not None)
        idle = idle and (round_ == SETTLING or not self._worker.open_steps())
        return messages["MoveReply"](idle=idle, waiting=self._has_waiters(), busy=busy)

    def _all_idle(self) -> bool:
        self._asked = {client for client in self._asked if client == 0 or self._links.has(client)}
        return not self._asked

    def _is_idle(self, client: int, round_: int) -> None:
        with self._changed:
            if round_ == self._round:
                self._asked.discard(client)
                self._changed.notify_all()

    def _has_waiters(self) -> bool:
        found = (r for device in self._worker.devices for _, r in device.resources.items())
        return any(r.has_waiters() for r in found if isinstance(r, Waitable))

    def _list(self, reply: Any) -> None:
        """Names all resources with their sizes."""
        for device in self._worker.devices:
            for (container, name), resource in device.resources.items():
                if container.startswith(_OF_SESSIONS):
                    continue
                kind = "Variable" if isinstance(resource, StoredVariable) else getattr(resource, "kind", None)
                reply.resources.add(
                    device=device.name,
                    container=container,
                    name=name,
                    kind=kind or type(resource).__name__.lstrip("_"),
                    bytes=bytes_of(resource),
                    movable=can_move(resource),
                    bonds=[json.dumps(key) for key in sorted(self._worker.bonds.get((container, name), ()))],
                )

    def _send(self, request: Any, reply: Any) -> None:
        """Sends resources to another server, over the channel for tensors."""
        route = self._worker.route(request.task)
        key = 0
        for held in request.resources:
            device = next(d for d in self._worker.devices if d.name == held.device)
            content = packed(device.resources.lookup(held.container, held.name))
            keys = range(key, key + len(content.arrays))
            key += len(content.arrays)
            route.deliver(request.step, keys, list(content.arrays))
            self._sent.append((held.device, held.container, held.name))
            held.kind, held.settings, held.arrays = content.kind, content.settings, len(content.arrays)
            reply.resources.add().CopyFrom(held)

    def _take(self, request: Any) -> None:
        """Takes what another server has sent, and keeps it aside."""
        step = self._worker.open_step(request.step)
        try:
            keys = range(sum(held.arrays for held in request.resources))
            arrived = Signal()
            if not step.rendezvous.ready(keys, arrived.set):
                arrived.wait(TRANSFER_SECS)
            taken = step.rendezvous.take(keys)
            if taken is None:
                raise DeadlineExceededError(
                    f"{len(step.rendezvous.missing(keys))} of {len(keys)} arrays have not arrived at "
                    f"{self._worker.name} within {TRANSFER_SECS:g} s."
                )
            arrays = iter(taken)
        finally:
            self._worker.end_step(request.step)
        for held in request.resources:
            name = on_task(held.device, self._worker.name)
            device = next((d for d in self._worker.devices if d.name == name), None)
            if device is None:
                raise FailedPreconditionError(f"'{held.name}' cannot move: there is no {name}.")
            content = Packed(held.kind, held.settings, [next(arrays) for _ in range(held.arrays)])
            self._staged[name, held.container, held.name] = unpacked(held.name, content, device)
            together = self._worker.bonds.setdefault((held.container, held.name), set())
            together.update((container, other) for container, other in map(json.loads, held.bonds))

    def _commit(self, membership: Membership) -> None:
        """Makes what was taken appear, and what was sent vanish."""
        with self._changed:
            of = {device.name: device.resources for device in self._worker.devices}
            for device, container, name in self._sent:
                of[device].remove(container, name)
            for (device, container, name), resource in self._staged.items():
                of[device].put(container, name, resource)
            self._sent, self._staged = [], {}
            self._worker.forget_graphs()
            self.membership, self._placed = membership, membership.version

    def _require_still(self) -> None:
        with self._changed:
            if self._proposed is not None:
                raise FailedPreconditionError(f"{self._worker.name} is moving already.")

    def _note(self, membership: Membership) -> None:
        """Takes a record in which only workers have changed, and tells it. No step is held, and all graphs stay."""
        self.membership = membership
        self._learn(membership)
        for link in self._links.all():
            link.tell(GateOpen(membership.to_json()))

    def _open(self) -> None:
        """Lets sessions go on. Without a commit before it, nothing has changed."""
        with self._changed:
            self._proposed, self._worker.is_moving, self._sent, self._staged = None, False, [], {}
            if self._lease is not None:
                self._lease.cancel()
            self._lease = None
            membership = self.membership
            self._changed.notify_all()
        for client in list(self._sessions):
            link = self._links.to(client)
            if link is not None:
                link.tell(GateOpen(membership.to_json()))
        open_all(self._worker.incarnation, membership)

    def _extend_lease(self) -> None:
        self._heard = time.monotonic()
        self._check_after(LEASE_SECS)

    def _check_after(self, seconds: float) -> None:
        if self._lease is not None:
            self._lease.cancel()
        self._lease = threading.Timer(seconds, self._abandoned)
        self._lease.daemon, self._lease.name = True, "penstock-lease"
        self._lease.start()

    def _abandoned(self) -> None:
        """Goes on by the record of the first parameter server, once that answers."""
        with self._changed:
            proposed = self._proposed
        if proposed is None:
            return
        found = self._record_of_first(proposed)
        with self._changed:
            if self._proposed is not proposed:
                return
            if found is None and time.monotonic() < self._heard + HELD_SECS:
                self._check_after(_ASK_SECS)
                return
        record = self.membership if found is None else found  # without an answer it is as if nothing had changed
        done = record.version >= proposed.version
        logging.warning(
            "%s has heard nothing of a move to version %d of the membership for %.0f s: it %s.",
            self._worker.name,
            proposed.version,
            time.monotonic() - self._heard,
            "is done, by the record of the first parameter server" if done else "is given up",
        )
        if done:
            self._commit(record)
        self._open()

    def _record_of_first(self, proposed: Membership) -> Membership | None:
        """The record of the first parameter server; None if that does not answer, or is still moving."""
        if self._worker.name == FIRST:
            return self.membership
        client = ControlClient(proposed.address(FIRST), self._links.credentials)
        try:
            try:
                client.move(messages["MoveRequest"](act="ready", membership=proposed.to_json()), _ASK_SECS)
            except FailedPreconditionError:  # it is not moving: what its record says is decided
                found = client.get_status(timeout=_ASK_SECS).membership
                return Membership.from_json(found, f"the status of {FIRST}") if found else NOTHING_CHANGED
            with self._changed:
                self._heard = time.monotonic()
        except OpError as error:
            logging.warning("%s cannot ask %s for the membership: %s", self._worker.name, FIRST, error.message)
        finally:
            client.close()
        return None

    def close(self) -> None:
        """Ends with the server."""
        with self._changed:
            self._proposed = None
            if self._lease is not None:
                self._lease.cancel()
            self._changed.notify_all()
