"""Bodies: functions that outlive the step which makes them, such as those that a dataset applies to its elements."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, OpError
from penstock.graph.constant import evaluate_kernel
from penstock.graph.function import Function
from penstock.passes.ir import Node, Subgraph
from penstock.passes.prune import body_of
from penstock.worker.cancellation import Cancellation
from penstock.worker.executor import Context, Executable, PlainCall, SegmentCall, Step, _host_value
from penstock.worker.plan import NO_CUTS, Cuts, SegmentPlan, functions_of
from penstock.worker.resources import Variable

MAX_VERSIONS = 3  # of one body in compiled code, before NumPy takes over what it can


def callable_body(
    context: Context, device: str, function: Function, captured: Sequence[Any]
) -> Callable[[Sequence[Any]], list[Any]]:
    """A body as a function from values to values; `captured` are values or variables for its last parameters."""
    key = (function, device, *(v for v in captured if isinstance(v, Variable)))
    body = context.bodies.get(key)
    if body is None:
        body = context.bodies[key] = _Body(context, device, function, captured)
    return functools.partial(body.run, [None if isinstance(v, Variable) else v for v in captured])


class _Body:
    """A body in compiled code. Once it was compiled for many shapes, or values of shape-like inputs, NumPy runs it.

    Elements of a dataset may differ in shape, each from all others: compiling takes far longer than NumPy then.
    """

    def __init__(self, context: Context, device: str, function: Function, captured: Sequence[Any]) -> None:
        self._context, self._device, self._function, self._captured = context, device, function, captured
        self._executable: Executable = self._made(Executable)
        self._may_change = any(isinstance(i, SegmentCall) for i in self._executable.instructions)

    def _made(self, kind: type[Executable]) -> Executable:
        body = body_of(self._function)
        for node in body.nodes:
            node.device = self._device
        last = body.feeds[len(body.feeds) - len(self._captured) :]
        bound = {id(p): v for p, v in zip(last, self._captured, strict=True) if isinstance(v, Variable)}
        return kind(body, self._context, bound, _for_numpy(body) if kind is _InNumpy else NO_CUTS)

    def run(self, captured: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """The body's results, as arrays on the host."""
        results = self._executable.run([*arguments, *captured], Step(Cancellation()))
        if self._may_change and _versions(self._executable) > MAX_VERSIONS:
            self._may_change = False
            self._executable = self._made(_InNumpy)
        return list(map(_host_value, results))


def _versions(executable: Executable) -> int:
    """How often the segment that was compiled most often was compiled."""
    return max((i.segment.versions for i in executable.instructions if isinstance(i, SegmentCall)), default=0)


def _for_numpy(body: Subgraph) -> Cuts:
    """All nodes that NumPy can run, as nodes for the host."""

    def fits(node: Node) -> bool:
        op = node.op
        if op.random or op.writes or op.control_flow or op.host or functions_of(node):
            return False
        return op.numpy or op.name == "Const"

    return Cuts(on_host=frozenset(n.name for n in body.nodes if fits(n)))


class _InNumpy(Executable):
    """A partition in which the nodes for the host run in NumPy."""

    def _instruction(self, step: SegmentPlan | Node) -> Any:
        if isinstance(step, Node) and not (step.op.host or step.op.writes or step.op.control_flow):
            return _NumpyCall(self, step)
        return super()._instruction(step)


class _NumpyCall(PlainCall):
    def call(self, arguments: Sequence[Any], step: Step) -> list[Any]:
        node = self.node
        try:
            return evaluate_kernel(node.op, node.attrs, node.dtypes, [np.asarray(a) for a in arguments])
        except OpError as error:
            raise type(error)(None, node.name, f"{error.message} [node '{node.name}']") from error
        except (ValueError, IndexError, ZeroDivisionError) as error:
            raise InvalidArgumentError(None, node.name, f"{error} [node '{node.name}']") from error
