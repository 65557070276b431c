"""Fuse: rewrites descriptions so that the same elements take less work."""

from __future__ import annotations

import dataclasses

from penstock.data.nodes import (
    Batched,
    BatchedRows,
    Concatenated,
    Derived,
    Node,
    Repeated,
    RowNumbers,
    Selected,
    Sharded,
    Shuffled,
    Skipped,
    Slices,
    Taken,
    Zipped,
)

_REORDERING = (Shuffled, Repeated, Taken, Skipped, Sharded)  # these do not depend on the contents of elements


def fuse(node: Node) -> Node:
    """Turns batches of reordered slices into batches of row numbers.

    >>> fuse(Batched(Shuffled(Slices((images, labels)), 10000, 0, 0, True), 100, False))
    BatchedRows(Shuffled(RowNumbers(60000), ...), (images, labels), 100, False)
    """
    if isinstance(node, Batched):
        numbers = _row_numbers(node.input)
        if numbers is not None:
            rows, source = numbers
            return BatchedRows(rows, source.components, node.size, node.drop_remainder)
    if isinstance(node, Derived):
        inner = fuse(node.input)
        return node if inner is node.input else dataclasses.replace(node, input=inner)
    if isinstance(node, (Zipped, Concatenated, Selected)):
        return dataclasses.replace(node, inputs=tuple(map(fuse, node.inputs)))
    return node


def _row_numbers(node: Node) -> tuple[Node, Slices] | None:
    """`node` as a dataset of row numbers of slices, and those slices; None if it has another form."""
    if isinstance(node, Slices):
        return RowNumbers(len(node.components[0])), node
    if not isinstance(node, _REORDERING):
        return None
    found = _row_numbers(node.input)
    if found is None:
        return None
    return dataclasses.replace(node, input=found[0]), found[1]
