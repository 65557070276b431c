"""A RemoteTask is a task of another process, as a master sees it."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from penstock import logging
from penstock.errors import AbortedError, CancelledError, DeadlineExceededError, OpError, UnavailableError
from penstock.master.links import Link, Links
from penstock.master.tasks import Answer, session_closed
from penstock.passes.ir import Subgraph
from penstock.passes.portable import to_graph_def
from penstock.wire.codec import RunGraph
from penstock.wire.control import STATUS_SECS, ControlClient, wait_until_listening

RECONNECT_SECS = 5.0  # how long a step waits for a task that was there before
SHORTEST_SECS = 0.001  # the time limit of a call whose deadline has passed


def start_timeout() -> float:
    """Returns how many seconds a task may take to come up (PENSTOCK_START_TIMEOUT_SECS)."""
    return float(os.environ.get("PENSTOCK_START_TIMEOUT_SECS", "600"))


def within(timeout: float, deadline: float | None) -> float:
    """Returns `timeout`, or the seconds until `deadline` if that comes first."""
    left = timeout if deadline is None else min(timeout, deadline - time.monotonic())
    return max(SHORTEST_SECS, left)


class _RemoteGraph:
    """Keeps a partition of another task, to register it again after a lost connection."""

    __slots__ = ("definition", "handle", "link", "session")

    def __init__(self, definition: Any, session: str) -> None:
        self.definition = definition
        self.session = session
        self.handle = 0
        self.link: Link | None = None


class RemoteTask:
    """Stands for a task of another process, which it reaches over gRPC and a link."""

    def __init__(self, name: str, address: str, links: Links, cluster: Any = None) -> None:
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
        self._closed = threading.Event()

    @property
    def device_names(self) -> list[str]:
        """Returns the full names of its devices."""
        return [d.name for d in self.devices]

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

        try:
            began = time.monotonic()
            wait_until_listening(self.address, timeout, say, ended=self._closed)
            left = max(SHORTEST_SECS, began + timeout - time.monotonic())
            status = self._open_control().get_status(timeout=min(STATUS_SECS, left))
        except (UnavailableError, DeadlineExceededError) as error:
            raise UnavailableError(
                f"{self.name} cannot be reached: {error.message}. Is the task running at {self.address}?"
            ) from error
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
        return link

    def register(self, subgraph: Subgraph, session: str, deadline: float | None = None) -> _RemoteGraph:
        """Registers a partition, which steps can name from then on."""
        graph = _RemoteGraph(to_graph_def(subgraph), session)
        self._register(graph, self.connect(start_timeout(), deadline), deadline)
        return graph

    def _register(self, graph: _RemoteGraph, link: Link, deadline: float | None) -> None:
        """Sends a partition. The call fails when the link is lost, since a frozen task would never answer."""
        client, timeout = self._links.incarnation, None if deadline is None else within(float("inf"), deadline)
        try:
            graph.handle = self._open_control().register_graph(
                graph.session, client, graph.definition, timeout, link.watched, self.cluster
            )
        except CancelledError as error:
            if self._closed.is_set() or link.channel.is_open:
                raise
            raise UnavailableError(
                f"Lost {self.name} while it took a graph: {link.channel.closed_error().message}"
            ) from error
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
        link.run(request, answer)

    def cancel(self, step: int, why: OpError) -> None:
        """Tells the task to cancel a step."""
        if self._link is not None:
            self._link.cancel(step, why)

    def close_session(self, session: str) -> None:
        """Tells the task to forget a session's graphs, if it can be reached."""
        control = self._control
        self._closed.set()  # stops threads of steps that are about to connect again
        try:
            if control is not None and self._link is not None and self._link.channel.is_open:
                control.close_session(session)
        except OpError as error:
            logging.debug("%s: a session could not be closed: %s", self.name, error.message)
        self._close_control()

    def reset(self, containers: list[str]) -> None:
        """Clears the named containers, or all if none is named."""
        self.connect(RECONNECT_SECS)
        self._open_control().reset(containers)
