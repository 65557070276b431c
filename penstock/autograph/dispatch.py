"""Decides which control flow becomes nodes, and gives the graph in which it is tried first."""

from __future__ import annotations

import sys
from typing import Any

from penstock.graph.function import FuncGraph
from penstock.graph.graph import get_default_graph
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.variables.variable import Variable


def becomes_nodes(value: Any) -> bool:
    """Tells if control flow that depends on `value` becomes nodes of a graph; otherwise it is plain Python.

    >>> becomes_nodes(tf.constant(True)), becomes_nodes(True)
    (True, False)
    """
    # All questions about eager execution are asked here and in `is_eager`. A tensor with a value that a function uses
    # counts as a tensor there, so a loop over a large one is not unrolled.
    return isinstance(value, (Tensor, Variable, Ragged)) and not is_eager()


def is_eager() -> bool:
    """Tells if nodes run as they are made."""
    return get_default_graph().is_eager


def is_dataset(value: Any) -> bool:
    """Tells if `value` is a dataset, without loading datasets for a program that has none."""
    loaded = sys.modules.get("penstock.data.dataset")
    return loaded is not None and isinstance(value, loaded.Dataset)


def scratch_graph() -> FuncGraph:
    """A body whose nodes are only looked at, never run."""
    outer = get_default_graph()
    scratch = FuncGraph(outer.unique_function_name("scratch"), outer)
    # A loss or summary that is made here must not count.
    scratch._collections = {name: list(items) for name, items in outer._collections.items()}
    return scratch
