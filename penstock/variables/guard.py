"""Makes initial values that use other variables work before those are initialized."""

from __future__ import annotations

from typing import Any

from penstock.graph.build import build_node
from penstock.graph.graph import home_of
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Operation, Tensor

# Ops whose result must not change, and reads of handles, which TensorFlow does not replace either.
_KEPT = frozenset(("IsVariableInitialized", "VarIsInitializedOp", "ReadVariableOp", "If", "Cond"))
_VARIABLES = frozenset(("Variable", "VariableV2", "VarHandleOp"))


def without_uninitialized_inputs(scope: str, initial_value: Tensor) -> Tensor:
    """Recomputes `initial_value` from `initialized_value()` of the variables that it depends on, if any.

    New nodes are named after the old ones and `scope`, the name scope of the variable to be initialized.
    """
    return _safe(initial_value, scope, {})


def _safe(tensor: Tensor, scope: str, done: dict[Operation, Operation]) -> Tensor:
    op = tensor.op
    if op not in done:
        done[op] = _safe_op(op, scope, done)
    # The replacement of a variable is a plain tensor: output 0 of another op.
    return done[op].outputs[tensor.value_index]


def _safe_op(op: Operation, scope: str, done: dict[Operation, Operation]) -> Operation:
    if op.type in _KEPT:
        return op
    if op.type in _VARIABLES:
        variable = _variable_of(op)
        return op if variable is None else variable.initialized_value().op
    inputs = [_safe(t, scope, done) for t in op.input_list]
    if all(new is old for new, old in zip(inputs, op.input_list, strict=True)):
        return op
    return build_node(home_of(op), op.op_def, inputs, dict(op.attrs), f"{op.name}_{scope}")


def _variable_of(op: Operation) -> Any:
    for key in (GraphKeys.GLOBAL_VARIABLES, GraphKeys.LOCAL_VARIABLES):
        for variable in op.graph.get_collection(key):
            if getattr(variable, "op", None) is op:
                return variable
    return None
