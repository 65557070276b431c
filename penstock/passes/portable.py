"""Portable: a partition as a GraphDef that another process can read, and back with nothing in it trusted.

The GraphDef is no graph of TensorFlow's. Passes make nodes whose names are not valid, or not the only ones of their
name, so inputs name nodes by number: `7:1` is output 1 of node 7, `^7` waits for it. Nodes stand in the order in which
they can run. Ahead of them is one more, of the type `_Partition`, whose attrs say what is fed, fetched and wanted, and
in which order the program made the nodes. Function bodies are partitions as well, in the library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_COMPLEX64, DT_COMPLEX128

from penstock.errors import InvalidArgumentError, NotFoundError
from penstock.graph.arrays import MAX_RANK
from penstock.graph.attrs import MAX_OUTPUTS, Library, attr_from_proto, declared_attrs, fill_attrs
from penstock.graph.build import output_types
from penstock.graph.function import Call, FuncGraph, Function
from penstock.graph.graph import Graph
from penstock.graph.graphdef import output_count
from penstock.graph.import_functions import MAX_DEPTH, MAX_WRITTEN_OUT, Functions
from penstock.graph.import_nodes import MAX_ATTRS, MAX_NAME
from penstock.graph.opdef import OpDef, op_of, registered
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.graph.tensor_proto import MAX_TENSOR_BYTES
from penstock.passes.ir import Node, Subgraph
from penstock.passes.prune import body_of

HEADER = "_Partition"
MAX_ALL_OUTPUTS = 2**22  # of all nodes together: a few bytes can ask for 65536
_LISTS = ("feeds", "fetches", "orders", "targets")  # of the header; fetches are pairs of node and output
_PYTHON = frozenset(("EagerPyFunc", "PyFunc", "PyFuncStateless"))


# Writing


def to_graph_def(subgraph: Subgraph) -> GraphDef:
    """A partition as data; InvalidArgumentError for what cannot leave this process.

    >>> sent = to_graph_def(part.subgraph).SerializeToString()
    """
    return _Writer().write(subgraph)


class _Bodies(Library):
    """Bodies under names that no op type has."""

    def _new_name(self, function: Function) -> str:
        return f"{len(self.functions)}/{function.name}"


class _Writer:
    def __init__(self) -> None:
        self.library = _Bodies()
        self.devices: list[str] = []  # of the node that brought each function into the library
        self.constant_bytes = 0

    def write(self, subgraph: Subgraph) -> GraphDef:
        proto = GraphDef()
        self.add_nodes(proto.node, subgraph)
        # A body may use further bodies, which join the library while it is written.
        for number, name in enumerate(_growing(self.library.functions)):
            function = FunctionDef()
            function.signature.name = name
            self.add_nodes(function.node_def, body_of(self.library.functions[name]), self.devices[number])
            proto.library.function.append(function)
        return proto

    def add_nodes(self, target: Any, subgraph: Subgraph, device: str = "") -> None:
        """Writes the header and the nodes; a body's nodes run on `device`, where the node that holds it is."""
        number = {id(node): i for i, node in enumerate(subgraph.nodes)}
        header = target.add(op=HEADER)
        header.attr["feeds"].list.i.extend(number[id(n)] for n in subgraph.feeds)
        header.attr["fetches"].list.i.extend(x for n, i in subgraph.fetches for x in (number[id(n)], i))
        header.attr["targets"].list.i.extend(number[id(n)] for n in subgraph.targets)
        header.attr["orders"].list.i.extend(n.order for n in subgraph.nodes)
        for node in subgraph.nodes:
            where = f"'{node.device or device}'" if node.device or device else "a worker"  # a function has no device
            if node.op.name in _PYTHON:
                raise _python_only(node.name, where)
            try:
                proto = target.add(name=node.name, op=node.op.name, device=node.device)
                proto.input.extend([f"{number[id(s)]}:{i}" for s, i in node.inputs])
                proto.input.extend([f"^{number[id(s)]}" for s in node.controls])
                self.count_bytes(node.attrs)
                fill_attrs(proto.attr, node.op, node.attrs, self.library)
            except (TypeError, ValueError) as error:
                raise InvalidArgumentError(
                    None, node.name, f"Node '{node.name}' ({node.op.name}) cannot be sent to {where}: {error}"
                ) from error
            self.devices += [where] * (len(self.library.functions) - len(self.devices))

    def count_bytes(self, attrs: dict[str, Any]) -> None:
        """Refuses constants that no message can hold."""
        value = attrs.get("value")
        if value is not None and any(getattr(value, "strides", ())):
            self.constant_bytes += sum(map(len, value.flat)) if value.dtype == object else value.nbytes
            if self.constant_bytes >= MAX_TENSOR_BYTES:
                raise ValueError(
                    f"with it the constants of this partition take {self.constant_bytes} bytes, and a message holds "
                    f"less than {MAX_TENSOR_BYTES}. Use variables, and feed their initial values in parts."
                )


def _growing(functions: dict[str, Function]) -> Any:
    """The names in a dict, those included that are added meanwhile."""
    names: list[str] = []
    while len(names) < len(functions):
        fresh = list(functions)[len(names) :]
        names += fresh
        yield from fresh


def _python_only(name: str, where: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        None,
        name,
        f"Node '{name}' calls a Python function, and Python functions run only in the process that made them: it "
        f"cannot run on {where}. Place it on the task of the session, or use ops of the graph instead.",
    )


# Reading


def from_graph_def(proto: GraphDef) -> Subgraph:
    """The partition in a GraphDef of `to_graph_def`.

    Whatever does not fit is an InvalidArgumentError that names the node, an unknown op type a NotFoundError.

    >>> subgraph = from_graph_def(GraphDef.FromString(sent))
    """
    try:
        reader = _Reader(proto.library.function, Graph())
    except ValueError as error:
        raise InvalidArgumentError(f"A partition's library of functions: {error}") from error
    return reader.partition(proto.node)


class _Reader(Functions):
    """Reads partitions: that of a GraphDef and those of the bodies in its library, each when it is first asked for."""

    def __init__(self, protos: Sequence[FunctionDef], outer: Graph) -> None:
        super().__init__(protos, outer)
        self.outputs = 0
        self._sizes: dict[str, int] = {}  # of a body with all bodies inside it, in nodes

    def value(self, call: Any, depth: int) -> Function | Call:
        """Reads a `func` attr. It counts uses of bodies, since code that walks bodies visits one once for each use."""
        found = super().value(call, depth)
        if isinstance(found, Function):
            self.written_out += self._sizes[found.name]
            if self.written_out > MAX_WRITTEN_OUT:
                raise ValueError(f"functions within functions have more than {MAX_WRITTEN_OUT} nodes")
        return found

    def make(self, name: str, proto: FunctionDef) -> Function:
        """The body called `name`."""
        before, self.written_out = self.written_out, 0
        subgraph = self.partition(proto.node_def)
        self._sizes[name] = self.written_out + len(subgraph.nodes)
        self.written_out = before
        return function_of(name, subgraph, self.outer)

    def partition(self, protos: Sequence[NodeDef]) -> Subgraph:
        """The partition that a header and the nodes after it describe."""
        if not len(protos) or protos[0].op != HEADER:
            raise InvalidArgumentError(f"A partition must begin with a node of type {HEADER}.")
        lists = {key: _integers(protos[0], key) for key in _LISTS}
        if len(lists["orders"]) != len(protos) - 1:
            raise InvalidArgumentError(
                f"A partition of {len(protos) - 1} nodes gives the order of {len(lists['orders'])}."
            )
        nodes: list[Node] = []
        for proto, order in zip(protos[1:], lists["orders"], strict=True):
            nodes.append(self.node(proto, order, nodes))
        flat = lists["fetches"]
        if len(flat) % 2:
            raise InvalidArgumentError("The fetches of a partition are not pairs.")
        feeds = [_numbered(nodes, i, "fed") for i in lists["feeds"]]
        targets = [_numbered(nodes, i, "run") for i in lists["targets"]]
        fetches = [(_numbered(nodes, n, "fetched"), i) for n, i in zip(flat[::2], flat[1::2], strict=True)]
        for node, index in fetches:
            if not 0 <= index < len(node.dtypes):
                raise InvalidArgumentError(
                    None, node.name, f"Output {index} of '{node.name}' is fetched, it has {len(node.dtypes)} outputs."
                )
        fed = {id(n) for n in feeds}
        for node in (*nodes, *feeds):
            if (node.op.name == "_Arg") != (id(node) in fed):
                raise InvalidArgumentError(
                    None, node.name, f"Node '{node.name}' ({node.op.name}): what is fed must be the nodes of type _Arg."
                )
        if len(fed) < len(feeds):
            raise InvalidArgumentError("A node of a partition is fed twice.")
        return Subgraph(nodes, feeds, fetches, targets)

    def node(self, proto: NodeDef, order: int, before: list[Node]) -> Node:
        """One node, which may take what the nodes `before` it give."""
        name, op_def = proto.name, registered(proto.op)
        if op_def is None:
            raise NotFoundError(
                None, name[:100], f"Node '{name[:100]}': there is no op type '{proto.op[:100]}' in this process."
            )
        if proto.op in _PYTHON:
            raise _python_only(name[:100], proto.device[:100])
        # Passes append to the names of nodes.
        if max(len(name), len(proto.device)) > 2 * MAX_NAME or len(proto.attr) > MAX_ATTRS:
            raise InvalidArgumentError(
                None,
                name[:100],
                f"Node '{name[:100]}' has a name of {len(name)} characters, a device of {len(proto.device)} and "
                f"{len(proto.attr)} attrs; at most {2 * MAX_NAME}, {2 * MAX_NAME} and {MAX_ATTRS} are allowed.",
            )
        try:
            _check_tensors(proto.attr)
            attrs = declared_attrs(name, op_def, proto.attr, self)
            for key, value in proto.attr.items():
                if key.startswith("_"):
                    attrs[key] = attr_from_proto(value, functions=self)
            count = sum(output_count(arg, attrs) for arg in op_def.outputs)
            self.outputs += count
            if count > MAX_OUTPUTS or self.outputs > MAX_ALL_OUTPUTS:
                raise ValueError(f"it has {count} outputs, all nodes so far {self.outputs}: that is too many")
            node = Node(name, op_def, attrs, tuple(output_types(op_def, attrs)), device=proto.device, order=order)
            for text in proto.input:
                _connect(node, text, before)
            _check_types(node, op_def)
        except ValueError as error:
            raise InvalidArgumentError(None, name, f"Node '{name}' ({proto.op}): {error}") from error
        return node


def _integers(header: NodeDef, key: str) -> list[int]:
    return list(header.attr[key].list.i) if key in header.attr else []


def _numbered(nodes: list[Node], number: int, verb: str) -> Node:
    if not 0 <= number < len(nodes):
        raise InvalidArgumentError(f"Node {number} is to be {verb}, but the partition has {len(nodes)}.")
    return nodes[number]


def _connect(node: Node, text: str, before: list[Node]) -> None:
    """Adds the input that `text` names."""
    source, _, index = text.partition(":")
    wait = text.startswith("^")
    digits = text[1:] if wait else source + index
    if len(digits) > 18 or not (digits.isascii() and digits.isdigit()) or not (wait or (source and index)):
        raise ValueError(f"'{text[:100]}' is not an input")
    number = int(digits) if wait else int(source)
    if number >= len(before):
        raise ValueError(f"its input '{text}' is no node before it")
    if wait:
        node.controls.append(before[number])
    elif node.controls:
        raise ValueError(f"the data input '{text}' stands after a control input")
    elif int(index) >= len(before[number].dtypes):
        raise ValueError(f"its input '{text}' is not there: '{before[number].name}' has too few outputs")
    else:
        node.inputs.append((before[number], int(index)))


def _check_types(node: Node, op_def: OpDef) -> None:
    """Refuses inputs that are not of the number and types that the node's attrs say."""
    attrs = node.attrs
    expected = sum(output_count(arg, attrs) for arg in op_def.inputs)
    if expected != len(node.inputs):
        raise ValueError(f"it takes {expected} inputs, received {len(node.inputs)}")
    position = 0
    for arg in op_def.inputs:
        for j in range(output_count(arg, attrs)):
            wanted = arg.type or (attrs[arg.type_list_attr][j] if arg.type_list_attr else attrs[arg.type_attr])
            source, index = node.inputs[position]
            given = source.dtypes[index]
            if given.base_dtype is not wanted.base_dtype or (arg.is_ref and not given._is_ref_dtype):
                kind = wanted._as_ref.name if arg.is_ref else wanted.name
                raise ValueError(f"input {position} must be {kind}, received {given.name} from '{source.name}'")
            position += 1


def _check_tensors(attrs: Any, depth: int = 0) -> None:
    """Refuses tensors that would take more memory than the message: all values are written, or one for all."""
    if depth > MAX_DEPTH:
        raise ValueError(f"functions are nested more than {MAX_DEPTH} deep")
    for value in attrs.values():
        kind = value.WhichOneof("value")
        if kind == "tensor":
            _check_tensor(value.tensor)
        elif kind == "func":
            _check_tensors(value.func.attr, depth + 1)
        elif kind == "list":
            for tensor in value.list.tensor:
                _check_tensor(tensor)
            for call in value.list.func:
                _check_tensors(call.attr, depth + 1)


def _check_tensor(tensor: TensorProto) -> None:
    size = math.prod(max(d.size, 0) for d in tensor.tensor_shape.dim[:MAX_RANK])
    given = max((len(items) for field, items in tensor.ListFields() if field.name.endswith("_val")), default=0)
    if tensor.dtype in (DT_COMPLEX64, DT_COMPLEX128):
        given //= 2
    if 1 < given < size:
        raise ValueError(f"a tensor of {size} values gives {given} of them")


def function_of(name: str, subgraph: Subgraph, outer: Graph) -> Function:
    """A body as what attrs hold. Its shapes are not known here: only building a graph needs them."""
    # In errors a body goes by the name that it has in the program, without the number that `_Bodies` gave it.
    graph = FuncGraph(name.partition("/")[2], outer)
    placeholder = op_of("Placeholder")
    made: dict[int, Operation] = {}
    for node in subgraph.nodes:
        inputs = [made[id(source)].outputs[i] for source, i in node.inputs]
        controls = [made[id(source)] for source in node.controls]
        op_def, attrs = node.op, node.attrs
        if op_def.name == "_Arg":
            op_def, attrs = placeholder, {"dtype": node.dtypes[0], "shape": TensorShape.of(None)}
        operation = Operation(graph, op_def, node.name, inputs, attrs, node.dtypes, controls)
        operation._id, operation.device = node.order, node.device
        made[id(node)] = operation
        if graph._ops.setdefault(node.name, operation) is not operation:
            raise InvalidArgumentError(None, node.name, f"Two nodes of function '{name}' are called '{node.name}'.")
    graph.inputs = [made[id(node)].outputs[0] for node in subgraph.feeds]
    graph.outputs = [made[id(node)].outputs[i] for node, i in subgraph.fetches]
    graph.targets = [made[id(node)] for node in subgraph.targets]
    return Function(name, graph)
