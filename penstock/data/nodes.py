"""The form of a dataset: a tree of small immutable nodes with arrays, numbers and graph functions. Nothing runs here.

A node is the value of a dataset tensor. Its kernel makes it when the iterator is initialized, so sizes, seeds and
names of files may come from tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.data.seeds import Epochs
from penstock.graph.function import Function

Element = tuple[Any, ...]  # one array per component


@dataclass(frozen=True, eq=False, slots=True)
class Closure:
    """A function with its captured values, which follow its own arguments."""

    function: Function
    captured: tuple[Any, ...] = ()


class MemoryCache:
    """The elements of a dataset, once an iteration over it is complete. All iterators of the dataset share it."""

    __slots__ = ("elements",)

    def __init__(self) -> None:
        self.elements: list[Element] | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """A dataset."""


# Sources


@dataclass(frozen=True, eq=False, slots=True)
class Tensors(Node):
    """One element."""

    components: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Slices(Node):
    """One element per row of the components."""

    components: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False, slots=True)
class RowNumbers(Node):
    """Plain Python integers from 0, the row numbers of arrays that are read later."""

    count: int


@dataclass(frozen=True, eq=False, slots=True)
class Range(Node):
    start: int
    stop: int
    step: int
    dtype: Any = np.int64


@dataclass(frozen=True, eq=False, slots=True)
class RandomNumbers(Node):
    seed: int
    seed2: int
    epochs: Epochs = field(default_factory=Epochs, repr=False)


@dataclass(frozen=True, eq=False, slots=True)
class Lines(Node):
    files: tuple[str, ...]
    compression: str


@dataclass(frozen=True, eq=False, slots=True)
class Records(Node):
    files: tuple[str, ...]
    compression: str


@dataclass(frozen=True, eq=False, slots=True)
class FixedLengthRecords(Node):
    files: tuple[str, ...]
    header: int
    size: int
    footer: int
    compression: str


@dataclass(frozen=True, eq=False, slots=True)
class Generated(Node):
    """The elements of a Python generator: `start` makes a state, `advance` its next element, `finish` drops it."""

    start: Closure
    advance: Closure
    finish: Closure


@dataclass(frozen=True, eq=False, slots=True)
class Saved(Node):
    """The elements that `Dataset.save` wrote, a checkpoint at `prefix`."""

    prefix: str
    count: int


# Transformations of one dataset


@dataclass(frozen=True, eq=False, slots=True)
class Derived(Node):
    """A dataset made of another."""

    input: Node


@dataclass(frozen=True, eq=False, slots=True)
class Mapped(Derived):
    function: Closure
    parallel: int = 0  # concurrent calls; 0: in the calling thread; -1: chosen by the machine
    node: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class FlatMapped(Derived):
    function: Closure


@dataclass(frozen=True, eq=False, slots=True)
class Interleaved(Derived):
    function: Closure
    cycle: int
    block: int
    ahead: int = 0  # elements that each open dataset prepares in its own thread


@dataclass(frozen=True, eq=False, slots=True)
class Filtered(Derived):
    predicate: Closure


@dataclass(frozen=True, eq=False, slots=True)
class TakenWhile(Derived):
    predicate: Closure


@dataclass(frozen=True, eq=False, slots=True)
class Scanned(Derived):
    function: Closure
    state: tuple[Any, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Batched(Derived):
    size: int
    drop_remainder: bool


@dataclass(frozen=True, eq=False, slots=True)
class BatchedRows(Derived):
    """Batches of the rows whose numbers `input` gives: each batch indexes the components once."""

    components: tuple[np.ndarray, ...]
    size: int
    drop_remainder: bool


@dataclass(frozen=True, eq=False, slots=True)
class PaddedBatched(Derived):
    size: int
    shapes: tuple[tuple[int, ...], ...]  # -1: as long as the longest
    values: tuple[Any, ...]
    drop_remainder: bool


@dataclass(frozen=True, eq=False, slots=True)
class SparseBatched(Derived):
    """Batches as sparse tensors whose rows have `row_shape`; -1: as long as the longest."""

    size: int
    row_shape: tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Unbatched(Derived):
    pass


@dataclass(frozen=True, eq=False, slots=True)
class Rebatched(Derived):
    """The rows of batches in batches of other sizes, which come round."""

    sizes: tuple[int, ...]
    drop_remainder: bool


@dataclass(frozen=True, eq=False, slots=True)
class Counted(Derived):
    """A dataset that is said to have `count` elements."""

    count: int


@dataclass(frozen=True, eq=False, slots=True)
class Windowed(Derived):
    size: int
    shift: int
    stride: int
    drop_remainder: bool


@dataclass(frozen=True, eq=False, slots=True)
class Listed(Node):
    """Elements that are in memory: a window."""

    elements: tuple[Element, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Shuffled(Derived):
    size: int
    seed: int
    seed2: int
    reshuffle: bool
    epochs: Epochs = field(default_factory=Epochs, repr=False)


@dataclass(frozen=True, eq=False, slots=True)
class Repeated(Derived):
    count: int


@dataclass(frozen=True, eq=False, slots=True)
class Taken(Derived):
    count: int


@dataclass(frozen=True, eq=False, slots=True)
class Skipped(Derived):
    count: int
    with_errors: bool = False  # an element whose making fails counts as one of them


@dataclass(frozen=True, eq=False, slots=True)
class Sharded(Derived):
    count: int
    index: int


@dataclass(frozen=True, eq=False, slots=True)
class Cached(Derived):
    path: str  # empty: in memory
    memory: MemoryCache = field(default_factory=MemoryCache, repr=False)


@dataclass(frozen=True, eq=False, slots=True)
class Prefetched(Derived):
    size: int


@dataclass(frozen=True, eq=False, slots=True)
class WithoutErrors(Derived):
    pass


@dataclass(frozen=True, eq=False, slots=True)
class Distinct(Derived):
    pass


@dataclass(frozen=True, eq=False, slots=True)
class GroupedByWindow(Derived):
    key: Closure
    reduce: Closure
    size: Closure


# Transformations of several datasets


@dataclass(frozen=True, eq=False, slots=True)
class Zipped(Node):
    inputs: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Concatenated(Node):
    inputs: tuple[Node, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Selected(Node):
    """Takes the next element from the one of `inputs` that the next number of `selector` names."""

    selector: Node
    inputs: tuple[Node, ...]
    stop_on_empty: bool = False
