"""Sparse updates of variables run in NumPy. Their rule runs on the rows that have a gradient, and on no others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from penstock.graph.checks import require_in_range
from penstock.jaxprs.numpy_program import NumpyProgram
from penstock.kernel.types import on_platform
from penstock.passes.ir import Node
from penstock.worker.calls import PlainCall, host_value
from penstock.worker.resources import StoredVariable
from penstock.worker.step import Step
from penstock.worker.tracing import KERNEL_ERRORS, named_error

_OF_ROWS = frozenset(("grad", "updates"))  # inputs with one row for each index


class RowUpdateCall(PlainCall):
    """Runs a sparse update as an instruction of its own."""

    def __init__(self, owner: Any, node: Node) -> None:
        super().__init__(owner, node)
        self._update = RowUpdate(node)

    def __call__(self, values: list[Any], step: Step) -> None:
        undo: list[Callable[[], None]] = []
        for variable in self.locked:
            variable.lock.acquire()
        try:
            arguments = [host_value(values[s]) if isinstance(s, int) else np.asarray(s.read()) for s in self.inputs]
            fits = self._update.fits(arguments)
            results = self._update.run(arguments, self.changed, undo) if fits else ()
            for variable, value in zip(self.changed, results, strict=fits):
                variable.value = value
        except BaseException as error:
            for put_back in reversed(undo):
                put_back()
            if isinstance(error, KERNEL_ERRORS):
                raise named_error(error, self.node, []) from error
            raise
        finally:
            for variable in self.locked:
                variable.lock.release()
        if not fits:  # there is one value for all rows, or an error
            super().__call__(values, step)


class RowUpdate:
    """Runs a node that changes distinct rows of its variables, which are its first inputs."""

    def __init__(self, node: Node) -> None:
        op = node.op
        names = [arg.name for arg in op.inputs]
        self._count = len(op.writes)
        self._indices = names.index("indices")
        self._given = [(i, name in _OF_ROWS) for i, name in enumerate(names) if i >= self._count and name != "indices"]
        assert op.row_rule is not None
        self._rule = functools.partial(op.row_rule, **{k: v for k, v in node.attrs.items() if k in op.wants})
        self._programs: dict[Any, NumpyProgram] = {}

    def fits(self, arguments: Sequence[Any]) -> bool:
        """Tells if the shapes fit: each index has a row of the variables' form."""
        first, indices = arguments[0], arguments[self._indices]
        form = (*indices.shape, *first.shape[1:])
        return (
            indices.ndim == 1
            and all(a.shape == first.shape for a in arguments[: self._count])
            and all(arguments[i].shape == form for i, of_rows in self._given if of_rows)
        )

    def run(
        self, arguments: list[Any], variables: Sequence[StoredVariable], undo: list[Callable[[], None]]
    ) -> list[Any]:
        """Changes the variables in place and returns their arrays. `undo` gets functions that restore the old rows."""
        rows = arguments[self._indices]
        if rows.size and rows[-1] == np.iinfo(rows.dtype).max:  # padding, which comes last
            rows = rows[: np.searchsorted(rows, rows[-1])]
        require_in_range(rows, len(arguments[0]))
        given = [arguments[i][: len(rows)] if of_rows else arguments[i] for i, of_rows in self._given]
        arguments[: self._count] = [None] * self._count  # so that no other reference prevents writing in place
        arrays, old = [], []
        for variable in variables:
            array = variable.taken()
            before = array.take(rows, axis=0)
            undo.append(functools.partial(put_rows, variable, array, rows, before))
            arrays.append(array)
            old.append(before)
        for array, new in zip(arrays, self._program(old, given)([*old, *given]), strict=True):
            set_rows(array, rows, new)
        return arrays

    def _program(self, rows: Sequence[np.ndarray], given: Sequence[np.ndarray]) -> NumpyProgram:
        """Returns the rule for any number of rows of this form."""
        form = tuple([(x.shape[1:], x.dtype) for x in (*rows, *given)])
        program = self._programs.get(form)
        if program is None:
            (count,) = jax.export.symbolic_shape("rows")
            of_rows = [True] * self._count + [of_rows for _, of_rows in self._given]
            specs = [
                jax.ShapeDtypeStruct((count, *x.shape[1:]) if is_rows else x.shape, x.dtype)
                for x, is_rows in zip((*rows, *given), of_rows, strict=True)
            ]
            with on_platform("cpu"):
                program = self._programs[form] = NumpyProgram(jax.make_jaxpr(self._rule)(*specs))
        return program


def put_rows(variable: StoredVariable, array: np.ndarray, rows: np.ndarray, before: np.ndarray) -> None:
    """Restores rows of a variable that is being changed in place."""
    set_rows(array, rows, before)
    variable.value = array


def set_rows(array: np.ndarray, rows: np.ndarray, new: np.ndarray) -> None:
    """Does what `array[rows] = new` does, in a third of the time: NumPy moves each row as a whole."""
    if array.ndim > 1 and new.size and array.flags.c_contiguous and new.flags.c_contiguous:
        whole = np.dtype((np.void, array.nbytes // len(array)))
        array.reshape(len(array), -1).view(whole).put(rows, new.reshape(len(new), -1).view(whole))
    else:
        array[rows] = new
