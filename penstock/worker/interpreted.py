"""Interpreted calls run nodes of a segment one by one in NumPy."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.graph.dtype import DType
from penstock.passes.ir import Node
from penstock.passes.on_host import deals_with_lists
from penstock.segments.kinds import written_positions
from penstock.segments.op_programs import OpPrograms, TooMuchWork, programs_of
from penstock.segments.randomness import reserved
from penstock.segments.stored_variable import USED_UP, Locks, StoredVariable
from penstock.segments.tracing import KERNEL_ERRORS, named_error
from penstock.worker.calls import KernelCall, host_value
from penstock.worker.row_updates import RowUpdate, set_rows
from penstock.worker.step import Step

MANY_DRAWN = 1 << 20  # random numbers: XLA draws more than this sooner, compiling included


class InterpretedCall(KernelCall):
    """Runs a node in NumPy: its kernel if that takes NumPy arrays, else the jaxpr of the kernel.

    The caller holds the locks of the segment's variables, and undoes all changes if a later node fails.
    """

    # Few nodes have these.
    written: Sequence[int] = ()
    changed: Sequence[StoredVariable] = ()
    _rows: int | None = None  # which input says what rows change
    _programs: OpPrograms | None = None
    _row_update: RowUpdate | None = None

    def __init__(self, owner: Any, node: Node) -> None:
        super().__init__(owner, node)
        op = node.op
        self._types = _numpy_types(node.dtypes)
        self._only = self.out_slots[0] if len(self.out_slots) == 1 and not op.writes else None
        if op.writes:
            self.written = written_positions(op)
            self.changed = [v for v in [self.inputs[i] for i in self.written] if isinstance(v, StoredVariable)]
            # If only some rows of a variable change, only these are kept for an undo.
            if not op.overwrites and any(arg.name == "indices" for arg in op.inputs):
                self._rows = op.input_index("indices")
            if op.row_rule is not None:
                self._row_update = RowUpdate(node)
        if op.writes or op.random or not (op.numpy or op.name == "Const" or deals_with_lists(node)):
            self._programs = programs_of(node, self.written if self._rows is not None else ())

    def __call__(self, values: list[Any], step: Step) -> None:
        arguments = []
        for position, source in enumerate(self.inputs):
            if source.__class__ is int:
                value = values[source]
                arguments.append(value if value.__class__ is np.ndarray else host_value(value))
            else:
                arguments.append(self._held(position, source))  # type: ignore[arg-type]
        results: Sequence[Any]
        updated = None if self._row_update is None else self._updated(self._row_update, arguments, step)
        if updated is not None:
            results = updated
        elif self._programs is not None:
            is_random = self.node.op.random
            if is_random and _drawn(arguments) > MANY_DRAWN:
                raise TooMuchWork
            key = self.owner.context.random_state.key(self.node, step.drawn) if is_random else None
            results = self._programs.run(self.node, arguments, key, self._take(arguments, step))
            if is_random:
                self.owner.context.random_state.move_on(self.node, step.drawn, reserved(self.node, results[0].shape))
        else:
            results = self._results(arguments, step)
        if self._only is not None:
            values[self._only] = results[0]
            return
        if self.written:
            self._write(results[: len(self.written)], step)
            results = results[len(self.written) :]
            for slot, value in zip(self.out_slots, results, strict=False):
                values[slot] = value
            return
        for slot, value in zip(self.out_slots, results, strict=True):
            values[slot] = value

    def _updated(self, update: RowUpdate, arguments: list[Any], step: Step) -> Sequence[np.ndarray] | None:
        """Changes the rows that have a gradient. Returns the variables' arrays, or None if the shapes do not fit."""
        try:
            rows = update.rows(arguments)
            return None if rows is None else update.run([(arguments, rows, self.changed)], step.undo)[0]
        except KERNEL_ERRORS as error:
            raise named_error(error, self.node, arguments) from error

    def _take(self, arguments: list[Any], step: Step) -> Callable[[int], np.ndarray]:
        """Returns a function that takes the value of the variable at an input, to write into it."""

        def taken(position: int) -> np.ndarray:
            arguments[position] = None  # so that no other reference prevents writing in place
            variable = self.inputs[position]
            assert isinstance(variable, StoredVariable) and self._rows is not None
            array = variable.taken()
            rows = arguments[self._rows].reshape(-1)
            rows = rows[(rows >= 0) & (rows < len(array))]
            step.undo.append(functools.partial(setattr, variable, "value", array))
            step.undo.append(functools.partial(set_rows, array, rows, array[rows]))
            return array

        return taken

    def _held(self, position: int, variable: StoredVariable) -> Any:
        """Returns the value of a variable whose lock is held, or None if the op overwrites it."""
        if position in self.written and self.node.op.overwrites:
            return None
        return np.asarray(variable.read())

    def _results(self, arguments: list[Any], step: Step) -> Sequence[Any]:
        """Calls the kernel on NumPy arrays, and returns its results in the declared types."""
        node = self.node
        attrs = {**self.attrs, "ctx": step} if self.wants_context else self.attrs
        try:
            result = node.op.kernel(*self.grouped(arguments), **attrs)
        except KERNEL_ERRORS as error:
            raise named_error(error, node, arguments) from error
        if result is None:
            return ()
        results = result if isinstance(result, (list, tuple)) else [result]
        return [
            value
            if wanted is None or (getattr(value, "dtype", None) == wanted and value.__class__ is np.ndarray)
            else _typed(value, wanted)
            for value, wanted in zip(results, self._types, strict=True)
        ]

    @property
    def only_updates(self) -> bool:
        """Tells if it computes new values of whole variables from their old ones, and nothing else."""
        op = self.node.op
        whole = bool(self.written) and self._rows is None and not (op.overwrites or op.random)
        return whole and all(arg.is_ref for arg in op.outputs)

    def updates(self, values: list[Any]) -> list[np.ndarray] | None:
        """Returns the new values of the variables that it changes, or None if more than a known program is needed."""
        arguments = [values[source] if source.__class__ is int else source.value for source in self.inputs]  # type: ignore[union-attr]
        for value in arguments:
            if value.__class__ is not np.ndarray:
                return None
        assert self._programs is not None
        program = self._programs.known(arguments)
        return None if program is None else program.run(self.node, arguments, None, _nothing_taken)

    def _write(self, results: Sequence[Any], step: Step) -> None:
        for variable, value in zip(self.changed, results, strict=True):
            variable.require_shape(value, self.name)
        for variable, value in zip(self.changed, results, strict=True):
            if variable.value is not USED_UP:
                step.undo.append(functools.partial(setattr, variable, "value", variable.value))
            variable.value = value


class Updates:
    """Runs a segment whose nodes only update variables, once their programs are known.

    For small variables, what else is done around a call of NumPy takes several times as long as the call.
    """

    def __init__(self, executable: Any, locks: Locks) -> None:
        self._begin = executable.begin
        self._calls: list[InterpretedCall] = executable.instructions
        self._locks = locks

    def __call__(self, inputs: Sequence[Any]) -> bool:
        """Runs all updates. Returns False, and changes nothing, if it takes more than their programs."""
        values = self._begin(inputs)
        with self._locks:
            new = [call.updates(values) for call in self._calls]
            if None in new:
                return False
            for call, results in zip(self._calls, new, strict=True):
                for variable, value in zip(call.changed, results, strict=True):  # type: ignore[arg-type]
                    variable.value = value
        return True


def updates_of(executable: Any, locks: Locks) -> Updates | None:
    """Returns a segment as updates; None if it does anything else, or an update needs the result of another one."""
    changed: set[StoredVariable] = set()
    for call in executable.instructions:
        if call.__class__ is not InterpretedCall or not call.only_updates or not changed.isdisjoint(call.inputs):
            return None
        changed.update(call.changed)
    return None if executable.fetches else Updates(executable, locks)


def _nothing_taken(position: int) -> np.ndarray:
    raise AssertionError(f"input {position} is updated as a whole, and nothing is written into it")


@functools.lru_cache
def _numpy_types(dtypes: tuple[DType, ...]) -> list[Any]:
    return [None if t.base_dtype._numpy is None else np.dtype(t.base_dtype._numpy) for t in dtypes]


def _drawn(arguments: Sequence[Any]) -> int:
    """Returns how many numbers a random node draws, if its first input is their shape."""
    shape: Any = arguments[0] if arguments else None
    return math.prod(shape.tolist()) if getattr(shape, "ndim", 0) == 1 and shape.dtype.kind == "i" else 0


def _typed(value: Any, wanted: np.dtype) -> Any:
    is_number = isinstance(value, (np.ndarray, np.generic, bool, int, float, complex))
    return np.asarray(value, wanted) if is_number else value
