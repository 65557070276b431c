"""Tells which nodes stand for variables, run on the host, hold bodies or write."""

from __future__ import annotations

import functools
from typing import Any

from penstock.graph.dtype import resource, string, variant
from penstock.graph.function import Call, Function
from penstock.graph.opdef import OpDef, static_positions
from penstock.passes.ir import SPLIT, Node, Subgraph, is_reference
from penstock.passes.prune import body_of

_HANDLES = frozenset(("VarHandleOp",))
_ROWS = frozenset(("ConcatV2", "ExpandDims", "GatherV2", "Pack", "Reshape", "Squeeze", "StridedSlice", "Unpack"))
_FORWARDS = frozenset(("Identity", "Assign", "AssignVariableOp"))


def is_variable(node: Node) -> bool:
    """Tells if the node stands for a variable, and so has nothing to run."""
    op = node.op
    if op.inputs or not op.outputs:
        return False
    return (op.outputs[0].is_ref or op.name in _HANDLES) and not op.host  # the handle of an accumulator is a host op


def is_host(node: Node) -> bool:
    """Tells if the node runs in Python between segments: by declaration, for its types, or for what its body holds."""
    op = node.op
    if op.host:
        return True
    if op.control_flow or _function_attrs(op):
        if SPLIT in node.attrs:
            return True
        if not all(is_pure_body(f) for f in functions_of(node)):
            return True
        if op.name == "If" and any(is_reference(source.dtypes[index]) for source, index in node.inputs):
            return True  # the branch that is not taken may read an uninitialised variable
        if op.name == "While" and any(node.op.name == "ReadVariableOp" for node in body(node.attrs["cond"]).nodes):
            return True  # it may wait for another step to change the variable
    if op.name in _ROWS and any(source.dtypes[index] is variant for source, index in node.inputs):
        return True  # the handles of datasets, ragged rows and the like are Python objects
    if op.name in _FORWARDS and _is_restored(node):
        return True  # compiled code would copy the value, and be compiled for every list of variables
    for dtype in node.dtypes:
        if dtype.base_dtype is string or (dtype is resource and op.numpy):  # the op picks one of several queues
            return True
    # A list is quicker than a generator.
    return any([source.dtypes[index].base_dtype is string for source, index in node.inputs])


def _is_restored(node: Node) -> bool:
    """Tells if a node forwards or assigns a tensor exactly as it came from a checkpoint or another task."""
    source = node.inputs[-1][0]
    if source.op.name == "_Recv":
        return node.op.name != "Identity"
    return source.op.name == "RestoreV2" or (source.op.name == "Identity" and _is_restored(source))


def functions_of(node: Node) -> list[Function]:
    """Returns the bodies of a control-flow node."""
    names = _function_attrs(node.op)
    return _functions({name: node.attrs.get(name) for name in names}) if names else []


@functools.cache
def _function_attrs(op: OpDef) -> tuple[str, ...]:
    return tuple(name for name, attr in op.attrs.items() if "func" in attr.kind)


def _functions(attrs: dict[str, Any]) -> list[Function]:
    found = []
    for value in attrs.values():
        if isinstance(value, Function):
            found.append(value)
        elif isinstance(value, Call):
            found += _functions(value.attrs)
    return found


def static_inputs(node: Node) -> frozenset[int]:
    """The inputs of a node that the compiled code is specialised on."""
    found = _static_inputs(node.op)
    return static_positions(node.op, node.attrs, len(node.inputs)) if found is None else found


@functools.cache
def _static_inputs(op: OpDef) -> frozenset[int] | None:
    """Likewise, if that depends on nothing but the op, as it does for most, else None."""
    if op.static_of is not None or (op.static and any(arg.is_list for arg in op.inputs)):
        return None
    return static_positions(op, {}, len(op.inputs))


@functools.cache
def written_positions(op: OpDef) -> tuple[int, ...]:
    """Returns the positions of the inputs that are variables which the op writes."""
    return tuple(op.input_index(name) for name in op.writes)


def body(function: Function) -> Subgraph:
    """Returns the body of a function, which is made once."""
    found: Subgraph | None = function.derived.get("body")
    if found is None:
        found = function.derived["body"] = body_of(function)
    return found


def is_pure_body(function: Function) -> bool:
    """Tells if a body has no host ops and no writes. Only tracing shows if it can really be compiled."""
    pure: bool | None = function.derived.get("pure")
    if pure is None:
        part = body(function)
        pure = not any(node.op.writes or is_host(node) for node in part.nodes if node not in part.feeds)
        function.derived["pure"] = pure
    return pure
