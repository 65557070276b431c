"""The gradient of a loop: another loop, which runs through the iterations from the last to the first.

The forward loop remembers the values that the gradient needs of each iteration; the gradient's loop recalls them. The
variables of the gradient's loop are a counter, the gradients of the forward loop's variables before the current
iteration, and the sums of the gradients of the tensors that the forward loop captures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.autodiff.body import GradientBody, add_result, as_value, dense, shape_of, zero_gradient
from penstock.autodiff.registry import get_gradient_function
from penstock.autodiff.walk import flows
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import resource, variant
from penstock.graph.function import Function, share_captures
from penstock.graph.graph import Graph, get_default_graph, home_of
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.ops.array.creation import zeros_like
from penstock.ops.engine import iteration_memory as memories
from penstock.ops.engine.if_while import invariant_positions, while_op, while_trip_count
from penstock.ops.math import arithmetic
from penstock.ops.math.compare import less

_SCALAR = TensorShape(())


def while_gradient(operation: Operation, *dys: Any) -> list[Any]:
    """One gradient or None per input of a While."""
    given = dense(dys, operation.outputs)
    found: dict[int, Any] = {}
    if given and operation.attrs.get("_back_prop", True):
        found = _LoopGradient(forward_loop(operation), given).build()
    return [found.get(i) for i in range(len(operation.input_list))]


def forward_loop(operation: Operation) -> ForwardLoop:
    """The ForwardLoop of a While node, made once."""
    known = operation.graph.differentiated
    if operation not in known:
        known[operation] = ForwardLoop(operation)
    loop: ForwardLoop = known[operation]
    return loop


class ForwardLoop:
    """A While node that can be made to remember values of its iterations."""

    def __init__(self, operation: Operation, bound: Tensor | None = None) -> None:
        self.operation = operation
        self._inputs = list(operation.input_list)
        self._cond: Function = operation.attrs["cond"]
        self._body: Function = operation.attrs["body"]
        self._bound = bound
        self._counter: int | None = operation.attrs.get("_counter")
        self._memories: dict[Tensor, Tensor] = {}

    @property
    def body(self) -> Function:
        body: Function = self.operation.attrs["body"]
        return body

    def _add_variable(self, start: Tensor, shape: TensorShape) -> Tensor:
        """Adds a loop variable that keeps its value; returns its parameter of the body."""
        operation = self.operation
        cond, body = operation.attrs["cond"], self.body
        dtype = start.dtype.base_dtype
        tested = cond.graph.parameter(dtype, shape, "added")
        parameter: Tensor = body.graph.parameter(dtype, shape, "added")
        operation.attrs = {
            **operation.attrs,
            "T": (*operation.attrs["T"], dtype),
            "cond": cond.with_more([tested]),
            "body": body.with_more([parameter], [parameter]),
        }
        operation.input_list.append(start)
        start.consumer_list.append(operation)
        add_result(operation, parameter)
        return parameter

    def _set_last(self, after: Tensor) -> None:
        """Makes `after` the value of the last loop variable after an iteration."""
        body = self.body
        changed = Function(body.name, body.graph, body.inputs, [*body.outputs[:-1], after])
        self.operation.attrs = {**self.operation.attrs, "body": changed}

    @property
    def counter(self) -> int:
        """The position of the loop variable that counts iterations from 0."""
        if self._counter is None:
            with _outside(self.operation):
                start = convert_to_tensor(0, dtype=dt.int32)
            parameter = self._add_variable(start, _SCALAR)
            with self.body.graph.as_default(), self.body.graph.control_dependencies(None):
                self._set_last(arithmetic.add(parameter, 1))
            self._counter = len(self.operation.outputs) - 1
        return self._counter

    @property
    def count(self) -> Tensor:
        """The number of iterations that ran."""
        return self.operation.outputs[self.counter]

    @property
    def bound(self) -> Tensor:
        """A tensor outside the loop with an upper bound of the number of iterations."""
        if self._bound is None:
            limit = self.operation.attrs.get("_limit")
            if limit is not None:
                self._bound = self._inputs[limit]
            else:
                with _outside(self.operation):
                    bound: Tensor = while_trip_count(
                        self._inputs, _forward=self.operation.name, cond=self._cond, body=self._body
                    )
                self._bound = bound
        return self._bound

    def remembered(self, tensor: Tensor) -> Tensor:
        """The memory, a result of the loop, that holds the values of a tensor of its body."""
        found = self._memories.get(tensor)
        if found is None:
            counter = self.body.inputs[self.counter]
            with _outside(self.operation):
                start = memories.iteration_memory(self.bound)
            parameter = self._add_variable(start, _SCALAR)
            with self.body.graph.as_default(), self.body.graph.control_dependencies(None):
                self._set_last(memories.remember(parameter, counter, as_value(tensor)))
            found = self._memories[tensor] = self.operation.outputs[-1]
        return found


@contextmanager
def _outside(operation: Operation) -> Iterator[None]:
    """Adds ops to the graph of a loop, on its device, regardless of the current scopes."""
    graph = home_of(operation)
    with (
        graph.as_default(),
        graph.control_dependencies(None),
        graph.name_scope(f"{operation.name}_memory/"),
        graph.colocate_with(operation, ignore_existing=True),
    ):
        yield


class _LoopGradient:
    """The gradient of one loop, given the gradients of some of its results."""

    def __init__(self, loop: ForwardLoop, given: dict[int, Tensor]) -> None:
        self.loop = loop
        self.given = given
        self.graph: Graph = get_default_graph()
        self.fixed = invariant_positions(loop.body)

    def build(self) -> dict[int, Any]:
        """Adds the While node of the gradient; returns its results by position of the forward loop's inputs."""
        carried = self._reached()
        while carried:
            body = self._body(carried)
            gradients = dict(zip(self._moving, body.gradients(carried, self._before, self._moving), strict=True))
            connected = [i for i in carried if i in self.given or gradients[i] is not None]
            if connected == carried:
                return self._complete(body, carried, gradients)
            carried = connected  # a variable that no gradient reaches does not pass gradients on either
        return {i: g for i, g in self.given.items() if i in self.fixed}

    def _reached(self) -> list[int]:
        """The loop variables through which gradients flow from iteration to iteration."""
        needs = _differentiable_paths(self.loop.body)
        found = {i for i in self.given if i not in self.fixed}
        fresh = set(found)
        while fresh:
            fresh = {j for i in fresh for j in needs[i] if j not in self.fixed} - found
            found |= fresh
        self._moving = sorted({j for i in found for j in needs[i]} | found)
        return sorted(found)

    def _body(self, carried: Sequence[int]) -> GradientBody:
        """Makes a body whose first parameters are the counter and the gradients after the current iteration."""
        forward = self.loop.body
        body = GradientBody("gradient", self.graph, forward, self._recall)
        self._gradient_body = body
        self._counter = body.parameter(dt.int32, _SCALAR, "counter")
        self._before = [
            body.parameter(forward.inputs[i].dtype.base_dtype, forward.inputs[i].shape, f"gradient_{i}")
            for i in carried
        ]
        with body.as_default():
            self._iteration = arithmetic.subtract(arithmetic.subtract(body.capture(self.loop.count), 1), self._counter)
        return body

    def _recall(self, tensor: Tensor) -> Tensor:
        """The value that a tensor of the forward body had in the current iteration."""
        body, forward = self._gradient_body, self.loop.body
        position = next((i for i, t in enumerate(forward.inputs) if t is tensor), None)
        if position is not None and position in self.fixed:
            return body.capture(self.loop.operation.input_list[position])
        if tensor.dtype is resource:
            raise LookupError(
                f"'{tensor.op.name}' ({tensor.op.type}) has no gradient in a loop: its handle is another one in each "
                "iteration."
            )
        memory = body.capture(self.loop.remembered(tensor))
        found: Tensor = memories.recall(memory, self._iteration, T=tensor.dtype.base_dtype, shape=tensor.shape)
        return found

    def _complete(self, body: GradientBody, carried: Sequence[int], gradients: dict[int, Any]) -> dict[int, Any]:
        loop, inputs = self.loop, self.loop.operation.input_list
        own = [self._counter, *self._before]
        start = [convert_to_tensor(0, dtype=dt.int32)]
        start += [self.given[i] if i in self.given else zeros_like(loop.operation.outputs[i]) for i in carried]
        with body.as_default():
            after = [arithmetic.add(self._counter, 1)]
            for i in carried:
                gradient = gradients[i]
                after.append(body.zeros_like(loop.body.inputs[i]) if gradient is None else convert_to_tensor(gradient))
        summed = [i for i in self._moving if i in self.fixed and gradients[i] is not None]
        for i in summed:
            for first, part in self._parts(inputs[i], gradients[i]):
                total = body.parameter(first.dtype.base_dtype, first.shape, "total")
                start.append(first)
                own.append(total)
                with body.as_default():
                    of_rows = isinstance(gradients[i], IndexedSlices)
                    after.append(memories.remember(total, self._counter, part) if of_rows else _added(total, part))
        results = iter(self._node(body, own, start, after)[1:])
        found: dict[int, Any] = {i: next(results) for i in carried}
        for i in summed:
            gradient = gradients[i]
            if isinstance(gradient, IndexedSlices):
                found[i] = self._rows(inputs[i], gradient, next(results), next(results))
            else:
                found[i] = next(results)
        for i, gradient in self.given.items():
            if i in self.fixed:
                found[i] = arithmetic.add_n([found[i], gradient]) if i in found else gradient
        return found

    def _parts(self, source: Tensor, gradient: Any) -> list[tuple[Tensor, Tensor]]:
        """The tensors that a gradient consists of, each with the start value of its loop variable.

        A dense gradient is added to a sum. The rows of a sparse one are remembered, and joined after the loop.
        """
        if not isinstance(gradient, IndexedSlices):
            return [(zero_gradient(source, gradient), gradient)]
        bound = self.graph_tensor(self.loop.bound)
        return [(memories.iteration_memory(bound), part) for part in (gradient.values, gradient.indices)]

    def graph_tensor(self, tensor: Tensor) -> Tensor:
        """Makes a tensor outside the forward loop available in the graph of the gradient's loop."""
        return tensor if tensor.graph is self.graph else self.graph.capture(tensor, "", "")

    def _node(self, body: GradientBody, own: list[Tensor], start: list[Tensor], after: list[Tensor]) -> list[Tensor]:
        forward = self.loop.operation
        step = body.finished(own, after)
        specs = [(t.dtype, t.shape) for t in own]
        test = Function.trace("cond", specs, lambda counter, *_: [less(counter, self.loop.count)], self.graph)
        captured = share_captures([test, step])
        step.outputs += step.inputs[len(own) :]  # captured values stay the same
        with self.graph.colocate_with(forward):
            results: list[Tensor] = while_op(
                [*start, *captured],
                cond=test,
                body=step,
                _counter=0,
                _forward=forward.name,
                parallel_iterations=forward.attrs["parallel_iterations"],
            )
        node = results[0].op
        node.graph.differentiated[node] = ForwardLoop(node, self.graph_tensor(self.loop.bound))
        return results

    def _rows(self, source: Tensor, gradient: IndexedSlices, values: Tensor, indices: Tensor) -> IndexedSlices:
        count = self.graph_tensor(self.loop.count)
        parts = [
            memories.rows_of_memory(memory, count, T=part.dtype.base_dtype, shape=_rows_of(part.shape))
            for memory, part in ((values, gradient.values), (indices, gradient.indices))
        ]
        return IndexedSlices(parts[0], parts[1], shape_of(source))


def _rows_of(shape: TensorShape) -> TensorShape:
    return shape if shape.rank is None else TensorShape.of((None, *shape.as_list()[1:]))


def _added(total: Tensor, gradient: Tensor) -> Tensor:
    """`total + gradient`. A gradient that changes only some rows of a list changes only those of `total`."""
    op = gradient.op
    if op.type == "ZerosLike":
        return total
    if op.type in ("TensorListAddItem", "TensorListAddRows", "AddToMemory"):
        source, *rest = op.input_list
        result: Tensor = op.op_def(_added(total, source), *rest)
        return result
    if op.type == "AddN" and gradient.dtype is variant:
        for part in op.input_list:
            total = _added(total, part)
        return total
    return arithmetic.add_n([total, gradient]) if gradient.dtype is variant else arithmetic.add(total, gradient)


def _differentiable_paths(body: Function) -> list[set[int]]:
    """For each result of a body, the positions of the parameters from which a gradient may flow to it."""
    found: list[set[int]] | None = body.derived.get("differentiable_paths")
    if found is None:
        position = {t: i for i, t in enumerate(body.inputs)}
        found = body.derived["differentiable_paths"] = [_sources(t, position) for t in body.outputs]
    return found


def _sources(result: Tensor, position: dict[Tensor, int]) -> set[int]:
    found: set[int] = set()
    seen: set[Tensor] = set()
    stack = [result]
    while stack:
        tensor = stack.pop()
        if tensor in seen or not flows(tensor.dtype):
            continue
        seen.add(tensor)
        if tensor in position:
            found.add(position[tensor])
        elif _passes_gradients(tensor.op):
            stack += tensor.op.input_list
    return found


def _passes_gradients(operation: Operation) -> bool:
    try:
        return get_gradient_function(operation) is not None
    except LookupError:
        return True  # the walk raises the error if a gradient through it is needed
