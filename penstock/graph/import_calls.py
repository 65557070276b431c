"""Builds the functions of a GraphDef: bodies of control-flow nodes, and calls, which are inlined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from penstock.graph.attrs import read_dtype, read_shape
from penstock.graph.dtype import DType
from penstock.graph.function import FuncGraph, Function
from penstock.graph.graph import Graph
from penstock.graph.graphdef import output_count
from penstock.graph.import_functions import MAX_DEPTH, MAX_WRITTEN_OUT, Functions
from penstock.graph.import_nodes import Importer, checked
from penstock.graph.opdef import op_of
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape

CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))


class Bodies(Functions):
    """A library whose bodies are made by importers of a given kind."""

    def __init__(self, protos: Iterable[FunctionDef], outer: Graph, importer: type[Importer]) -> None:
        super().__init__(protos, outer)
        self._importer = importer

    def make(self, name: str, proto: FunctionDef) -> Function:
        """Builds the body called `name`."""
        body = FuncGraph(name, self.outer)
        with body.as_default():
            parameters: dict[str, Tensor] = {}
            for arg in _arguments(proto):
                parameters[arg] = body.add_input(*_spec(proto, len(parameters)), arg)
            importer = self.body(body, proto, "", parameters)
            body.outputs = [importer.input(o, proto.ret[o.name]) for o in proto.signature.output_arg]
            body.targets = effects_of(importer, proto)
        return Function(name, body)

    def body(self, graph: Graph, proto: FunctionDef, scope: str, parameters: dict[str, Tensor]) -> Importer:
        """Adds the nodes of a body to `graph`, with `parameters` as its arguments."""
        name = proto.signature.name

        def resolve(importer: Importer, text: str) -> Tensor:
            return parameters[text] if text in parameters else _inner_tensor(importer, name, text)

        for output in proto.signature.output_arg:
            if output.name not in proto.ret:
                raise ValueError(f"Function '{name}' does not say what its output '{output.name}' is.")
        nodes = list(checked(proto.node_def).values())
        importer = self._importer(graph, nodes, scope, dict(parameters), self, check_colocation=False, resolve=resolve)
        importer.run()
        return importer


def _arguments(proto: FunctionDef) -> list[str]:
    names = [arg.name for arg in proto.signature.input_arg]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"Function '{proto.signature.name}' has two arguments called '{name}'.")
    return names


def _spec(proto: FunctionDef, position: int) -> tuple[DType, TensorShape]:
    """Type and shape of a parameter."""
    arg = proto.signature.input_arg[position]
    attrs = proto.arg_attr[position].attr if position in proto.arg_attr else {}
    shapes = list(attrs["_output_shapes"].list.shape) if "_output_shapes" in attrs else []
    dtype = read_dtype(arg.type)
    return dtype._as_ref if arg.is_ref else dtype, read_shape(shapes[0]) if len(shapes) == 1 else TensorShape.of(None)


def _inner_tensor(importer: Importer, function: str, text: str) -> Tensor:
    """The tensor that `node:output:index` names inside a FunctionDef."""
    node, _, rest = text.partition(":")
    output, _, number = rest.partition(":")
    op = importer.made.get(node)
    if op is None:
        raise ValueError(f"Function '{function}': there is no '{text[:100]}' in it.")
    start = 0
    for arg in op.op_def.outputs:
        count = output_count(arg, op.attrs)
        if arg.name == output:
            index = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else 0
            if index < count:
                return op.outputs[start + index]
        start += count
    raise ValueError(f"Function '{function}': node '{node}' has no output '{rest[:100]}'")


def effects_of(importer: Importer, proto: FunctionDef) -> list[Operation]:
    """The operations of a body that run whenever it does, though no result may need them."""
    return [importer.made[node] for node in dict.fromkeys(proto.control_ret.values()) if node in importer.made]


def checked_arguments(proto: FunctionDef, arguments: Sequence[Tensor], where: str) -> list[str]:
    """The names of a function's arguments; ValueError unless the tensors fit them."""
    names = _arguments(proto)
    if len(arguments) != len(names):
        raise ValueError(f"{where} takes {len(names)} arguments, received {len(arguments)}.")
    for i, tensor in enumerate(arguments):
        wanted = _spec(proto, i)[0]
        if tensor.dtype.base_dtype != wanted.base_dtype:
            raise ValueError(f"{where}: argument '{names[i]}' must be {wanted.name}, is {tensor.dtype.name}.")
    return names


def inline(importer: Importer, library: Bodies, node: NodeDef) -> Operation:
    """Inlines the body of a function under the name of the calling node, which itself passes the results on."""
    name = node.attr["f"].func.name if node.op in CALLS else node.op
    proto = library.protos.get(name)
    if proto is None:
        raise ValueError(f"Node '{node.name}' ({node.op}): there is no function '{name[:100]}' in the library.")
    if name in library.calls:
        raise ValueError(f"Function '{name}' calls itself.")
    library.written_out += len(proto.node_def)
    if len(library.calls) >= MAX_DEPTH or library.written_out > MAX_WRITTEN_OUT:
        raise ValueError(f"Node '{node.name}': calls are nested more than {MAX_DEPTH} deep, or too large in all.")
    inputs = [importer.input(node, text) for text in node.input if not text.startswith("^")]
    names = checked_arguments(proto, inputs, f"Node '{node.name}': function '{name}'")
    graph = importer.graph
    scope = f"{importer.scope}{node.name}/" if importer.scope else graph.unique_name(node.name, False) + "/"
    library.calls.append(name)
    with graph.control_dependencies(importer.controls(node)):
        body = library.body(graph, proto, scope, dict(zip(names, inputs, strict=True)))
    library.calls.pop()
    outputs = [body.input(o, proto.ret[o.name]) for o in proto.signature.output_arg]
    # Ops with effects run whenever the call does.
    waits = effects_of(body, proto)
    waits += [op for op in body.made.values() if op.op_def.writes or (op.op_def.stateful and not op.outputs)]
    types = tuple(t.dtype.base_dtype for t in outputs)
    with graph.control_dependencies(list(dict.fromkeys(waits))):
        return (
            importer.add_op(node, node.name, op_of("IdentityN"), outputs, {"T": types})
            if outputs
            else (importer.add_op(node, node.name, op_of("NoOp"), [], {}))
        )
