"""Measures what a setting costs, and simulates it with these costs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from .coordinated import CoordinatedSimulation
from .costs import Costs
from .network import Host
from .sockets import SocketCosts
from .training import Setting, Simulation, evenly

MEASURED = 200  # gradients
WHOLE = 64_000  # requests to parameter servers for one gradient of each worker: up to so many, all workers take part
SHORT = 20_000  # requests of a simulation in which they do not
GRADIENTS = 2_000  # at least, unless these are too many requests
WORKER, SERVER = "worker: a step", "busiest ps: a gradient"  # sums of laps among the costs
ALIKE = 100  # workers: an asynchronous server does the same for each gradient, whatever their number


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation: gradients per simulated second, and for which part of the time things were busy."""

    gradients: float
    workers: float  # computing, on average
    server: float  # the thread of the busiest parameter server
    sending: float  # the link of the busiest parameter server
    receiving: float
    coordinator: float  # its thread

    @property
    def limit(self) -> str:
        """Returns what is busy for the largest part of the time."""
        parts = {
            "workers": self.workers,
            "ps thread": self.server,
            "ps link, out": self.sending,
            "ps link, in": self.receiving,
            "coordinator": self.coordinator,
        }
        return max(parts, key=parts.__getitem__)


def make(setting: Setting, costs: Costs, sockets: SocketCosts) -> Simulation:
    """Makes the simulation of a setting."""
    kind = CoordinatedSimulation if setting.mode == "coordinator" else Simulation
    return kind(setting, costs, sockets)


def measured_as(setting: Setting) -> Setting:
    """Returns the setting whose costs a setting has."""
    return dataclasses.replace(setting, workers=min(ALIKE, setting.workers)) if setting.mode == "async" else setting


def measured(setting: Setting, sockets: SocketCosts) -> dict[str, float]:
    """Runs a setting, and returns what it costs."""
    simulation = make(setting, Costs(), sockets)
    simulation.begin(evenly(setting))
    simulation.warm_up()
    done, spent = simulation.done, simulation.clock.spent_in_processes
    busy = [server.processor.busy for server in simulation.cluster.servers]
    # Synchronous: one whole round at least.
    goal = (done // setting.workers + 2) * setting.workers if setting.mode == "sync" else done + MEASURED
    simulation.clock.run(enough=lambda: simulation.done >= goal)
    count = simulation.done - done
    costs = simulation.costs.medians()
    costs[WORKER] = (simulation.clock.spent_in_processes - spent) / count
    gained = [server.processor.busy - before for server, before in zip(simulation.cluster.servers, busy, strict=True)]
    costs[SERVER] = max(gained) / count
    simulation.close()
    return costs


def simulated(setting: Setting, costs: dict[str, float], sockets: SocketCosts) -> Outcome:
    """Simulates a setting with known costs. Its beginning does not count."""
    simulation = make(setting, Costs(costs), sockets)
    simulation.overhead = costs[WORKER]
    first, last = _counted(setting)
    simulation.begin(evenly(setting) if is_whole(setting) else _joining(setting, costs[SERVER]))
    simulation.clock.run(enough=lambda: simulation.done >= first)
    before, done, began = _busy(simulation), simulation.done, simulation.clock.now
    simulation.clock.run(enough=lambda: simulation.done >= last)
    seconds = simulation.clock.now - began
    parts = [
        [(now - then) / seconds for now, then in zip(*each, strict=True)]
        for each in zip(_busy(simulation), before, strict=True)
    ]
    rate = (simulation.done - done) / seconds
    simulation.close()
    return Outcome(rate, rate * setting.compute / setting.workers, *map(max, parts))


def is_whole(setting: Setting) -> bool:
    """Tells if all workers take part for as long as the simulation counts."""
    return setting.mode == "sync" or setting.workers * setting.servers <= WHOLE


def _counted(setting: Setting) -> tuple[int, int]:
    """Returns after how many gradients the simulation begins to count, and after how many it ends."""
    if setting.mode == "sync":
        return setting.workers, (3 if setting.workers * setting.servers <= SHORT else 2) * setting.workers
    last = min(GRADIENTS, SHORT // setting.servers)
    if setting.mode == "async" and is_whole(setting):
        return max(setting.workers, last // 2), max(2 * setting.workers, last)
    return last // 3, last


def _joining(setting: Setting, server_secs: float) -> list[float]:
    """Returns when each worker starts, in seconds, if that would take too long for all.

    Twice as many as saturate the busiest server start within the time of one computation. The others follow at a tenth
    of the rate at which it serves them: while workers start, there are more pulls than pushes.
    """
    crowd = min(setting.workers, 1 + int(2 * setting.compute / server_secs))
    early = [setting.compute * number / crowd for number in range(crowd)]
    return early + [setting.compute + 10 * server_secs * number for number in range(setting.workers - crowd)]


def _busy(simulation: Simulation) -> list[list[float]]:
    """Returns for how many seconds each server's thread and link, and the coordinator's thread, were busy so far."""
    servers = simulation.cluster.servers
    hosts: list[Host] = [server.host for server in servers]
    task = getattr(simulation, "task", None)
    return [
        [server.processor.busy for server in servers],
        [host.busy_sending for host in hosts],
        [host.busy_receiving for host in hosts],
        [0.0 if task is None else task.processor.busy],
    ]
