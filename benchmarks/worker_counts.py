"""Results for growing numbers of workers, and a picture of them.

It imports no jax, since bare.py's processes import it and must have jax as it comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.summary.plot import Plot, save


@dataclass(frozen=True)
class Result:
    """The measurements for one number of workers."""

    way: str  # what was measured: workers that pause or not, or one of several programs
    workers: int
    steps_per_s: float
    cpu_us: float  # processor time of the parameter server's process per step, including sockets and threads


def draw(path: Path, results: list[Result]) -> None:
    """The results as a picture, with a line for each way."""

    def plot(title: str, of: str, unit: str) -> Plot:
        lines = {}
        for way in dict.fromkeys(each.way for each in results):
            chosen = [each for each in results if each.way == way]
            lines[way] = [each.workers for each in chosen], [getattr(each, of) for each in chosen]
        ticks = sorted({each.workers for each in results})
        return Plot(title, lines, "workers", unit, marks=True, from_zero=True, x_ticks=ticks)

    save(
        path,
        plot("Steps of all workers", "steps_per_s", "steps per second"),
        plot("What a step costs the parameter server", "cpu_us", "microseconds of processor time"),
    )
