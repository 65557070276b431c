"""Measures the costs of training besides the steps: checkpoints against `cp`, background saves, Adam against JAX.

python benchmarks/training.py --rounds=5 --json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from steps import best_times

import penstock.v1 as tf

GIGABYTE = 1 << 30
PARTS = 64  # number of variables: each has 1.6% of the model
ADAM_PARAMETERS = 25_000_000


class Result(NamedTuple):
    """One measurement and its limit: the most it may be, or the least if more is better."""

    name: str
    shown: str
    value: float
    limit: float
    more_is_better: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.limit if self.more_is_better else self.value <= self.limit


def seconds(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def command_seconds(*command: str) -> float:
    """Seconds that a command takes."""
    return seconds(lambda: subprocess.run(command, check=True))


def resident() -> int:
    """Bytes of resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The largest growth of memory since the start, in bytes, sampled every 2 ms."""
    base, peak, over = resident(), [0], threading.Event()

    def look() -> None:
        while not over.wait(0.002):
            peak[0] = max(peak[0], resident() - base)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def checkpoints(folder: str, rounds: int) -> Iterator[Result]:
    """Saves and restores of 1 GB, in turns with `cp` of the same bytes."""
    size = GIGABYTE // PARTS // 4
    with tf.Graph().as_default() as graph:
        model = [tf.get_variable(f"v{i}", [size], initializer=tf.random_uniform_initializer()) for i in range(PARTS)]
        saver = tf.train.Saver(max_to_keep=None)
        check = tf.add_n([v[0] for v in model])
        session = tf.Session(graph=graph)
        session.run(tf.global_variables_initializer())
    path, best, memory = f"{folder}/model", dict.fromkeys(("save", "cp", "cp, sync", "restore"), float("inf")), []

    def save() -> None:
        with peak_memory() as peak:
            saver.save(session, path, write_meta_graph=False)
        memory.append(peak[0])

    def note(name: str, took: float) -> None:
        best[name] = min(best[name], took)

    before = session.run(check)
    for _ in range(rounds):
        note("save", seconds(save))
        (data,) = Path(folder).glob("model.data-*")
        copied = command_seconds("cp", str(data), f"{folder}/copy")
        note("cp", copied)
        note("cp, sync", copied + command_seconds("sync", f"{folder}/copy"))
        note("restore", seconds(lambda: saver.restore(session, path)))
        for file in Path(folder).iterdir():
            file.unlink()
        os.sync()  # pending writes must not slow the next round
    if session.run(check) != before:
        raise RuntimeError("What was restored is not what was saved.")
    session.close()
    gigabyte = {name: f"{took:.2f} s" for name, took in best.items()}
    for name in ("save", "restore"):
        yield Result(
            f"{name} 1 GB: {gigabyte[name]}, cp {gigabyte['cp']}", "of cp's rate", best["cp"] / best[name], 0.5, True
        )
    yield Result(
        f"save 1 GB: {gigabyte['save']}, cp and sync {gigabyte['cp, sync']}",
        "of their rate",
        best["cp, sync"] / best["save"],
        0.5,
        True,
    )
    yield Result("memory that a save takes", "of the model", sorted(memory)[len(memory) // 2] / GIGABYTE, 0.1)


def background(folder: str, rounds: int) -> Iterator[Result]:
    """A training loop without and with a thread that saves, as a Supervisor's does."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 1024])
        hidden = x
        for i in range(8):
            hidden = tf.layers.dense(hidden, 1024, tf.nn.relu, name=f"layer{i}")
        loss = tf.reduce_mean(tf.square(hidden - x))
        train = tf.train.AdamOptimizer(1e-4).minimize(loss)
        saver = tf.train.Saver()
        size = sum(4 * int(np.prod(v.shape.as_list())) for v in tf.global_variables())
        session = tf.Session(graph=graph)
        session.run(tf.global_variables_initializer())
    feed = {x: np.random.RandomState(0).rand(128, 1024).astype(np.float32)}

    def rate(saving: bool, length: float) -> float:
        """Steps per second."""
        over = threading.Event()

        def save() -> None:
            while not over.is_set():
                saver.save(session, f"{folder}/background", write_meta_graph=False)
                saves.append(1)

        thread = threading.Thread(target=save) if saving else None
        start, steps = time.perf_counter(), 0
        if thread is not None:
            thread.start()
        while time.perf_counter() - start < length:
            session.run(train, feed)
            steps += 1
        taken = time.perf_counter() - start
        over.set()
        if thread is not None:
            thread.join()
        return steps / taken

    saves: list[int] = []
    rate(True, 1.0)  # compiles
    saves.clear()
    lost, best = [], 0.0
    for _ in range(2 * rounds):
        before, during, after = rate(False, 0.5), rate(True, 1.0), rate(False, 0.5)
        best = max(best, before, after)
        # Other load on the machine changes over time: only neighbouring rounds can be compared.
        lost.append(1 - 2 * during / (before + after))
    session.close()
    name = f"steps of {1000 / best:.0f} ms while {size / 1e6:.0f} MB are saved again and again ({len(saves)} saves)"
    yield Result(name, "of the rate lost", float(np.median(lost)), 0.1)


def adam() -> tuple[dict[str, Callable[[], object]], Callable[[], list[np.ndarray]]]:
    """Adam steps over 25 M parameters in 25 variables with given gradients, and a variable's value in both forms."""
    parts = 25
    draw = np.random.RandomState(0)
    start, grads = ([draw.rand(ADAM_PARAMETERS // parts).astype(np.float32) for _ in range(parts)] for _ in range(2))
    with tf.Graph().as_default() as graph:
        model = [tf.Variable(value) for value in start]
        given = [tf.Variable(value, trainable=False) for value in grads]
        train = tf.train.AdamOptimizer(0.001).apply_gradients(zip(given, model, strict=True))
        session = tf.Session(graph=graph)
        session.run(tf.global_variables_initializer())

    def step(params: Any, m: Any, v: Any, powers: Any, grads: Any) -> Any:
        rate = 0.001 * jnp.sqrt(1 - powers[1]) / (1 - powers[0])
        m = jax.tree.map(lambda m, g: m + (g - m) * (1 - 0.9), m, grads)
        v = jax.tree.map(lambda v, g: v + (g * g - v) * (1 - 0.999), v, grads)
        params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, m, v)
        return params, m, v, (powers[0] * 0.9, powers[1] * 0.999)

    compiled = jax.jit(step, donate_argnums=(0, 1, 2, 3))
    zeros = [np.zeros_like(value) for value in start]
    held = list(jax.tree.map(jnp.array, (start, zeros, zeros, (np.float32(0.9), np.float32(0.999)))))
    fixed = jax.tree.map(jnp.array, grads)

    def plain() -> None:
        held[:] = compiled(*held, fixed)
        jax.block_until_ready(held)

    return {"penstock": lambda: session.run(train), "jax": plain}, lambda: [session.run(model[0]), np.array(held[0][0])]


def optimizer(rounds: int) -> Iterator[Result]:
    """A step of Adam in both forms, in turns."""
    calls, made = adam()
    for call in calls.values():
        call()
    np.testing.assert_allclose(*made(), rtol=1e-5, atol=1e-6)
    times = best_times(calls, 1, 10 * rounds)
    name = f"Adam, 25 M parameters: {times['penstock'] * 1e3:.1f} ms, plain JAX {times['jax'] * 1e3:.1f} ms"
    yield Result(name, "times as long", times["penstock"] / times["jax"], 1.3)


def print_table(measured: list[Result], took: float) -> None:
    """Prints the results as a table."""
    table = Table(title="Training")
    for column in ("", "measured", "limit"):
        table.add_column(column, justify="right" if column else "left")
    for result in measured:
        colour = "green" if result.holds else "red"
        sign = ">=" if result.more_is_better else "<="
        table.add_row(result.name, f"[{colour}]{result.value:.2f}[/] {result.shown}", f"{sign} {result.limit}")
    console = Console()
    console.print(table)
    console.print(f"Best of several rounds, taken in turns, {took:.0f} s in all.")


def main() -> None:
    """Measures, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        choices=range(1, 51),
        metavar="1..50",
        help="how many rounds to take the best of",
    )
    options = parser.parse_args()
    start = time.perf_counter()
    folder = tempfile.mkdtemp(prefix="penstock-bench-")
    try:
        measured = [*optimizer(options.rounds), *background(folder, options.rounds)]
        measured += checkpoints(folder, options.rounds)
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps([{**r._asdict(), "holds": r.holds} for r in measured], indent=1))
    else:
        print_table(measured, time.perf_counter() - start)


if __name__ == "__main__":
    main()
