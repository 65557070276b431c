"""Measures training with 1 to 16 workers and one parameter server: penstock, and bare sockets (bare.py), in turns.

    python benchmarks/scaling.py --workers=1,2,4,8,12,16 --plot=docs/scaling.png

All tasks are processes on this machine, so it should have more cores than workers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import bare
from peers import PROGRAMS, free_addresses
from worker_counts import Result, draw

from penstock.wire.control import ControlClient, wait_until_listening

LIMIT = 120.0  # seconds for one run


def measure_penstock(workers: int, steps: int, limit: float) -> tuple[float, float]:
    """Trains with so many workers. Returns the steps per second of all, and the server's processor time per step."""
    server, *others = free_addresses(1 + workers)
    hosts = ["--ps_hosts", server, "--worker_hosts", ",".join(others)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "LIBRARY": "penstock"}
    started: list[subprocess.Popen[str]] = []
    control = ControlClient(server)
    try:
        for job, index in [("ps", 0), *(("worker", index) for index in range(workers))]:
            command = [sys.executable, str(PROGRAMS), "--program", "mlp", "--job_name", job, "--task_index", str(index)]
            command += [*hosts, "--steps", str((bare.WARM + steps) * workers)]
            started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        end = time.monotonic() + limit
        wait_until_listening(server, limit, lambda why, seconds: None)
        while (cold := control.get_status(details=True)).updates < steps * workers // 2:  # then all code is compiled
            if time.monotonic() > end:
                raise TimeoutError(f"{cold.updates} updates after {limit} s, with {workers} workers.")
            time.sleep(0.05)
        answers = [process.communicate(timeout=limit)[0] for process in started[1:]]
        warm = control.get_status(details=True)
    finally:
        control.close()
        for process in started:
            process.kill()
            process.wait()
    rate = max(json.loads(answer.splitlines()[-1])["steps_per_s"] for answer in answers)
    return rate, (warm.busy - cold.busy) / (warm.updates - cold.updates)


Measure = Callable[[int, int, float], tuple[float, float]]
SIDES: dict[str, Measure] = {"penstock": measure_penstock, "bare": bare.measure}


def measure(workers: int, steps: int, rounds: int) -> list[Result]:
    """Measures both sides in turns. Returns the medians of each."""
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side, run in SIDES.items():
            found[side].append(run(workers, steps, LIMIT))
    return [
        Result(side, workers, statistics.median(r for r, _ in each), 1e6 * statistics.median(s for _, s in each))
        for side, each in found.items()
    ]


def main() -> None:
    """Measures, prints a table for docs/performance.md, and draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", default="1,2,4,8,12,16", help="numbers of workers")
    parser.add_argument("--steps", type=int, default=1500, help="steps of each worker")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is measured")
    parser.add_argument("--plot", type=Path, help="where to draw them, as a PNG file")
    args = parser.parse_args()
    results: list[Result] = []
    print("| workers | penstock, steps/s | bare | ratio | server's time per step | bare |\n|---|---|---|---|---|---|")
    for workers in map(int, args.workers.split(",")):
        ours, least = measure(workers, args.steps, args.rounds)
        results += [ours, least]
        rates = f"{ours.steps_per_s:,.0f} | {least.steps_per_s:,.0f} | {ours.steps_per_s / least.steps_per_s:.2f}"
        print(f"| {workers} | {rates} | {ours.cpu_us:.0f} us | {least.cpu_us:.0f} us |", flush=True)
    if args.plot:
        draw(args.plot, results)


if __name__ == "__main__":
    main()
