"""Measures how many steps a growing number of workers make with one parameter server, and the server's cost per step.

    python benchmarks/saturation.py --seconds=3 --plot=docs/saturation.png

A step pulls a small variable from the parameter server and pushes a small update. Workers are servers in threads of
this process, each with its own link to the parameter server, which is a separate process. They run in two ways. Paced,
each sleeps for some time instead of computing (as on its own machine), so that their steps add up. Flat out, without a
pause, they show how many steps the machine makes at most.

The parameter server scales if its cost per step does not grow with the number of workers. A last table tells what this
cost is made of, for one worker that trains a network of 784-100-10 with Adam.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
from kinds import Kinds, rows
from rich.console import Console
from rich.table import Table
from worker_counts import Result, draw

import penstock.v1 as tf
from penstock.launch.cluster import Cluster, Size
from penstock.launch.local import reserve
from penstock.wire.control import ControlClient

ELEMENTS = 256  # size of the variable: 1 kB
SETTLE = 0.5  # seconds before the measurement
COMPILE = 5.0  # the same, where updates are compiled in the background
PACED, FLAT_OUT = "paced", "flat out"


class ParameterServer:
    """The process of a parameter server."""

    def __init__(self, cluster: Cluster, *flags: str) -> None:
        command = [sys.executable, __file__, "--serve", json.dumps(cluster.addresses), *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._control = ControlClient(cluster.addresses["ps"][0])

    def close(self) -> None:
        """Ends the process."""
        self._control.close()
        self.process.terminate()
        self.process.wait()

    def spent(self) -> float:
        """Seconds of processor time so far."""
        return float(self._control.get_status(details=True).busy)

    def spent_by_kind(self) -> dict[str, float]:
        """The same, by kind of work; the server must have been started with --kinds."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        spent: dict[str, float] = json.loads(self.process.stdout.readline())
        return spent


def serve(cluster: dict[str, list[str]], by_kind: bool) -> None:
    """Runs in the process of the parameter server; with `by_kind` it answers each line with the time spent so far."""
    kinds = Kinds() if by_kind else None
    server = tf.train.Server(cluster, job_name="ps", task_index=0)
    if kinds is not None:
        for _ in sys.stdin:
            print(json.dumps(kinds.seconds()), flush=True)
    server.join()


def worker_step(cluster: Cluster, index: int) -> Callable[[], object]:
    """Returns a function that runs a step of worker `index`."""
    server = tf.train.Server(dict(cluster.addresses), job_name="worker", task_index=index)
    with tf.Graph().as_default() as graph:
        with tf.device("/job:ps/task:0/cpu:0"):
            step = tf.Variable(0, name="step")
            weights = tf.Variable(tf.ones([ELEMENTS]), name="weights")
        with tf.device(f"/job:worker/task:{index}/cpu:0"):
            update = weights * 1e-6
        with tf.device("/job:ps/task:0/cpu:0"):
            train = tf.group(tf.assign_sub(weights, update), tf.assign_add(step, 1))
        session = tf.Session(server.target, graph=graph)
        if index == 0:
            session.run(tf.global_variables_initializer())
    run = session.make_callable(train)
    for _ in range(10):
        run()
    return run


def training_step(cluster: Cluster) -> Callable[[], object]:
    """Returns a function that runs a training step of worker 0."""
    server = tf.train.Server(dict(cluster.addresses), job_name="worker", task_index=0)
    random = np.random.RandomState(0)
    images, labels = random.rand(100, 784), np.eye(10)[random.randint(0, 10, 100)]
    with tf.Graph().as_default() as graph:
        with tf.device(tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(dict(cluster.addresses)))):
            x, y = tf.placeholder(tf.float32, [100, 784]), tf.placeholder(tf.float32, [100, 10])
            hidden = tf.layers.dense(x, 100, tf.nn.relu)
            loss = tf.losses.softmax_cross_entropy(y, tf.layers.dense(hidden, 10))
            train = tf.train.AdamOptimizer().minimize(loss, global_step=tf.train.get_or_create_global_step())
        session = tf.Session(server.target, graph=graph)
        session.run(tf.global_variables_initializer())
    run = session.make_callable(train, [x, y])
    return lambda: run(images, labels)


def measure_kinds(seconds: float) -> dict[str, float]:
    """Seconds of the parameter server's processor time per training step, by kind of work."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(reserve(Size(ps=1, workers=1)))
        ps = ParameterServer(cluster, "--kinds")
        stack.callback(ps.close)
        crew = stack.enter_context(Crew([training_step(cluster)], pause=0.0))
        time.sleep(COMPILE)
        before, done = ps.spent_by_kind(), crew.done
        time.sleep(seconds)
        spent, made = ps.spent_by_kind(), max(crew.done - done, 1)
    return {kind: (spent[kind] - before[kind]) / made for kind in spent}


class Crew:
    """Workers that step in threads until they are stopped."""

    def __init__(self, steps: list[Callable[[], object]], pause: float) -> None:
        self._over = threading.Event()
        self._done = [0] * len(steps)
        self._threads = [
            threading.Thread(target=self._work, args=(place, step, pause)) for place, step in enumerate(steps)
        ]

    def __enter__(self) -> Crew:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def done(self) -> int:
        """The number of steps they made."""
        return sum(self._done)

    def _work(self, place: int, step: Callable[[], object], pause: float) -> None:
        time.sleep(pause * place / len(self._done))  # not all at once
        while not self._over.is_set():
            step()
            self._done[place] += 1
            if pause:
                time.sleep(pause)


def measure(ps: ParameterServer, steps: list[Callable[[], object]], pause: float, seconds: float) -> Result:
    """Runs all workers at once. Measures their steps and the cost for the parameter server."""
    with Crew(steps, pause) as crew:
        time.sleep(SETTLE)
        before, done, start = ps.spent(), crew.done, time.perf_counter()
        time.sleep(seconds)
        spent, made, elapsed = ps.spent() - before, crew.done - done, time.perf_counter() - start
    way = PACED if pause else FLAT_OUT
    made = max(made, 1)
    return Result(way, len(steps), made / elapsed, 1e6 * spent / made)


def measure_all(counts: list[int], pause: float, seconds: float) -> Iterator[Result]:
    """One result for each number of workers, paced and flat out."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(reserve(Size(ps=1, workers=max(counts))))
        ps = ParameterServer(cluster)
        stack.callback(ps.close)
        steps: list[Callable[[], object]] = []
        for count in sorted(counts):
            steps += [worker_step(cluster, index) for index in range(len(steps), count)]
            for each in (pause, 0.0):
                yield measure(ps, steps, each, seconds)


def markdown(results: list[Result]) -> str:
    """The results as a table for docs/performance.md."""
    rows = ["| workers | | steps/s | processor time per step |", "|---|---|---|---|"]
    rows += [
        f"| {each.workers} | {each.way} | {each.steps_per_s:,.0f} | {each.cpu_us:.0f} us |"
        for each in sorted(results, key=lambda each: (each.way == FLAT_OUT, each.workers))
    ]
    return "\n".join(rows)


def main() -> None:
    """Measures, prints and draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", default="1,2,4,8,16", help="numbers of workers")
    parser.add_argument("--pause", type=float, default=20.0, help="milliseconds that a paced worker computes")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each measurement takes")
    parser.add_argument("--plot", type=Path, help="where to draw them, as a PNG file")
    parser.add_argument("--json", action="store_true", help="one JSON object per result")
    parser.add_argument("--markdown", action="store_true", help="a table for docs/performance.md")
    parser.add_argument("--kinds", action="store_true", help="only the table of what a step is made of")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(json.loads(args.serve), args.kinds)
        return
    if not args.kinds:
        show_workers(args)
    table = Table("parameter server, per training step", "CPU us")
    for kind, microseconds in rows(measure_kinds(args.seconds)):
        table.add_row(kind, f"{microseconds:.0f}")
    Console().print(table)


def show_workers(args: argparse.Namespace) -> None:
    """Measures numbers of workers, prints the results and draws them."""
    results = list(measure_all([int(each) for each in args.workers.split(",")], args.pause / 1e3, args.seconds))
    if args.plot:
        draw(args.plot, results)
    if args.json:
        for result in results:
            print(json.dumps(asdict(result)))
    elif args.markdown:
        print(markdown(results))
    else:
        table = Table("way", "workers", "steps/s", "ps: CPU us per step")
        for each in results:
            table.add_row(each.way, str(each.workers), f"{each.steps_per_s:,.0f}", f"{each.cpu_us:.0f}")
        Console().print(table)


if __name__ == "__main__":
    main()
