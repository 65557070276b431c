"""Compares the distributed training methods on the digits, on a real cluster of a parameter server and two workers.

    make optimizers
    python benchmarks/distributed_optimizers.py --only=async --steps=200

Each task is a process on loopback (`digits_training.py`), and the methods are the rows of `digits_methods.py`. All make
the same steps from the same weights on the same batches. Bytes are those of the workers' channels to the parameter
server, and staleness is the parameter server's record: what `penstock status` shows. The exit status is 1 if a method
does not do what is said of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from digits_methods import METHODS
from rich.console import Console
from rich.table import Table

from penstock.launch.cluster import Size
from penstock.launch.local import reserve
from penstock.summary.plot import Plot, save

PROGRAM = Path(__file__).with_name("digits_training.py")
LIMIT = 120.0  # seconds for one method
WORKERS = 2
DENSE = "async momentum"  # what other methods are compared with
TARGET = 0.1  # a loss that is reached when the mean of WINDOW steps is below it
WINDOW = 10

# The pictures: the labels of the curves, and their methods.
PANELS = {
    "One update per step": {"SGD": "async SGD", "momentum": DENSE, "Adam": "async Adam", "synchronous": "SyncReplicas"},
    "Averages of workers": {
        "per step": DENSE,
        "model": "ModelAverage, interval 20",
        "elastic": "ElasticAverage, period 10",
        "AGN": "AGN, period 10",
    },
    "Bounds on staleness": {
        "unbounded": DENSE,
        "bounded": "BoundedStaleness, s = 1",
        "softsync": "Softsync, n = 1",
        "dropped": "DropStale, staleness 2",
    },
    "Compressed gradients": {
        "dense": DENSE,
        "DGC": "DGC, 99.9% sparse",
        "OneBit": "OneBit",
        "bf16": "bfloat16 gradients",
    },
    "Second order": {"SGD": "async SGD", "momentum": DENSE, "K-FAC": "K-FAC", "Shampoo": "Shampoo"},
    "Large batches": {"LARS": "LARS", "LARS, 16x": "LARS, 16x batch", "LAMB, 16x": "LAMB, 16x batch"},
}


@dataclass(frozen=True)
class Result:
    """What one method did."""

    method: str
    accuracy: float
    losses: list[float]  # means of the workers' losses, for each step
    sent: float  # bytes per step of a worker
    received: float
    staleness: list[tuple[int, int]]  # updates of others in between, and how often

    @property
    def bytes(self) -> float:
        """Bytes per step of a worker, both ways."""
        return self.sent + self.received

    @property
    def smooth(self) -> np.ndarray:
        """Running means of the losses, the first of them of the first WINDOW steps."""
        return np.convolve(self.losses, np.ones(WINDOW) / WINDOW, "valid")

    @property
    def steps_to_target(self) -> int | None:
        """After how many steps of each worker the loss was at the target, if it was."""
        reached = np.flatnonzero(self.smooth < TARGET)
        return int(reached[0]) + WINDOW if len(reached) else None

    @property
    def stale(self) -> str:
        """The mean and the most of the staleness. An update inside of a `tf.cond` is not recorded."""
        if not self.staleness:
            return "-"
        ages, counts = np.array(self.staleness).T
        return f"{np.average(ages, weights=counts):.2f}, at most {ages.max()}"


@contextmanager
def cluster_of(methods: Sequence[str], steps: int) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of the workers; they and the parameter server are killed at the end."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-optimizers-"))
        cluster = stack.enter_context(reserve(Size(ps=1, workers=WORKERS)))
        settings = [f"--cluster={json.dumps(cluster.addresses)}", f"--folder={folder}"]
        settings += [f"--methods={json.dumps(methods)}", f"--steps={steps}"]
        workers = []
        for task in cluster.tasks:
            command = [sys.executable, str(PROGRAM), f"--job={task.job}", f"--task={task.index}", *settings]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            workers += [process] if task.job == "worker" else []
        yield workers


def measure(methods: Sequence[str], steps: int) -> Iterator[Result]:
    """Trains by one method after another."""
    with cluster_of(methods, steps) as workers:
        for method in methods:
            # A worker whose peer has failed may wait for it without end.
            deadline = threading.Timer(LIMIT, lambda: [process.kill() for process in workers])
            deadline.start()
            lines = [process.stdout.readline() for process in workers if process.stdout]
            deadline.cancel()
            if not all(lines):
                raise SystemExit(f"A worker has failed or hung, training by '{method}'.")
            yield combined([json.loads(line) for line in lines])


def combined(parts: list[dict[str, Any]]) -> Result:
    """The result of what the workers measured, the chief first."""
    steps = [len(part["losses"]) for part in parts]
    sent, received = (sum(part[name] for part in parts) / sum(steps) for name in ("sent", "received"))
    losses = np.mean([part["losses"][: min(steps)] for part in parts], 0).tolist()
    stale = [(updates, count) for updates, count in parts[0]["staleness"]]
    return Result(parts[0]["method"], parts[0]["accuracy"], losses, sent, received, stale)


# What is said of the methods


@dataclass(frozen=True)
class Claim:
    """Something said of methods: a figure of theirs, and the most that it may be, or the least."""

    text: str
    methods: tuple[str, ...]
    figure: Callable[..., float]
    limit: float
    at_least: bool = False

    def check(self, results: dict[str, Result]) -> tuple[str, bool] | None:
        """The figure with its limit, and if it is within that; None if a method was not run."""
        if not all(method in results for method in self.methods):
            return None
        value = self.figure(*(results[method] for method in self.methods))
        bound = f"at {'least' if self.at_least else 'most'} {self.limit:.2%}"
        return f"{value:.2%}, {bound}", value >= self.limit if self.at_least else value <= self.limit


def steps_share(result: Result, other: Result) -> float:
    return (result.steps_to_target or float("inf")) / (other.steps_to_target or float("inf"))


def pushed_share(result: Result, other: Result) -> float:
    return result.sent / other.sent


def share(of: Result, all_of: Result) -> float:
    return of.bytes / all_of.bytes


def lead(result: Result, other: Result) -> float:
    return result.accuracy - other.accuracy


CLAIMS = [
    *(Claim(f"{name}: test accuracy", (name,), lambda result: result.accuracy, 0.95, True) for name in METHODS),
    # Weights go both ways in one step of each interval, instead of weights and gradients in every step.
    *(
        Claim(f"{method}: bytes of per-step async", (method, DENSE), share, 1.02 / interval)
        for method, interval in [
            ("ModelAverage, interval 20", 20),
            ("ModelAverage, interval 25", 25),
            ("ElasticAverage, period 10", 10),
            ("ElasticAverage, period 25", 25),
        ]
    ),
    Claim("DGC: pushed bytes of dense", ("DGC, 99.9% sparse", DENSE), pushed_share, 0.01),
    Claim("DGC: accuracy beside dense", ("DGC, 99.9% sparse", DENSE), lead, -0.005, True),
    Claim("K-FAC: steps of SGD to the target loss", ("K-FAC", "async SGD"), steps_share, 0.5),
    Claim("LARS, 16x batch: accuracy beside LARS", ("LARS, 16x batch", "LARS"), lead, -0.005, True),
]


# Output

COLUMNS = ("method", "test accuracy", f"steps to loss {TARGET}", "sent/step", "received/step", "bytes", "staleness")


def row(result: Result, dense: Result | None) -> list[str]:
    """The cells of a method's row."""
    return [
        result.method,
        f"{result.accuracy:.1%}",
        str(result.steps_to_target or "-"),
        f"{result.sent / 1e3:.2f} kB",
        f"{result.received / 1e3:.2f} kB",
        f"{result.bytes / dense.bytes:.1%}" if dense else "",
        result.stale,
    ]


def draw(path: Path, results: dict[str, Result]) -> None:
    """The losses as curves."""

    def curve(result: Result) -> tuple[list[int], list[float]]:
        return [WINDOW + i for i in range(len(result.smooth))], np.log10(result.smooth).tolist()

    plots = []
    for title, methods in PANELS.items():
        lines = {label: curve(results[method]) for label, method in methods.items() if method in results}
        plots.append(Plot(title, lines, "steps of each worker", "loss, log10"))
    save(path, *plots, size=(560, 380), columns=3)


def table(results: list[Result]) -> Table:
    """The results as a table for a terminal."""
    dense = next((result for result in results if result.method == DENSE), None)
    made = Table(title="Digits, one parameter server and two workers")
    for column in COLUMNS:
        made.add_column(column, justify="left" if column == "method" else "right")
    for result in results:
        made.add_row(*row(result, dense))
    return made


def markdown(results: list[Result]) -> str:
    """The results as a table for docs/distributed-optimizers.md."""
    dense = next((result for result in results if result.method == DENSE), None)
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" + "|---:" * (len(COLUMNS) - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row(result, dense))} |" for result in results)])


def main() -> None:
    """Measures, prints and draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="methods whose names begin so, separated by semicolons")
    parser.add_argument("--steps", type=int, default=600, help="how many each worker makes")
    parser.add_argument("--plot", type=Path, help="where to draw the curves, as a PNG file")
    parser.add_argument("--markdown", action="store_true", help="a table for docs/distributed-optimizers.md")
    args = parser.parse_args()
    methods = [name for name in METHODS if name.startswith(tuple(args.only.split(";")))]
    results = {}
    for result in measure(methods, args.steps):
        print(*row(result, results.get(DENSE)), sep="  ", file=sys.stderr, flush=True)
        results[result.method] = result
    if args.plot:
        draw(args.plot, results)
    console = Console(width=140)
    if args.markdown:
        print(markdown(list(results.values())))
    else:
        console.print(table(list(results.values())))
    checked = [(claim, claim.check(results)) for claim in CLAIMS]
    claims = [(claim.text, *found) for claim, found in checked if found is not None]
    for text, figure, holds in claims:
        console.print(f"{'[green]holds' if holds else '[red]does not hold'}[/]: {text} {figure}")
    sys.exit(not all(holds for *_, holds in claims))


if __name__ == "__main__":
    main()
