"""Status: what a task tells of itself to those who watch it."""

from __future__ import annotations

from typing import Any

from penstock.master.links import Links
from penstock.worker.resources import Variable
from penstock.worker.worker import Worker


def fill_status(status: Any, worker: Worker, links: Links, details: bool) -> None:
    """Writes the devices of a task, and with `details` what it has done and holds, into a Status message."""
    for device in worker.devices:
        status.devices.add(
            name=device.name, device_type=device.device_type, memory_limit_bytes=device.memory_limit_bytes,
            incarnation=device.incarnation,
        )  # fmt: skip
    if not details:
        return
    counters = worker.counters
    status.steps, status.failed_steps, status.updates = counters.steps, counters.failed, counters.updates
    status.busy = counters.busy
    for updates, count in sorted(dict(counters.staleness).items()):
        status.staleness.add(updates=updates, count=count)
    for link in links.all():
        sent, received = link.channel.traffic()
        status.peers.add(name=link.peer, bytes_sent=sent, bytes_received=received)
        status.bytes_sent += sent
        status.bytes_received += received
    for session, graphs in worker.sessions().items():
        status.sessions.add(name=session, graphs=graphs)
    for device in worker.devices:
        for (container, name), resource in device.resources.items():
            if isinstance(resource, Variable):
                value = resource.value
                shape = resource.shape.as_list() if value is None and resource.shape.rank is not None else None
                status.variables.add(
                    name=name, container=container, device=device.name, dtype=resource.dtype.base_dtype.name,
                    shape=[-1 if n is None else n for n in shape or getattr(value, "shape", ())], bytes=resource.nbytes(),
                )  # fmt: skip
            else:
                status.resources.add(
                    name=name, container=container, kind=type(resource).__name__, size=_size(resource),
                    capacity=int(getattr(resource, "capacity", -1) or -1),
                )  # fmt: skip


def _size(resource: Any) -> int:
    """How many elements a queue holds, or gradients an accumulator; -1 for what has no such number."""
    for name in ("size", "num_accumulated", "count"):
        value = getattr(resource, name, None)
        if value is not None:
            value = value() if callable(value) else value
            if isinstance(value, int):
                return value
    return -1
