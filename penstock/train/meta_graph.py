"""Meta graphs: a graph with its collections and its saver, as one message."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError
from tensorboard.compat.proto import meta_graph_pb2, op_def_pb2, variable_pb2

from penstock import logging
from penstock.checkpoint import files
from penstock.checkpoint.messages import QueueRunnerDef
from penstock.errors import NotFoundError
from penstock.graph.collections import message_form, register_proto_function
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.importer import import_graph_def
from penstock.graph.keys import GraphKeys
from penstock.graph.op_protos import op_proto
from penstock.graph.opdef import registered
from penstock.graph.operation import Tensor
from penstock.train.queue_runner import QueueRunner
from penstock.variables.variable import Variable

_OF_VARIABLES = frozenset(
    (
        GraphKeys.GLOBAL_VARIABLES,
        GraphKeys.LOCAL_VARIABLES,
        GraphKeys.MODEL_VARIABLES,
        GraphKeys.TRAINABLE_VARIABLES,
        GraphKeys.MOVING_AVERAGE_VARIABLES,
        GraphKeys.METRIC_VARIABLES,
        GraphKeys.GLOBAL_STEP,
    )
)

for _key in _OF_VARIABLES:
    register_proto_function(_key, variable_pb2.VariableDef, Variable.to_proto, Variable.from_proto)
register_proto_function(GraphKeys.QUEUE_RUNNERS, QueueRunnerDef, QueueRunner.to_proto, QueueRunner.from_proto)


def export_meta_graph(
    filename: str | None = None,
    meta_info_def: Any = None,
    graph_def: Any = None,
    saver_def: Any = None,
    collection_list: Sequence[str] | None = None,
    as_text: bool = False,
    graph: Graph | None = None,
    export_scope: str | None = None,
    clear_devices: bool = False,
    clear_extraneous_savers: bool = False,
    strip_default_attrs: bool = False,
    save_debug_info: bool = False,
    **kwargs: Any,
) -> Any:
    """The graph with its collections as a MetaGraphDef, written to `filename` if that is given.

    >>> meta_graph = tf.train.export_meta_graph("/tmp/model.meta")
    """
    if kwargs:
        raise TypeError(f"export_meta_graph has no argument '{next(iter(kwargs))}'.")
    graph = graph or get_default_graph()
    proto = meta_graph_pb2.MetaGraphDef()
    if meta_info_def is not None:
        proto.meta_info_def.MergeFrom(meta_info_def)
    proto.meta_info_def.tensorflow_version = proto.meta_info_def.tensorflow_version or "1.15.0"
    proto.graph_def.MergeFrom(graph_def or graph.as_graph_def(add_shapes=True))
    if export_scope:
        _keep_scope(proto.graph_def, export_scope)
    if clear_devices:
        for node in proto.graph_def.node:
            node.device = ""
    proto.meta_info_def.stripped_op_list.MergeFrom(_used_ops(proto.graph_def))
    if strip_default_attrs:
        proto.meta_info_def.stripped_default_attrs = True
        _strip_defaults(proto.graph_def)
    if saver_def is not None:
        proto.saver_def.MergeFrom(saver_def)
    for key in collection_list if collection_list is not None else graph.get_all_collection_keys():
        _add_collection(proto, str(key), graph.get_collection(key), export_scope)
    if filename:
        text = text_format.MessageToString(proto).encode() if as_text else proto.SerializeToString(deterministic=True)
        files.write_whole(os.fspath(filename), text)
    return proto


def _keep_scope(graph_def: Any, scope: str) -> None:
    prefix = f"{scope}/"
    kept = [node for node in graph_def.node if node.name.startswith(prefix)]
    names = {node.name for node in kept}
    for node in kept:
        for i, name in enumerate(node.input):
            source = name.lstrip("^").partition(":")[0]
            if source not in names:
                raise ValueError(f"'{node.name}' takes '{name}', which is not in the scope '{scope}' to export.")
            node.input[i] = name.replace(prefix, "", 1)
        node.name = node.name.removeprefix(prefix)
        classes = node.attr["_class"].list.s if "_class" in node.attr else []
        for i, value in enumerate(classes):
            classes[i] = value.replace(f"loc:@{prefix}".encode(), b"loc:@")
    stored = [type(node).FromString(node.SerializeToString()) for node in kept]
    del graph_def.node[:]
    graph_def.node.extend(stored)


def _used_ops(graph_def: Any) -> Any:
    used = {node.op for node in graph_def.node}
    for function in graph_def.library.function:
        used.update(node.op for node in function.node_def)
    found = [registered(name) for name in sorted(used)]
    return op_def_pb2.OpList(op=[op_proto(op_def) for op_def in found if op_def is not None])


def _strip_defaults(graph_def: Any) -> None:
    for node in graph_def.node:
        op_def = registered(node.op)
        if op_def is None:
            continue
        defaults = {attr.name: attr.default_value for attr in op_proto(op_def).attr if attr.HasField("default_value")}
        for name in [n for n in node.attr if n in defaults and node.attr[n] == defaults[n]]:
            del node.attr[name]


def _add_collection(meta: Any, key: str, items: Sequence[Any], scope: str | None) -> None:
    """Adds a collection as a message. A collection that cannot be written is left out with a warning."""
    if scope:
        items = [item for item in items if not hasattr(item, "name") or item.name.startswith(f"{scope}/")]
    if not items:
        return
    definition = meta_graph_pb2.CollectionDef()
    form = message_form(key)
    try:
        if form is not None and form.to_proto is not None:
            messages = [form.to_proto(item, export_scope=scope) for item in items]
            values: list[Any] = [message.SerializeToString() for message in messages if message is not None]
            definition.bytes_list.value.extend(values)
        else:
            _add_values(definition, items, f"{scope}/" if scope else "")
    except (AttributeError, TypeError, ValueError) as error:
        logging.warning("Collection '%s' is left out of the meta graph: %s", key, error)
        return
    meta.collection_def[key].CopyFrom(definition)


def _add_values(definition: Any, items: Sequence[Any], prefix: str) -> None:
    """Adds values, or the names of graph elements. The first item decides, and all items must be of its kind."""
    if isinstance(items[0], (str, bytes)):
        definition.bytes_list.value.extend(item.encode() if isinstance(item, str) else item for item in items)
    elif isinstance(items[0], int):
        definition.int64_list.value.extend(items)
    elif isinstance(items[0], float):
        definition.float_list.value.extend(items)
    else:
        definition.node_list.value.extend(item.name.removeprefix(prefix) for item in items)


def write_graph(graph_or_graph_def: Any, logdir: Any, name: str, as_text: bool = True) -> str:
    """Writes a graph to a file and returns its path: `tf.train.write_graph(graph, "/tmp/model", "graph.pbtxt")`."""
    proto = graph_or_graph_def.as_graph_def() if isinstance(graph_or_graph_def, Graph) else graph_or_graph_def
    path = os.path.join(os.fspath(logdir), name)
    files.write_whole(path, text_format.MessageToString(proto).encode() if as_text else proto.SerializeToString())
    return path


def read_meta_graph_file(filename: Any) -> Any:
    """The MetaGraphDef in a file, binary or text."""
    path = os.fspath(filename)
    try:
        data = files.read(path)
    except NotFoundError as error:
        raise OSError(f"File {path} does not exist.") from error
    try:
        return meta_graph_pb2.MetaGraphDef.FromString(data)
    except DecodeError:
        pass
    try:
        return text_format.Parse(data.decode(), meta_graph_pb2.MetaGraphDef())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise OSError(f"Cannot parse file {path}: {error}") from error


def import_scoped_meta_graph(
    meta_graph_or_file: Any,
    clear_devices: bool = False,
    graph: Graph | None = None,
    import_scope: str | None = None,
    input_map: Mapping[str, Tensor] | None = None,
    restore_collections_predicate: Any = None,
) -> tuple[dict[str, Variable], str]:
    """Adds the graph and collections of a MetaGraphDef to the default graph. Returns its variables and their scope."""
    meta = meta_graph_or_file
    if not isinstance(meta, meta_graph_pb2.MetaGraphDef):
        meta = read_meta_graph_file(meta)
    graph_def = type(meta.graph_def).FromString(meta.graph_def.SerializeToString())
    if clear_devices:
        for node in graph_def.node:
            node.device = ""
    scope = ""
    with (graph or get_default_graph()).as_default() as target:
        if import_scope:
            scope = target.unique_name(import_scope, mark_as_used=False)
        import_graph_def(graph_def, name=import_scope or "", input_map=dict(input_map or {}))
        # Variables come first, since other collections may hold them too.
        for key, definition in sorted(meta.collection_def.items(), key=lambda pair: pair[0] not in _OF_VARIABLES):
            if restore_collections_predicate is None or restore_collections_predicate(key):
                for item in _items(target, key, definition, scope):
                    target.add_to_collection(key, item)
        variables = target.get_collection(GraphKeys.GLOBAL_VARIABLES, scope=scope or None)
    return {v.name.removeprefix(f"{scope}/").partition(":")[0]: v for v in variables}, scope


def _items(graph: Graph, key: str, definition: Any, scope: str) -> Iterable[Any]:
    kind = definition.WhichOneof("kind")
    if kind is None:
        return
    prefix = f"{scope}/" if scope else ""
    form = message_form(key)
    # A variable in two collections is one object.
    known = {str(v._ref().name): v for each in _OF_VARIABLES for v in graph.get_collection(each)}
    for value in getattr(definition, kind).value:
        if kind == "node_list":
            # The name may be that of a variable's reference or handle: then the variable itself was collected.
            yield known.get(prefix + value) or graph.as_graph_element(prefix + value)
        elif kind == "bytes_list" and form is not None and form.from_proto is not None:
            message = form.proto_type.FromString(value)
            found = known.get(prefix + message.variable_name) if key in _OF_VARIABLES else None
            yield found or form.from_proto(message, import_scope=scope or None)
        else:
            yield value
