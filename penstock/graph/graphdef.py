"""Writes a graph, its nodes and function bodies as TensorFlow's protos. `importer` reads them back."""

from __future__ import annotations

import re
from typing import Any

from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from penstock.graph.attrs import Library, fill_attrs
from penstock.graph.function import Function
from penstock.graph.graph import Graph
from penstock.graph.hooks import hooks
from penstock.graph.opdef import ArgDef
from penstock.graph.operation import Operation, Tensor


def graph_def(graph: Graph, from_version: int | None = None, add_shapes: bool = False) -> GraphDef:
    """Writes the nodes of `graph` (those made since `from_version`) with the function bodies that they use.

    >>> [node.name for node in graph_def(tf.get_default_graph()).node]
    """
    library = Library()
    proto = GraphDef(versions=graph.graph_def_versions)
    for op in graph.get_operations():
        if from_version is None or op._id >= from_version:
            node = node_def(op, library)
            if add_shapes and op.outputs:
                shapes = [t.shape.as_proto() for t in op.outputs]
                node.attr["_output_shapes"].list.shape.extend(shapes)
            proto.node.append(node)
    done = 0
    # A body may use further bodies, which are added to the library while it is written.
    while done < len(library.functions):
        name, function = list(library.functions.items())[done]
        proto.library.function.append(function_def(name, function, library))
        done += 1
    return proto


def node_def(op: Operation, library: Library | None = None) -> NodeDef:
    """One node as a NodeDef."""
    library = library or Library()
    proto = NodeDef(name=op.name, op=op.type, device=op.device)
    proto.input.extend(t.op.name if t.value_index == 0 else t.name for t in op.input_list)
    proto.input.extend(sorted(f"^{before.name}" for before in op.control))
    fill_attrs(proto.attr, op.op_def, op.attrs, library)
    return proto


# Function bodies


def function_def(name: str, function: Function, library: Library) -> FunctionDef:
    """A function body as a FunctionDef; the bodies that it uses are added to `library`."""
    proto = FunctionDef()
    proto.signature.name = name
    names: dict[Tensor, str] = {}
    parameters = {t.op for t in function.inputs}
    operations = [op for op in function.operations() if op not in parameters]
    taken = {op.name for op in operations}
    for i, tensor in enumerate(function.inputs):
        arg = proto.signature.input_arg.add()
        arg.name = names[tensor] = _arg_name(tensor.op.name, taken)
        arg.type = tensor.dtype.base_dtype.as_datatype_enum
        arg.is_ref = tensor.dtype._is_ref_dtype
        proto.arg_attr[i].attr["_output_shapes"].list.shape.append(tensor.shape.as_proto())
    for op in operations:
        node = node_def(op, library)
        del node.input[:]
        node.input.extend(names.get(t) or _inner_name(t) for t in op.input_list)
        node.input.extend(sorted(f"^{before.name}" for before in op.control if before not in parameters))
        proto.node_def.append(node)
    used: set[str] = set()
    for i, tensor in enumerate(function.outputs):
        arg = proto.signature.output_arg.add()
        arg.name = _arg_name(f"output_{i}", used)
        arg.type = tensor.dtype.base_dtype.as_datatype_enum
        arg.is_ref = tensor.dtype._is_ref_dtype
        proto.ret[arg.name] = names.get(tensor) or _inner_name(tensor)
    for op in function.graph.targets:
        proto.signature.control_output.append(op.name)
        proto.control_ret[op.name] = op.name
    proto.signature.is_stateful = any(op.op_def.stateful for op in operations)
    return proto


def _arg_name(name: str, taken: set[str]) -> str:
    """Makes a valid name of a function argument: small letters, digits and underscores."""
    base = found = re.sub(r"[^a-z0-9_]", "_", name.lower()).lstrip("_0123456789") or "arg"
    suffix = 0
    while found in taken:
        suffix += 1
        found = f"{base}_{suffix}"
    taken.add(found)
    return found


def _inner_name(tensor: Tensor) -> str:
    """`node:output:index`, the form of inputs inside a FunctionDef."""
    index = tensor.value_index
    for arg in tensor.op.op_def.outputs:
        count = output_count(arg, tensor.op.attrs)
        if index < count:
            return f"{tensor.op.name}:{arg.name}:{index}"
        index -= count
    raise AssertionError(tensor.name)


def output_count(arg: ArgDef, attrs: dict[str, Any]) -> int:
    """The number of tensors that one declared output (or input) stands for."""
    if arg.number_attr:
        return int(attrs[arg.number_attr])
    return len(attrs[arg.type_list_attr]) if arg.type_list_attr else 1


hooks.graph_def = graph_def
hooks.node_def = node_def
