"""Fills the Status message, in which a task describes itself to those who watch it."""

from __future__ import annotations

import time
from typing import Any

from penstock.master.links import Links
from penstock.ops.queue.clock_resources import StalenessRecord
from penstock.segments.compilation import Compilations, elsewhere
from penstock.segments.stored_variable import StoredVariable
from penstock.worker.devices import Device
from penstock.worker.worker import Worker

MAX_SEGMENTS = 10  # the segments that took longest to compile are named


def fill_status(status: Any, worker: Worker, links: Links, details: bool) -> None:
    """Writes the devices of a task into a Status message, and with `details` its counters and resources."""
    for device in worker.devices:
        status.devices.add(
            name=device.name,
            device_type=device.device_type,
            memory_limit_bytes=device.memory_limit_bytes,
            incarnation=device.incarnation,
        )
    if not details:
        return
    counters = worker.counters
    status.steps, status.failed_steps, status.updates = counters.steps, counters.failed, counters.updates
    # The time of the whole process: reading a thread's clock in each step lets the system interrupt the thread.
    status.busy = time.process_time() - links.loop.awake
    for updates, count in sorted(counters.staleness.copy().items()):
        status.staleness.add(updates=updates, count=count)
    _add_compilations(status, worker.compilations, elsewhere())
    for link in links.all():
        sent, received = link.channel.traffic()
        status.peers.add(name=link.peer, bytes_sent=sent, bytes_received=received)
        status.bytes_sent += sent
        status.bytes_received += received
    for session, graphs in worker.sessions().items():
        status.sessions.add(name=session, graphs=graphs)
    for device in worker.devices:
        for (container, name), resource in device.resources.items():
            if isinstance(resource, StoredVariable):
                _add_variable(status, container, name, resource, device)
            else:
                _add_resource(status, container, name, resource)


def _add_compilations(status: Any, *logs: Compilations) -> None:
    """Adds up the logs of a task and of its process, and names the segments that took longest to compile."""
    status.loaded_programs = sum(log.loaded for log in logs)
    for log in logs:
        status.compiled.count += log.count
        status.compiled.seconds += log.seconds
        for compilation in log.recent(60.0):
            status.compiled_last_minute.count += 1
            status.compiled_last_minute.seconds += compilation.seconds
    totals = [pair for log in logs for pair in log.by_segment().items()]
    for segment, total in sorted(totals, key=lambda pair: -pair[1].seconds)[:MAX_SEGMENTS]:
        status.compiled_segments.add(segment=segment, count=total.count, seconds=total.seconds)


def _add_variable(status: Any, container: str, name: str, variable: StoredVariable, device: Device) -> None:
    held = variable.held  # read once, since a step may replace it meanwhile
    declared = variable.shape.as_list() if variable.shape.rank is not None else []
    status.variables.add(
        name=name,
        container=container,
        device=device.name,
        dtype=variable.dtype.base_dtype.name,
        shape=[-1 if n is None else n for n in getattr(held, "shape", declared)],
        bytes=0 if held is None else int(held.nbytes),
    )


def _add_resource(status: Any, container: str, name: str, resource: Any) -> None:
    """Adds a resource with its `kind`, its `size()` if it holds elements, its `capacity` and `record` if it has them.

    -1 stands for no such number, and for a capacity without bound.
    """
    size = getattr(resource, "size", None)
    added = status.resources.add(
        name=name,
        container=container,
        kind=getattr(resource, "kind", type(resource).__name__.lstrip("_")),
        size=-1 if size is None else size(),
        capacity=getattr(resource, "capacity", -1),
    )
    record = getattr(resource, "record", None)
    if isinstance(record, StalenessRecord):
        for field, histogram in ((added.staleness, record.updates), (added.clocks_ahead, record.clocks)):
            for value, count in sorted(histogram.copy().items()):
                field.add(updates=value, count=count)
