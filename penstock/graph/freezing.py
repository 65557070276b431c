"""Freezing: turns variables of a graph into constants with the values that they have in a session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from penstock.graph.control_contexts import CONTROL_FLOW
from penstock.graph.dtype import as_dtype, int32
from penstock.graph.graph_util import extract_sub_graph, like, source_of
from penstock.graph.tensor_proto import tensor_proto

_REF_VARIABLES = frozenset(("Variable", "VariableV2", "AutoReloadVariable"))
_PASSES_ON = frozenset(("Identity", *CONTROL_FLOW))
# Op types with bodies: the attr that lists the types of the bodies' arguments, and the number of inputs before them.
_WITH_BODIES = {
    "If": ("Tin", 1),
    "StatelessIf": ("Tin", 1),
    "While": ("T", 0),
    "StatelessWhile": ("T", 0),
    "PartitionedCall": ("Tin", 0),
    "StatefulPartitionedCall": ("Tin", 0),
}


def convert_variables_to_constants(
    sess: Any,
    input_graph_def: Any,
    output_node_names: Sequence[str],
    variable_names_whitelist: Iterable[str] | None = None,
    variable_names_blacklist: Iterable[str] | None = None,
) -> Any:
    """Returns the nodes that `output_node_names` need, with variables replaced by constants of their values in `sess`.

    >>> frozen = tf.graph_util.convert_variables_to_constants(sess, graph.as_graph_def(), ["softmax"])
    """
    part = extract_sub_graph(input_graph_def, output_node_names)
    allowed = None if variable_names_whitelist is None else set(variable_names_whitelist)
    denied = set(variable_names_blacklist or ())
    variables = {
        node.name: node
        for node in part.node
        if node.op in (_REF_VARIABLES | {"VarHandleOp"})
        and (allowed is None or node.name in allowed)
        and node.name not in denied
    }
    values = dict(zip(variables, sess.run([_reading(sess, n) for n in variables.values()]), strict=True))
    freezer = _Freezer(part.library)
    handles = {name: node for name, node in variables.items() if node.op == "VarHandleOp"}
    nodes = [node for node in part.node if node.name not in values]
    constants = {name: _constant(node, values[name]) for name, node in variables.items()}
    changed = {node.name: node for node in freezer.nodes(nodes, handles, source_of)}
    frozen: list[Any] = []
    for node in part.node:
        frozen.append(constants[node.name] if node.name in constants else changed.pop(node.name))
    result = like(part, [*changed.values(), *frozen])  # `changed` still holds new constants, which some nodes need
    result.library.function.extend(freezer.made)
    return result


def _reading(sess: Any, node: Any) -> Any:
    """Returns a tensor with the value of a variable."""
    if node.op in _REF_VARIABLES:
        return f"{node.name}:0"
    handle = sess.graph.get_operation_by_name(node.name).outputs[0]
    found = next((op for op in handle.consumers() if op.type == "ReadVariableOp"), None)
    if found is None:
        raise ValueError(f"Nothing in the graph reads the variable '{node.name}', so that its value cannot be had.")
    return found.outputs[0]


def _constant(node: Any, value: Any) -> Any:
    target = type(node)(name=node.name, op="Const", device=node.device)
    target.attr["dtype"].CopyFrom(node.attr["dtype"])
    _fill(target, value, as_dtype(node.attr["dtype"].type))
    return target


def _fill(target: Any, value: Any, dtype: Any) -> None:
    # The message class may belong to another program, so only the bytes are copied.
    target.attr["value"].tensor.ParseFromString(tensor_proto(np.asarray(value), dtype).SerializeToString())


class _Freezer:
    """Turns nodes that take handles of variables into nodes that take their values."""

    def __init__(self, library: Any) -> None:
        self.functions = {function.signature.name: function for function in library.function}
        self.made: list[Any] = []

    def nodes(self, nodes: Iterable[Any], handles: dict[str, Any], source: Any, output: str = "") -> list[Any]:
        """Returns `nodes` with values in place of the handles.

        `handles` maps tensors to variables; `source` gives the tensor that an input names. In a function, `output` is
        the suffix of an Identity's output: `:output:0`.
        """
        nodes = list(nodes)
        waiting = True
        while waiting:  # nodes may pass handles on in any order
            waiting = False
            for node in nodes:
                data = [source(text) for text in node.input if not text.startswith("^")]
                if node.op in _PASSES_ON and data and data[0] in handles and node.name + output not in handles:
                    handles[node.name + output] = handles[data[0]]
                    waiting = True
        result: list[Any] = []
        for node in nodes:
            data = [source(text) for text in node.input if not text.startswith("^")]
            held = {i: handles[text] for i, text in enumerate(data) if text in handles}
            result += self._node(node, held) if held else [node]
        return result

    def _node(self, node: Any, held: dict[int, Any]) -> list[Any]:
        target = type(node)()
        target.CopyFrom(node)
        variable = next(iter(held.values()))
        dtype = variable.attr["dtype"].type
        if node.op in _PASSES_ON:
            target.attr["T"].type = dtype
            return [target]
        if node.op == "ReadVariableOp":
            target.op = "Identity"
            del target.attr["dtype"]
            target.attr["T"].type = dtype
            return [target]
        if node.op == "ResourceGather":
            return self._gather(node, target, dtype)
        if node.op in _WITH_BODIES:
            self._bodies(target, held)
            return [target]
        raise ValueError(
            f"Node '{node.name}' ({node.op}) needs the variable '{variable.name}' itself, so that it cannot become a "
            "constant: leave it out by variable_names_blacklist, or ask for other outputs."
        )

    def _gather(self, node: Any, target: Any, dtype: int) -> list[Any]:
        axis = type(node)(name=f"{node.name}/axis", op="Const", device=node.device)
        axis.attr["dtype"].type = int32.as_datatype_enum
        _fill(axis, np.int32(0), int32)
        target.op = "GatherV2"
        for attr in ("dtype", "validate_indices"):
            target.attr.pop(attr, None)
        target.attr["Tparams"].type = dtype
        target.attr["Taxis"].type = int32.as_datatype_enum
        target.attr["batch_dims"].i = node.attr["batch_dims"].i
        del target.input[:]
        data = [text for text in node.input if not text.startswith("^")]
        # Inside a function an input also names the output.
        name = f"{axis.name}:output:0" if any(":output" in text or ":value" in text for text in data) else axis.name
        target.input.extend([*data, name, *(text for text in node.input if text.startswith("^"))])
        return [axis, target]

    def _bodies(self, target: Any, held: dict[int, Any]) -> None:
        """Replaces the bodies of a node by bodies that take values."""
        attr, before = _WITH_BODIES[target.op]
        given = {i - before: variable for i, variable in held.items()}
        for i, variable in given.items():
            target.attr[attr].list.type[i] = variable.attr["dtype"].type
        if target.op.endswith("While") and "output_shapes" in target.attr:
            del target.attr["output_shapes"]
        for value in target.attr.values():
            if value.WhichOneof("value") == "func" and value.func.name in self.functions:
                value.func.name = self._function(self.functions[value.func.name], given)

    def _function(self, function: Any, given: dict[int, Any]) -> str:
        """Makes a copy of a body whose arguments at the positions of `given` are values; returns its name."""
        target = type(function)()
        target.CopyFrom(function)
        name = f"{function.signature.name}_frozen"
        while name in self.functions:
            name += "_"
        target.signature.name = name
        handles = {}
        for i, variable in given.items():
            arg = target.signature.input_arg[i]
            arg.type = variable.attr["dtype"].type
            handles[arg.name] = variable
            shapes = target.arg_attr[i].attr["_output_shapes"].list
            del shapes.shape[:]
            shapes.shape.add().CopyFrom(variable.attr["shape"].shape)
        reads = {node.name for node in target.node_def if node.op == "ReadVariableOp"}
        body = self.nodes(target.node_def, handles, lambda text: text, ":output:0")
        frozen_reads = reads - {node.name for node in body if node.op == "ReadVariableOp"}

        def renamed(text: str) -> str:
            node, _, rest = text.partition(":")
            return f"{node}:output:0" if node in frozen_reads and rest.startswith("value") else text

        for node in body:
            inputs = [renamed(text) for text in node.input]
            del node.input[:]
            node.input.extend(inputs)
        del target.node_def[:]
        target.node_def.extend(body)
        for output in target.signature.output_arg:
            text = target.ret[output.name]
            if text in handles:  # a loop passes it on
                output.type = handles[text].attr["dtype"].type
            target.ret[output.name] = renamed(text)
        self.functions[name] = target
        self.made.append(target)
        return name
