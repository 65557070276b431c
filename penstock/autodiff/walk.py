"""Gradients: walks a graph backwards from `ys` to `xs` and adds the nodes that compute the derivatives."""

from __future__ import annotations

import enum
import functools
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from penstock.autodiff.registry import get_gradient_function
from penstock.errors import InaccessibleTensorError
from penstock.graph import dtype as dtypes
from penstock.graph.convert import convert_to_tensor, convert_to_tensor_or_indexed_slices
from penstock.graph.dtype import DType
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.identity import IdentityDict
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import GraphData, Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.ops.array import creation, passthrough, reshaping
from penstock.ops.array.joining import concat, stack, unstack
from penstock.ops.control import grouping
from penstock.ops.engine.vjp import differentiable
from penstock.ops.math import arithmetic


class AggregationMethod:
    """Selects how several gradients of one tensor are added: all at once, or two by two."""

    ADD_N = 0
    DEFAULT = ADD_N
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


class UnconnectedGradients(enum.Enum):
    """Selects the gradient of an x on which no y depends: None, or zeros."""

    NONE = "none"
    ZERO = "zero"


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: int | None = None,
    stop_gradients: Any = None,
    unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
) -> list[Any]:
    """The derivatives of the sum of `ys` with respect to each of `xs`; None if no y depends on an x.

    >>> tf.gradients(tf.square(x), [x])
    """
    if get_default_graph().is_eager:
        raise RuntimeError("tf.gradients needs a graph; with eager execution use tf.GradientTape.")
    try:
        unconnected = UnconnectedGradients(unconnected_gradients)
    except ValueError:
        raise ValueError(f"unconnected_gradients is 'none' or 'zero', received {unconnected_gradients!r}.") from None
    y_list, x_list, stop_list = _as_list(ys), _as_list(xs), _as_list(stop_gradients)
    given = [None] * len(y_list) if grad_ys is None else _as_list(grad_ys)
    with name_scope(name, "gradients", [*y_list, *x_list, *stop_list, *given]):
        graph = get_default_graph()
        y_tensors = [convert_to_tensor(y, name="y") for y in y_list]
        x_tensors = [_source(x, "x") for x in x_list]
        stops = [_source(x, "stop_gradient") for x in stop_list]
        walk = Walk(graph, bool(colocate_gradients_with_ops), gate_gradients, aggregation_method)
        walk.run_outwards(y_tensors, walk.initial(y_tensors, given), x_tensors, stops)
        found = [walk.gradient_of(x) for x in x_tensors]
    if unconnected is UnconnectedGradients.ZERO:
        return [
            _zeros_for(x, given_x) if g is None else g for x, given_x, g in zip(x_tensors, x_list, found, strict=True)
        ]
    return found


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def _source(x: Any, name: str) -> Tensor:
    """The tensor that represents an x: a variable's reference or handle rather than one of its reads."""
    handle = getattr(x, "handle", None)
    return handle if isinstance(handle, Tensor) else convert_to_tensor(x, name=name, as_ref=True)


def _zeros_for(x: Tensor, given: Any) -> Any:
    return creation.zeros_like(given if x.dtype.base_dtype is dtypes.resource else x)


def flows(dtype: DType) -> bool:
    """Tells if gradients may flow through tensors of this type."""
    return differentiable(dtype) or dtype.base_dtype in (dtypes.resource, dtypes.variant)


class Walk:
    """One call of `gradients`: the gradients that have arrived at each tensor so far, and the settings."""

    def __init__(
        self, graph: Graph, colocate: bool = False, gate: bool = False, aggregation: int | None = None
    ) -> None:
        self.graph = graph
        self.colocate = colocate
        self.gate = gate
        self.aggregation = AggregationMethod.DEFAULT if aggregation is None else aggregation
        self.arrived: IdentityDict[list[Any]] = IdentityDict()

    def colocated(self, op: Operation) -> AbstractContextManager[None]:
        """Colocates the gradient nodes of `op` with it, if asked to."""
        return self.graph.colocate_with(op) if self.colocate else nullcontext()

    def initial(self, ys: list[Tensor], given: list[Any]) -> list[Any]:
        """The gradient of each y: the one that the caller gave, or ones."""
        if len(given) != len(ys):
            raise ValueError(f"gradients: {len(ys)} ys need as many grad_ys, received {len(given)}.")
        grads: list[Any] = []
        converted = [
            None if g is None else convert_to_tensor_or_indexed_slices(g, name=f"grad_y_{i}")
            for i, g in enumerate(given)
        ]
        for i, (y, grad) in enumerate(zip(ys, converted, strict=True)):
            with self.colocated(y.op):
                if grad is None:
                    if y.dtype.base_dtype.is_complex:
                        raise TypeError(f"gradients: the complex tensor {y} needs its own entry in grad_ys.")
                    grads.append(creation.ones(reshaping.shape(y), dtype=y.dtype.base_dtype, name=f"grad_ys_{i}"))
                    continue
                _check_grad_type(y, grad)
                if isinstance(grad, IndexedSlices):
                    shape = grad.dense_shape
                    grads.append(
                        IndexedSlices(
                            passthrough.identity(grad.values, name=f"grad_ys_{i}_values"),
                            passthrough.identity(grad.indices, name=f"grad_ys_{i}_indices"),
                            None if shape is None else passthrough.identity(shape, name=f"grad_ys_{i}_shape"),
                        )
                    )
                else:
                    grads.append(passthrough.identity(grad, name=f"grad_ys_{i}"))
        return grads

    def run_outwards(self, ys: list[Tensor], grad_ys: list[Any], xs: list[Tensor], stops: list[Tensor]) -> None:
        """Like `run`, for tensors of several graphs: continues from a body to the tensors that it captures."""
        pending = list(zip(ys, grad_ys, strict=True))
        graphs = _inside_out({y.graph for y in ys})
        for x in xs:
            if x.graph.is_function and x.graph not in graphs:
                raise InaccessibleTensorError(
                    f"gradients: {x} is of another graph than the ys: it was made in a branch or "
                    "in the body of a loop, and has a value only there."
                )
        for graph in graphs:
            here = [x for x in xs if x.graph is graph]
            captured = graph.captures_of(_reached([x.op for x in xs if x.graph is not graph]))
            found = [(y, g) for y, g in pending if y.graph is graph]
            pending = [(y, g) for y, g in pending if y.graph is not graph]
            self.run([y for y, _ in found], [g for _, g in found], [*here, *captured], stops)
            pending += [(o, g) for p, o in captured.items() if (g := self.gradient_of(p)) is not None]

    def run(self, ys: list[Tensor], grad_ys: list[Any], xs: list[Tensor], stops: list[Tensor]) -> None:
        """Visits every op between xs and ys once all gradients of its outputs are known."""
        for y, grad in zip(ys, grad_ys, strict=True):
            self.arrived.setdefault(y, []).append(grad)
        between, pending = _between([y.op for y in ys], [x.op for x in xs])
        stopped = {x.op for x in xs if not any(pending.get(t.op) for t in x.op.input_list)}
        stopped |= {t.op for t in stops}
        queue = deque(dict.fromkeys(y.op for y in ys if y.op in between and not pending.get(y.op)))
        while queue:
            op = queue.popleft()
            with self.colocated(op):
                self.visit(op, op in stopped)
            for tensor in op.input_list:
                source = tensor.op
                if source in between:
                    pending[source] -= 1
                    if pending[source] == 0:
                        queue.append(source)

    def visit(self, op: Operation, stop: bool, function: Any = None) -> None:
        """Adds the gradient nodes of one op and passes their results to its inputs.

        `function` is the gradient function of this op, if it has one of its own; that one may get None.
        """
        out_grads = [self.aggregated(t) for t in op.outputs]
        if stop or all(g is None for g in out_grads):
            return
        is_own = function is not None
        function = function or get_gradient_function(op)
        if function is None:
            return
        for i, tensor in enumerate(() if is_own else op.outputs):
            if out_grads[i] is None and differentiable(tensor.dtype) and op.type not in ("If", "While"):
                out_grads[i] = creation.zeros_like(tensor, optimize=False)
        with self.graph.name_scope(f"{op.name}_grad"), self.graph.gradient_of(op):
            result = function(op, *out_grads)
            in_grads = list(result) if isinstance(result, (list, tuple)) else [result]
            if len(in_grads) != len(op.input_list):
                raise ValueError(
                    f"The gradient function of '{op.name}' ({op.type}) must return one gradient (or None) for each of "
                    f"{len(op.input_list)} inputs, it returned {len(in_grads)}."
                )
            if self.gate and sum(g is not None for g in in_grads) > 1:
                with self.graph.device(None), self.graph.colocate_with(None, ignore_existing=True):
                    in_grads = list(grouping.tuple_(in_grads))
        for i, (tensor, grad) in enumerate(zip(op.input_list, in_grads, strict=True)):
            if grad is None:
                continue
            if isinstance(grad, Tensor) and tensor.dtype.base_dtype is not dtypes.resource:
                _merge_shape(op, i, tensor, grad)
            self.arrived.setdefault(tensor, []).append(grad)

    def gradient_of(self, x: Tensor) -> Any:
        """The gradient of `x`, already summed, since its op was visited."""
        found = self.arrived.get(x)
        return None if not found else found[0] if len(found) == 1 else self.aggregated(x)

    def aggregated(self, tensor: Tensor) -> Any:
        """The sum of the gradients that arrived at `tensor`, or None."""
        grads = self.arrived.get(tensor)
        if not grads:
            return None
        if len(grads) > 1:
            grads[:] = [self._sum(tensor.op, grads)]
        return grads[0]

    def _sum(self, op: Operation, grads: list[Any]) -> Any:
        if self.aggregation not in (0, 1, 2):
            raise ValueError(f"aggregation_method must be 0, 1 or 2, received {self.aggregation}.")
        if all(isinstance(g, Tensor) for g in grads):
            if self.aggregation == AggregationMethod.ADD_N:
                return self._sum_by_device(grads)
            with self.graph.name_scope(f"{op.name}_gradient_sum"):
                return functools.reduce(lambda a, b: arithmetic.add_n([a, b]), grads)
        if any(isinstance(g, Tensor) for g in grads):
            return arithmetic.add_n(grads)
        return IndexedSlices(
            concat([g.values for g in grads], 0), concat([g.indices for g in grads], 0), grads[0].dense_shape
        )

    def _sum_by_device(self, grads: list[Tensor]) -> Any:
        """Adds the gradients on each device before any of them is moved."""
        groups: dict[str, list[Tensor]] = {}
        for grad in grads:
            groups.setdefault(grad.device, []).append(grad)
        sums = []
        for device in sorted(groups):
            members = groups[device]
            with self.graph.colocate_with(members[0].op, ignore_existing=True):
                sums.append(arithmetic.add_n(members) if len(members) > 1 else members[0])
        return arithmetic.add_n(sums) if len(sums) > 1 else sums[0]


def _inside_out(graphs: set[GraphData]) -> list[GraphData]:
    """The given graphs and those that enclose them, inner ones first."""
    found: list[GraphData] = []
    for graph in graphs:
        around: GraphData | None = graph
        chain: list[GraphData] = []
        while around is not None and around not in found:
            chain.append(around)
            around = around.outer_graph
        found[:0] = chain
    return found


def _reached(from_ops: list[Operation]) -> set[Operation]:
    """The ops that depend on `from_ops` by tensors that gradients flow through."""
    reached = set(from_ops)
    queue = deque(from_ops)
    while queue:
        for tensor in queue.popleft().outputs:
            if flows(tensor.dtype):
                for consumer in tensor.consumer_list:
                    if consumer not in reached:
                        reached.add(consumer)
                        queue.append(consumer)
    return reached


def _between(to_ops: list[Operation], from_ops: list[Operation]) -> tuple[set[Operation], dict[Operation, int]]:
    """The ops on paths from `from_ops` to `to_ops`, and the number of edges from each to others of them."""
    reached = _reached(from_ops)
    queue: deque[Operation] = deque()
    between: set[Operation] = set()
    queue.extend(to_ops)
    while queue:
        op = queue.popleft()
        if op in reached and op not in between:
            between.add(op)
            queue.extend(t.op for t in op.input_list)
    pending = dict.fromkeys(between, 0)
    for op in between:
        for tensor in op.input_list:
            if tensor.op in between:
                pending[tensor.op] += 1
    return between, pending


def _check_grad_type(y: Tensor, grad: Any) -> None:
    kind, given = y.dtype.base_dtype, grad.dtype.base_dtype
    if kind.is_floating or kind.is_integer:
        ok = given.is_floating or given.is_integer
    elif kind.is_complex:
        ok = given.is_complex
    elif kind is dtypes.resource:
        ok = given is not dtypes.resource
    else:
        ok = kind is dtypes.variant and given is dtypes.variant
    if not ok:
        raise TypeError(f"Gradient type {given.name} does not fit tensor {y} of type {kind.name}.")


def _merge_shape(op: Operation, index: int, tensor: Tensor, grad: Tensor) -> None:
    try:
        grad.set_shape(tensor.shape)
    except ValueError:
        raise ValueError(
            f"The gradient for input {index} of '{op.name}' ({op.type}) has shape {grad.shape}, but the input has "
            f"{tensor.shape}."
        ) from None


def hessians(
    ys: Any,
    xs: Any,
    name: str = "hessians",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: int | None = None,
) -> list[Any]:
    """The second derivatives of the sum of `ys` with respect to each of `xs`, of shape `x.shape + x.shape`.

    >>> tf.hessians(tf.reduce_sum(x ** 3), x)
    """
    settings: dict[str, Any] = {
        "colocate_gradients_with_ops": colocate_gradients_with_ops,
        "gate_gradients": gate_gradients,
        "aggregation_method": aggregation_method,
    }
    x_list = _as_list(xs)
    result = []
    for x, grad in zip(x_list, gradients(ys, x_list, **settings), strict=True):
        if grad is None:
            raise ValueError(f"hessians: the gradient with respect to {x!r} is None: no y depends on it.")
        size = grad.shape.num_elements()
        if size is None:
            raise ValueError(f"hessians: the shape of {x!r} must be known in the graph, it is {grad.shape}.")
        flat = reshaping.reshape(grad, [-1])
        rows = [gradients(row, x, **settings)[0] for row in unstack(flat)]
        zeros = creation.zeros_like(grad) if any(r is None for r in rows) else None
        stacked = stack([zeros if r is None else r for r in rows])
        result.append(reshaping.reshape(stacked, grad.shape.as_list() * 2))
    return result
