"""The modelled network: each host has a link of its own to a switch that is never full.

A link carries bytes both ways at once, one frame after the other each way. A frame begins to arrive after the latency,
while its rest is still being sent: alone, it takes `latency + bytes / bandwidth`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .clock import Clock


@dataclass(slots=True, eq=False)
class Host:
    """A machine: when each direction of its link is free again, and how long it was busy so far, in seconds."""

    name: str
    free_to_send: float = 0.0
    free_to_receive: float = 0.0
    busy_sending: float = 0.0
    busy_receiving: float = 0.0


class Network:
    """Carries frames between hosts. Latency in seconds, bandwidth in bytes per second each way.

    >>> network.carry(worker, server, 318_000, 0.0, deliver)
    """

    def __init__(self, clock: Clock, latency: float, bandwidth: float) -> None:
        self._clock = clock
        self._latency, self._bandwidth = latency, bandwidth

    def carry(self, source: Host, target: Host, size: int, delay: float, deliver: Callable[[], Any]) -> None:
        """Sends a frame after `delay` seconds, and calls `deliver()` when its last byte has arrived."""
        seconds = size / self._bandwidth
        begins = max(self._clock.now + delay, source.free_to_send)
        source.free_to_send = begins + seconds
        source.busy_sending += seconds
        self._clock.after(begins + self._latency - self._clock.now, self._arrive, target, seconds, deliver)

    def _arrive(self, target: Host, seconds: float, deliver: Callable[[], Any]) -> None:
        begins = max(self._clock.now, target.free_to_receive)
        target.free_to_receive = begins + seconds
        target.busy_receiving += seconds
        self._clock.after(begins + seconds - self._clock.now, deliver)
