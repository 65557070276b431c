"""Seeds of random ops in eager execution, by TensorFlow's rules.

An op gets two seeds: the global one of `tf.random.set_seed`, and its own or, if it has none, the next number of a
Python generator that starts from the global seed. Without a global seed, DEFAULT_GRAPH_SEED stands for it if the op has
a seed of its own.

Eager calls that are alike draw from one generator: those of one op type with the same attrs, seeds and types included,
on one device (`stream_name`). So `tf.random.uniform([2], seed=1)` goes on with each call, also if the shape changes;
calls without a seed of their own have different seeds, and start a generator each. In a function each node has a
generator, which goes on with each call of that concrete function; a function that is called inside another has others
there. Each trace, and each body in it, counts its random ops from 0 for their seeds.

`set_seed` makes all these generators start again. The seeds of nodes stay those of their trace.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np

STREAM = "_stream"  # attr of a random node, or one with bodies: the name of its generator
_LARGEST = 2**31 - 1
_MANY = 1 << 16  # calls without a seed of their own start a generator each, which no other call draws from


class EagerSeeds:
    """The global seed of eager execution, and the op seeds that follow from it.

    >>> seeds = EagerSeeds()
    >>> seeds.set(0)
    >>> seeds.next_op_seed()
    1654615998
    """

    def __init__(self) -> None:
        self.seed: int | None = None
        self._numbers = random.Random()

    def set(self, seed: Any) -> None:
        """Sets the global seed. The numbers start anew."""
        self.seed = None if seed is None else int(np.asarray(seed))
        self._numbers = random.Random(self.seed)

    def next_op_seed(self) -> int:
        """The seed of a new op that has none of its own."""
        return self._numbers.randint(0, _LARGEST)


class Streams:
    """The counters of the generators that eager calls share, by name. Those used least recently may be forgotten."""

    def __init__(self) -> None:
        self._next: OrderedDict[str, int] = OrderedDict()
        self.lock = threading.Lock()  # held from `counter` to `move_on`

    def counter(self, name: str) -> int:
        """The counter from which the next call draws."""
        return self._next.get(name, 0)

    def move_on(self, name: str, blocks: int) -> None:
        """Moves a generator on after a call."""
        self._next[name] = self._next.pop(name, 0) + blocks
        if len(self._next) > _MANY:
            self._next.popitem(last=False)

    def restart(self) -> None:
        """Makes all generators start again."""
        with self.lock:
            self._next.clear()


def stream_name(op_type: str, attrs: Mapping[str, Any], device: str) -> str:
    """The name of the generator that eager calls of an op share.

    >>> stream_name("RandomUniform", {"seed2": 1, "seed": 0}, "/device:CPU:0")
    'RandomUniform seed=0 seed2=1 /device:CPU:0'
    """
    return " ".join([op_type, *(f"{name}={attrs[name]}" for name in sorted(attrs)), device])
