"""Tells the launcher, if one started this process, that its work is under way.

A task that fails before that has a mistake in its program, which a restart would only repeat.
"""

from __future__ import annotations

import contextlib
import os
import threading

_launcher: int | None = None
_lock = threading.Lock()


def report_to(descriptor: int) -> None:
    """Has `under_way` write to a pipe of the launcher's. Children of this process do not inherit it."""
    global _launcher
    os.set_inheritable(descriptor, False)
    _launcher = descriptor


def under_way() -> None:
    """Says so, the first time it is called: a server serves, or a session runs a step that it has run before."""
    global _launcher
    with _lock:
        descriptor, _launcher = _launcher, None
    if descriptor is not None:
        with contextlib.suppress(OSError):  # nobody reads: the launcher is gone
            os.write(descriptor, b".")
        os.close(descriptor)
