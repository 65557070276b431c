"""Counting: the number of elements of a description, if it is known without running it."""

from __future__ import annotations

from penstock.data import nodes

INFINITE = -1
UNKNOWN = -2


def cardinality(node: nodes.Node) -> int:
    """The number of elements, INFINITE or UNKNOWN.

    >>> cardinality(nodes.Batched(nodes.Range(0, 10, 1), 4, False))
    3
    """
    match node:
        case nodes.Tensors():
            return 1
        case nodes.Slices():
            return len(node.components[0])
        case nodes.Listed():
            return len(node.elements)
        case nodes.RowNumbers():
            return node.count
        case nodes.Range():
            return len(range(node.start, node.stop, node.step))
        case nodes.Saved():
            return node.count
        case nodes.RandomNumbers():
            return INFINITE
        case nodes.Zipped():
            return _least([cardinality(n) for n in node.inputs])
        case nodes.Concatenated():
            return _total([cardinality(n) for n in node.inputs])
        case nodes.Derived():
            return _derived(node, cardinality(node.input))
    return UNKNOWN


def _derived(node: nodes.Derived, count: int) -> int:
    match node:
        case nodes.Mapped() | nodes.Shuffled() | nodes.Cached() | nodes.Prefetched() | nodes.Scanned():
            return count
        case nodes.Counted():
            return node.count
        case nodes.SparseBatched():
            return count if count < 0 else -(-count // node.size)
        case nodes.Windowed():
            return count if count < 0 else _windows(node, count)
        case nodes.Batched() | nodes.BatchedRows() | nodes.PaddedBatched():
            return count if count < 0 else count // node.size if node.drop_remainder else -(-count // node.size)
        case nodes.Repeated():
            if node.count < 0:
                return 0 if count == 0 else INFINITE
            return count * node.count if count >= 0 else 0 if node.count == 0 else count
        case nodes.Taken():
            return count if node.count < 0 else node.count if count == INFINITE else min(count, node.count)
        case nodes.Skipped():
            return 0 if node.count < 0 else count if count < 0 else max(0, count - node.count)
        case nodes.Sharded():
            return count if count < 0 else max(0, -(-(count - node.index) // node.count))
    return UNKNOWN


def _windows(node: nodes.Windowed, count: int) -> int:
    """The number of windows over `count` elements: one begins at each multiple of the shift."""
    span = (node.size - 1) * node.stride + 1
    last = count - span if node.drop_remainder else count - 1
    return max(0, last // node.shift + 1)


def _least(counts: list[int]) -> int:
    if UNKNOWN in counts:
        return UNKNOWN
    return min((c for c in counts if c >= 0), default=INFINITE)


def _total(counts: list[int]) -> int:
    if INFINITE in counts:
        return INFINITE
    return UNKNOWN if UNKNOWN in counts else sum(counts)
