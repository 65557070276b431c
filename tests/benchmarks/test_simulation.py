"""The simulated clock and network are exact, and a simulated cluster computes what a real one does."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.processes import DEADLINE, Cluster

import penstock.v1 as tf

pytest.importorskip("greenlet", reason="the simulation needs the package greenlet")

from benchmarks.simulated import experiment
from benchmarks.simulated.clock import Clock, Processor
from benchmarks.simulated.costs import Costs, Laps
from benchmarks.simulated.experiment import SERVER, WORKER, Outcome, make, simulated
from benchmarks.simulated.network import Host, Network
from benchmarks.simulated.programs import batch, training
from benchmarks.simulated.sockets import SocketCosts, measure
from benchmarks.simulated.training import Setting, Simulation
from penstock.wire.loop import Signal

FREE = SocketCosts(0.0, 0.0, 0.0, 0.0)
STEPS = 5


def test_events_come_in_order_of_time_then_of_arrival() -> None:
    clock, seen = Clock(), []
    for delay, name in ((2.0, "late"), (1.0, "first"), (1.0, "second")):
        clock.after(delay, lambda name=name: seen.append((clock.now, name)))
    clock.run()
    assert seen == [(1.0, "first"), (1.0, "second"), (2.0, "late")]


def test_a_run_stops_at_its_time_and_goes_on_from_there() -> None:
    clock, seen = Clock(), []
    clock.after(1.0, seen.append, 1)
    clock.after(3.0, seen.append, 3)
    clock.run(until=2.0)
    assert (clock.now, seen) == (2.0, [1])
    clock.run()
    assert (clock.now, seen) == (3.0, [1, 3])


def test_processes_sleep_and_wait_for_signals() -> None:
    clock, seen = Clock(), []
    signal, never = Signal(), Signal()

    def waits() -> None:
        seen.append((clock.wait(signal), clock.now))
        seen.append((clock.wait(never, timeout=0.5), clock.now))

    def sets() -> None:
        clock.sleep(2.0)
        signal.set()

    clock.start(waits)
    clock.start(sets)
    clock.run()
    assert seen == [(True, 2.0), (False, 2.5)]


def test_a_processor_works_one_job_after_the_other() -> None:
    clock, began = Clock(), []
    processor = Processor(clock)

    def job(seconds: float) -> float:
        began.append(clock.now)
        return seconds

    clock.after(1.0, processor.submit, lambda: job(3.0))
    clock.after(2.0, processor.submit, lambda: job(1.0))
    clock.after(9.0, processor.submit, lambda: job(1.0))
    clock.run()
    assert began == [1.0, 4.0, 9.0]
    assert processor.busy == 5.0


def arrivals(*frames: tuple[str, str, int, float]) -> list[float]:
    """When frames (source, target, bytes, delay) arrive, with a latency of 1 s and 100 bytes per second."""
    clock, hosts, seen = Clock(), {name: Host(name) for name in "abc"}, {}
    network = Network(clock, latency=1.0, bandwidth=100.0)
    for i, (source, target, size, delay) in enumerate(frames):
        network.carry(hosts[source], hosts[target], size, delay, lambda i=i: seen.update({i: clock.now}))
    clock.run()
    return [seen[i] for i in range(len(frames))]


def test_a_frame_takes_the_latency_and_its_bytes_over_the_bandwidth() -> None:
    assert arrivals(("a", "b", 200, 0.0)) == [3.0]
    assert arrivals(("a", "b", 200, 5.0)) == [8.0]


def test_frames_share_the_links_of_their_hosts() -> None:
    assert arrivals(("a", "b", 200, 0.0), ("a", "c", 100, 0.0)) == [3.0, 4.0]  # one after the other out of a
    assert arrivals(("a", "c", 200, 0.0), ("b", "c", 100, 0.5)) == [3.0, 4.0]  # and into c
    assert arrivals(("a", "b", 200, 0.0), ("b", "a", 200, 0.0)) == [3.0, 3.0]  # both ways at once


def test_laps_are_named_by_their_ends_and_cost_their_median() -> None:
    costs = Costs({"ps: RunGraph -> run": 2.0, "ps: run -> send": 3.0, "ps: send -> end": 0.5})
    laps = Laps(costs, "ps")
    laps.begin("RunGraph")
    laps.lap("run")
    assert laps.elapsed == 2.0
    laps.lap("send", besides=1.0)
    assert laps.end() == 6.5
    measuring = Costs()
    for took in (1.0, 9.0, 2.0):
        assert measuring.of("lap", took) == took
    assert measuring.medians() == {"lap": 2.0}


def test_sockets_cost_something() -> None:
    costs = measure()
    assert 0 < costs.write(100) <= costs.write(1 << 20)
    assert 0 < costs.read(100) <= costs.read(1 << 20)


def real_losses(folder: Path) -> dict[int, list[float]]:
    """The losses of two workers that train in step with two parameter servers, which are other processes."""
    losses: dict[int, list[float]] = {0: [], 1: []}
    with Cluster(folder, ps=2, workers=2) as cluster:
        cluster.start("ps0", "ps1", mode="join")
        for name in ("ps0", "ps1"):
            cluster[name].wait_for("serves")
        servers = [tf.train.Server(cluster.spec, "worker", number) for number in (0, 1)]
        programs = [training(2, 2, worker=number) for number in (0, 1)]
        sessions = [tf.Session(s.target, graph=p.graph) for s, p in zip(servers, programs, strict=True)]
        sessions[0].run(programs[0].initialize)
        for program, session in zip(programs, sessions, strict=True):
            session.run(program.chief_initialize)

        def work(number: int) -> None:
            program, feeds = programs[number], dict(zip(programs[number].feeds, batch(number), strict=True))
            for _ in range(STEPS):
                losses[number].append(float(sessions[number].run([program.loss, program.train], feeds)[0]))

        def update() -> None:
            for _ in range(STEPS):
                sessions[0].run(programs[0].chief_repeats)

        threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
        threads.append(threading.Thread(target=update))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        for each in (*sessions, *servers):
            getattr(each, "close", getattr(each, "stop", None))()
    return losses


def test_a_simulated_cluster_computes_what_a_real_one_does(tmp_path: Path) -> None:
    simulation = Simulation(Setting("sync", workers=2, servers=2), Costs({}), FREE, computes=True)
    simulation.begin([0.0, 0.0], STEPS)
    simulation.clock.run()
    real = real_losses(tmp_path)
    assert [len(each) for each in real.values()] == [STEPS, STEPS]
    assert real[0][0] > real[0][-1]
    for number in (0, 1):
        np.testing.assert_allclose(simulation.losses[number], real[number], rtol=1e-5)


class Fixed(dict[str, float]):
    """Costs that are the same for each lap, so that they need not be measured."""

    def setdefault(self, kind: str, took: float) -> float:  # type: ignore[override]
        return 50e-6


def outcome(setting: Setting) -> Outcome:
    costs: dict[str, Any] = Fixed({WORKER: 1e-3, SERVER: 1e-3})
    return simulated(setting, costs, FREE)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "GRADIENTS", 100)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("mode", ["async", "sync", "coordinator"])
def test_the_same_costs_and_seed_give_the_same_outcome(mode: str) -> None:
    setting = Setting(mode, workers=20, servers=2)
    first, second = outcome(setting), outcome(setting)
    assert first == second
    assert 0 < first.gradients < 1.05 * 20 / setting.compute  # the times of workers are random
    assert outcome(dataclasses.replace(setting, seed=2)) != first


@pytest.mark.usefixtures("short")
def test_a_slow_network_limits() -> None:
    setting = Setting("async", workers=20, servers=1)
    assert outcome(setting).limit == "workers"
    slow = outcome(dataclasses.replace(setting, bandwidth=1e6))
    assert slow.limit in ("ps link, out", "ps link, in")
    assert slow.gradients < 4  # 318 kB each way, 1 MB per second


def test_measured_costs_name_what_servers_do() -> None:
    simulation = make(Setting("async", workers=2, servers=1), Costs(), FREE)
    simulation.begin([0.0, 0.0], 3)
    simulation.clock.run()
    assert simulation.done == 6
    kinds = simulation.costs.medians()
    assert any("RunGraph" in kind for kind in kinds) and any("send Done" in kind for kind in kinds)
    assert all(seconds >= 0 for seconds in kinds.values())
