"""Resources that each kind of task asks for: `--cpus ps=2,worker=4 --gpus worker=1 --memory 4G`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from penstock.launch.cluster import CHIEF, EVALUATOR, PS, WORKER, LaunchError, Task

Amount = TypeVar("Amount")
KINDS = (PS, CHIEF, WORKER, EVALUATOR)
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGT])(?:i?B)?", re.IGNORECASE)
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Resources:
    """The needs of one task; None leaves the choice to the engine."""

    cpus: float | None = None
    gpus: float | None = None
    memory: int | None = None  # bytes


@dataclass(frozen=True)
class Needs:
    """The resources of all kinds of tasks, as given on the command line.

    >>> needs = Needs.parse(cpus="ps=2,worker=4", memory="1.5G")
    >>> needs.of(Task("worker", 0)), needs.of(Task("chief", 0)).cpus
    (Resources(cpus=4.0, gpus=None, memory=1610612736), None)
    """

    kinds: Mapping[str, Resources]
    given: str = ""  # the options, for messages

    @classmethod
    def parse(cls, cpus: str | None = None, gpus: str | None = None, memory: str | None = None) -> Needs:
        """Reads the three options: one amount for all tasks, or one for each kind that is named."""
        options = {"--cpus": cpus, "--gpus": gpus, "--memory": memory}
        of_cpus, of_gpus = (_by_kind(option, options[option], _number) for option in ("--cpus", "--gpus"))
        of_memory = _by_kind("--memory", memory, _bytes)
        kinds = {kind: Resources(of_cpus.get(kind), of_gpus.get(kind), of_memory.get(kind)) for kind in KINDS}
        return cls(kinds, " ".join(f"{option} {text}" for option, text in options.items() if text is not None))

    def of(self, task: Task) -> Resources:
        """The resources of a task."""
        return self.kinds.get(task.job, Resources())


def _by_kind(option: str, text: str | None, read: Callable[[str, str], Amount]) -> dict[str, Amount]:
    if text is None:
        return {}
    if "=" not in text:
        return dict.fromkeys(KINDS, read(option, text))
    found: dict[str, Amount] = {}
    for part in text.split(","):
        kind, _, amount = part.partition("=")
        if kind not in KINDS or kind in found:
            raise LaunchError(
                f"{option} takes one amount for all tasks, or one for each kind, as in ps=1,worker=2 (the kinds are "
                f"{', '.join(KINDS)}, each at most once), received '{text}'."
            )
        found[kind] = read(option, amount)
    return found


def _number(option: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise LaunchError(f"{option} takes numbers that are not negative, received '{text}'.")
    return found


def _bytes(option: str, text: str) -> int:
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise LaunchError(f"{option} takes amounts such as 512M or 4G, received '{text}'.")
    return int(float(match[1]) * _UNITS[match[2].upper()])
