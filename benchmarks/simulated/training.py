"""Simulates a training: workers that pull, compute and push, asynchronously or in step."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.segments.compilation import wait_idle

from .clock import Clock
from .cluster import Cluster
from .costs import Costs
from .network import Host, Network
from .programs import Training, batch, training
from .sockets import SocketCosts

WARM_SECS = 1.0  # real seconds of steps after which code has been compiled


@dataclass(frozen=True)
class Setting:
    """One row: how large the cluster is, how it trains, and what is modelled."""

    mode: str
    workers: int
    servers: int
    hidden: int = 100
    optimizer: str = "sgd"
    compute: float = 0.1  # seconds that a worker computes, on average
    spread: float = 0.1  # standard deviation of that, as a part of it
    latency: float = 50e-6
    bandwidth: float = 1.25e9
    seed: int = 1

    @property
    def name(self) -> str:
        """Returns the name of its costs."""
        return f"{self.mode}, {self.workers} workers, {self.servers} ps, {self.hidden} hidden, {self.optimizer}"


def evenly(setting: Setting) -> list[float]:
    """Lets the workers start one after the other, all within the time of one computation."""
    return [setting.compute * number / setting.workers for number in range(setting.workers)]


class Simulation:
    """A cluster that trains."""

    def __init__(self, setting: Setting, costs: Costs, sockets: SocketCosts, computes: bool = False) -> None:
        self.setting = setting
        self.clock = Clock()
        network = Network(self.clock, setting.latency, setting.bandwidth)
        self.cluster = Cluster(self.clock, network, costs, sockets, setting.servers, computes)
        self.costs = costs
        self.hosts = [Host(f"worker {number}") for number in range(setting.workers)]
        self.done = 0  # steps of workers
        self.losses: dict[int, list[float]] = {}  # by worker, of those that compute
        self._keeps_losses = computes
        self._random = random.Random(setting.seed)
        self.overhead = 0.0  # seconds of a worker's own processor per step
        self._sockets = sockets
        self._prepare()
        for server in self.cluster.servers:
            server.take_role()

    def _prepare(self) -> None:
        """Initialises the variables and compiles a step of a worker."""
        program, master = self._program(), self.cluster.master
        for initialize in (program.initialize, *program.chief_initialize):
            signature = master.prepared([], [], [initialize])
            self.in_process("initialize", lambda signature=signature: master.run(signature, []))
        self._chief = master.prepared([], [], program.chief_repeats) if program.chief_repeats else None
        self._train = master.prepared(program.feeds, [program.loss], [program.train])
        self.computations = self.cluster.model_computation(self._train, self._compute_secs)

    def _program(self) -> Training:
        setting = self.setting
        replicas = setting.workers if setting.mode == "sync" else 0
        return training(setting.servers, replicas, hidden=setting.hidden, optimizer=setting.optimizer)

    def in_process(self, name: str, act: Callable[[], Any]) -> None:
        """Runs something that waits on the simulated clock, before the training."""
        ended = []

        def run() -> None:
            self.cluster.workers.current = self.hosts[0]
            act()
            ended.append(True)

        self.clock.start(run)
        self.clock.run()
        if not ended:
            raise RuntimeError(f"The simulated cluster stands still in '{name}' at {self.clock.now:g} s.")

    def _compute_secs(self) -> float:
        setting = self.setting
        return self.overhead + max(0.0, self._random.gauss(setting.compute, setting.spread * setting.compute))

    def _work(self, number: int, steps: Iterable[Any]) -> None:
        """The process of a worker."""
        master, fed = self.cluster.master, batch(number if self._keeps_losses else 0)
        for _ in steps:
            self.cluster.workers.current = self.hosts[number]
            (loss,), _, _ = master.run(self._train, fed)
            self.done += 1
            if self._keeps_losses:
                self.losses.setdefault(number, []).append(float(loss))

    def _repeat(self) -> None:
        """The process of the chief's queue runner."""
        while True:
            self.cluster.workers.current = self.hosts[0]
            self.cluster.master.run(self._chief, [])

    def begin(self, starts: Sequence[float], steps: int | None = None) -> None:
        """Starts each worker when so many seconds have passed; each makes `steps` steps, or goes on."""
        if self._chief is not None:
            self.clock.start(self._repeat)
        for number, delay in enumerate(starts):
            own = itertools.repeat(None) if steps is None else range(steps)
            self.clock.after(delay, self.clock.start, self._work, number, own)

    def warm_up(self) -> None:
        """Runs steps until the code that they need is compiled, and forgets what they took."""
        end = time.monotonic() + WARM_SECS
        self.clock.run(enough=lambda: time.monotonic() > end)
        wait_idle(60.0)
        self.costs.forget()

    def close(self) -> None:
        """Frees what is not the simulation's own: nothing here."""
