"""Finds ports for tasks on the machine where it runs: `python -m penstock.launch.free_ports COUNT [FIRST]`.

It prints the name of the Slurm node and the ports in one line. That it runs at all shows that the machine can be
reached and has penstock.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

_LOWEST = 10000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Ports that are free now.

    They are not among those that the system gives to outgoing connections, where that is known: one that waits for a
    restart of its task stays free then.
    """
    found: list[int] = []
    for port in _candidates():
        if len(found) == count:
            break
        if port not in found and _is_free(port):
            found.append(port)
    return found


def _candidates() -> Iterator[int]:
    # Random ones, since other jobs on this machine look for ports too.
    try:
        first, last = map(int, _RANGE.read_text().split())
    except OSError:
        first, last = 32768, 60999
    outside = [*range(_LOWEST, first), *range(last + 1, 65536)]
    random.shuffle(outside)
    yield from outside
    yield from range(first, last + 1)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
        return True


def main() -> None:
    """Prints the name of this node and its ports."""
    count, *first = map(int, sys.argv[1:])
    node = os.environ["SLURMD_NODENAME"]
    if first:
        wanted = range(first[0], first[0] + count)
        if taken := [port for port in wanted if not _is_free(port)]:
            sys.exit(f"port {taken[0]} of node {node} is taken: give another --base-port, or leave it out.")
        ports = [*wanted]
    else:
        ports = free_ports(count)
    print(node, *ports)


if __name__ == "__main__":
    main()
