"""Kills each task of a training at many moments, and checks that the training continues and ends as it should.

    python tests/cluster/kill_sweep.py --training sync --ps 2 --victims ps1 --load busy --every 100

Each case is a separate training. Its tasks start; one of them is killed (SIGKILL) some milliseconds after both workers
have made their first step, or after a checkpoint began, and is started again. The case is good if all workers continue,
reach the step at which the training ends, and end with exit code 0, and if only the victim is started again. The time
of recovery is from the kill until each worker has had a step acknowledged that ended after the restart of the victim.
Tasks are forks of a process that has loaded penstock already: a start takes a tenth of a second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it runs as a script
os.environ["JAX_PLATFORMS"] = "cpu"

from cluster.swept import Told, Training, run_task
from loopback import free_addresses

MORE_STEPS = 10  # steps from the recovery to the end of the training
AFTER_SAVE = (0, 10, 30, 100)  # milliseconds after a checkpoint began
RESTARTS = (1.0, 0.0)  # seconds until the victim is started again, in turns: as `penstock launch` does, and at once
SECOND_AFTER = 0.3  # seconds from the restart of the first victim until another one is killed
PACES = ((0.0, 0.0), (0.0, 0.02), (0.02, 0.0))  # pause per worker in seconds: in sync training the faster one waits

_forks = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Case:
    """A training, the task to kill in it, and the moment."""

    sync: bool
    ps: int
    busy: bool
    victim: str  # ps0, ps1, worker0 (the chief), worker1
    after: str  # "start" or "save"
    delay: float  # seconds after that
    restart: float = 0.0  # seconds until the victim is started again
    pauses: tuple[float, float] = (0.0, 0.0)  # pauses of the workers after each step
    supervised: bool = False
    second: str = ""  # a second task to kill during the recovery from the first

    @property
    def mode(self) -> str:
        """The key by which the results are grouped."""
        more = (", Supervisor" if self.supervised else "") + (", two killed" if self.second else "")
        return f"{'sync' if self.sync else 'async'}{more} | {self.ps} | {'busy' if self.busy else 'quiet'}"

    def __str__(self) -> str:
        when = f"{self.delay * 1000:.0f} ms after {self.after}, back after {self.restart:g} s"
        when += f", {self.second} soon after that" if self.second else ""
        return f"{self.mode.replace(' | ', ' ')}: {self.victim} {when}, pauses {self.pauses}"


@dataclass
class Result:
    """The outcome of a case: good if `fault` is empty."""

    case: Case
    fault: str = ""
    recovery: float = 0.0  # seconds
    folder: str = ""  # where the logs are, if they are kept


@dataclass
class _Task:
    process: Any
    pipe: Connection
    started: float


class Stuck(Exception):
    """Raised if something that should happen does not."""


@dataclass
class Run:
    """The processes of one case."""

    case: Case
    training: Training
    deadline: float
    tasks: dict[str, _Task] = field(default_factory=dict)
    told: dict[str, list[Told]] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Starts a task, or starts it again."""
        ours, theirs = _forks.Pipe(duplex=False)
        args = (self.training, name[:-1], int(name[-1]), theirs)
        process = _forks.Process(target=run_task, args=args, name=name, daemon=True)
        process.start()
        theirs.close()
        self.tasks[name] = _Task(process, ours, time.monotonic())
        self.codes.pop(name, None)

    def until(self, good: Callable[[], bool], what: str, at: float | None = None) -> None:
        """Reads messages of the tasks until a condition holds, or until a deadline."""
        while not good():
            now = time.monotonic()
            if at is not None and now >= at:
                return
            if now >= self.deadline:
                raise Stuck(f"hangs: {what}")
            self._listen(min(self.deadline, at or self.deadline) - now)

    def sleep_until(self, moment: float) -> None:
        """Reads messages of the tasks until a moment."""
        self.until(lambda: False, "", moment)

    def _listen(self, seconds: float) -> None:
        sources: dict[Any, str] = {}
        for name, task in self.tasks.items():
            if name not in self.codes:
                sources[task.process.sentinel] = name
            if not task.pipe.closed:
                sources[task.pipe] = name
        for source in wait(list(sources), min(seconds, 1.0)):
            name = sources[source]
            if isinstance(source, Connection):
                try:
                    self.told.setdefault(name, []).append(source.recv())
                except (EOFError, OSError):
                    source.close()
            else:
                self.tasks[name].process.join()
                self.codes[name] = self.tasks[name].process.exitcode
                if self.codes[name] != 0:
                    raise Stuck(f"{name} ended with code {self.codes[name]}")

    def steps(self, name: str, since: float = 0.0) -> list[Told]:
        """The steps of a worker that were acknowledged after a moment."""
        return [told for told in self.told.get(name, ()) if told.what == "step" and told.time > since]

    def kill(self, name: str) -> None:
        """Kills a task."""
        task = self.tasks.pop(name)
        task.process.kill()
        task.process.join()
        task.pipe.close()

    def close(self, hangs: bool) -> None:
        """Ends all tasks; those of a hanging case first print where they are."""
        for task in self.tasks.values():
            if hangs and task.process.is_alive():
                os.kill(task.process.pid, signal.SIGUSR1)
        if hangs:
            time.sleep(0.5)
        for task in self.tasks.values():
            task.process.kill()
            task.process.join()
            task.pipe.close()


def run_case(case: Case, patience: float, slow: float) -> Result:
    """Runs one case, which must be over within `patience` seconds; its logs are kept if it hangs or is `slow`."""
    folder = tempfile.mkdtemp(prefix="kill-sweep-")
    addresses = free_addresses(case.ps + 2)
    cluster = {"ps": addresses[: case.ps], "worker": addresses[case.ps :]}
    run = Run(case, Training(cluster, folder, case.sync, case.supervised, case.pauses), time.monotonic() + patience)
    result = Result(case)
    try:
        result.recovery = _strike(run)
    except Stuck as stuck:
        result.fault = str(stuck)
    finally:
        run.close(hangs=bool(result.fault))
    if result.fault or result.recovery > slow:
        result.folder = folder
    else:
        shutil.rmtree(folder)
    return result


def _strike(run: Run) -> float:
    case, workers = run.case, ("worker0", "worker1")
    for name in (*(f"ps{i}" for i in range(case.ps)), *workers):
        run.start(name)
    run.until(lambda: all(run.steps(worker) for worker in workers), "the training does not begin")
    if case.after == "save":
        # The second one after the start: the first is made before the first step.
        saves = lambda: [told for told in run.told["worker0"] if told.what == "save"]  # noqa: E731
        count = len(saves())
        run.until(lambda: len(saves()) > count, "no checkpoint is made")
        began = saves()[-1].time
    else:
        began = max(run.steps(worker)[0].time for worker in workers)
    run.sleep_until(began + case.delay)
    killed = time.monotonic()
    run.kill(case.victim)
    run.sleep_until(killed + case.restart)
    run.start(case.victim)
    started = run.tasks[case.victim].started
    if case.second:
        run.sleep_until(started + SECOND_AFTER)
        run.kill(case.second)
        run.start(case.second)
        started = run.tasks[case.second].started
    run.until(lambda: all(len(run.steps(w, started)) >= 3 for w in workers), "the workers do not go on")
    recovered = max(run.steps(worker, started)[0].time for worker in workers)
    last = max(told[-1].step for told in map(run.steps, workers)) + MORE_STEPS
    Path(run.training.folder, "finish.new").write_text(str(last))
    Path(run.training.folder, "finish.new").rename(Path(run.training.folder, "finish"))
    run.until(lambda: all(worker in run.codes for worker in workers), f"the training does not end at step {last}")
    for worker in workers:
        run.until(lambda worker=worker: run.tasks[worker].pipe.closed, f"the pipe of {worker} is not closed")  # type: ignore[misc]
        ends = [told.step for told in run.told[worker] if told.what == "end"]
        # In synchronous training a worker that waits when the chief leaves ends with the data, perhaps earlier.
        if not ends or (worker == "worker0" and ends[-1] < last):
            raise Stuck(f"{worker} ended at {ends}, and was to end at step {last}")
    return recovered - killed


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """All selected cases. Those of different modes come in turns, since a sweep may be cut short."""
    starts = range(args.first, args.last + 1, args.every) if args.starts else ()
    saves = AFTER_SAVE if args.saves else ()
    moments = [("start", ms / 1000) for ms in starts] + [("save", ms / 1000) for ms in saves]
    for (turn, (after, delay)), busy, sync, ps in itertools.product(
        enumerate(moments), args.load, args.training, args.ps
    ):
        for who, (victim, second) in enumerate(itertools.product(args.victims, args.second)):
            if ps > 1 or "ps1" not in (victim, second):
                restart, pauses = RESTARTS[turn % len(RESTARTS)], PACES[(turn + who) % len(PACES)]
                yield Case(
                    sync == "sync", ps, busy == "busy", victim, after, delay, restart, pauses, args.supervised, second
                )


def sweep(wanted: Iterable[Case], patience: float, slow: float, until: float, count: int) -> Iterator[Result]:
    """Runs cases one after the other and yields their results; `count` processes keep the CPU busy for some."""
    with Spinners(count) as spinners:
        for case in wanted:
            if time.monotonic() > until:
                print("The time is up.", flush=True)
                break
            spinners.set(case.busy)
            result = run_case(case, patience, slow)
            print(f"{case}: {result.fault or f'recovered in {result.recovery:.2f} s'} {result.folder}", flush=True)
            yield result


class Spinners:
    """Processes that keep the CPU busy."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes: list[Any] = []

    def set(self, busy: bool) -> None:
        """Starts or ends them."""
        if busy and not self._processes:
            self._processes = [_forks.Process(target=_spin, daemon=True) for _ in range(self._count)]
            for process in self._processes:
                process.start()
        elif not busy:
            for process in self._processes:
                process.kill()
                process.join()
            self._processes = []

    def __enter__(self) -> Spinners:
        return self

    def __exit__(self, *_: object) -> None:
        self.set(False)


def _spin() -> None:
    while True:
        pass


def table(results: list[Result]) -> str:
    """The outcomes and times of recovery by mode, in Markdown."""
    lines = [
        "| training | ps | machine | killed | cases | ended well | failed | hung | recovery, median | worst |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.case.mode, result.case.victim), []).append(result)
    names = {"worker0": "chief", "worker1": "worker"}
    for (mode, victim), group in sorted(groups.items()):
        times = [result.recovery for result in group if not result.fault]
        hung = sum("hangs" in result.fault for result in group)
        shown = f"{statistics.median(times):.1f} s | {max(times):.1f} s" if times else " | "
        lines.append(
            f"| {mode} | {names.get(victim, victim)} | {len(group)} | {len(times)} | {len(group) - len(times) - hung} "
            f"| {hung} | {shown} |"
        )
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--training", nargs="+", choices=("sync", "async"), default=("sync", "async"))
    parser.add_argument("--ps", nargs="+", type=int, choices=(1, 2), default=(1, 2))
    parser.add_argument("--load", nargs="+", choices=("quiet", "busy"), default=("quiet", "busy"))
    parser.add_argument("--spinners", type=int, default=4, help="processes that keep a busy machine busy (%(default)s)")
    victims = ("ps0", "ps1", "worker0", "worker1")
    parser.add_argument("--victims", nargs="+", choices=victims, default=victims)
    parser.add_argument("--second", nargs="+", choices=victims, default=("",), help="are killed while others recover")
    parser.add_argument("--first", type=int, default=0, help="milliseconds after the start of training (%(default)s)")
    parser.add_argument("--last", type=int, default=5000, help="likewise (%(default)s)")
    parser.add_argument("--every", type=int, default=100, help="milliseconds from one moment to the next (%(default)s)")
    parser.add_argument("--starts", action=argparse.BooleanOptionalAction, default=True, help="after the start")
    parser.add_argument("--saves", action=argparse.BooleanOptionalAction, default=True, help="around checkpoints")
    parser.add_argument("--supervised", action="store_true", help="train with a Supervisor, not a MonitoredSession")
    parser.add_argument("--patience", type=float, default=90, help="seconds after which a case hangs (%(default)s)")
    parser.add_argument("--slow", type=float, default=float("inf"), help="seconds from which on logs are kept")
    parser.add_argument("--count", type=int, default=None, help="cases at most")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no case is begun")
    parser.add_argument("--results", type=Path, help="a file of results: this run's join it, and the table has all")
    parser.add_argument("--keepalive", default="10", help="PENSTOCK_KEEPALIVE_SECS of the tasks (%(default)s)")
    args = parser.parse_args()
    os.environ["PENSTOCK_KEEPALIVE_SECS"] = args.keepalive
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the tasks of a case must not outlive it
    _forks.set_forkserver_preload(["cluster.swept"])
    wanted = itertools.islice(cases(args), args.count)
    results = list(recorded(args.results)) if args.results else []
    before = len(results)
    for result in sweep(wanted, args.patience, args.slow, time.monotonic() + args.seconds, args.spinners):
        results.append(result)
        if args.results:
            with args.results.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
    print(table(results))
    sys.exit(any(result.fault for result in results[before:]))


def recorded(path: Path) -> Iterator[Result]:
    """The results of earlier runs."""
    for line in path.read_text().splitlines() if path.exists() else ():
        fields = json.loads(line)
        yield Result(Case(**fields.pop("case")), **fields)


if __name__ == "__main__":
    main()
