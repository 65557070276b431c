"""Random numbers: a key for every random node of a step, fresh on every run, reproducible from the node's seeds."""

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
    """A well-spread 64-bit number of several (the finalizer of splitmix64)."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state


def is_random(node: Node) -> bool:
    """Whether a node, or a body it holds, draws random numbers."""
    bodies = functions_of(node)
    return node.op.random or (bool(bodies) and any(is_random(n) for f in bodies for n in body(f).nodes))


def key_name(node: Node) -> str:
    """Whose numbers a node uses: the gradient of a loop must see what the loop saw."""
    return str(node.attrs.get("_forward", node.name))


def _seeds(node: Node) -> tuple[int, int]:
    if node.op.random:
        return int(node.attrs.get("seed", 0)), int(node.attrs.get("seed2", 0))
    inner = (n for f in functions_of(node) for n in body(f).nodes if is_random(n))
    return next((s for s in map(_seeds, inner) if s != (0, 0)), (0, 0))


class RandomState:
    """How often each random node of a session has run; node names to keys (Philox states, uint32[4])."""

    def __init__(self) -> None:
        self._runs: dict[str, int] = {}
        self._lock = threading.Lock()
        self._entropy = secrets.randbits(64)

    def keys(self, nodes: Sequence[Node], drawn: dict[str, np.ndarray]) -> np.ndarray:
        """One key per node. `drawn` holds the keys of this step: one name has one key in all its segments."""
        return np.stack([self.key(node, drawn) for node in nodes])

    def key(self, node: Node, drawn: dict[str, np.ndarray]) -> np.ndarray:
        """The key of one node."""
        name = key_name(node)
        key = drawn.get(name)
        if key is None:
            with self._lock:
                run = self._runs[name] = self._runs.get(name, 0) + 1
            seeds = _seeds(node)
            if seeds == (0, 0):
                seeds = self._entropy, zlib.crc32(name.encode())
            mixed = _mixed(*seeds, run)
            # Philox: two words of key, two of counter; the counter's high word is left to loop iterations.
            key = drawn[name] = np.array([mixed & 0xFFFFFFFF, mixed >> 32, 0, 0], np.uint32)
        return key
