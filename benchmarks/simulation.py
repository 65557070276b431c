"""Simulates training past one machine: real masters, coordinators and parameter servers, modelled workers and network.

    python benchmarks/simulation.py --costs=costs.json --results=results.json --plot=docs/scaling-simulated.png
    python benchmarks/simulation.py --costs=costs.json --modes=sync --workers=100,300 --servers=1,4
    python benchmarks/simulation.py --check=1,2,4,8,12,16

The first run measures what the real code costs on this machine, and writes it to the file of costs. A run that finds a
setting's costs there does not measure them again: the same costs and seed give the same table. docs/scaling.md says
what is real and what is modelled.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simulated import sockets
from simulated.check import check, predicted
from simulated.experiment import Outcome, is_whole, measured, measured_as, simulated
from simulated.training import Setting

from penstock.summary.plot import Plot, save
from penstock.worker.devices import use_threads

CHECKED_STEPS = 1200  # of each worker
MODES = ("async", "sync", "coordinator")


class Store:
    """A JSON file that is written after each change, aside and renamed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.content: dict[str, Any] = json.loads(path.read_text()) if path is not None and path.exists() else {}

    def save(self) -> None:
        """Writes the file."""
        if self._path is not None:
            aside = self._path.with_suffix(".new")
            aside.write_text(json.dumps(self.content, indent=1, sort_keys=True) + "\n")
            os.replace(aside, self._path)


def outcome_of(setting: Setting, costs: Store) -> Outcome:
    """Simulates a setting, and measures its costs first if they are not known."""
    if "sockets" not in costs.content:
        costs.content["sockets"] = asdict(sockets.measure())
        costs.content["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    socket_costs = sockets.SocketCosts(**costs.content["sockets"])
    name = measured_as(setting).name
    if name not in costs.content:
        costs.content[name] = measured(measured_as(setting), socket_costs)
    outcome = simulated(setting, costs.content[name], socket_costs)
    costs.save()  # with laps that were met for the first time
    return outcome


def markdown(rows: list[tuple[Setting, Outcome]]) -> str:
    """The table for docs/scaling.md."""
    lines = [
        "| | workers | ps | steps/s | workers busy | ps thread | ps link out, in | coordinator | limited by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for setting, out in rows:
        workers = f"{setting.workers:,}{'' if is_whole(setting) else '*'}"
        coordinator = f"{out.coordinator:.0%}" if setting.mode == "coordinator" else ""
        lines.append(
            f"| {setting.mode} | {workers} | {setting.servers} | {out.gradients:,.0f} | {out.workers:.0%} "
            f"| {out.server:.0%} | {out.sending:.0%}, {out.receiving:.0%} | {coordinator} | {out.limit} |"
        )
    return "\n".join(lines)


def draw(path: Path, rows: list[tuple[Setting, Outcome]]) -> None:
    """Draws gradients per second: a plot for each mode, a line for each number of parameter servers."""
    plots = []
    for mode in MODES:
        chosen = [(setting, out) for setting, out in rows if setting.mode == mode]
        lines: dict[str, tuple[list[float], list[float]]] = {}
        for setting, out in chosen:
            xs, ys = lines.setdefault(f"{setting.servers} ps", ([], []))
            xs.append(setting.workers)
            ys.append(out.gradients)
        if lines:
            ticks = sorted({setting.workers for setting, _ in chosen})
            plot = Plot(mode, lines, "workers", "gradients/s", marks=True, from_zero=True, x_ticks=ticks, log_x=True)
            plots.append(plot)
    save(path, *plots)


def print_checks(counts: list[int]) -> None:
    """Compares with real clusters, and prints a table for docs/scaling.md."""
    print("| workers | measured, steps/s | simulated | error | server's time per step | simulated |")
    print("|---|---|---|---|---|---|")
    for workers in counts:
        row = check(workers, CHECKED_STEPS, sockets.measure())
        rates = f"{row.real:,.0f} | {row.simulated:,.0f} | {row.error:+.0%}"
        print(f"| {workers} | {rates} | {row.real_us:.0f} us | {row.simulated_us:.0f} us |", flush=True)


def settings(args: argparse.Namespace) -> Iterator[Setting]:
    """The settings that the command line asks for."""
    for mode in filter(None, args.modes.split(",")):
        for servers in map(int, args.servers.split(",")):
            for workers in map(int, args.workers.split(",")):
                yield Setting(
                    mode,
                    workers,
                    servers,
                    args.hidden,
                    args.optimizer,
                    compute=args.compute / 1e3,
                    latency=args.latency / 1e6,
                    bandwidth=args.gigabits * 1e9 / 8,
                    seed=args.seed,
                )


def main() -> None:
    """Simulates, prints a table and draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--modes", default=",".join(MODES), help="how workers train")
    parser.add_argument("--workers", default="100,300,1000,3000,10000", help="numbers of workers")
    parser.add_argument("--servers", default="1,4,16,64", help="numbers of parameter servers")
    parser.add_argument("--optimizer", default="sgd", help="sgd or adam; the coordinator always has sgd")
    parser.add_argument("--hidden", type=int, default=100, help="units of the hidden layer")
    parser.add_argument("--compute", type=float, default=100.0, help="milliseconds that a worker computes in a step")
    parser.add_argument("--latency", type=float, default=50.0, help="microseconds from host to host")
    parser.add_argument("--gigabits", type=float, default=10.0, help="bandwidth of a host's link each way, per second")
    parser.add_argument("--seed", type=int, default=1, help="of the workers' times")
    parser.add_argument("--costs", type=Path, help="file of costs, read and written")
    parser.add_argument("--check", default="", help="numbers of workers: compares with real clusters on this machine")
    parser.add_argument("--predict", default="", help="workers:us of the server:us of a worker, as measured elsewhere")
    parser.add_argument("--results", type=Path, help="file of results, to which these are added")
    parser.add_argument("--plot", type=Path, help="where to draw all results, as a PNG file")
    args = parser.parse_args()
    use_threads(1)  # as in a task that has one core
    if args.check:
        print_checks([int(workers) for workers in args.check.split(",")])
        return
    if args.predict:
        for row in args.predict.split(","):
            workers, server_us, worker_us = map(float, row.split(":"))
            print(f"{row}: {predicted(int(workers), server_us / 1e6, worker_us / 1e6):,.0f} steps/s", flush=True)
        return
    costs, results = Store(args.costs), Store(args.results)
    for setting in settings(args):
        began = time.monotonic()
        outcome = outcome_of(setting, costs)
        key = f"{setting.mode} {setting.servers} {setting.workers}"
        results.content[key] = {"setting": asdict(setting), "outcome": asdict(outcome)}
        results.save()
        print(f"{markdown([(setting, outcome)]).splitlines()[-1]} ({time.monotonic() - began:.0f} s)", flush=True)
    rows = [(Setting(**each["setting"]), Outcome(**each["outcome"])) for each in results.content.values()]
    rows.sort(key=lambda row: (MODES.index(row[0].mode), row[0].servers, row[0].workers))
    print(markdown(rows))
    if args.plot:
        draw(args.plot, rows)


if __name__ == "__main__":
    main()
