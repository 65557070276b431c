"""Lookups of rows in variables. Neighbouring ones, such as those of all embeddings of a model, are one instruction."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.graph.checks import are_in_range
from penstock.passes.deal_ids import axis_of
from penstock.passes.ir import GATHERS, Edge, Node
from penstock.segments.stored_variable import StoredVariable
from penstock.worker.calls import JoinedCall
from penstock.worker.step import Step


class GatherCall(JoinedCall):
    """Takes rows of variables in the host's memory."""

    def __init__(self, owner: Any, nodes: Sequence[Node]) -> None:
        super().__init__(owner, nodes)
        self._lookups: list[Any] = [(call, *call.inputs[:2], call.out_slots[0]) for call in self.each]

    def __call__(self, values: list[Any], step: Step) -> None:
        for call, variable, ids, slot in self._lookups:
            table, rows = variable.value, values[ids]
            if table.__class__ is rows.__class__ is np.ndarray and are_in_range(rows, len(table)):
                values[slot] = table.take(rows, 0, mode="clip")
            else:
                call(values, step)  # it waits for an update, or names the node in an error


def joined(stages: Sequence[Any], source: Callable[[Edge], Any]) -> list[Any]:
    """Returns the stages of a plan, with neighbouring lookups of rows in a list."""
    result: list[Any] = []
    for take_rows, group in itertools.groupby(stages, lambda stage: _takes_rows(stage, source)):
        neighbours = list(group)
        result += [neighbours] if take_rows else neighbours
    return result


def _takes_rows(stage: Any, source: Callable[[Edge], Any]) -> bool:
    """Tells if a stage is a node that only takes whole rows of a variable on the host."""
    if not isinstance(stage, Node) or stage.op.name not in GATHERS or axis_of(stage) != 0:
        return False
    table, rows = source(stage.inputs[0]), source(stage.inputs[1])
    return isinstance(table, StoredVariable) and table.on_cpu and isinstance(rows, int)
