"""Checks the simulation against a real cluster: the MLP with Adam and one parameter server, all on this machine."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from scaling import LIMIT, measure_penstock

from .costs import Costs
from .experiment import WORKER, measured, simulated
from .sockets import SocketCosts, measure_latency
from .training import Setting, Simulation

COMPUTATIONS = 100
UNBOUNDED = 1e12  # bytes per second: on one machine copies are all that bytes cost, and those are among the costs


@dataclass(frozen=True)
class Check:
    """Steps per second, and microseconds of the server's processor per step: measured, and simulated."""

    workers: int
    real: float
    real_us: float
    simulated: float
    simulated_us: float

    @property
    def error(self) -> float:
        """Returns the error of the simulated steps per second, as a part of the measured ones."""
        return self.simulated / self.real - 1


def compute_secs(setting: Setting, sockets: SocketCosts) -> float:
    """Returns how long a worker computes in a step."""
    simulation = Simulation(setting, Costs(), sockets, computes=True)
    simulation.begin([0.0])
    simulation.warm_up()
    simulation.computations.clear()
    simulation.clock.run(enough=lambda: len(simulation.computations) >= COMPUTATIONS)
    simulation.close()
    return statistics.median(simulation.computations)


def check(workers: int, steps: int, sockets: SocketCosts) -> Check:
    """Measures a real cluster, then what the code costs here, and simulates the cluster with these costs."""
    real, real_secs = measure_penstock(workers, steps, LIMIT)
    local = {"optimizer": "adam", "latency": measure_latency(), "bandwidth": UNBOUNDED}
    compute = compute_secs(Setting("async", 1, 1, **local), sockets)  # type: ignore[arg-type]
    setting = Setting("async", workers, 1, compute=compute, **local)  # type: ignore[arg-type]
    costs = measured(setting, sockets)
    outcome = simulated(setting, costs, sockets)
    return Check(workers, real, 1e6 * real_secs, outcome.gradients, 1e6 * outcome.server / outcome.gradients)


def predicted(workers: int, server_secs: float, worker_secs: float) -> float:
    """Returns the steps per second for times that were measured elsewhere: of the server's processor, of a worker.

    The laps of the server have the proportions that they have on this machine.
    """
    free = SocketCosts(0.0, 0.0, 0.0, 0.0)
    local = {"optimizer": "adam", "latency": 0.0, "bandwidth": UNBOUNDED}
    setting = Setting("async", workers, 1, compute=worker_secs, **local)  # type: ignore[arg-type]
    costs = measured(setting, free)
    here = simulated(setting, costs, free)
    scale = server_secs * here.gradients / here.server
    costs = {kind: seconds * scale for kind, seconds in costs.items()}
    costs[WORKER] = 0.0  # part of `worker_secs`
    return simulated(setting, costs, free).gradients
