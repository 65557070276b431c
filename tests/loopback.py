"""Addresses on this machine for the servers of a test."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
from collections.abc import Iterator


def _ports() -> Iterator[int]:
    """Ports below those that systems give to connections: each once, and no other test process of a run has them.

    A task listens only when its process is up, and not while it is down. Nobody else may be told of its port then.
    """
    number, count = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]), os.environ.get("PYTEST_XDIST_WORKER_COUNT")
    own = range(15000 + number, 32000, int(count or 1))
    first = random.SystemRandom().randrange(len(own))  # another run on the machine may have the same random seed
    return itertools.cycle([*own[first:], *own[:first]])


_next_ports = _ports()


def free_addresses(count: int) -> list[str]:
    """Free addresses that no outgoing connection will take while a task is down."""
    addresses: list[str] = []
    while len(addresses) < count:
        port = next(_next_ports)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        addresses.append(f"127.0.0.1:{port}")
    return addresses


@contextlib.contextmanager
def not_listening() -> Iterator[str]:
    """An address at which connections are refused: it is taken, so that no server of another test gets it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"
