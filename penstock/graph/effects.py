"""Effects in the order of the program: in functions, writes and reads of a resource happen as they are written down."""

from __future__ import annotations

from typing import Any

from penstock.graph.function import FuncGraph, Function
from penstock.graph.hooks import hooks
from penstock.graph.operation import Operation, Tensor

# Op types that take the handle of a resource and do not change it.
READS = frozenset(
    (
        "ReadVariableOp",
        "ResourceGather",
        "ResourceGatherNd",
        "VariableShape",
        "VarIsInitializedOp",
        "LookupTableFindV2",
        "LookupTableSizeV2",
        "Identity",
    )
)


class _Uses:
    """The operations that used a resource since it was last written, and the last write."""

    def __init__(self) -> None:
        self.last_write: Operation | None = None
        self.reads: list[Operation] = []


def order_effects(graph: FuncGraph) -> None:
    """Makes operations with effects wait for those before them that they must not overtake.

    Reads of a resource wait for its last write, writes also for the reads since; other effects happen one after the
    other. All of them become targets: they happen though no result needs them.
    """
    uses: dict[Any, _Uses] = {}
    last_effect: Operation | None = None
    targets = dict.fromkeys(graph.targets)
    for operation in graph.get_operations():
        if _is_inert(operation):
            continue
        before: list[Operation] = []
        written = writes_of(operation)
        for tensor in dict.fromkeys(t for t in operation.input_list if t.dtype.base_dtype.name == "resource"):
            use = uses.setdefault(_resource(tensor), _Uses())
            if use.last_write is not None:
                before.append(use.last_write)
            if tensor in written:
                before += use.reads
                use.last_write, use.reads = operation, []
            else:
                use.reads.append(operation)
        if has_other_effects(operation):
            if last_effect is not None:
                before.append(last_effect)
            last_effect = operation
        elif not written:
            if before:
                operation.add_control_inputs([b for b in dict.fromkeys(before) if b is not operation])
            continue
        targets[operation] = None
        operation.add_control_inputs([b for b in dict.fromkeys(before) if b is not operation])
    graph.targets = list(targets)


def _resource(handle: Tensor) -> Any:
    """Tells resources apart: two nodes with one name stand for one resource."""
    op = handle.op
    name = op.attrs.get("shared_name")
    return (op.attrs.get("container", ""), name) if name and not op.input_list else handle


def _is_inert(operation: Operation) -> bool:
    if operation.input_list:
        return False
    op_def = operation.op_def
    # A node that stands for a resource, a parameter or a value does nothing.
    return not op_def.stateful or "shared_name" in op_def.attrs or op_def.random or op_def.name == "Placeholder"


def bodies_of(operation: Operation) -> list[Function]:
    """The bodies of a control-flow node."""
    found = []
    for value in operation.attrs.values():
        found += [v for v in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(v, Function)]
    return found


def writes_of(operation: Operation) -> set[Tensor]:
    """The handles among an operation's inputs whose resources it may change."""
    handles = {t for t in operation.input_list if t.dtype.base_dtype.name == "resource"}
    if not handles or operation.type in READS:
        return set()
    bodies = bodies_of(operation)
    if operation.type not in ("If", "While") or not bodies:
        return handles
    inputs = operation.input_list[1:] if operation.type == "If" else operation.input_list
    written = set()
    for body in bodies:
        changed = {t for inner in body.graph.get_operations() for t in writes_of(inner)}
        written |= {outer for outer, own in zip(inputs, body.inputs, strict=False) if own in changed}
    return written & handles


def has_other_effects(operation: Operation) -> bool:
    """Tells if an operation has effects on something that is no resource among its inputs, such as a file."""
    bodies = bodies_of(operation)
    if operation.op_def.control_flow and bodies:
        return any(has_other_effects(inner) for body in bodies for inner in body.graph.get_operations())
    op_def = operation.op_def
    if not op_def.stateful or op_def.random or op_def.writes or _is_inert(operation):
        return False
    return not any(t.dtype.base_dtype.name == "resource" for t in operation.input_list)


hooks.order_effects = order_effects
