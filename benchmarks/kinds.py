"""Tells what a process spends its processor time on, by kind: reading, messages, copying, plan, XLA, sending.

It replaces the functions that do such work by ones that also read the thread's clock, so a process that is measured
this way is a little slower.
"""

from __future__ import annotations

import functools
import selectors
import threading
import time
from collections.abc import Iterator
from typing import Any

from penstock.segments import borrowing
from penstock.segments.segment import Segment
from penstock.wire import codec, shared_memory
from penstock.wire.stream import Stream
from penstock.worker.executor import Executable

PYTHON = "other Python"
FUNCTIONS: dict[str, list[tuple[Any, str]]] = {
    "reading": [(Stream, "read_some"), (Stream, "read_bulk"), (selectors.DefaultSelector, "select")],
    "messages": [(codec, "encode"), (codec, "decode")],
    "copying": [(shared_memory, "_copy"), (borrowing, "aligned_copy")],
    "plan": [(Executable, "proceed")],
    "XLA": [(Segment, "_call")],
    "sending": [(Stream, "write_some")],
}
KINDS = (*FUNCTIONS, PYTHON)


class Kinds:
    """Adds up the processor time of each kind of work in this process, from now on.

    >>> kinds = Kinds(); serve(); kinds.seconds()
    {'reading': 0.3, 'messages': 0.6, 'copying': 0.1, 'plan': 0.4, 'XLA': 1.9, 'sending': 0.4, 'other Python': 1.7}
    """

    def __init__(self) -> None:
        self._threads: list[dict[str, float]] = []
        self._here = threading.local()
        for kind, functions in FUNCTIONS.items():
            for owner, name in functions:
                setattr(owner, name, self._timed(getattr(owner, name), kind))

    def _spent(self) -> dict[str, float]:
        """The seconds of this thread, by kind."""
        if not hasattr(self._here, "spent"):
            self._here.spent, self._here.inside = {}, [0.0]
            self._threads.append(self._here.spent)
        spent: dict[str, float] = self._here.spent
        return spent

    def _timed(self, function: Any, kind: str) -> Any:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            spent, inside = self._spent(), self._here.inside
            inside.append(0.0)  # seconds of other kinds of work that it calls
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.thread_time() - began
                spent[kind] = spent.get(kind, 0.0) + took - inside.pop()
                inside[-1] += took

        return timed

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of all threads so far, by kind."""
        found = {kind: sum(spent.get(kind, 0.0) for spent in list(self._threads)) for kind in FUNCTIONS}
        return {**found, PYTHON: time.process_time() - sum(found.values())}


def rows(per_step: dict[str, float]) -> Iterator[tuple[str, float]]:
    """The seconds of a step by kind, in microseconds, and their sum."""
    yield from ((kind, 1e6 * per_step[kind]) for kind in KINDS)
    yield "all", 1e6 * sum(per_step.values())
