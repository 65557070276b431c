"""Sparse updates of variables run in NumPy. Their rule runs on the rows that have a gradient, and on no others.

Neighbouring updates by one rule, such as those of all embeddings of a model, run as one: the rule runs once, on the
rows of all tables.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from penstock.cores import in_parts
from penstock.graph.checks import require_in_range
from penstock.graph.opdef import OpDef
from penstock.jaxprs.numpy_program import NumpyProgram
from penstock.kernel.types import on_platform
from penstock.passes.ir import Edge, Node
from penstock.segments.stored_variable import StoredVariable
from penstock.segments.tracing import KERNEL_ERRORS, named_error
from penstock.worker.calls import JoinedCall, host_values
from penstock.worker.step import Step

_PADDING = {np.dtype(t): np.iinfo(t).max for t in (np.int32, np.int64)}  # the index of no row
AT_ONCE = 1 << 17  # bytes of rows: they, their gradients and what the rule makes of them fit into a core's cache
MOST_PARTS = 4  # of an update, for two threads: each part has a price
_OF_ROWS = frozenset(("grad", "updates"))  # inputs with one row for each index


class RowUpdateCall(JoinedCall):
    """Runs sparse updates of different variables by one rule."""

    def __init__(self, owner: Any, nodes: Sequence[Node]) -> None:
        super().__init__(owner, nodes)
        self._update = RowUpdate(nodes[0])

    def __call__(self, values: list[Any], step: Step) -> None:
        undo: list[Callable[[], None]] = []
        node = self.node
        with self.locks:
            try:
                tables: list[Table] = []
                for call in self.each:
                    node = call.node
                    given = host_values([s.read() if isinstance(s, StoredVariable) else values[s] for s in call.inputs])
                    rows = self._update.rows(given)
                    if rows is None:
                        break
                    tables.append((given, rows, call.changed))
                fits = len(tables) == len(self.each)
                for call, results in zip(self.each, self._update.run(tables, undo) if fits else (), strict=fits):
                    for variable, value in zip(call.changed, results, strict=True):
                        variable.value = value
            except BaseException as error:
                for put_back in reversed(undo):
                    put_back()
                if isinstance(error, KERNEL_ERRORS):
                    raise named_error(error, node, []) from error
                raise
        if not fits:  # there is one value for all rows, or an error
            for call in self.each:
                call(values, step)


def joined(stages: Sequence[Any], variable_of: Callable[[Edge], Any]) -> list[Any]:
    """Returns the stages of a plan, with sparse updates in lists: neighbours by one rule, of different variables."""
    result: list[Any] = []
    kind: Any = None  # of the last stage
    changed: set[Any] = set()  # by the last stage
    for stage in stages:
        if not isinstance(stage, Node) or stage.op.row_rule is None:
            result.append(stage)
            kind = None
            continue
        variables = [variable_of(edge) for edge in stage.inputs[: len(stage.op.writes)]]
        before, kind = kind, _kind(stage, variables)
        if kind is not None and kind == before and changed.isdisjoint(variables):
            result[-1].append(stage)
            changed.update(variables)
        else:
            result.append([stage])
            changed = set(variables)
    return result


def _kind(node: Node, variables: Sequence[Any]) -> Any:
    """Returns a key that is equal for updates which can run as one; None if this one runs alone."""
    op = node.op
    if not all(isinstance(v, StoredVariable) and v.shape.is_fully_defined() for v in variables):
        return None
    scalars = [node.inputs[i] for i, of_rows in _given(op) if not of_rows]
    attrs = {name: node.attrs[name] for name in op.wants if name in node.attrs}
    return op, attrs, scalars, node.device, [(v.dtype, v.shape.as_list()[1:]) for v in variables]


def _given(op: OpDef) -> list[tuple[int, bool]]:
    """Returns the inputs of an update besides its variables and indices, and which have a row for each index."""
    names = [arg.name for arg in op.inputs]
    return [(i, name in _OF_ROWS) for i, name in enumerate(names) if i >= len(op.writes) and name != "indices"]


Form = tuple[tuple[int, ...], Any]  # shape and type of a row
Table = tuple[list[Any], np.ndarray, Sequence[StoredVariable]]  # what an update gets, its rows, and what it changes


class RowUpdate:
    """The rule of a node that changes distinct rows of its variables, which are its first inputs."""

    def __init__(self, node: Node) -> None:
        op = node.op
        self._count = len(op.writes)
        self._indices = op.input_index("indices")
        self._given = _given(op)
        self._of_rows = [i for i, of_rows in self._given if of_rows]
        assert op.row_rule is not None
        self._rule = functools.partial(op.row_rule, **{k: v for k, v in node.attrs.items() if k in op.wants})
        self._programs: dict[Any, NumpyProgram] = {}

    def rows(self, arguments: Sequence[Any]) -> np.ndarray | None:
        """Returns the rows that an update changes; None if an index has no row of the variables' form."""
        shape, rows = arguments[0].shape, arguments[self._indices]
        forms = [a.shape for a in arguments[: self._count]] + [arguments[i].shape for i in self._of_rows]
        if rows.ndim != 1 or forms != [shape] * self._count + [(len(rows), *shape[1:])] * len(self._of_rows):
            return None
        if len(rows) and rows[-1] == _PADDING[rows.dtype]:  # it comes last
            rows = rows[: np.searchsorted(rows, rows[-1])]
        require_in_range(rows, shape[0])
        return rows  # type: ignore[no-any-return]

    def run(self, tables: Sequence[Table], undo: list[Callable[[], None]]) -> list[list[np.ndarray]]:
        """Changes the variables of all tables in place and returns their arrays.

        The tables have rows of one form, and the same other arguments. `undo` gets functions that restore the old rows.
        """
        ends = [0, *itertools.accumulate(len(rows) for _, rows, _ in tables)]
        given = []
        for i, of_rows in self._given:
            pieces = [arguments[i][: len(rows)] for arguments, rows, _ in tables] if of_rows else [tables[0][0][i]]
            given.append(np.concatenate(pieces) if len(pieces) > 1 else pieces[0])
        forms = [(x.shape[1:], x.dtype) for x in tables[0][0][: self._count]]
        program = self._program(forms, given)
        arrays: list[list[np.ndarray]] = []
        for arguments, _, variables in tables:
            arguments[: self._count] = [None] * self._count  # so that no other reference prevents writing in place
            arrays.append([])
            for variable in variables:
                arrays[-1].append(variable.taken())
                undo.append(functools.partial(setattr, variable, "value", arrays[-1][-1]))

        def update(begin: int, end: int) -> None:
            parts = [  # arrays of a table, its rows that are in this part, and their places there
                (found, rows[max(begin - first, 0) : end - first], slice(max(first, begin) - begin, last - begin))
                for found, (_, rows, _), first, last in zip(arrays, tables, ends, ends[1:], strict=False)
                if first < end and begin < last
            ]
            old = [np.empty((end - begin, *form), dtype) for form, dtype in forms]
            for found, rows, places in parts:
                for array, before in zip(found, old, strict=True):
                    array.take(rows, axis=0, out=before[places], mode="clip")  # they are in range
                    undo.append(functools.partial(set_rows, array, rows, before[places]))
            now = [x[begin:end] if of_rows else x for x, (_, of_rows) in zip(given, self._given, strict=True)]
            for i, new in enumerate(program([*old, *now])):
                for found, rows, places in parts:
                    set_rows(found[i], rows, new[places])

        nbytes = ends[-1] * sum(math.prod(form) * dtype.itemsize for form, dtype in forms)
        in_parts(update, ends[-1], min(MOST_PARTS, nbytes // AT_ONCE))
        return arrays

    def _program(self, forms: Sequence[Form], given: Sequence[np.ndarray]) -> NumpyProgram:
        """Returns the rule for any number of rows of these forms."""
        key = (*forms, *[(x.shape[1:], x.dtype) for x in given])
        program = self._programs.get(key)
        if program is None:
            (count,) = jax.export.symbolic_shape("rows")
            specs = [jax.ShapeDtypeStruct((count, *form), dtype) for form, dtype in forms]
            for x, (_, of_rows) in zip(given, self._given, strict=True):
                specs.append(jax.ShapeDtypeStruct((count, *x.shape[1:]) if of_rows else x.shape, x.dtype))
            with on_platform("cpu"):
                program = self._programs[key] = NumpyProgram(jax.make_jaxpr(self._rule)(*specs))
        return program


def set_rows(array: np.ndarray, rows: np.ndarray, new: np.ndarray) -> None:
    """Does what `array[rows] = new` does, in a third of the time: NumPy moves each row as a whole."""
    if array.ndim > 1 and new.size and array.flags.c_contiguous and new.flags.c_contiguous:
        whole = _whole(array.nbytes // len(array))
        array.reshape(len(array), -1).view(whole).put(rows, new.reshape(len(new), -1).view(whole))
    else:
        array[rows] = new


@functools.cache
def _whole(size: int) -> np.dtype[Any]:
    """Returns the type of a row of so many bytes."""
    return np.dtype((np.void, size))
