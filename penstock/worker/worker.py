"""Worker: registers partitions of graphs and runs steps of them on the devices of one task."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

from penstock.errors import AbortedError
from penstock.passes.ir import Subgraph
from penstock.passes.partition import task_of
from penstock.worker.devices import Device
from penstock.worker.executor import Context, Executable, Step
from penstock.worker.randomness import RandomState


class Worker:
    """The worker of one task. A master talks to it by `register_graph` and `run_graph`.

    >>> worker = Worker(local_devices())
    >>> handle = worker.register_graph(subgraph, RandomState())
    >>> worker.run_graph(handle, [], Step(threading.Event()))
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = list(devices)
        self.task = task_of(self.devices[0].name)
        self._by_name = {d.name: d for d in self.devices}
        self._graphs: dict[int, Executable] = {}
        self._handles = itertools.count(1)
        self._lock = threading.Lock()

    def register_graph(self, subgraph: Subgraph, random_state: RandomState) -> int:
        """Compiles a partition and returns the handle by which steps name it."""
        executable = Executable(subgraph, Context(self._by_name, random_state), for_client=True)
        with self._lock:
            handle = next(self._handles)
            self._graphs[handle] = executable
        return handle

    def deregister_graph(self, handle: int) -> None:
        """Forgets a partition."""
        with self._lock:
            self._graphs.pop(handle, None)

    def run_graph(self, handle: int, fed: Sequence[Any], step: Step) -> list[Any]:
        """Runs one step of a registered partition."""
        executable = self._graphs.get(handle)
        if executable is None:
            raise AbortedError(None, None, f"Graph handle {handle} is not registered on {self.task}.")
        return executable.run(fed, step)

    def reset(self, containers: list[str] | None = None) -> None:
        """Gives up the resources of the given containers, or all."""
        for device in self.devices:
            device.resources.clear(containers)
