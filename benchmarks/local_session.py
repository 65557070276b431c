"""Measures the cost of a session in one process, compared with plain JAX. `make bench` runs it.

python benchmarks/local_session.py --rounds=7 --json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from steps import Pair, best_times, check_same_loss, cnn, mlp

import penstock.v1 as tf

LIMIT = 1.15  # limit for the time of a train step over that of plain JAX


class Result(NamedTuple):
    """Seconds of one measurement; `jax` is None if plain JAX has no equivalent."""

    name: str
    penstock: float
    jax: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.jax is None else self.penstock / self.jax


def compared(name: str, pair: Pair, count: int, rounds: int) -> Result:
    """Measures both forms in turns."""
    times = best_times(pair._asdict(), count, rounds)
    return Result(name, times["penstock"], times["jax"])


def trivial() -> Pair:
    """One addition of scalars, which measures the cost of the call."""
    with tf.Graph().as_default() as graph:
        a = tf.placeholder(tf.float32, [])
        b = a + 1.0
    session = tf.Session(graph=graph)
    add, one = jax.jit(lambda a: a + 1), np.float32(1)
    return Pair(lambda: session.run(b, {a: 1.0}), lambda: float(add(one)))


def copied() -> Pair:
    """32 MB in, 32 MB out, as NumPy arrays."""
    with tf.Graph().as_default() as graph:
        a = tf.placeholder(tf.float32, [None])
        b = a + 1.0
    session = tf.Session(graph=graph)
    add, values = jax.jit(lambda a: a + 1), np.random.RandomState(0).rand(8 << 20).astype(np.float32)
    return Pair(lambda: session.run(b, {a: values}), lambda: np.asarray(add(values)))


def build(size: int = 10_000) -> None:
    """Builds a graph of that many ops."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 10])
        for _ in range((size - 1) // 2):
            x = tf.nn.relu(x + x)
    assert len(graph.get_operations()) >= size - 1


def import_seconds(module: str) -> float:
    """Seconds that a new Python process takes to import a module."""
    code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, cwd=root).stdout)


def imports(rounds: int) -> Result:
    """Importing the API, which imports jax, against importing jax alone."""
    times = [(import_seconds("penstock.v1"), import_seconds("jax")) for _ in range(rounds)]
    return Result("import penstock.v1 / import jax", *map(min, zip(*times, strict=True)))


def results(rounds: int) -> Iterator[Result]:
    """All measurements, one after the other."""
    yield compared("trivial run", trivial(), 500, rounds)
    for name, make, count in (("MLP step, batch 100, Adam", mlp, 50), ("CNN step, batch 64", cnn, 1)):
        pair = make()
        check_same_loss(pair)
        # Many short rounds, so that other load on the machine affects both alike.
        yield compared(name, pair, count, 4 * rounds)
    yield compared("32 MB fed and fetched", copied(), 5, rounds)
    yield Result("build a graph of 10,000 ops", best_times({"build": build}, 1, min(rounds, 3), warmup=1)["build"])
    yield imports(min(rounds, 3))


def shown(seconds: float | None) -> str:
    """A time as readable text."""
    if seconds is None:
        return ""
    return f"{seconds * 1e6:,.1f} us" if seconds < 0.01 else f"{seconds * 1e3:,.1f} ms"


def print_table(measured: list[Result], took: float) -> None:
    """Prints the results as a table."""
    table = Table(title=f"penstock beside plain JAX {jax.__version__} on {jax.devices()[0].device_kind}")
    for column in ("", "penstock", "plain JAX", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for result in measured:
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        if " step" in result.name and result.ratio is not None:
            ratio = f"[{'red' if result.ratio > LIMIT else 'green'}]{ratio}[/]"
        table.add_row(result.name, shown(result.penstock), shown(result.jax), ratio)
    console = Console()
    console.print(table)
    console.print(
        f"Best of several rounds, taken in turns, {took:.0f} s in all. A train step may take {LIMIT} times "
        "as long as in plain JAX."
    )


def main() -> None:
    """Measures, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object, times in seconds")
    parser.add_argument(
        "--rounds",
        type=int,
        default=7,
        choices=range(1, 51),
        metavar="1..50",
        help="how many rounds to take the best of",
    )
    options = parser.parse_args()
    start = time.perf_counter()
    measured: list[Result] = []
    report: Callable[[str], object] = (lambda text: print(text, file=sys.stderr)) if sys.stderr.isatty() else len
    for result in results(options.rounds):
        report(f"{result.name}: {shown(result.penstock)}")
        measured.append(result)
    if options.json:
        print(json.dumps({r.name: {**r._asdict(), "ratio": r.ratio} for r in measured}, indent=1))
    else:
        print_table(measured, time.perf_counter() - start)


if __name__ == "__main__":
    main()
