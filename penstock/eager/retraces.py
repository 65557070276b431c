"""Warns of functions that are traced in most of their calls: tracing takes longer than most calls save."""

from __future__ import annotations

from penstock import logging

HISTORY = 10  # calls that are looked at
MANY = 5  # traces among them
MAX_WARNINGS = 2  # per function


class Retraces:
    """Counts the calls of a function, and which of them traced it."""

    def __init__(self, name: str) -> None:
        self.calls = 0
        self._name = name
        self._traced: list[int] = []  # numbers of the calls that traced
        self._warnings = 0

    def note(self) -> None:
        """Notes that the current call traces the function."""
        self._traced = [*(n for n in self._traced if n > self.calls - HISTORY), self.calls]
        if len(self._traced) < MANY or self._warnings == MAX_WARNINGS:
            return
        self._warnings += 1
        logging.warning(
            f"{len(self._traced)} out of the last {self.calls - self._traced[0] + 1} calls to {self._name} triggered "
            "tf.function retracing, which is slow. Likely causes: (1) the tf.function is made anew in a loop; (2) its "
            "tensors have changing shapes: use reduce_retracing=True or an input_signature; (3) it gets changing "
            "Python values: pass tensors."
        )
