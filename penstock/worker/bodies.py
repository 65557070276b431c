"""Bodies are compiled to functions that outlive their step, such as those that a dataset applies to its elements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, OpError
from penstock.graph.dtype import variant
from penstock.graph.function import Function
from penstock.graph.opdef import grouped
from penstock.passes import pipeline
from penstock.passes.ir import Node, blamed
from penstock.passes.on_host import fits_numpy
from penstock.segments.kinds import body
from penstock.segments.plan import SegmentPlan, make_plan
from penstock.segments.randomness import Drawn, RandomState
from penstock.segments.stored_variable import StoredVariable
from penstock.worker.calls import PlainCall, host_value
from penstock.worker.cancellation import Cancellation
from penstock.worker.executor import Context, Executable
from penstock.worker.segment_call import SegmentCall
from penstock.worker.step import Step

MAX_VERSIONS = 3  # compiled versions of one body before NumPy runs what it can
MANY_NUMBERS = 1 << 18  # in one call: compiled code runs a body with more


def callable_body(
    context: Context, device: str, function: Function, captured: Sequence[Any]
) -> Callable[[Sequence[Any]], list[Any]]:
    """Returns a body as a function of values. `captured` are values or variables for its last parameters.

    Each such function has random numbers of its own, so that every iteration of a dataset starts with the same ones.
    """
    key = (function, device, *(v for v in captured if isinstance(v, StoredVariable)))
    body = context.bodies.get(key)
    if body is None:
        body = context.bodies[key] = _Body(context, device, function, captured)
    return functools.partial(body.run, RandomState(), [None if isinstance(v, StoredVariable) else v for v in captured])


class _Body:
    """Runs a body in compiled code, or in NumPy where that is quicker.

    A call of compiled code takes as long as NumPy needs for a hundred thousand numbers, and compiling it takes far
    longer. So NumPy runs what it can of a body whose first call has few numbers, and of one that would be compiled
    again and again, since all elements of a dataset may differ in shape.
    """

    def __init__(self, context: Context, device: str, function: Function, captured: Sequence[Any]) -> None:
        self._context, self._device, self._function, self._captured = context, device, function, captured
        self._is_new = all(fits_numpy(n) or n.op.host for n in body(function).nodes)
        self._executable: _Compiled = self._made(_InNumpy if self._is_new else _Compiled)
        self._may_change = not self._is_new

    def _made(self, kind: type[_Compiled]) -> _Compiled:
        passes = pipeline.callable_body(self._device, in_numpy=kind is _InNumpy)
        prepared = pipeline.applied(passes, body(self._function))
        last = prepared.feeds[len(prepared.feeds) - len(self._captured) :]
        bound = {p: v for p, v in zip(last, self._captured, strict=True) if isinstance(v, StoredVariable)}
        return kind(make_plan(prepared), self._context, bound)

    def run(self, generators: RandomState, captured: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """Runs the body and returns its results as arrays on the host."""
        executable = self._executable
        step = Step(Cancellation())
        step.drawn = Drawn(generators)
        values = executable.values([*arguments, *captured], step)
        if self._is_new:
            self._is_new = False
            if sum(v.size for v in values if isinstance(v, np.ndarray) and v.dtype != object) > MANY_NUMBERS:
                self._executable, self._may_change = self._made(_Compiled), True
        elif self._may_change and _versions(executable) > MAX_VERSIONS:
            self._executable, self._may_change = self._made(_InNumpy), False
        return list(map(host_value, executable.results(values)))


def _versions(executable: Executable) -> int:
    """Returns the largest number of compiled versions of a segment."""
    return max((i.segment.versions for i in executable.instructions if isinstance(i, SegmentCall)), default=0)


class _Compiled(Executable):
    """An executable that runs often. Instructions that do not depend on its arguments run once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        fixed = [i for i in self.instructions if _is_fixed(i)]
        for instruction in fixed:
            instruction(self.empty, Step(Cancellation()))
        self.empty = list(map(host_value, self.empty))
        self.instructions = [i for i in self.instructions if i not in fixed]

    def values(self, fed: Sequence[Any], step: Step) -> list[Any]:
        """Runs a call and returns all its values."""
        values = self.begin(fed)
        for instruction in self.instructions:
            instruction(values, step)
        return values


def _is_fixed(instruction: Any) -> bool:
    """Tells if an instruction has the same results in every call: it has no inputs and no state."""
    if isinstance(instruction, SegmentCall):
        segment = instruction.segment
        stateful = any(n.op.stateful or n.op.control_flow for n in segment.plan.nodes)
        return not (segment.plan.inputs or segment.all_locks or stateful)
    return isinstance(instruction, PlainCall) and instruction.node.op.name == "Const"


class _InNumpy(_Compiled):
    """An executable whose nodes on the host run in NumPy."""

    def _instruction(self, stage: SegmentPlan | Node | list[Node]) -> Any:
        return _NumpyCall(self, stage) if isinstance(stage, Node) and fits_numpy(stage) else super()._instruction(stage)

    def values(self, fed: Sequence[Any], step: Step) -> list[Any]:
        with np.errstate(all="ignore"):  # infinities and wrap-around are values, as in compiled code
            return super().values(fed, step)


class _NumpyCall(PlainCall):
    """Runs the kernel of a node on arrays, with as little overhead as possible."""

    def __init__(self, owner: Executable, node: Node) -> None:
        super().__init__(owner, node)
        self._kernel = node.op.kernel
        self._has_lists = any(arg.is_list for arg in node.op.inputs)
        self._types = [object if t is variant else t.base_dtype.as_numpy_dtype for t in node.dtypes]
        self._only = self.out_slots[0] if len(self.out_slots) == 1 else None

    def __call__(self, values: list[Any], step: Step) -> None:
        arguments = [_array(values[i]) if isinstance(i, int) else np.asarray(i.read()) for i in self.inputs]
        node = self.node
        try:
            given = grouped(node.op, node.attrs, arguments) if self._has_lists else arguments
            result = self._kernel(*given, **self.attrs)
        except OpError as error:
            raise type(error)(None, blamed(error, node), f"{error.message} [node '{node.name}']") from error
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise InvalidArgumentError(None, node.name, f"{error} [node '{node.name}']") from error
        if self._only is not None and not isinstance(result, (list, tuple)):
            values[self._only] = np.asarray(result, self._types[0])
        else:
            self.store(values, [np.asarray(r, t) for r, t in zip(result, self._types, strict=True)])


def _array(value: Any) -> Any:
    return value if value.__class__ is np.ndarray else np.asarray(value, object if isinstance(value, bytes) else None)
