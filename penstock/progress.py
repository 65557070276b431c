"""Tells the launcher, if one started this process, that this task is doing its work.

A task that fails before that has an error in its program, which a restart would only repeat.
"""

from __future__ import annotations

import contextlib
import os
import threading

STEPS, SERVES = b".", b"s"  # the words of a task to its launcher: it runs steps, or it only serves others

_launcher: int | None = None
_lock = threading.Lock()


def report_to(descriptor: int) -> None:
    """Makes `under_way` write to a pipe of the launcher. Children of this process do not inherit it."""
    global _launcher
    os.set_inheritable(descriptor, False)
    _launcher = descriptor


def under_way(word: bytes = STEPS) -> None:
    """Reports, on the first call, that steps have run (so that the program is right as far as that), or `SERVES`."""
    global _launcher
    with _lock:
        descriptor, _launcher = _launcher, None
    if descriptor is not None:
        with contextlib.suppress(OSError):  # the launcher is gone
            os.write(descriptor, word)
        os.close(descriptor)
