"""Adds the nodes of a GraphDef to a graph, one list of them at a time. No part of the GraphDef is trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from tensorboard.compat.proto.attr_value_pb2 import AttrValue
from tensorboard.compat.proto.node_def_pb2 import NodeDef

from penstock.errors import NotFoundError, OpError
from penstock.graph.attrs import MAX_OUTPUTS, attr_from_proto, declared_attrs, read_shape
from penstock.graph.build import output_types
from penstock.graph.control_contexts import split_name, topological
from penstock.graph.dtype import DType
from penstock.graph.graph import Graph
from penstock.graph.graphdef import output_count
from penstock.graph.import_functions import Functions
from penstock.graph.infer import infer_shapes
from penstock.graph.opdef import OpDef, registered
from penstock.graph.operation import Operation, Tensor
from penstock.graph.raise_control_flow import Item, provided
from penstock.graph.scope_state import VALID_OP_NAME

MAX_NAME = 4096
MAX_ATTRS = 1024  # per node

# TensorFlow writes these where there are no effects. penstock finds that out itself.
_STATEFUL_FORM = {"StatelessIf": "If", "StatelessWhile": "While"}


def checked(nodes: Iterable[NodeDef]) -> dict[str, NodeDef]:
    """Returns the nodes by name; ValueError if a name is not valid or occurs twice."""
    found: dict[str, NodeDef] = {}
    for node in nodes:
        if len(node.name) > MAX_NAME or not VALID_OP_NAME.match(node.name):
            raise ValueError(f"{node.name[:100]!r} is not a valid name of a node.")
        if node.name in found:
            raise ValueError(f"Two nodes are called '{node.name}'.")
        if len(node.attr) > MAX_ATTRS:
            raise ValueError(f"Node '{node.name}' has {len(node.attr)} attrs, at most {MAX_ATTRS} are allowed.")
        found[node.name] = node
    return found


class Importer:
    """Adds one list of nodes to one graph: the nodes of a GraphDef, of a function's body, or of a branch or loop."""

    def __init__(
        self,
        graph: Graph,
        items: Sequence[Item],
        scope: str,
        mapped: dict[str, Any],
        library: Functions,
        check_colocation: bool = True,
        resolve: Callable[[Importer, str], Tensor] | None = None,
        outer: Importer | None = None,
    ) -> None:
        self.graph = graph
        self.scope = scope
        self.mapped = mapped
        self.library = library
        self.check_colocation = check_colocation
        self.items = {item.name: item for item in items}
        self.provider = {name: item.name for item in items for name in provided(item)}
        self.vanished: set[str] = set()  # nodes that are now inside a branch or loop
        self.made: dict[str, Operation] = {}
        self.unused = set(mapped)
        self.outer = outer
        self._resolve = resolve

    def run(self) -> None:
        """Adds all nodes, inputs first."""
        for item in self.in_order():
            try:
                self.made |= self.make(item)
            except (ValueError, TypeError, KeyError, OpError):
                raise
            except Exception as error:
                # Shape rules and kernels may fail on attrs that no program would write.
                raise ValueError(f"Node '{item.name}' ({item.op}): {type(error).__name__}: {error}") from error
        self.place_colocated()

    def make(self, item: Item) -> dict[str, Operation]:
        """Adds one item and returns the operations that have the names of its nodes."""
        raise NotImplementedError

    def inside(self, graph: Graph, items: Sequence[Item], parameters: dict[str, Any]) -> Importer:
        """An importer of the same kind for the body of a branch or loop, which may use the results of this one."""
        return type(self)(graph, items, "", parameters, self.library, False, outer=self)

    def in_order(self) -> list[Item]:
        """The items sorted so that inputs come first, otherwise in the given order."""
        ordered = topological(list(self.items), lambda name: self.sources(self.items[name]))
        if len(ordered) < len(self.items):
            raise ValueError(f"{len(self.items) - len(ordered)} nodes wait for each other in a cycle.")
        return [self.items[name] for name in ordered]

    def sources(self, item: Item) -> list[str]:
        """The items of this list that `item` takes inputs from."""
        found = []
        control = False
        for text in item.input:
            if text.startswith("^"):
                control = True
                source, key = text[1:], text
            elif control:
                raise ValueError(f"Node '{item.name}': the data input '{text[:100]}' stands after a control input.")
            elif self._resolve is not None:
                source, key = text.partition(":")[0], text
            else:
                source, index = split_name(text)
                key = f"{source}:{index}"
            if key in self.mapped:
                continue
            if source in self.provider:
                found.append(self.provider[source])
            elif self.outer is None:
                raise ValueError(f"Node '{item.name}': its input '{text[:100]}' is not in the GraphDef.")
        return found

    def add(self, node: NodeDef) -> Operation:
        """Adds one node of a registered op type."""
        op_def = registered(_STATEFUL_FORM.get(node.op, node.op))
        if op_def is None:
            raise NotFoundError(
                None, node.name, f"Node '{node.name}': there is no op type '{node.op[:100]}' in this program."
            )
        attrs = self.attrs_of(node, op_def)
        inputs = [self.input(node, text) for text in node.input if not text.startswith("^")]
        _check_inputs(node.name, op_def, attrs, inputs)
        if sum(output_count(arg, attrs) for arg in op_def.outputs) > MAX_OUTPUTS:
            raise ValueError(f"Node '{node.name}' ({node.op}) has more than {MAX_OUTPUTS} outputs.")
        op = self.add_op(node, node.name, op_def, inputs, attrs)
        for key in ("_output_shapes", "output_shapes"):
            if key in node.attr and key not in op_def.attrs:
                _use_shapes(op, node.attr[key])
        return op

    def add_op(
        self, item: Item, name: str, op_def: OpDef, inputs: Sequence[Tensor], attrs: dict[str, Any]
    ) -> Operation:
        """Adds one operation, with the device and the control inputs of `item`."""
        types = output_types(op_def, attrs)
        # Without a scope of their own the nodes share the names of the graph.
        name = f"{self.scope}{name}/" if self.scope else self.graph.unique_name(name) + "/"
        if name[:-1].lower() not in self.graph._names_in_use:
            self.graph._names_in_use[name[:-1].lower()] = 1
        with ExitStack() as scopes:
            if item.device:
                scopes.enter_context(self.graph.device(item.device))
            op = self.graph.add_op(op_def, inputs, attrs, types, name, infer_shapes)
        if _colocated_names(op):
            op.device = ""
        for before in self.controls(item):
            if before not in op.control:
                op.control.append(before)
                before.control_outputs.append(op)
        return op

    def input(self, item: Item, text: str) -> Tensor:
        """The tensor that an input names."""
        if self._resolve is not None:
            return self._resolve(self, text)
        source, index = split_name(text)
        key = f"{source}:{index}"
        if key in self.mapped:
            self.unused.discard(key)
            tensor: Tensor = self.mapped[key]
            return tensor
        op = self.made.get(source)
        if op is None and self.outer is not None:
            return self.graph.capture(self.outer.input(item, text), item.op, item.name)
        if op is None or index >= len(op.outputs):
            count = 0 if op is None else len(op.outputs)
            raise ValueError(
                f"Node '{item.name}': its input is output {index} of '{source}', which has {count} outputs."
            )
        return op.outputs[index]

    def controls(self, item: Item) -> list[Operation]:
        """The operations that the control inputs of `item` name."""
        found = []
        for text in item.input:
            if text.startswith("^"):
                if text in self.mapped:
                    self.unused.discard(text)
                found.append(self.mapped[text] if text in self.mapped else self.made[text[1:]])
        return list(dict.fromkeys(found))

    def attrs_of(self, node: NodeDef, op_def: OpDef) -> dict[str, Any]:
        """The attrs of a node: the declared ones, with defaults filled in, and those that begin with an underscore."""
        attrs = declared_attrs(node.name, op_def, node.attr, self.library)
        for key, value in node.attr.items():
            if key.startswith("_") and key != "_output_shapes":
                attrs[key] = attr_from_proto(value, functions=self.library)
        if "_class" in attrs:
            attrs["_class"] = self.renamed_groups(node, attrs["_class"])
        return attrs

    def renamed_groups(self, node: NodeDef, groups: Any) -> list[str]:
        """Colocation groups, renamed to the names that the nodes have in this graph."""
        if not isinstance(groups, tuple) or not all(isinstance(g, str) for g in groups):
            raise ValueError(f"Node '{node.name}': the attr '_class' must be a list of strings.")
        renamed = []
        for group in groups:
            target = group.removeprefix("loc:@")
            if target == group:
                renamed.append(group)
            elif target in self.provider:
                renamed.append(f"loc:@{self.scope}{target}")
            elif self.check_colocation and target not in self.vanished:
                raise ValueError(f"Node '{node.name}' is colocated with '{target[:100]}', which does not exist.")
        return renamed

    def place_colocated(self) -> None:
        """Gives a node that is colocated with others the device of the first of them that has one."""
        for op in self.made.values():
            others = (self.graph._ops.get(name) for name in _colocated_names(op))
            device = next((o.device for o in others if o is not None and o.device), "")
            if device:
                op.device = device

    def check_all_mapped(self) -> None:
        """Raises an error for an `input_map` that names something that does not exist."""
        missing = []
        for key in sorted(self.unused):
            if key.startswith("^"):
                known = key[1:] in self.provider or key[1:] in self.vanished
            else:
                name, index = split_name(key)
                known = name in self.vanished or (name in self.made and index < len(self.made[name].outputs))
            if not known:
                missing.append(key)
        if missing:
            raise ValueError(f"input_map: the GraphDef has no {', '.join(missing)}.")

    def element(self, name: str) -> Any:
        """The tensor or operation that one of `return_elements` names."""
        if ":" not in name:
            if name not in self.made:
                raise ValueError(f"return_elements: {self._no_such_node(name)}")
            return self.made[name]
        source, index = split_name(name)
        if source == name:
            raise ValueError(f"return_elements: '{name}' has no number after its ':'.")
        key = f"{source}:{index}"
        if key in self.mapped:
            return self.mapped[key]
        if source not in self.made:
            raise ValueError(f"return_elements: {self._no_such_node(source)}")
        outputs = self.made[source].outputs
        if index >= len(outputs):
            raise ValueError(f"return_elements: '{name}' is asked for, but '{source}' has only {len(outputs)} outputs.")
        return outputs[index]

    def _no_such_node(self, name: str) -> str:
        if name in self.vanished:
            return f"'{name}' is inside a conditional or loop: ask for what comes out of it."
        return f"the GraphDef has no node '{name}'."


def _colocated_names(op: Operation) -> list[str]:
    """The other nodes that a node is colocated with."""
    groups = (g.removeprefix("loc:@") for g in op.attrs.get("_class", ()) if g.startswith("loc:@"))
    return [name for name in groups if name != op.name]


def _use_shapes(op: Operation, value: AttrValue) -> None:
    """Sets the output shapes that the writer of the graph recorded, if they do not contradict."""
    shapes = value.list.shape
    if len(shapes) == len(op.outputs):
        for tensor, proto in zip(op.outputs, shapes, strict=True):
            shape = read_shape(proto)
            if tensor._shape.is_compatible_with(shape):
                tensor._shape = tensor._shape.merge_with(shape)


def _check_inputs(name: str, op_def: OpDef, attrs: dict[str, Any], inputs: list[Tensor]) -> None:
    expected = sum(output_count(arg, attrs) for arg in op_def.inputs)
    if expected != len(inputs):
        raise ValueError(f"Node '{name}' ({op_def.name}) takes {expected} inputs, received {len(inputs)}.")
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
