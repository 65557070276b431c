"""Every random node gets a new key in each step. The keys follow from the node's seeds and the number of runs."""

from __future__ import annotations

import secrets
import threading
import zlib
from collections.abc import Sequence

import numpy as np

from penstock.passes.ir import Node
from penstock.worker.kinds import body, functions_of

_MASK = 2**64 - 1


def _mixed(*numbers: int) -> int:
    """Mixes numbers into one 64-bit number that depends on all bits (the finalizer of splitmix64)."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def is_random(node: Node) -> bool:
    """Tells if a node, or a body that it holds, draws random numbers."""
    bodies = functions_of(node)
    return node.op.random or (bool(bodies) and any(is_random(n) for f in bodies for n in body(f).nodes))


def key_name(node: Node) -> str:
    """Returns the name under which a node finds its key. The gradient of a loop has that of the loop."""
    return str(node.attrs.get("_forward", node.name))


def _seeds(node: Node) -> tuple[int, int]:
    if node.op.random:
        return int(node.attrs.get("seed", 0)), int(node.attrs.get("seed2", 0))
    inner = (n for f in functions_of(node) for n in body(f).nodes if is_random(n))
    return next((s for s in map(_seeds, inner) if s != (0, 0)), (0, 0))


class RandomState:
    """Counts the runs of each random node of a session, and makes its keys (Philox states, uint32[4])."""

    def __init__(self) -> None:
        self._runs: dict[str, int] = {}
        self._lock = threading.Lock()
        self._entropy = secrets.randbits(64)

    def keys(self, nodes: Sequence[Node], drawn: dict[str, np.ndarray]) -> np.ndarray:
        """Returns one key per node. `drawn` holds the keys of this step, so that a name has one key in all segments."""
        return np.stack([self.key(node, drawn) for node in nodes])

    def key(self, node: Node, drawn: dict[str, np.ndarray]) -> np.ndarray:
        """Returns the key of one node."""
        name = key_name(node)
        key = drawn.get(name)
        if key is None:
            with self._lock:
                run = self._runs[name] = self._runs.get(name, 0) + 1
            seeds = _seeds(node)
            if seeds == (0, 0):
                seeds = self._entropy, zlib.crc32(name.encode())
            mixed = _mixed(*seeds, run)
            # Philox has two words of key and two of counter; loop iterations use the counter's high word.
            key = drawn[name] = np.array([mixed & 0xFFFFFFFF, mixed >> 32, 0, 0], np.uint32)
        return key
