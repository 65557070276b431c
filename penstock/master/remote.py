"""A RemoteTask is a task of another process, as a master sees it."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Any

from penstock import logging
from penstock.errors import AbortedError, CancelledError, DeadlineExceededError, OpError, UnavailableError
from penstock.master.links import Link, Links
from penstock.master.membership import NOTHING_CHANGED, Membership, Moved, is_refusal
from penstock.master.tasks import Answer, session_closed
from penstock.passes.ir import Subgraph
from penstock.passes.portable import to_graph_def
from penstock.wire.control import STATUS_SECS, ControlClient, wait_until_listening
from penstock.wire.messages import RunGraph

RECONNECT_SECS = 5.0  # how long a step waits for a task that was there before
_TRIES, _PAUSE_SECS = 4, 0.5  # to connect where a process listens: one that was killed does, for a moment longer
SHORTEST_SECS = 0.001  # the time limit of a call whose deadline has passed
MAX_UNUSED = 100_000  # resources and graphs that are kept to be freed while a task is lost; then the oldest go
_AT_ONCE = 1000  # of these in one message


def start_timeout() -> float:
    """Returns how many seconds a task may take to come up (PENSTOCK_START_TIMEOUT_SECS)."""
    return float(os.environ.get("PENSTOCK_START_TIMEOUT_SECS", "600"))


def within(timeout: float, deadline: float | None) -> float:
    """Returns `timeout`, or the seconds until `deadline` if that comes first."""
    left = timeout if deadline is None else min(timeout, deadline - time.monotonic())
    return max(SHORTEST_SECS, left)


class _RemoteGraph:
    """Keeps a partition of another task, to register it again after a lost connection."""

    __slots__ = ("definition", "handle", "is_function", "link", "session", "version")

    def __init__(self, definition: Any, session: str, is_function: bool, version: int) -> None:
        self.version = version  # of the membership by which it was placed
        self.is_function = is_function
        self.definition = definition
        self.session = session
        self.handle = 0
        self.link: Link | None = None


class RemoteTask:
    """Stands for a task of another process, which it reaches over gRPC and a link."""

    worker = None  # it is elsewhere

    def __init__(
        self, name: str, address: str, links: Links, cluster: Any = None, closed: threading.Event | None = None
    ) -> None:
        self.name = name
        self.address = address
        self.cluster = cluster  # the session's own ClusterDef, whose tasks the task may not know
        self.devices: list[Any] = []
        self.loop = links.loop
        self._links = links
        self._incarnation = 0
        self._control: ControlClient | None = None
        self._lock = threading.Lock()  # held while connecting
        self._link: Link | None = None
        self._closed = closed or threading.Event()
        self._unused: deque[tuple[str, str] | _RemoteGraph] = deque(maxlen=MAX_UNUSED)

    @property
    def device_names(self) -> list[str]:
        """Returns the full names of its devices."""
        return [d.name for d in self.devices]

    @property
    def incarnation(self) -> int:
        """The number of this start of the task's server; 0 before it is connected to."""
        return self._incarnation

    @property
    def is_connected(self) -> bool:
        """Tells if it can be sent to without waiting."""
        return self._link is not None and self._link.channel.is_open

    def answers(self) -> bool:
        """Asks the task for a sign of life. Another process in its place does not count."""
        try:
            status = self._open_control().get_status(timeout=STATUS_SECS)
        except OpError:
            return False
        return bool(status.incarnation == self._incarnation)

    def connect(self, timeout: float, deadline: float | None = None) -> Link:
        """Returns the link to the task, connecting first if there is none. It logs what it waits for.

        Raises UnavailableError after `timeout` seconds, DeadlineExceededError if `deadline` (time.monotonic()) comes
        first, and AbortedError if the task was restarted, since what it held is lost.
        """
        link = self._link
        if link is not None and link.channel.is_open:
            return link
        with self._lock:
            if self._link is not None and self._link.channel.is_open:
                return self._link
            try:
                self._link = self._connected(within(timeout, deadline))
            except UnavailableError as error:
                if self._closed.is_set():
                    raise session_closed() from error
                if deadline is not None and time.monotonic() >= deadline:
                    raise DeadlineExceededError(f"The time limit has passed: {error.message}") from error
                raise
            if self._closed.is_set():  # while this connected
                self._close_control()
                raise session_closed()
            return self._link

    def _open_control(self) -> ControlClient:
        control = self._control
        if self._closed.is_set():
            raise session_closed()
        if control is None:
            control = self._control = ControlClient(self.address, self._links.credentials)
        return control

    def _close_control(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            control.close()

    def _connected(self, timeout: float) -> Link:
        def say(why: str, seconds: float) -> None:
            logging.warning(
                "Waiting for %s at %s: %s (for %.0f s; gives up after %.0f s).",
                self.name,
                self.address,
                why,
                seconds,
                timeout,
            )

        end, tries = time.monotonic() + timeout, 0
        while True:
            tries += 1
            try:
                wait_until_listening(self.address, end - time.monotonic(), say, ended=self._closed)
                return self._link_to(max(SHORTEST_SECS, end - time.monotonic()))
            except (UnavailableError, DeadlineExceededError) as error:
                was_refused = isinstance(error, UnavailableError) and time.monotonic() < end
                if not was_refused or tries == _TRIES or self._closed.is_set():
                    raise UnavailableError(
                        f"{self.name} cannot be reached: {error.message}. Is the task running at {self.address}?"
                    ) from error
            self._close_control()  # a gRPC channel that has failed would wait before it connects again
            self._closed.wait(_PAUSE_SECS)

    def _link_to(self, timeout: float) -> Link:
        """A link to the process that listens at the address, if it is the one that is meant."""
        status = self._open_control().get_status(timeout=min(STATUS_SECS, timeout))
        if status.task != self.name:
            raise AbortedError(
                f"At {self.address} there is {status.task} where the cluster has {self.name}: do all tasks "
                "have the same ClusterSpec?"
            )
        if self._incarnation and status.incarnation != self._incarnation:
            raise AbortedError(
                f"{self.name} has been restarted, and what it held is lost: make a new session, and "
                "restore or initialise the variables."
            )
        link = self._links.open(self.address, status)
        self._incarnation = status.incarnation
        self.devices = list(status.devices)
        self._told(status)
        return link

    def _told(self, status: Any) -> Membership:
        """The membership that the task has. This process hears of it, if it is newer than its own."""
        if not status.membership:
            return NOTHING_CHANGED
        membership = Membership.from_json(status.membership, f"the status of {self.name}")
        self._links.on_membership(membership)
        return membership

    def register(
        self,
        subgraph: Subgraph,
        session: str,
        deadline: float | None = None,
        is_function: bool = False,
        version: int = 0,
    ) -> _RemoteGraph:
        """Registers a partition, or a function that the task drives itself; steps can name it from then on.

        Raises Moved if the partition was placed by another membership than the task's.
        """
        graph = _RemoteGraph(to_graph_def(subgraph), session, is_function, version)
        try:
            self._register(graph, self.connect(start_timeout(), deadline), deadline)
        except AbortedError as error:
            if not is_refusal(error):
                raise
            raise Moved(self._told(self._open_control().get_status(timeout=within(STATUS_SECS, deadline)))) from error
        return graph

    def _register(self, graph: _RemoteGraph, link: Link, deadline: float | None) -> None:
        """Sends a partition. The call fails when the link is lost, since a frozen task would never answer."""
        client, timeout = self._links.incarnation, None if deadline is None else within(float("inf"), deadline)
        try:
            graph.handle = self._open_control().register_graph(
                graph.session,
                client,
                graph.definition,
                timeout,
                link.watched,
                self.cluster,
                graph.is_function,
                graph.version,
            )
        except CancelledError as error:
            if self._closed.is_set() or link.channel.is_open:
                raise
            raise UnavailableError(
                f"Lost {self.name} while it took a graph: {link.channel.closed_error().message}"
            ) from error
        except UnavailableError as error:
            if link.channel.is_open and not self.answers():  # the process has gone, which the link has not seen yet
                link.channel.close(message=error.message, tell_peer=False)
            raise UnavailableError(f"{self.name} could not take a graph: {error.message}") from error
        graph.link = link

    def start(self, graph: _RemoteGraph, request: RunGraph, answer: Answer) -> None:
        """Asks the task to run a step. `answer` is called when the step has ended, or the task is lost."""
        deadline = None if request.timeout < 0 else time.monotonic() + request.timeout
        link = self._link
        if link is None or not link.channel.is_open:
            link = self.connect(RECONNECT_SECS, deadline)
        if graph.link is not link:
            self._register(graph, link, deadline)  # the task forgot it when the connection was lost
        request.handle = graph.handle
        self.send_unused()
        link.run(request, answer)

    def free(self, unused: tuple[str, str] | _RemoteGraph) -> None:
        """Takes a resource, by container and name, or a graph, that nobody uses any more.

        It sends nothing, since the garbage collector may call it at any time. The task hears of it before its next
        step, or by `send_unused`.
        """
        self._unused.append(unused)

    def send_unused(self) -> None:
        """Tells the task what it can free. Without a connection this is left for later: a lost task is no error."""
        link = self._link
        while self._unused and link is not None and link.channel.is_open:
            items: list[tuple[str, str] | _RemoteGraph] = []
            while self._unused and len(items) < _AT_ONCE:
                try:
                    items.append(self._unused.popleft())
                except IndexError:  # another thread has taken the last
                    break
            # The task forgot the graphs of an earlier connection when that was lost.
            graphs = [item.handle for item in items if isinstance(item, _RemoteGraph) and item.link is link]
            link.free([item for item in items if isinstance(item, tuple)], graphs)

    def cancel(self, step: int, why: OpError) -> None:
        """Tells the task to cancel a step."""
        if self._link is not None:
            self._link.cancel(step, why)

    def close_session(self, session: str) -> None:
        """Tells the task to forget a session's graphs, if it can be reached; "" if it has none there."""
        control = self._control
        self._closed.set()  # stops threads of steps that are about to connect again
        try:
            if session and control is not None and self._link is not None and self._link.channel.is_open:
                control.close_session(session)
        except OpError as error:
            logging.debug("%s: a session could not be closed: %s", self.name, error.message)
        self._close_control()

    def reset(self, containers: list[str]) -> None:
        """Clears the named containers, or all if none is named."""
        self.connect(RECONNECT_SECS)
        self._open_control().reset(containers)
