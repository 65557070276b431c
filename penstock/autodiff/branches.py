"""The gradient of a conditional: another conditional, with the gradients of the branches as its branches."""

from __future__ import annotations

from typing import Any

from penstock.autodiff.body import GradientBody, add_result, as_value, dense, shape_of, zero_gradient
from penstock.autodiff.walk import flows
from penstock.graph.convert import convert_to_tensor
from penstock.graph.function import Function, share_captures
from penstock.graph.graph import get_default_graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Operation, Tensor
from penstock.ops.array.creation import zeros
from penstock.ops.array.joining import concat
from penstock.ops.array.passthrough import identity
from penstock.ops.array.slicing import strided_slice
from penstock.ops.engine.if_while import absent, if_op

_BRANCHES = ("then_branch", "else_branch")


def if_gradient(operation: Operation, *dys: Any) -> list[Any]:
    """One gradient or None per input of an If."""
    given = dense(dys, operation.outputs)
    inputs = operation.input_list[1:]
    found: dict[int, Any] = {}
    if given:
        moving = [i for i, t in enumerate(inputs) if flows(t.dtype)]
        gradient = _BranchGradients(operation, given, moving)
        found = gradient.build()
    return [None, *(found.get(i) for i in range(len(inputs)))]


class _BranchGradients:
    """Differentiates both branches of a conditional."""

    def __init__(self, operation: Operation, given: dict[int, Tensor], moving: list[int]) -> None:
        self.operation = operation
        self.moving = moving
        graph = get_default_graph()
        self.bodies: list[GradientBody] = []
        self.gradients: list[list[Any]] = []
        for branch in _BRANCHES:
            forward: Function = operation.attrs[branch]
            recall = _Recall(operation, branch)
            body = recall.body = GradientBody(f"{branch}_gradient", graph, forward, recall)
            self.bodies.append(body)
            self.gradients.append(body.gradients(list(given), [body.capture(g) for g in given.values()], moving))

    def build(self) -> dict[int, Any]:
        """Adds the If node of the gradients; returns its results by position of the forward node's inputs."""
        outputs: list[list[Tensor]] = [[], []]
        places: dict[int, tuple[int, bool]] = {}  # by input: position of its first output, if it is sparse
        for number, position in enumerate(self.moving):
            pair = [g[number] for g in self.gradients]
            if all(g is None for g in pair):
                continue
            of_rows = all(g is None or isinstance(g, IndexedSlices) for g in pair)
            places[position] = (len(outputs[0]), of_rows)
            model = next(g for g in pair if g is not None)
            for body, own, given in zip(self.bodies, outputs, pair, strict=True):
                with body.as_default():
                    own += (
                        self._rows(body, position, given, model)
                        if of_rows
                        else [self._tensor(body, position, given, model)]
                    )
        if not places:
            return {}
        functions = [b.finished([], o) for b, o in zip(self.bodies, outputs, strict=True)]
        captured = share_captures(functions)
        types = [t.dtype.base_dtype for t in functions[0].outputs]
        with get_default_graph().colocate_with(self.operation):
            results = if_op(
                self.operation.input_list[0],
                captured,
                then_branch=functions[0],
                else_branch=functions[1],
                Tout=types,
                _forward=self.operation.name,
            )
        return {i: self._result(i, results[at:], of_rows) for i, (at, of_rows) in places.items()}

    def _result(self, position: int, results: list[Tensor], of_rows: bool) -> Any:
        if not of_rows:
            return results[0]
        source = self.operation.input_list[1 + position]
        return IndexedSlices(results[0], results[1], shape_of(source))

    def _tensor(self, body: GradientBody, position: int, given: Any, model: Any) -> Tensor:
        if given is not None:
            return identity(convert_to_tensor(given))
        if isinstance(model, IndexedSlices):
            model = model.values
        return zero_gradient(body.capture(self.operation.input_list[1 + position]), model)

    def _rows(self, body: GradientBody, position: int, given: Any, model: IndexedSlices) -> list[Tensor]:
        if given is not None:
            return [identity(given.values), identity(given.indices)]
        source = body.capture(self.operation.input_list[1 + position])
        rest = strided_slice(shape_of(source), [1], [0], end_mask=1)
        return [zeros(concat([[0], rest], 0), model.values.dtype), zeros([0], model.indices.dtype)]


class _Recall:
    """Gives a branch of the gradient the values of the forward branch, which become results of the forward node."""

    body: GradientBody

    def __init__(self, operation: Operation, branch: str) -> None:
        self.operation = operation
        self.branch = branch

    def __call__(self, tensor: Tensor) -> Tensor:
        forward: Function = self.operation.attrs[self.branch]
        position = next((i for i, t in enumerate(forward.inputs) if t is tensor), None)
        if position is not None:
            return self.body.capture(self.operation.input_list[1 + position])
        return self.body.capture(self._result(tensor))

    def _result(self, tensor: Tensor) -> Tensor:
        kept: dict[Any, Tensor] = self.operation.graph.differentiated.setdefault(self.operation, {})
        if (self.branch, tensor) not in kept:
            kept[self.branch, tensor] = self._new_result(tensor)
        return kept[self.branch, tensor]

    def _new_result(self, tensor: Tensor) -> Tensor:
        operation = self.operation
        dtype = tensor.dtype.base_dtype
        attrs = {**operation.attrs, "Tout": (*operation.attrs["Tout"], dtype)}
        for branch in _BRANCHES:
            function: Function = attrs[branch]
            with function.graph.as_default(), function.graph.control_dependencies(None):
                if branch == self.branch:
                    value = as_value(tensor)
                else:
                    value = absent(T=dtype, shape=tensor.shape)
            attrs[branch] = function.with_more(outputs=[value])
        operation.attrs = attrs
        return add_result(operation, tensor)
