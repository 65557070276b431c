"""Functions that use variables in parts, as functions of the whole variables: a SavedModel has these only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.eager.concrete import ConcreteFunction
from penstock.eager.function_graph import FuncGraph, handle_of
from penstock.graph.effects import order_effects
from penstock.graph.operation import Operation, Tensor
from penstock.ops.array.gathering import gather
from penstock.ops.array.slicing import slice as slice_of
from penstock.ops.state import variable_ops
from penstock.variables.slices import SaveSliceInfo


@dataclass(frozen=True)
class Shard:
    """The place of a part in its whole variable, whose handle stands for all parts."""

    whole: Tensor
    info: SaveSliceInfo
    dtype: Any

    def read(self) -> Tensor:
        """The value of the part, in terms of the whole variable."""
        value = variable_ops.read_variable(self.whole, dtype=self.dtype)
        found: Tensor = slice_of(value, self.info.var_offset, self.info.var_shape)
        return found


def shards_of(value: Any) -> tuple[Tensor, dict[Any, Shard]]:
    """The handle of a whole variable, which nothing is stored under, and the parts by their resources."""
    parts = value._save_slices()
    whole = variable_ops.var_handle(
        shape=parts[0][1].full_shape, dtype=parts[0][0].dtype.base_dtype, shared_name=parts[0][1].full_name
    )
    found = {}
    for part, info in parts:
        handle = handle_of(part.handle)
        assert handle is not None
        found[handle.key] = Shard(whole, info, part.dtype.base_dtype)
    return whole, found


def with_whole_variables(concrete: ConcreteFunction, shards: Mapping[Any, Shard]) -> ConcreteFunction:
    """The function with reads of whole variables in place of reads of their parts; the same if it uses no parts."""
    source = concrete.graph
    parts = {node: shards[key] for outer, node in source.resources if (key := _key(outer)) in shards}
    if not parts:
        return concrete
    graph = FuncGraph(source.name, source.outer_graph)
    own = len(source.inputs) - len(source.captured)
    copies: dict[Tensor, Tensor] = {}
    with graph.as_default():
        for parameter in source.inputs[:own]:
            copies[parameter] = graph.add_input(parameter.dtype, parameter.shape, parameter.op.name)
        for parameter, tensor in zip(source.inputs[own:], source.captured, strict=True):
            copies[parameter] = graph.capture(tensor)
        for outer, node in source.resources:
            if node not in parts:
                copies[node] = graph.capture(outer)
        made: dict[Operation, Operation] = {}
        for operation in source.get_operations():
            if not operation.outputs or not all(t in copies or t in parts for t in operation.outputs):
                _copy(graph, operation, parts, copies, made)
        graph.outputs = [copies[t] for t in source.outputs]
        order_effects(graph)
    found = ConcreteFunction(concrete.name, graph, concrete._packed(graph.outputs), concrete.variables)
    found.structured_input_signature, found.function_spec = concrete.structured_input_signature, concrete.function_spec
    found.argument_leaves = concrete.argument_leaves
    return found


def _key(handle: Tensor) -> Any:
    found = handle_of(handle)
    return None if found is None else found.key


def _copy(
    graph: FuncGraph,
    operation: Operation,
    parts: Mapping[Tensor, Shard],
    copies: dict[Tensor, Tensor],
    made: dict[Operation, Operation],
) -> None:
    """Adds a copy of an operation; one that reads a part reads of the whole variable instead."""
    used = [parts[t] for t in operation.input_list if t in parts]
    if used and operation.type == "ReadVariableOp":
        new = used[0].read()
    elif used and operation.type == "ResourceGather" and not operation.attrs.get("batch_dims"):
        new = gather(used[0].read(), copies[operation.input_list[1]])
    elif used:
        raise ValueError(
            f"Function '{graph.name}' cannot be saved: its operation '{operation.name}' ({operation.type}) takes a "
            "part of a variable. In a SavedModel variables are whole: only reads of parts, outside of loops and "
            "branches, can be saved."
        )
    else:
        copy = graph.add_op(
            operation.op_def,
            [copies[t] for t in operation.input_list],
            dict(operation.attrs),
            [t.dtype for t in operation.outputs],
            operation.name,
        )
        copy.add_control_inputs([made[c] for c in operation.control if c in made])
        made[operation] = copy
        for old, result in zip(operation.outputs, copy.outputs, strict=True):
            result._shape = old._shape
            copies[old] = result
        return
    made[operation] = new.op
    copies[operation.outputs[0]] = new
