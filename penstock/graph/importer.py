"""import_graph_def: adds the nodes of a GraphDef to a graph. It may come from anywhere, so nothing in it is trusted."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from tensorboard.compat.proto.attr_value_pb2 import AttrValue, NameAttrList
from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from penstock.errors import NotFoundError, OpError
from penstock.graph.attrs import MAX_OUTPUTS, attr_from_proto, declared_attrs, read_dtype, read_shape
from penstock.graph.build import output_types
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.function import Call, FuncGraph, Function
from penstock.graph.graph import _VALID_OP_NAME, PRODUCER, Graph, get_default_graph
from penstock.graph.graphdef import output_count
from penstock.graph.infer import infer_shapes
from penstock.graph.opdef import OpDef, registered
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.graph.tensor import Tensor

MAX_NAME = 4096
MAX_ATTRS = 1024  # of one node
MAX_DEPTH = 32  # of functions within functions, and of calls within calls


def import_graph_def(
    graph_def: Any,
    input_map: dict[str, Any] | None = None,
    return_elements: Iterable[str] | None = None,
    name: str | None = None,
    op_dict: Any = None,
    producer_op_list: Any = None,
    validate_colocation_constraints: bool = True,
) -> list[Any] | None:
    """Adds the nodes of `graph_def` to the default graph under the scope `name` ('import' by default).

    `input_map` puts tensors of the graph in the place of tensors of `graph_def`; `return_elements` names the results.
    When anything does not fit, the graph stays as it was.

    >>> y, = tf.import_graph_def(graph_def, {"x": x}, return_elements=["y:0"])
    """
    proto = _as_graph_def(graph_def)
    if input_map is not None and not isinstance(input_map, dict):
        raise TypeError(f"input_map must be a dict, received {type(input_map).__name__}.")
    wanted = None if return_elements is None else tuple(return_elements)
    if wanted is not None and not all(isinstance(e, (str, bytes)) for e in wanted):
        raise TypeError(f"return_elements must be strings, received {list(wanted)}.")
    if proto.versions.min_consumer > PRODUCER:
        raise ValueError(
            f"The GraphDef asks for a reader of version {proto.versions.min_consumer}, this one is {PRODUCER}."
        )
    graph = get_default_graph()
    with graph.name_scope("import" if name is None else name) as scope:
        mapped = _mapped_inputs(input_map or {}, scope)
        library = _Functions(proto.library.function, graph)
        importer = _Importer(graph, proto.node, scope, mapped, library, validate_colocation_constraints)
        before = graph.version
        try:
            importer.run()
            importer.check_all_mapped()
            return None if wanted is None else [importer.element(_text(e)) for e in wanted]
        except BaseException:
            _remove_since(graph, before)
            raise


def _as_graph_def(graph_def: Any) -> GraphDef:
    if isinstance(graph_def, GraphDef):
        return graph_def
    descriptor = getattr(graph_def, "DESCRIPTOR", None)
    if descriptor is None or descriptor.name != "GraphDef":
        raise TypeError(f"graph_def must be a GraphDef, received {type(graph_def).__name__}.")
    return GraphDef.FromString(graph_def.SerializeToString())  # another program's class for the same message


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _mapped_inputs(input_map: dict[Any, Any], scope: str) -> dict[str, Any]:
    """`input_map` with full tensor names as keys and tensors (operations for '^x') as values."""
    mapped: dict[str, Any] = {}
    for key, value in input_map.items():
        source = _text(key)
        if source.startswith("^"):
            op = getattr(value, "op", value)
            if not isinstance(op, Operation):
                raise TypeError(f"input_map: '{source}' must be mapped to an operation or tensor, received {value!r}.")
            mapped[source] = op
            continue
        if not isinstance(value, Tensor):
            if isinstance(value, Operation):
                raise TypeError(f"input_map: '{source}' needs a tensor, received the operation '{value.name}'.")
            if not scope:
                raise ValueError(
                    f"input_map: '{source}' is mapped to {value!r:.80}, which would become a constant, but name='' "
                    "leaves no scope to put it in. Give a name, or a tensor."
                )
            with get_default_graph().name_scope("_inputs"):
                value = convert_to_tensor(value)
        node, index = _split(source)
        mapped[f"{node}:{index}"] = value
    return mapped


def _split(name: str) -> tuple[str, int]:
    """`x` and `x:1` as (node, output); a name whose index is no number names no node."""
    node, colon, index = name.rpartition(":")
    if colon and index.isascii() and index.isdigit() and len(index) < 10:
        return node, int(index)
    return name, 0


def _remove_since(graph: Graph, version: int) -> None:
    """Takes the newest operations out again."""
    for op in graph.get_operations()[version:]:
        del graph._ops[op.name]
        graph._names_in_use.pop(op.name.lower(), None)
        for tensor in op.input_list:
            if op in tensor.consumer_list:
                tensor.consumer_list.remove(op)
        for before in op.control:
            if op in before.control_outputs:
                before.control_outputs.remove(op)


class _Importer:
    """Adds one list of NodeDefs to one graph: that of a GraphDef, or of a function's body."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[NodeDef],
        scope: str,
        mapped: dict[str, Any],
        library: _Functions,
        check_colocation: bool = True,
        resolve: Callable[[_Importer, str], Tensor] | None = None,
    ) -> None:
        self.graph = graph
        self.scope = scope
        self.mapped = mapped
        self.library = library
        self.check_colocation = check_colocation
        self.nodes: dict[str, NodeDef] = {}
        self.made: dict[str, Operation] = {}
        self.unused = set(mapped)
        self._resolve = resolve
        for node in nodes:
            if len(node.name) > MAX_NAME or not _VALID_OP_NAME.match(node.name):
                raise ValueError(f"{node.name[:100]!r} is not a valid name of a node.")
            if node.name in self.nodes:
                raise ValueError(f"Two nodes are called '{node.name}'.")
            if len(node.attr) > MAX_ATTRS:
                raise ValueError(f"Node '{node.name}' has {len(node.attr)} attrs, at most {MAX_ATTRS} are allowed.")
            self.nodes[node.name] = node

    def run(self) -> None:
        """Adds all nodes, inputs first."""
        for node in self.in_order():
            try:
                self.made[node.name] = self.add(node)
            except (ValueError, TypeError, KeyError, OpError):
                raise
            except Exception as error:
                # Shape rules and kernels may stumble over attrs that no program would write.
                raise ValueError(f"Node '{node.name}' ({node.op}): {type(error).__name__}: {error}") from error
        self.place_colocated()

    def in_order(self) -> list[NodeDef]:
        """The nodes so that inputs come first, otherwise as they are given."""
        position = {name: i for i, name in enumerate(self.nodes)}
        consumers: dict[str, list[str]] = {name: [] for name in self.nodes}
        waiting = dict.fromkeys(self.nodes, 0)
        for name, node in self.nodes.items():
            for source in self.sources(node):
                consumers[source].append(name)
                waiting[name] += 1
        ready = [position[name] for name, count in waiting.items() if count == 0]
        names = list(self.nodes)
        ordered = []
        while ready:
            name = names[heapq.heappop(ready)]
            ordered.append(self.nodes[name])
            for consumer in consumers[name]:
                waiting[consumer] -= 1
                if waiting[consumer] == 0:
                    heapq.heappush(ready, position[consumer])
        if len(ordered) < len(names):
            raise ValueError(f"{len(names) - len(ordered)} nodes wait for each other in a cycle.")
        return ordered

    def sources(self, node: NodeDef) -> list[str]:
        """The nodes of this list that `node` takes something from."""
        found = []
        control = False
        for text in node.input:
            if text.startswith("^"):
                control = True
                source, key = text[1:], text
            elif control:
                raise ValueError(f"Node '{node.name}': the data input '{text[:100]}' stands after a control input.")
            elif self._resolve is not None:
                source, key = text.partition(":")[0], text
            else:
                source, index = _split(text)
                key = f"{source}:{index}"
            if key in self.mapped:
                continue
            if source not in self.nodes:
                raise ValueError(f"Node '{node.name}': its input '{text[:100]}' is not in the GraphDef.")
            found.append(source)
        return found

    def add(self, node: NodeDef) -> Operation:
        """Adds one node."""
        op_def = registered(node.op)
        if op_def is None:
            raise NotFoundError(
                None, node.name, f"Node '{node.name}': there is no op type '{node.op[:100]}' in this program."
            )
        attrs = self.attrs_of(node, op_def)
        inputs = [self.input(node, text) for text in node.input if not text.startswith("^")]
        _check_inputs(node.name, op_def, attrs, inputs)
        if sum(output_count(arg, attrs) for arg in op_def.outputs) > MAX_OUTPUTS:
            raise ValueError(f"Node '{node.name}' ({node.op}) has more than {MAX_OUTPUTS} outputs.")
        types = output_types(op_def, attrs)
        # Without a scope of their own the nodes share the names of the graph.
        name = f"{self.scope}{node.name}/" if self.scope else self.graph.unique_name(node.name) + "/"
        if name[:-1].lower() not in self.graph._names_in_use:
            self.graph._names_in_use[name[:-1].lower()] = 1
        with ExitStack() as scopes:
            if node.device:
                scopes.enter_context(self.graph.device(node.device))
            op = self.graph.add_op(op_def, inputs, attrs, types, name, infer_shapes)
        if _partners(op):
            op.device = ""
        controls = [self.control(text) for text in node.input if text.startswith("^")]
        for before in dict.fromkeys(controls):
            if before not in op.control:
                op.control.append(before)
                before.control_outputs.append(op)
        if "_output_shapes" in node.attr:
            _use_shapes(op, node.attr["_output_shapes"])
        return op

    def input(self, node: NodeDef, text: str) -> Tensor:
        """The tensor that an input names."""
        if self._resolve is not None:
            return self._resolve(self, text)
        source, index = _split(text)
        key = f"{source}:{index}"
        if key in self.mapped:
            self.unused.discard(key)
            tensor: Tensor = self.mapped[key]
            return tensor
        op = self.made[source]
        if index >= len(op.outputs):
            raise ValueError(
                f"Node '{node.name}': its input is output {index} of '{source}', which has {len(op.outputs)} outputs."
            )
        return op.outputs[index]

    def control(self, text: str) -> Operation:
        """The operation that a control input names."""
        if text in self.mapped:
            self.unused.discard(text)
            op: Operation = self.mapped[text]
            return op
        return self.made[text[1:]]

    def attrs_of(self, node: NodeDef, op_def: OpDef) -> dict[str, Any]:
        """The attrs of a node: those declared, defaults filled in, and those that begin with an underscore."""
        attrs = declared_attrs(node.name, op_def, node.attr, self.library)
        for key, value in node.attr.items():
            if key.startswith("_") and key != "_output_shapes":
                attrs[key] = attr_from_proto(value, functions=self.library)
        if "_class" in attrs:
            attrs["_class"] = self.renamed_groups(node, attrs["_class"])
        return attrs

    def renamed_groups(self, node: NodeDef, groups: Any) -> list[str]:
        """Colocation groups under the names that the nodes have here."""
        if not isinstance(groups, tuple) or not all(isinstance(g, str) for g in groups):
            raise ValueError(f"Node '{node.name}': the attr '_class' must be a list of strings.")
        renamed = []
        for group in groups:
            target = group.removeprefix("loc:@")
            if target == group:
                renamed.append(group)
            elif target in self.nodes:
                renamed.append(f"loc:@{self.scope}{target}")
            elif self.check_colocation:
                raise ValueError(f"Node '{node.name}' is colocated with '{target[:100]}', which does not exist.")
        return renamed

    def place_colocated(self) -> None:
        """Gives a node that is colocated with others the device of the first of them that has one."""
        for op in self.made.values():
            others = (self.graph._ops.get(name) for name in _partners(op))
            device = next((o.device for o in others if o is not None and o.device), "")
            if device:
                op.device = device

    def check_all_mapped(self) -> None:
        """Refuses an `input_map` that names what is not there."""
        missing = []
        for key in sorted(self.unused):
            if key.startswith("^"):
                known = key[1:] in self.nodes
            else:
                name, index = _split(key)
                known = name in self.made and index < len(self.made[name].outputs)
            if not known:
                missing.append(key)
        if missing:
            raise ValueError(f"input_map: the GraphDef has no {', '.join(missing)}.")

    def element(self, name: str) -> Any:
        """What one of `return_elements` names."""
        if ":" not in name:
            if name not in self.made:
                raise ValueError(f"return_elements: the GraphDef has no node '{name}'.")
            return self.made[name]
        source, index = _split(name)
        if source == name:
            raise ValueError(f"return_elements: '{name}' has no number after its ':'.")
        key = f"{source}:{index}"
        if key in self.mapped:
            return self.mapped[key]
        if source not in self.made:
            raise ValueError(f"return_elements: the GraphDef has no tensor '{name}'.")
        outputs = self.made[source].outputs
        if index >= len(outputs):
            raise ValueError(f"return_elements: '{name}' is asked for, but '{source}' has only {len(outputs)} outputs.")
        return outputs[index]


def _partners(op: Operation) -> list[str]:
    """The other nodes that a node is colocated with."""
    groups = (g.removeprefix("loc:@") for g in op.attrs.get("_class", ()) if g.startswith("loc:@"))
    return [name for name in groups if name != op.name]


def _use_shapes(op: Operation, value: AttrValue) -> None:
    """Takes over what the writer of the graph knew of the outputs' shapes, where it does not contradict."""
    shapes = value.list.shape
    if len(shapes) == len(op.outputs):
        for tensor, proto in zip(op.outputs, shapes, strict=True):
            shape = read_shape(proto)
            if tensor._shape.is_compatible_with(shape):
                tensor._shape = tensor._shape.merge_with(shape)


def _check_inputs(name: str, op_def: OpDef, attrs: dict[str, Any], inputs: list[Tensor]) -> None:
    expected = sum(output_count(arg, attrs) for arg in op_def.inputs)
    if expected != len(inputs):
        raise ValueError(
            f"Node '{name}' ({op_def.name}) takes {expected} inputs, received {len(inputs)}."
        )
    rest = iter(enumerate(inputs))
    for arg in op_def.inputs:
        for j in range(output_count(arg, attrs)):
            i, tensor = next(rest)
            wanted: DType = arg.type or (attrs[arg.type_list_attr][j] if arg.type_list_attr else attrs[arg.type_attr])
            if tensor.dtype.base_dtype != wanted.base_dtype or (arg.is_ref and not tensor.dtype._is_ref_dtype):
                kind = wanted._as_ref.name if arg.is_ref else wanted.name
                raise ValueError(
                    f"Node '{name}' ({op_def.name}): input {i} must be {kind}, received {tensor.dtype.name} from "
                    f"'{tensor.name}'."
                )


# Function bodies


class _Functions:
    """The bodies in a GraphDef's library; each becomes a Function when it is first asked for."""

    def __init__(self, protos: Iterable[FunctionDef], outer: Graph) -> None:
        self.outer = outer
        self.protos: dict[str, FunctionDef] = {}
        self._made: dict[str, Function | None] = {}
        for proto in protos:
            if proto.signature.name in self.protos:
                raise ValueError(f"Function '{proto.signature.name[:100]}' is in the library twice.")
            self.protos[proto.signature.name] = proto

    def value(self, call: NameAttrList, depth: int) -> Function | Call:
        """What a `func` attr holds: a body of the library, or an op type with its attrs."""
        if depth > MAX_DEPTH:
            raise ValueError(f"Functions are nested more than {MAX_DEPTH} deep.")
        if call.name in self.protos:
            return self.function(call.name)
        op_def = registered(call.name)
        if op_def is None:
            raise ValueError(f"Function '{call.name[:100]}' is neither in the library nor an op type.")
        return Call(call.name, declared_attrs(call.name, op_def, call.attr, self, depth))

    def function(self, name: str) -> Function:
        """The body called `name`."""
        if name in self._made:
            found = self._made[name]
            if found is None:
                raise ValueError(f"Function '{name}' calls itself.")
            return found
        if sum(f is None for f in self._made.values()) >= MAX_DEPTH:
            raise ValueError(f"Functions are nested more than {MAX_DEPTH} deep.")
        self._made[name] = None  # in the making
        proto = self.protos[name]
        body = FuncGraph(name, self.outer)
        parameters: dict[str, Tensor] = {}
        with body.as_default():
            for i, arg in enumerate(proto.signature.input_arg):
                if arg.name in parameters:
                    raise ValueError(f"Function '{name}' has two arguments called '{arg.name}'.")
                shapes = list(proto.arg_attr[i].attr["_output_shapes"].list.shape) if i in proto.arg_attr else []
                shape = read_shape(shapes[0]) if len(shapes) == 1 else TensorShape.of(None)
                dtype = read_dtype(arg.type)
                parameters[arg.name] = body.add_input(dtype._as_ref if arg.is_ref else dtype, shape, arg.name)

            def resolve(importer: _Importer, text: str) -> Tensor:
                return parameters[text] if text in parameters else _inner_tensor(importer, name, text)

            importer = _Importer(body, proto.node_def, "", dict(parameters), self, resolve=resolve)
            importer.run()
            body.outputs = []
            for output in proto.signature.output_arg:
                if output.name not in proto.ret:
                    raise ValueError(f"Function '{name}' does not say what its output '{output.name}' is.")
                body.outputs.append(resolve(importer, proto.ret[output.name]))
        function = Function(name, body)
        self._made[name] = function
        return function


def _inner_tensor(importer: _Importer, function: str, text: str) -> Tensor:
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
