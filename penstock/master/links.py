"""A link is a channel to a peer, with the steps that are in flight over it.

It carries steps both ways: graphs that we ask the peer to run, graphs that it asks us to run, and tensors.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock import logging
from penstock.errors import (
    AbortedError,
    DataLossError,
    DeadlineExceededError,
    OpError,
    UnavailableError,
    error_from_code,
)
from penstock.master.gate import close_all, open_all, server_lost
from penstock.master.membership import Membership
from penstock.master.tasks import Answer
from penstock.wire import endpoint
from penstock.wire.channel import Channel, keepalive_secs
from penstock.wire.control import STATUS_SECS, ControlClient
from penstock.wire.credentials import Credentials
from penstock.wire.loop import Loop
from penstock.wire.messages import (
    Cancel,
    Done,
    Failed,
    Free,
    GateClosed,
    GateIdle,
    GateOpen,
    Hello,
    Message,
    RunGraph,
    Tensors,
)
from penstock.worker.cancellation import Cancellation
from penstock.worker.run_queue import run_queue
from penstock.worker.step import Step
from penstock.worker.timeline import encoded
from penstock.worker.worker import Worker

MAX_REPLACED = 1024  # replaced incarnations of tasks that are remembered
LONGEST_MESSAGE = 1 << 16  # characters of an error that are sent


class Link:
    """Connects this process to another task, or to a client that is no task. It is a route for tensors to that task."""

    def __init__(self, channel: Channel, peer: str, incarnation: int, worker: Worker | None) -> None:
        self.channel = channel
        self.peer = peer
        self.incarnation = incarnation
        self._worker = worker
        self._lock = threading.Lock()
        self._asked: dict[int, Answer] = {}  # answers to steps that the peer runs for us
        self._lost = Cancellation()
        self._running: set[int] = set()  # steps that we run for the peer
        self.on_idle: Callable[[int, int], None] = lambda incarnation, round_: None  # a client answers in a round
        self.on_membership: Callable[[Membership], None] = lambda membership: None  # the peer tells of a new one

    # Requests to the peer

    def run(self, request: RunGraph, answer: Answer) -> None:
        """Asks the peer to run a graph. `answer` is called once, from another thread."""
        with self._lock:
            self._asked[request.step] = answer
        try:
            self.channel.send(request)
        except OpError:
            with self._lock:
                self._asked.pop(request.step, None)
            raise

    def deliver(self, step: int, keys: Sequence[int], values: list[Any]) -> None:
        """Sends tensors of a step."""
        self.channel.send(Tensors(step, keys, values))

    @contextmanager
    def watched(self, cancel: Callable[[], Any]) -> Iterator[None]:
        """Calls `cancel` if the link ends while the context is open. It is for requests that go over gRPC."""
        self._lost.on_cancel(cancel)
        try:
            yield
        finally:
            self._lost.forget(cancel)

    def cancel(self, step: int, why: OpError) -> None:
        """Tells the peer to cancel a step."""
        try:
            self.channel.send(Cancel(step, why.error_code, why.message[:LONGEST_MESSAGE]))
        except UnavailableError:
            pass  # the peer cancels all our steps when the connection is lost

    def tell(self, message: GateClosed | GateIdle | GateOpen) -> None:
        """Sends what needs no answer if the peer is gone."""
        try:
            self.channel.send(message)
        except UnavailableError:
            pass  # both sides hear of the loss, and open their gates

    def free(self, resources: Sequence[tuple[str, str]], graphs: Sequence[int]) -> None:
        """Tells the peer which resources, by container and name, and which graphs we use no more."""
        try:
            self.channel.send(Free([text for pair in resources for text in pair], graphs))
        except UnavailableError:
            pass  # the peer forgets our graphs when the connection is lost; if it has ended, all is gone

    # Messages from the peer

    def on_message(self, channel: Channel, message: Message) -> None:
        """Handles a message of the peer, in the thread that reads."""
        if isinstance(message, Tensors):
            if self._worker is not None:
                self._worker.deliver(message.step, message.keys, message.values)
        elif isinstance(message, RunGraph):
            self._start(message)
        elif isinstance(message, Done):
            count, end = message.fetched, len(message.values) - message.coming
            if self._worker is not None and end > count:
                tensors = list(message.values[count:end])
                message.values = [*message.values[:count], *message.values[end:]]
                self._worker.deliver(message.step, message.keys[count:end], tensors)
            self._answered(message.step, message)
        elif isinstance(message, Failed):
            self._answered(message.step, error_from_code(message.code, message.message, message.op or None))
        elif isinstance(message, Cancel):
            if self._worker is not None:
                self._worker.cancel(message.step)
        elif isinstance(message, Free):
            if len(message.resources) % 2:
                raise DataLossError(f"{self.peer} sent the container of a resource without its name.")
            if self._worker is not None:
                resources = zip(message.resources[::2], message.resources[1::2], strict=True)
                self._worker.free(list(resources), message.graphs)
        elif isinstance(message, GateClosed):
            number = message.round
            close_all(self.incarnation, number, lambda: self.tell(GateIdle(number)))
        elif isinstance(message, GateIdle):
            self.on_idle(self.incarnation, message.round)
        elif isinstance(message, GateOpen):
            membership = Membership.from_json(message.membership, f"a message of {self.peer}")
            self.on_membership(membership)
            open_all(self.incarnation, membership)
        else:
            raise DataLossError(f"{self.peer} sent a {type(message).__name__} in the middle of steps.")

    def _answered(self, step: int, result: Done | OpError) -> None:
        with self._lock:
            answer = self._asked.pop(step, None)
        if answer is not None:
            answer(result)

    def _start(self, request: RunGraph) -> None:
        if self._worker is None:
            raise DataLossError(f"{self.peer} asked a client to run a graph.")
        step = request.step

        def on_done(values: list[Any] | None, error: OpError | None, ran: Step) -> None:
            with self._lock:
                self._running.discard(step)
            keys, tensors = ran.outbox.take(self.peer)
            error = error or ran.outbox.flush_at_end()
            if error is not None or values is None:
                assert error is not None
                self.channel.send(_failed(step, error, error.op_name))
                return
            trace = b"" if ran.timings is None else encoded(ran.timings)
            number, coming, brought = ran.ahead or (0, (), [])
            every = [*range(len(values)), *keys, *coming]
            try:
                self.channel.send(
                    Done(step, number, len(values), len(brought), trace, every, [*values, *tensors, *brought])
                )
            except UnavailableError:
                raise
            except OpError as unsendable:
                self.channel.send(_failed(step, unsendable, None))

        with self._lock:
            self._running.add(step)
        self._worker.start_graph(request, on_done, self)

    def on_close(self, channel: Channel, reason: OpError) -> None:
        """Fails the steps that the peer ran for us, and cancels those that we run for the peer."""
        with self._lock:
            asked, self._asked = self._asked, {}
            running, self._running = self._running, set()
        self._lost.set()
        for answer in asked.values():
            answer(UnavailableError(f"Lost the connection to {self.peer}: {reason.message}"))
        if self._worker is not None:
            for step in running:
                self._worker.cancel(step)


def _failed(step: int, error: OpError, op: str | None) -> Failed:
    # Cut to length, since an error that is too long to send would leave the peer waiting.
    return Failed(step, error.error_code, (op or "")[:LONGEST_MESSAGE], error.message[:LONGEST_MESSAGE])


class Links:
    """Holds the links of a task, or of a client that is no task (`worker` is None)."""

    def __init__(self, task: str, incarnation: int, worker: Worker | None, credentials: Credentials | None) -> None:
        self.task = task
        self.incarnation = incarnation
        self.worker = worker
        self.credentials = credentials
        self.loop = Loop(task)
        self.loop.together = run_queue.collect
        self.on_lost: Callable[[int], None] = lambda incarnation: None  # called when a peer is lost
        self.on_idle: Callable[[int, int], None] = lambda incarnation, round_: None  # see Link
        self.on_membership: Callable[[Membership], None] = lambda membership: None
        self._lock = threading.Lock()
        self._links: dict[str, Link] = {}
        self._others: set[Link] = set()  # of clients, and second links to a task, if both sides have opened one
        self._replaced: OrderedDict[tuple[str, int], None] = OrderedDict()  # incarnations that have ended
        self._closed = False

    @classmethod
    def of_client(cls, credentials: Credentials | None) -> Links:
        """Makes the links of a process that runs no server."""
        return cls("", secrets.randbits(63), None, credentials)

    def find(self, task: str) -> Link | None:
        """Returns the open link to a task, or None."""
        with self._lock:
            link = self._links.get(task)
        return link if link is not None and link.channel.is_open else None

    def open(self, address: str, status: Any) -> Link:
        """Returns the link to the task that has this status, and opens it if there is none."""
        with self._lock:
            found = self._links.get(status.task)
        if found is not None and found.channel.is_open and found.incarnation == status.incarnation:
            return found
        host = address.rpartition(":")[0].strip("[]")
        token = self.credentials.token if self.credentials else b""
        hello = Hello(token, self.task, self.incarnation)
        channel, welcome = endpoint.connect(host, status.channel_port, status.unix_name, hello, self.credentials)
        if (welcome.task, welcome.incarnation) != (status.task, status.incarnation):
            channel.close(tell_peer=False)
            raise AbortedError(f"At {address} {welcome.task} answered where {status.task} was; it has been restarted.")
        return self._keep(Link(channel, welcome.task, welcome.incarnation, self.worker))

    def reach(self, task: str, address: str) -> Link:
        """Returns the link to a task, connecting first if there is none."""
        found = self.find(task)
        if found is not None:
            return found
        client = ControlClient(address, self.credentials)
        try:
            # If this waited longer for a frozen task, others would count this task as lost.
            status = client.get_status(timeout=min(STATUS_SECS, keepalive_secs() / 2))
            return self.open(address, status)
        except DeadlineExceededError as error:  # a new session may recover from it
            raise UnavailableError(f"{task} cannot be reached: {error.message}") from error
        finally:
            client.close()

    def accept(self, channel: Channel, hello: Hello) -> None:
        """Accepts a channel that a peer has opened."""
        name = hello.task or f"client {hello.incarnation:x}"
        if (name, hello.incarnation) in self._replaced:
            raise AbortedError(f"{name} has come back as another incarnation since this one was connected.")
        self._keep(Link(channel, name, hello.incarnation, self.worker), hello.task)

    def _keep(self, link: Link, task: str | None = None) -> Link:
        stale: Link | None = None
        with self._lock:
            if self._closed:
                link.channel.close()
                raise UnavailableError(f"{self.task or 'The client'} is closing.")
            if task == "":
                self._others.add(link)
            else:
                old = self._links.get(link.peer)
                # A task that comes back as another incarnation does not use its old connection any more.
                if old is not None and old.incarnation != link.incarnation:
                    stale = old
                    self._replaced[old.peer, old.incarnation] = None
                    if len(self._replaced) > MAX_REPLACED:
                        self._replaced.popitem(last=False)
                if old is not None:
                    self._others.add(old)
                self._links[link.peer] = link

        def lost(channel: Channel, reason: OpError) -> None:
            with self._lock:
                self._others.discard(link)
                if self._links.get(link.peer) is link:
                    del self._links[link.peer]
                    second = next((other for other in self._others if other.incarnation == link.incarnation), None)
                    if second is not None:
                        self._links[link.peer] = second
                        self._others.discard(second)
                left = any(other.incarnation == link.incarnation for other in (*self._links.values(), *self._others))
            link.on_close(channel, reason)
            if not left:
                self.on_lost(link.incarnation)
                server_lost(link.incarnation)
            logging.debug("%s: the link to %s has ended: %s", self.task or "client", link.peer, reason.message)

        if stale is not None:
            stale.channel.close(message=f"{link.peer} has come back as another incarnation")
        link.on_idle, link.on_membership = self.on_idle, self.on_membership
        link.channel.start(link.on_message, lost, self.loop)
        return link

    def to(self, incarnation: int) -> Link | None:
        """Returns an open link to a process, or None."""
        return next((link for link in self.all() if link.incarnation == incarnation), None)

    def has(self, incarnation: int) -> bool:
        """Tells if there is an open link to a process."""
        return self.to(incarnation) is not None

    def all(self) -> list[Link]:
        """Returns all open links."""
        with self._lock:
            return [link for link in (*self._links.values(), *self._others) if link.channel.is_open]

    def close(self, timeout: float = 5.0) -> None:
        """Closes all links and waits until each has ended."""
        with self._lock:
            self._closed = True
            links = [*self._links.values(), *self._others]
        for link in links:
            link.channel.close(message=f"{self.task or 'the client'} has ended")
        for link in links:
            link.channel.join(timeout)
