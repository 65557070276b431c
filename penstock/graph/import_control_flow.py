"""Adds If and While nodes for the conditionals and loops that `raise_control_flow` finds in a GraphDef."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.graph.convert import make_constant
from penstock.graph.function import FuncGraph, Function, share_captures
from penstock.graph.import_nodes import Importer
from penstock.graph.opdef import op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.raise_control_flow import Cond, Item, Loop
from penstock.graph.shape import TensorShape


def add_conditional(importer: Importer, cond: Cond) -> dict[str, Operation]:
    """Adds an If node, and for each Merge an Identity that has its name."""
    predicate = importer.input(cond, cond.predicate)
    found: list[list[Tensor | None]] = []
    functions = []
    for k, label in ((1, "true"), (0, "false")):
        graph = _body(importer, f"{label}_{cond.name}")
        with graph.as_default():
            inner = importer.inside(graph, cond.branches[k], {})
            inner.run()
            ends = [then if k else otherwise for _, then, otherwise in cond.outputs]
            found.append([None if e is None else _copied(inner.input(cond, e)) for e in ends])
        functions.append(Function(graph.name, graph))
    for function, own, other in zip(functions, found, reversed(found), strict=True):
        with function.graph.as_default():
            function.outputs += [_present(a, b) for a, b in zip(own, other, strict=True)]
    captured = share_captures(functions)
    types = tuple(t.dtype.base_dtype for t in functions[0].outputs)
    for merge, wanted, tensor in zip(cond.outputs, types, functions[1].outputs, strict=True):
        if tensor.dtype.base_dtype != wanted:
            raise ValueError(f"Node '{merge[0]}' (Merge) joins {wanted.name} and {tensor.dtype.base_dtype.name}.")
    attrs = {
        "Tcond": predicate.dtype.base_dtype,
        "Tin": tuple(t.dtype.base_dtype for t in captured),
        "Tout": types,
        "then_branch": functions[0],
        "else_branch": functions[1],
    }
    node = importer.add_op(cond, cond.name, op_of("If"), [predicate, *captured], attrs)
    named = {merge: node.outputs[i] for i, (merge, _, _) in enumerate(cond.outputs) if merge}
    return {cond.name: node, **_named(importer, cond, named)}


def add_loop(importer: Importer, loop: Loop) -> dict[str, Operation]:
    """Adds a While node, and for each Exit an Identity that has its name."""
    start = [_value(importer.input(loop, v.start)) for v in loop.variables]
    shapes = [t.shape for t in start]
    # A GraphDef does not say which sizes change between iterations. The body tells, once it is built.
    for _ in range(len(shapes) + 2):
        test, body = (_traced(importer, loop, start, shapes, label) for label in ("cond", "body"))
        after = [a.most_specific_compatible_shape(t.shape) for a, t in zip(shapes, body.outputs, strict=True)]
        if all(_same(a, b) for a, b in zip(shapes, after, strict=True)):
            break
        shapes = after
    for variable, before, tensor in zip(loop.variables, start, body.outputs, strict=True):
        if tensor.dtype.base_dtype != before.dtype.base_dtype:
            raise ValueError(
                f"The loop variable '{variable.merge}' is {before.dtype.base_dtype.name} before an iteration and "
                f"{tensor.dtype.base_dtype.name} after it."
            )
    captured = share_captures([test, body])
    body.outputs += body.inputs[len(start) :]  # captured values stay the same
    inputs = [*start, *captured]
    attrs = {
        "T": tuple(t.dtype.base_dtype for t in inputs),
        "cond": test,
        "body": body,
        "parallel_iterations": loop.parallel_iterations,
    }
    node = importer.add_op(loop, loop.name, op_of("While"), inputs, attrs)
    named = {name: node.outputs[i] for i, v in enumerate(loop.variables) for name in v.exits}
    return {loop.name: node, **_named(importer, loop, named)}


def _traced(
    importer: Importer, loop: Loop, start: Sequence[Tensor], shapes: Sequence[TensorShape], label: str
) -> Function:
    graph = _body(importer, f"{label}_{loop.name}")
    is_body = label == "body"
    with graph.as_default():
        parameters = {
            v.merge: graph.add_input(t.dtype.base_dtype, shape, f"arg{i}")
            for i, (v, t, shape) in enumerate(zip(loop.variables, start, shapes, strict=True))
        }
        items = loop.body if is_body else loop.test
        inner = importer.inside(graph, items, dict(parameters))
        inner.run()
        ends = [v.after for v in loop.variables] if is_body else [loop.condition]
        graph.outputs = [_value(inner.input(loop, end)) for end in ends]
    return Function(graph.name, graph)


def _body(importer: Importer, label: str) -> FuncGraph:
    name = importer.graph.unique_function_name(label.replace("/", "_"))
    return FuncGraph(name, importer.graph)


def _named(importer: Importer, item: Item, tensors: dict[str, Tensor]) -> dict[str, Operation]:
    identity = op_of("Identity")
    return {
        name: importer.add_op(item, name, identity, [tensor], {"T": tensor.dtype.base_dtype})
        for name, tensor in tensors.items()
    }


def _copied(tensor: Tensor) -> Tensor:
    copy: Tensor = op_of("Identity")(tensor)
    return copy


def _value(tensor: Tensor) -> Tensor:
    """The value of a reference; any other tensor as it is."""
    return _copied(tensor) if tensor.dtype._is_ref_dtype else tensor


def _present(tensor: Tensor | None, other: Tensor | None) -> Tensor:
    """`tensor`, or zeros in the form of the other branch's result: nothing uses them when this branch is taken."""
    if tensor is not None:
        return tensor
    assert other is not None
    dtype = other.dtype.base_dtype
    dims: Any = other.shape.as_list() if other.shape.rank is not None else []
    size = [d or 0 for d in dims]
    return make_constant(np.full(size, b"", object) if dtype.name == "string" else np.zeros(size), dtype)


def _same(a: TensorShape, b: TensorShape) -> bool:
    return a.rank == b.rank and (a.rank is None or a.as_list() == b.as_list())
