"""The in-memory transport: ports take the place of channels between tasks.

A port encodes each message as a channel does, so that frames have their real sizes, and hands it to the network. The
workers of a simulation share one Link to each parameter server: the number of a step tells whose it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.master.links import Link
from penstock.memory import aligned_empty
from penstock.wire import codec
from penstock.wire.batches import size_of

from .clock import Clock, Processor
from .costs import Costs, Laps
from .network import Host, Network
from .sockets import SocketCosts

KEPT = 64  # bytes: tensors up to this size reach workers whose computation is modelled; others lose their contents


class Peer:
    """One side of ports: where its messages start and end, and what happens when one arrives."""

    def host_of(self, message: Any) -> Host:
        """Returns the host that sends or gets a message."""
        raise NotImplementedError

    def sent(self, message: Any, size: int) -> float:
        """Notes that a message was encoded. Returns after how many seconds it leaves."""
        return 0.0

    def arrived(self, port: Port, message: Any, frame: list[Any]) -> None:
        """Handles a message that has arrived."""
        raise NotImplementedError


class Port:
    """Stands for a Channel. What one of a pair sends, the link of the other one gets."""

    is_open = True
    link: Link
    other: Port

    def __init__(self, network: Network, owner: Peer) -> None:
        self._network, self.owner = network, owner

    def send(self, message: Any) -> None:
        """Sends a message after those sent before."""
        frame = codec.encode(message)
        size = size_of(frame)
        delay = self.owner.sent(message, size)
        source, target = self.owner.host_of(message), self.other.owner.host_of(message)
        deliver = self.other.owner.arrived
        self._network.carry(source, target, size, delay, lambda: deliver(self.other, message, frame))


def connect(network: Network, one: Peer, name: str, other: Peer, other_name: str, workers: dict[str, Any]) -> None:
    """Links two peers. Each gets a Link with the name of the other, for the real worker that it has, if any."""
    ports = Port(network, one), Port(network, other)
    ports[0].other, ports[1].other = ports[1], ports[0]
    ports[0].link = Link(ports[0], other_name, 1, workers.get(name))  # type: ignore[arg-type]
    ports[1].link = Link(ports[1], name, 1, workers.get(other_name))  # type: ignore[arg-type]
    one.links[other_name], other.links[name] = ports[0].link, ports[1].link  # type: ignore[attr-defined]


def received(frame: list[Any]) -> Any:
    """Decodes a frame from memory of its own, into which a channel would have read it."""
    whole = aligned_empty((size_of(frame),)).data.cast("B")
    at = 0
    for buffer in frame:
        size = len(buffer)
        whole[at : at + size] = memoryview(buffer).cast("B")
        at += size
    return whole


def decoded(whole: Any) -> Any:
    """Decodes a message."""
    kind, meta, _ = codec.decode_header(whole)
    body = whole[codec.HEADER.size :]
    return codec.decode(kind, body[:meta], body[meta:])


class Workers(Peer):
    """All workers. They handle messages at once: what that costs them is part of the time of a step.

    Unless they really compute, large tensors lose their contents on the way to them, else those in flight to ten
    thousand workers would not fit into memory.
    """

    def __init__(self, clock: Clock, computes: bool) -> None:
        self.links: dict[str, Link] = {}
        self.hosts: dict[int, Host] = {}  # by step
        self.current: Host | None = None  # the worker whose process runs
        self._computes = computes

    def host_of(self, message: Any) -> Host:
        return self.hosts[message.step]

    def sent(self, message: Any, size: int) -> float:
        assert self.current is not None or message.step in self.hosts
        if self.current is not None:
            self.hosts.setdefault(message.step, self.current)
        return 0.0

    def arrived(self, port: Port, message: Any, frame: list[Any]) -> None:
        if self._computes:
            message = decoded(received(frame))
        else:
            message.values = [_hollow(value) for value in message.values]
        port.link.on_message(port, message)  # type: ignore[arg-type]


def _hollow(value: Any) -> Any:
    return value if value.nbytes <= KEPT else np.broadcast_to(np.zeros((), value.dtype), value.shape)


class Task(Peer):
    """A task whose work is simulated: one thread reads all its connections and handles their messages."""

    def __init__(self, name: str, clock: Clock, costs: Costs, sockets: SocketCosts, role: str) -> None:
        self.name = name
        self.host = Host(name)
        self.links: dict[str, Link] = {}
        self.processor = Processor(clock)
        self.laps = Laps(costs, role)
        self._sockets = sockets

    def host_of(self, message: Any) -> Host:
        return self.host

    def sent(self, message: Any, size: int) -> float:
        self.laps.lap(f"send {_kind(message, size)}", self._sockets.write(size))
        return self.laps.elapsed

    def arrived(self, port: Port, message: Any, frame: list[Any]) -> None:
        what = _kind(message, size_of(frame))
        self.processor.submit(lambda: self.handle(what, lambda: self._read(port, frame)))

    def handle(self, what: str, act: Callable[[], Any]) -> float:
        """Runs something in the thread of the task. Returns how many seconds it takes."""
        self.laps.begin(what)
        act()
        return self.laps.end()

    def _read(self, port: Port, frame: list[Any]) -> None:
        whole = received(frame)
        self.laps.skip()  # the system's copies are in the costs of sockets
        message = decoded(whole)
        self.laps.lap("decoded", self._sockets.read(len(whole)))
        port.link.on_message(port, message)  # type: ignore[arg-type]


def _kind(message: Any, size: int) -> str:
    return f"{type(message).__name__} of {size} bytes"
