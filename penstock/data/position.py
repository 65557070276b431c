"""Position: where an iteration of a dataset is, as numbers, and the description of what comes after it; its parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from penstock.data import nodes
from penstock.data.nodes import Node
from penstock.errors import InvalidArgumentError

_RANDOM = (nodes.Shuffled, nodes.RandomNumbers)


def after(node: Node, count: int) -> Node:
    """The dataset without its first `count` elements.

    What these need is not made again where an element depends on nothing but one element of the input; functions with
    effects do not run again.

    >>> after(nodes.Batched(nodes.Range(0, 100, 1), 10, False), 3)
    Batched(Range(30, 100, 1), 10, False)
    """
    match node:
        case nodes.Range():
            return dataclasses.replace(node, start=node.start + count * node.step)
        case nodes.Slices():
            return nodes.Slices(tuple(c[count:] for c in node.components))
        case nodes.Listed():
            return nodes.Listed(node.elements[count:])
        case nodes.Mapped() | nodes.Prefetched():
            return dataclasses.replace(node, input=after(node.input, count))
        case nodes.Batched() | nodes.PaddedBatched():
            return dataclasses.replace(node, input=after(node.input, count * node.size))
        case nodes.Zipped():
            return nodes.Zipped(tuple(after(n, count) for n in node.inputs))
    return nodes.Skipped(node, count, with_errors=True)


def closures_of(node: Node) -> list[nodes.Closure]:
    """The functions of a description."""
    values = (getattr(part, field.name) for part in _parts(node) for field in dataclasses.fields(part))
    return [value for value in values if isinstance(value, nodes.Closure)]


def random_state(node: Node) -> np.ndarray:
    """The state of all that is random in a description, a row for each; `set_random_state` sets it again."""
    rows = [part.epochs.state for part in _parts(node) if isinstance(part, _RANDOM)]
    return np.array(rows, np.int64).reshape(-1, 3)


def set_random_state(node: Node, state: np.ndarray) -> None:
    """Sets the state of all that is random in a description. Raises InvalidArgumentError if it does not fit."""
    found = [part for part in _parts(node) if isinstance(part, _RANDOM)]
    if np.shape(state) != (len(found), 3):
        raise InvalidArgumentError(
            f"The dataset has {len(found)} random parts, so that this is not the position of an iterator of it: "
            f"{state!r:.200}."
        )
    for part, row in zip(found, state.tolist(), strict=True):
        part.epochs.state = tuple(row)


def seed_all(node: Node, seed: int) -> None:
    """Sets all that is random in a description to its start; parts without seeds of their own get them from `seed`."""
    for i, part in enumerate(_parts(node)):
        if isinstance(part, _RANDOM):
            part.epochs.state = (0, seed, i)


def _parts(node: Node) -> Iterator[Node]:
    """All nodes of a description, inputs first."""
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Node):
                yield from _parts(inner)
    yield node
