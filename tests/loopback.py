"""Addresses on this machine for the servers of a test."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

_any = random.SystemRandom()  # two test processes may have the same random seed


def free_addresses(count: int) -> list[str]:
    """Free addresses that no outgoing connection will take while a task is down."""
    addresses: list[str] = []
    while len(addresses) < count:
        port = _any.randrange(15000, 32000)  # below the ports that systems give to connections
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        if f"127.0.0.1:{port}" not in addresses:
            addresses.append(f"127.0.0.1:{port}")
    return addresses


@contextlib.contextmanager
def not_listening() -> Iterator[str]:
    """An address at which connections are refused: it is taken, so that no server of another test gets it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"
