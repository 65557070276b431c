"""Tells the launcher, if one started this process, that this task is doing its work.

A task that fails before that has an error in its program, which a restart would only repeat.
"""

from __future__ import annotations

import contextlib
import os
import threading

_launcher: int | None = None
_lock = threading.Lock()


def report_to(descriptor: int) -> None:
    """Makes `under_way` write to a pipe of the launcher. Children of this process do not inherit it."""
    global _launcher
    os.set_inheritable(descriptor, False)
    _launcher = descriptor


def under_way() -> None:
    """Reports, on the first call, that a server serves, or that a session runs a step that it has run before."""
    global _launcher
    with _lock:
        descriptor, _launcher = _launcher, None
    if descriptor is not None:
        with contextlib.suppress(OSError):  # the launcher is gone
            os.write(descriptor, b".")
        os.close(descriptor)
