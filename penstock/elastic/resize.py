"""Resize: the first parameter server changes the membership of its job, at a step boundary.

It has coordinators end the functions that they run, has all servers hold the steps of their sessions, moves resources,
has all servers take the new record, and lets steps go on. Until the first server has taken the record, a failure leaves
all as it was.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from penstock import logging
from penstock.elastic.balance import Resource, homes_after, moves
from penstock.elastic.moving import LEASE_SECS, TRANSFER_SECS, Mover
from penstock.errors import FailedPreconditionError, InvalidArgumentError, OpError
from penstock.graph.device import task_name
from penstock.master.cluster import ClusterSpec
from penstock.master.gate import SETTLING
from penstock.master.membership import FIRST, PS, WORKER, Membership
from penstock.wire.control import ControlClient, messages
from penstock.wire.credentials import Credentials

SETTLE_SECS = 60.0  # for the functions of a coordinator to end
IDLE_SECS = 10.0  # for all steps to end
_ACT_SECS = 15.0  # for any other act of a server


@dataclass(frozen=True)
class Resized:
    """The outcome: the new version, how long steps were held, how much has moved, and the record as text."""

    version: int
    pause: float
    resources: int
    bytes: int
    membership: str


class Resizing:
    """Changes the membership. One change at a time."""

    def __init__(self, mover: Mover, told: ClusterSpec, credentials: Credentials | None) -> None:
        self._mover = mover
        self._told = told
        self._credentials = credentials
        self._lock = threading.Lock()

    def __call__(self, wanted: ClusterSpec) -> Resized:
        """Has the tasks of `wanted` from now on. Raises an OpError, and changes nothing, if that cannot be."""
        tasks = {job: {n: wanted.task_address(job, n) for n in wanted.task_indices(job)} for job in wanted.jobs}
        if 0 not in tasks.get(PS, {}) or 0 not in tasks.get(WORKER, {0: ""}):
            raise InvalidArgumentError(f"The first parameter server and worker cannot leave; received {wanted!r}.")
        if not self._lock.acquire(blocking=False):
            raise FailedPreconditionError("Another change of the membership is under way.")
        try:
            with _Servers(self._mover, self._servers_of(tasks), self._credentials) as servers:
                return self._resized(servers, tasks)
        finally:
            self._lock.release()

    def _servers_of(self, tasks: dict[str, dict[int, str]]) -> dict[str, str]:
        """The addresses of all parameter servers, those that leave included."""
        now = self._mover.membership
        before = now.cluster if now.version else self._told
        addresses = {n: before.task_address(PS, n) for n in before.task_indices(PS)} | tasks[PS]
        return {task_name(PS, number): address for number, address in addresses.items()}

    def _resized(self, servers: _Servers, tasks: dict[str, dict[int, str]]) -> Resized:
        before = self._mover.membership
        # Where resources will be is known once steps are held; until then servers only need the addresses.
        proposed = Membership(before.version + 1, tasks)
        began = time.monotonic()
        now = before.cluster if before.version else self._told
        is_driven = any(reply.driven for reply in servers.each("ask", proposed).values())
        if is_driven and now.task_indices(PS) == proposed.cluster.task_indices(PS):
            return self._noted(servers, proposed)
        try:
            servers.settle(proposed, is_driven)
            servers.close(proposed)
            moved = moves(servers.resources(proposed), proposed.names(PS))
            left = before.left | (set(servers.names) - set(proposed.names(PS)))
            after = Membership(proposed.version, tasks, homes_after(before.homes, moved, left), left)
            servers.transfer(proposed, moved)
            servers.each("ready", proposed)
        except BaseException:
            servers.each("open", proposed, must=False)
            raise
        # From here on the change happens: a server that does not answer asks for the record later.
        servers.each("commit", after, must=False)
        servers.each("open", after, must=False)
        moved_bytes = sum(resource.bytes for resource in moved)
        return Resized(after.version, time.monotonic() - began, len(moved), moved_bytes, after.to_json())

    def _noted(self, servers: _Servers, proposed: Membership) -> Resized:
        """Changes the workers of a coordinator, which hears of it from any server that it uses."""
        before = self._mover.membership
        after = replace(proposed, homes=before.homes, left=before.left)
        servers.each("note", after, must=False)
        return Resized(after.version, 0.0, 0, 0, after.to_json())


class _Servers:
    """All parameter servers of a job, which are asked at the same time."""

    def __init__(self, mover: Mover, addresses: dict[str, str], credentials: Credentials | None) -> None:
        self._mover = mover
        self._clients = {name: ControlClient(at, credentials) for name, at in addresses.items() if name != FIRST}
        self.names = list(addresses)
        self._devices: dict[Resource, str] = {}
        self._pool = ThreadPoolExecutor(len(addresses), "penstock-resize")

    def __enter__(self) -> _Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for client in self._clients.values():
            client.close()

    def _ask(self, server: str, act: str, membership: Membership, timeout: float = _ACT_SECS, **fields: Any) -> Any:
        request = messages["MoveRequest"](act=act, membership=membership.to_json(), **fields)
        client = self._clients.get(server)
        return self._mover.act(request) if client is None else client.move(request, timeout)

    def each(self, act: str, membership: Membership, must: bool = True, **fields: Any) -> dict[str, Any]:
        """Asks all servers for an act. Raises the first error, or if it is no must, logs it."""

        def ask(server: str) -> Any:
            try:
                return self._ask(server, act, membership, **fields)
            except OpError as error:
                if must:
                    raise
                logging.warning("%s did not answer to '%s' of a move: %s", server, act, error.message)
                return None

        return dict(zip(self.names, self._pool.map(ask, self.names), strict=True))

    def settle(self, proposed: Membership, is_driven: bool) -> None:
        """Has coordinators send no more functions, and waits until those that they have sent have ended."""
        if is_driven:
            self._close(proposed, SETTLING, SETTLE_SECS, "Functions were still running")
        else:
            self._close(proposed, SETTLING, IDLE_SECS, "Sessions had not answered")

    def close(self, proposed: Membership) -> None:
        """Has all sessions hold their steps, and waits until none is in flight."""
        self._close(proposed, SETTLING + 1, IDLE_SECS, "Steps were still in flight")

    def _close(self, proposed: Membership, number: int, seconds: float, problem: str) -> None:
        end = time.monotonic() + seconds
        while True:
            replies = self.each("close", proposed, round=number)
            if all(reply.idle for reply in replies.values()):
                return
            if time.monotonic() > end:
                busy = sorted({name for reply in replies.values() for name in reply.busy})
                raise FailedPreconditionError(
                    f"{problem} after {seconds:g} s: those of "
                    f"{', '.join(busy) or 'parameter servers'}. Nothing has changed; try again later."
                )
            # Steps in flight that wait for others, in a queue say, need held ones to run.
            if number != SETTLING:
                number += any(reply.waiting for reply in replies.values())

    def resources(self, proposed: Membership) -> list[Resource]:
        """All resources of all servers."""
        for server, reply in self.each("list", proposed).items():
            for held in reply.resources:
                bonds = tuple((kept, name) for kept, name in map(json.loads, held.bonds))
                key = (held.container, held.name)
                self._devices[Resource(server, key, held.bytes, held.kind, held.movable, bonds)] = held.device
        return list(self._devices)

    def transfer(self, proposed: Membership, moved: dict[Resource, str]) -> None:
        """Moves resources, each from its server to the one that it is given with."""
        ways: dict[tuple[str, str], list[Resource]] = defaultdict(list)
        for resource, to in moved.items():
            ways[resource.task, to].append(resource)

        def send(way: tuple[str, str]) -> None:
            source, to = way
            step = secrets.randbits(62)
            held = [
                messages["Held"](
                    device=self._devices[r], container=r.key[0], name=r.key[1], bonds=map(json.dumps, r.bonds)
                )
                for r in ways[way]
            ]
            sent = self._ask(source, "send", proposed, TRANSFER_SECS, step=step, task=to, resources=held)
            self._ask(to, "take", proposed, TRANSFER_SECS, step=step, resources=sent.resources)

        with self._reminded(proposed), ThreadPoolExecutor(max(1, len(ways)), "penstock-transfer") as pool:
            for _ in pool.map(send, ways):
                pass

    @contextmanager
    def _reminded(self, proposed: Membership) -> Iterator[None]:
        """Tells all servers now and then that the move goes on."""
        done = threading.Event()

        def remind() -> None:
            while not done.wait(LEASE_SECS / 4):
                self.each("ready", proposed, must=False)

        thread = threading.Thread(target=remind, name="penstock-reminder", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
