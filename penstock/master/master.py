"""Master: from a graph and what is fed and fetched to registered partitions, and steps over them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from penstock.errors import CancelledError
from penstock.graph.operation import Operation
from penstock.graph.tensor import Tensor
from penstock.passes.optimize import optimize
from penstock.passes.partition import Partition, partition
from penstock.passes.place import place
from penstock.passes.prune import prune
from penstock.worker.cancellation import Cancellation
from penstock.worker.executor import Step
from penstock.worker.randomness import RandomState
from penstock.worker.rendezvous import Rendezvous
from penstock.worker.worker import Worker


@dataclass(slots=True)
class _Part:
    worker: Worker
    handle: int
    feeds: list[int]
    fetches: list[int]


class Signature:
    """A graph compiled for one set of feeds and fetches."""

    __slots__ = ("fetch_count", "parts", "run_whole")

    def __init__(self, parts: list[_Part], fetch_count: int) -> None:
        self.parts = parts
        self.fetch_count = fetch_count
        # One task, no Send or Recv: the step is a plain call.
        whole = parts[0] if len(parts) == 1 else None
        self.run_whole: Callable[[Sequence[Any], Step], list[Any]] | None = (
            whole.worker._graphs[whole.handle].run if whole else None
        )


class Master:
    """Drives the workers of a session. For a local session the only worker is in this process."""

    def __init__(self, workers: Sequence[Worker], soft_placement: bool = False, log_placement: bool = False) -> None:
        self.workers = {w.task: w for w in workers}
        self.devices = [d.name for w in workers for d in w.devices]
        self.soft_placement = soft_placement
        self.log_placement = log_placement
        self.random_state = RandomState()
        self.compilations = 0  # signatures compiled so far
        self._signatures: dict[Any, Signature] = {}
        self._lock = threading.Lock()
        self._running: set[Cancellation] = set()
        self._closed = False

    def signature(
        self, feeds: tuple[Tensor, ...], fetches: tuple[Tensor, ...], targets: tuple[Operation, ...], mutations: int
    ) -> Signature:
        """The compiled form of a signature; all graph work happens here, once."""
        key = (feeds, fetches, targets, mutations)
        with self._lock:
            found = self._signatures.get(key)
            if found is None:
                found = self._signatures[key] = self._compile(feeds, fetches, targets)
        return found

    def _compile(self, feeds: Sequence[Tensor], fetches: Sequence[Tensor], targets: Sequence[Operation]) -> Signature:
        self.compilations += 1
        subgraph = optimize(prune(feeds, fetches, targets))
        place(subgraph, self.devices, self.soft_placement)
        if self.log_placement:
            for node in subgraph.nodes:
                print(f"{node.name}: ({node.op.name}): {node.device}", flush=True)
        parts = [self._register(p) for p in partition(subgraph)]
        return Signature(parts, len(fetches))

    def _register(self, part: Partition) -> _Part:
        worker = self.workers[part.task] if part.task else next(iter(self.workers.values()))
        return _Part(worker, worker.register_graph(part.subgraph, self.random_state), part.feeds, part.fetches)

    def run(
        self, signature: Signature, fed: Sequence[Any], timeout: float | None = None, trace: bool = False
    ) -> tuple[list[Any], Step]:
        """Runs one step in all tasks and returns the fetched values."""
        cancelled = Cancellation()
        step = Step(cancelled, None if timeout is None else time.monotonic() + timeout, trace)
        self._running.add(cancelled)
        try:
            if self._closed:
                raise CancelledError(None, None, "The session has been closed.")
            if signature.run_whole is not None:
                return signature.run_whole(fed, step), step
            return self._run_parts(signature, fed, step), step
        finally:
            self._running.discard(cancelled)

    def _run_parts(self, signature: Signature, fed: Sequence[Any], step: Step) -> list[Any]:
        step.rendezvous = Rendezvous(step.cancelled)
        errors: list[BaseException] = []  # in the order in which they came: the first is the cause of the others

        def run(part: _Part) -> list[Any]:
            try:
                return part.worker.run_graph(part.handle, [fed[i] for i in part.feeds], step)
            except BaseException as error:
                errors.append(error)
                step.cancelled.set()
                raise

        results: list[Any] = [None] * signature.fetch_count
        with ThreadPoolExecutor(len(signature.parts), "penstock-step") as pool:
            futures = [pool.submit(run, part) for part in signature.parts]
            for part, future in zip(signature.parts, futures, strict=True):
                if future.exception() is None:
                    for position, value in zip(part.fetches, future.result(), strict=True):
                        results[position] = value
        if errors:
            raise errors[0]
        return results

    def close(self) -> None:
        """Cancels the steps in flight and takes no more."""
        self._closed = True
        for cancelled in list(self._running):
            cancelled.set()
