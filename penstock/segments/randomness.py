"""Every random node has a generator, a Philox state that follows from its seeds and moves on with each run.

It moves on as far as in TensorFlow's kernels, so that the numbers are TensorFlow's, run after run. How far that is
depends on how many numbers a run has made, so whoever runs a node says so afterwards.

A control-flow node has a generator, too, whose counter counts the runs of its bodies; that of a conditional has 32 bits
for each branch. A node in a body takes the number of its run from there. That is TensorFlow's count, except in
conditionals and loops that are themselves in a body: there the numbers are others.
"""

from __future__ import annotations

import math
import secrets
import threading
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph.opdef import OpDef
from penstock.passes.ir import Node
from penstock.segments.kinds import body, functions_of

_MASK = 2**64 - 1
_RESERVED = 256  # blocks of four words for each number, unless the op says otherwise
_FAR = 1 << 48  # no run makes so many


def is_random(node: Node) -> bool:
    """Tells if a node, or a body that it holds, draws random numbers."""
    bodies = functions_of(node)
    return node.op.random or (bool(bodies) and any(is_random(n) for f in bodies for n in body(f).nodes))


def key_name(node: Node) -> str:
    """Returns the name under which a node finds its generator. The gradient of a loop has that of the loop."""
    name = node.attrs.get("_stream") or node.attrs.get("_forward")
    return str(name or getattr(node.name, "path", node.name))


def reserved(node: Node, shape: tuple[Any, ...]) -> Any:
    """Returns by how many blocks a node's generator moves on when its first result has this shape."""
    return blocks_reserved(node.op, shape)


def blocks_reserved(op: OpDef, shape: tuple[Any, ...]) -> Any:
    """Returns the same for an op type."""
    return op.reserves(shape) if op.reserves is not None else _RESERVED * math.prod(shape)


def _seeds(node: Node) -> tuple[int, int]:
    if node.op.random:
        return int(node.attrs.get("seed", 0)), int(node.attrs.get("seed2", 0))
    inner = (n for f in functions_of(node) for n in body(f).nodes if is_random(n))
    return next((s for s in map(_seeds, inner) if s != (0, 0)), (0, 0))


def inner_state(outer: Any, node: Node, run: Any, branch: int | None) -> Any:
    """Returns the generator of a node in a body: its key, the number of the run, and the high half of its counter.

    `outer` is the generator of the node that holds the body; `run` is the number of an iteration, `branch` that of a
    branch, or None.
    """
    first, runs, second = (outer[i] for i in range(3))
    if branch is not None:
        runs = runs >> np.uint64(32 * branch) & np.uint64(0xFFFFFFFF)
    if run is not None:
        runs = runs + jnp.asarray(run).astype(np.uint64)
    if node.op.name.startswith("While"):
        runs = runs << np.uint64(32)  # so that its own iterations have room
    elif node.op.control_flow:
        mixed = runs * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)
        runs = jnp.where(runs >> np.uint64(32) == 0, runs, mixed) * np.uint64((1 << 32) + 1)  # the same in both halves
    seeds = _seeds(node) if node.op.random else (0, 0)
    if seeds == (0, 0):
        # A node's number does not depend on which other nodes of the body a step needs.
        return first + np.uint64((node.order + 1) * 0x9E3779B97F4A7C15 & _MASK), runs, second
    return np.uint64(seeds[0] & _MASK), runs, np.uint64(seeds[1] & _MASK)


@jax.tree_util.register_static
class Known:
    """A number of blocks that tracing finds out: part of the form of a program's results, not computed by it."""

    def __init__(self, blocks: Any) -> None:
        self.blocks = blocks  # a symbol where sizes are symbols

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and str(self.blocks) == str(other.blocks)

    def __hash__(self) -> int:
        return hash(str(self.blocks))


class Drawn(dict[str, np.ndarray]):
    """The states that the nodes of a step have drawn, for a step that has generators of its own."""

    def __init__(self, generators: RandomState) -> None:
        super().__init__()
        self.generators = generators


class RandomState:
    """Holds the generators of a session's random nodes: Philox states, uint64[3]."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}  # the counter of each, its low half
        self._drawing: set[str] = set()  # those whose last run has not said yet how far they move on
        self._lock = threading.Lock()
        self._entropy = secrets.randbits(64)

    def restart(self) -> None:
        """Makes all generators start again from their seeds."""
        with self._lock:
            self._next.clear()
            self._drawing.clear()

    def keys(self, nodes: Sequence[Node], drawn: dict[str, np.ndarray]) -> np.ndarray:
        """Returns one state per node. `drawn` holds those of this step, so that a name has one in all segments."""
        return np.stack([self.key(node, drawn) for node in nodes])

    def key(self, node: Node, drawn: dict[str, np.ndarray]) -> np.ndarray:
        """Returns the state of one node for this step."""
        if isinstance(drawn, Drawn) and drawn.generators is not self:
            return drawn.generators.key(node, drawn)
        name = key_name(node)
        state = drawn.get(name)
        if state is None:
            first, second = _seeds(node)
            if (first, second) == (0, 0):
                first, second = self._entropy, zlib.crc32(name.encode())
            with self._lock:
                start = self._next.get(name, 0)
                if name in self._drawing:  # by a step that runs now, or one that has failed
                    start = (start + _FAR) & _MASK
                self._next[name] = start
                self._drawing.add(name)
            state = drawn[name] = np.array([first & _MASK, start, second & _MASK], np.uint64)
        return state

    def move_on(self, node: Node, drawn: dict[str, np.ndarray], blocks: int) -> None:
        """Moves a node's generator on after a run, unless another step has drawn from it meanwhile."""
        if isinstance(drawn, Drawn) and drawn.generators is not self:
            drawn.generators.move_on(node, drawn, blocks)
            return
        name = key_name(node)
        start = int(drawn[name][1])
        with self._lock:
            if self._next.get(name) == start and name in self._drawing:
                self._next[name] = (start + blocks) & _MASK
                self._drawing.discard(name)
