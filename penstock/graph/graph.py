"""Graph: creates and keeps operations; and the default graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

from tensorboard.compat.proto.versions_pb2 import VersionDef

from penstock.frames import user_frames
from penstock.graph.hooks import hooks
from penstock.graph.opdef import OpDef, registered
from penstock.graph.operation import GraphData, Operation, Tensor
from penstock.graph.recording import recorders
from penstock.graph.scope_state import VALID_OP_NAME, GraphScopes
from penstock.graph.sessions import Stack

PRODUCER = 2474  # the GraphDef version that TensorFlow 2.21 writes
MIN_CONSUMER = 0
MIN_PRODUCER = 0


class Graph(GraphScopes):
    """A dataflow graph. Ops are added to the default graph, which `as_default` sets.

    >>> g = tf.Graph()
    >>> with g.as_default():
    ...     x = tf.constant(1.0, name="x")
    >>> g.get_tensor_by_name("x:0") is x
    True
    """

    outer_graph: Graph | None = None

    @property
    def graph_def_versions(self) -> Any:
        return VersionDef(producer=PRODUCER, min_consumer=MIN_CONSUMER)

    def add_op(
        self,
        op_def: OpDef,
        inputs: Sequence[Tensor],
        attrs: dict[str, Any],
        output_types: Sequence[Any],
        name: str,
        shapes: Callable[[Operation], None] | None = None,
    ) -> Operation:
        """Adds a node under the current scopes. A name ending in '/' is used as it is, any other is made unique.

        `shapes` is called before the node is added, so a node whose shapes do not fit leaves no trace in the graph.
        """
        with self._lock:
            self._check_open(name)
            exact = name.endswith("/")
            name = name[:-1] if exact else self.unique_name(name)
            if not VALID_OP_NAME.match(name):
                raise ValueError(
                    f"'{name}' is not a valid name of an operation: it must start with a letter, digit or '.', "
                    "and go on with letters, digits and _.\\/>-"
                )
            captured = [t if t.op.graph is self else self.capture(t, op_def.name, name) for t in inputs]
            op = Operation(self, op_def, name, captured, attrs, output_types, self._control_for(captured))
            op._frames = user_frames()
            self._apply_scopes(op)
            if shapes is not None:
                shapes(op)
            if name in self._ops:
                raise ValueError(f"An operation named '{name}' is in the graph already.")
            op._id = len(self._ops)
            self._ops[name] = op
            for tensor in captured:
                tensor.consumer_list.append(op)
            for before in op.control:
                before.control_outputs.append(op)
                before.attrs["_has_manual_control_dependencies"] = True
            for scope in self._scopes.control:
                scope.made.add(op)
        for recorder in recorders.items:
            recorder.record(op)
        return op

    def create_op(
        self,
        op_type: str,
        inputs: Sequence[Tensor],
        dtypes: Sequence[Any] | None = None,
        input_types: Any = None,
        name: str | None = None,
        attrs: dict[str, Any] | None = None,
        op_def: Any = None,
        **_: Any,
    ) -> Operation:
        """Adds a node of a registered op type by name; `attrs` are Python values or AttrValue protos."""
        known = registered(op_type)
        if known is None:
            raise ValueError(f"Op type '{op_type}' is not registered (operation '{name or op_type}').")
        values = {k: hooks.attr_from_proto(v) if hasattr(v, "WhichOneof") else v for k, v in (attrs or {}).items()}
        op: Operation = hooks.build_node(self, known, list(inputs), values, name or op_type)
        return op

    def _check_open(self, name: str) -> None:
        if self._finalized:
            raise RuntimeError(f"The graph is finalized and cannot be changed: '{name}' was to be added to it.")

    # Lifetime

    @property
    def finalized(self) -> bool:
        return self._finalized

    def finalize(self) -> None:
        """Makes the graph read-only."""
        self._finalized = True

    def _unsafe_unfinalize(self) -> None:
        self._finalized = False

    def as_default(self) -> Any:
        """A context in which this is the default graph of the thread."""
        return _graphs.pushed(self)

    def prevent_feeding(self, tensor: Tensor) -> None:
        """Marks `tensor` as one that may not be fed."""
        self._unfeedable.add(tensor)

    def is_feedable(self, tensor: Tensor) -> bool:
        """Tells if `tensor` may be fed."""
        return tensor.graph is self and tensor not in self._unfeedable

    def prevent_fetching(self, op: Operation) -> None:
        """Marks `op` as one that may not be fetched."""
        self._unfetchable.add(op)

    def is_fetchable(self, element: Any) -> bool:
        """Tells if a tensor or operation may be fetched."""
        return element.graph is self and getattr(element, "op", element) not in self._unfetchable

    def as_graph_def(self, from_version: int | None = None, add_shapes: bool = False) -> Any:
        """This graph as a GraphDef proto."""
        return hooks.graph_def(self, from_version=from_version, add_shapes=add_shapes)


_graphs = Stack()
_global_graph: list[Graph] = []
_global_lock = threading.Lock()
_eager_graph: list[Graph | None] = [None]


def get_default_graph() -> Graph:
    """The default graph of this thread: the innermost `as_default`, or the process-wide one.

    >>> tf.get_default_graph().get_operations()
    """
    items = _graphs.items
    if items:
        graph: Graph = items[-1]
        return graph
    if _eager_graph[0] is not None:
        return _eager_graph[0]
    with _global_lock:
        if not _global_graph:
            _global_graph.append(Graph())
        return _global_graph[0]


def reset_default_graph() -> None:
    """Starts a new process-wide default graph; not allowed inside a `with graph.as_default()`."""
    if _graphs.items:
        raise AssertionError("Do not use tf.reset_default_graph() to clear nested graphs: leave their `with` instead.")
    with _global_lock:
        _global_graph[:] = [Graph()]


def executing_eagerly() -> bool:
    """Tells if an op that is called now runs at once.

    >>> tf.executing_eagerly()
    """
    return get_default_graph().is_eager


def executing_eagerly_outside_functions() -> bool:
    """Tells if ops run at once here, or around the function that is being traced."""
    graph: GraphData = get_default_graph()
    while graph.outer_graph is not None:
        graph = graph.outer_graph
    return graph.is_eager


def has_built_a_graph() -> bool:
    """Tells if the process-wide default graph has operations."""
    return bool(_global_graph) and _global_graph[0].version > 0


def set_eager_graph(graph: Graph | None) -> Graph | None:
    """Sets the graph that is the default outside of all others, where ops run at once; returns the one before.

    None: ops outside of all graphs are added to the process-wide default graph.
    """
    before = _eager_graph[0]
    _eager_graph[0] = graph
    return before


def graph_of(values: Sequence[Any]) -> Graph:
    """The graph that a node with these inputs belongs to: the default one, unless the inputs say otherwise."""
    graph = get_default_graph()
    if graph.is_function or graph.is_eager:
        return graph
    for value in values:
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, Tensor) and not item.op.graph.is_eager:
                # A tensor of a body does not decide the graph: it has a value only while the body runs.
                return graph if item.op.graph.is_function else home_of(item.op)
    return graph


def home_of(op: Operation) -> Graph:
    """The Graph of an operation. The operation itself refers to it as plain data."""
    return cast(Graph, op.graph)
