"""import_graph_def: adds the nodes of a GraphDef, which may come from anywhere, to a graph. It is not trusted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tensorboard.compat.proto.function_pb2 import FunctionDef
from tensorboard.compat.proto.graph_pb2 import GraphDef

from penstock.graph.control_contexts import split_name
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import PRODUCER, Graph, get_default_graph
from penstock.graph.import_calls import CALLS, Bodies, checked_arguments, effects_of, inline
from penstock.graph.import_control_flow import add_conditional, add_loop
from penstock.graph.import_nodes import Importer, checked
from penstock.graph.import_tensor_arrays import lists_for_tensor_arrays
from penstock.graph.operation import Operation, Tensor
from penstock.graph.raise_control_flow import Cond, Item, Loop, raised


class _GraphImporter(Importer):
    """An Importer for everything in a GraphDef: nodes, calls of functions, conditionals and loops."""

    library: Bodies

    def make(self, item: Item) -> dict[str, Operation]:
        if isinstance(item, Cond):
            return add_conditional(self, item)
        if isinstance(item, Loop):
            return add_loop(self, item)
        if item.op in CALLS or item.op in self.library.protos:
            return {item.name: inline(self, self.library, item)}
        return {item.name: self.add(item)}


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

    `input_map` replaces tensors of `graph_def` by tensors of the graph; `return_elements` names the results.
    If an error occurs, the graph stays as it was.

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
        library = Bodies(proto.library.function, graph, _GraphImporter)
        nodes = checked(proto.node)
        items = raised(lists_for_tensor_arrays(nodes), mapped)
        importer = _GraphImporter(graph, items, scope, mapped, library, validate_colocation_constraints)
        importer.vanished = nodes.keys() - importer.provider.keys()
        before = graph.version
        try:
            importer.run()
            importer.check_all_mapped()
            return None if wanted is None else [importer.element(_text(e)) for e in wanted]
        except BaseException:
            _remove_since(graph, before)
            raise


def add_function(
    graph: Graph, library: Iterable[FunctionDef], name: str, arguments: Sequence[Tensor]
) -> tuple[list[Tensor], list[Operation]]:
    """Adds the body of a function to a graph, with tensors for its arguments.

    Returns its results, and the operations that must run though no result needs them.

    >>> (y,), effects = add_function(graph, proto.library.function, "square", [x])
    """
    bodies = Bodies(library, graph, _GraphImporter)
    proto = bodies.protos.get(name)
    if proto is None:
        raise ValueError(f"There is no function '{name[:100]}' in the library.")
    names = checked_arguments(proto, arguments, f"Function '{name}'")
    with graph.as_default():
        bodies.calls.append(name)
        body = bodies.body(graph, proto, "body/", dict(zip(names, arguments, strict=True)))
        outputs = [body.input(o, proto.ret[o.name]) for o in proto.signature.output_arg]
    return outputs, effects_of(body, proto)


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
        node, index = split_name(source)
        mapped[f"{node}:{index}"] = value
    return mapped


def _remove_since(graph: Graph, version: int) -> None:
    """Removes the newest operations again."""
    for op in graph.get_operations()[version:]:
        del graph._ops[op.name]
        graph._names_in_use.pop(op.name.lower(), None)
        for tensor in op.input_list:
            if op in tensor.consumer_list:
                tensor.consumer_list.remove(op)
        for before in op.control:
            if op in before.control_outputs:
                before.control_outputs.remove(op)
