"""leak_check: fails if a test leaves child processes, threads or descriptors.

>>> with leak_check():
...     server = tf.train.Server(cluster)
...     server.stop()
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jax

DEADLINE = 30.0  # seconds until everything must have ended
# gRPC keeps these for the life of the process, and makes them when it first needs them.
_KEPT = ("anon_inode:[eventpoll]", "anon_inode:[eventfd]")
_LASTING = ("penstock-compile", "penstock-helper")  # threads of which a process has one, once it has needed it


def children() -> dict[int, str]:
    """The child processes of this process that have not been waited for, with their states."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            # The name stands in parentheses and may hold any character.
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid():
                found[int(path.parent.name)] = state
    return found


def threads() -> set[threading.Thread]:
    """The threads that penstock has started."""
    found = {thread for thread in threading.enumerate() if thread.name.startswith("penstock")}
    return {thread for thread in found if thread.name not in _LASTING}


def descriptors() -> dict[int, str]:
    """The open descriptors of this process, and what they refer to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            target = os.readlink(f"/proc/self/fd/{name}")
            if target not in _KEPT:
                found[int(name)] = target
    return found


@contextlib.contextmanager
def leak_check(deadline: float = DEADLINE) -> Iterator[None]:
    """Fails if a process, thread or descriptor from inside still exists `deadline` seconds after the end."""
    jax.device_put(0.0).block_until_ready()  # a GPU driver opens its devices once and keeps them open
    before = children().keys(), threads(), set(descriptors().items())
    yield
    end = time.monotonic() + deadline
    while True:
        left = {
            "processes": {pid: state for pid, state in children().items() if pid not in before[0]},
            "threads": sorted(thread.name for thread in threads() - before[1]),
            "descriptors": sorted(set(descriptors().items()) - before[2]),
        }
        if not any(left.values()):
            return
        assert time.monotonic() < end, f"left behind: { {kind: what for kind, what in left.items() if what} }"
        time.sleep(0.02)
        gc.collect()  # shared memory is freed with the arrays in it
