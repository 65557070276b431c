"""Graph: the factory and the repository of operations, with the scopes that say how new ones are made."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from penstock.frames import user_frames
from penstock.graph import device as devices
from penstock.graph.collections import Collections
from penstock.graph.opdef import OpDef, registered
from penstock.graph.operation import Operation
from penstock.graph.scope_state import Beginning, ControlScope, Scopes
from penstock.graph.tensor import Tensor

_VALID_OP_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*\Z")
_VALID_SCOPE_NAME = re.compile(r"[A-Za-z0-9_.\\/>-]*\Z")
PRODUCER = 2474  # the GraphDef version that TensorFlow 2.21 writes
MIN_CONSUMER = 0
MIN_PRODUCER = 0


class Graph(Collections):
    """A dataflow graph. Ops are added to the default graph, which `as_default` sets.

    >>> g = tf.Graph()
    >>> with g.as_default():
    ...     x = tf.constant(1.0, name="x")
    >>> g.get_tensor_by_name("x:0") is x
    True
    """

    is_function = False
    is_branch = False  # a body that may not run, so that nothing it reads may be read before
    outlives_step = False  # a body that runs after the step that it was made in: a function of a dataset
    outer_graph: Graph | None = None

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._ops: dict[str, Operation] = {}
        self._names_in_use: dict[str, int] = {}
        self._beginning = Beginning()
        self._scopes = Scopes(self._beginning)
        self.gradient_functions: dict[str, Callable[..., Any]] = {}  # of `custom_gradient`, by `_gradient_op_type`
        self._finalized = False
        self.held: list[Any] = []  # what must live as long as the graph
        self._unfeedable: set[Tensor] = set()
        self._unfetchable: set[Any] = set()
        self.seed: int | None = None
        self.mutations = 0  # how often an existing node was changed: what was compiled before is stale then
        self._function_names = 0
        self.differentiated: dict[Operation, Any] = {}  # control-flow nodes, with what they keep for their gradients
        self.bodies: WeakValueDictionary[str, Graph] = WeakValueDictionary()  # of the program, by name

    # Operations

    @property
    def version(self) -> int:
        """How many operations the graph has."""
        return len(self._ops)

    @property
    def graph_def_versions(self) -> Any:
        from tensorboard.compat.proto import versions_pb2

        return versions_pb2.VersionDef(producer=PRODUCER, min_consumer=MIN_CONSUMER)

    def switch_to_thread_local(self) -> None:
        """Has threads that come later begin with the devices, colocations and control dependencies of this moment.

        Scopes are a thread's own here before that, too. Only the first call counts.

        >>> with tf.device("/cpu:1"):
        ...     graph.switch_to_thread_local()
        """
        self._beginning.remember(self._scopes)

    @property
    def building_function(self) -> bool:
        return self.is_function

    def touch(self) -> None:
        """Notes that an existing node changed."""
        self.mutations += 1

    def add_op(
        self,
        op_def: OpDef,
        inputs: Sequence[Tensor],
        attrs: dict[str, Any],
        output_types: Sequence[Any],
        name: str,
        shapes: Callable[[Operation], None] | None = None,
    ) -> Operation:
        """Adds a node under the scopes in force. A name ending in '/' is taken as it is, any other is made unique.

        Nothing of a node whose shapes do not fit stays in the graph: `shapes` is asked before it is added.
        """
        with self._lock:
            self._check_open(name)
            exact = name.endswith("/")
            name = name[:-1] if exact else self.unique_name(name)
            if not _VALID_OP_NAME.match(name):
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
        from penstock.graph.build import build_node
        from penstock.graph.graphdef import attr_from_proto

        known = registered(op_type)
        if known is None:
            raise ValueError(f"Op type '{op_type}' is not registered (operation '{name or op_type}').")
        values = {k: attr_from_proto(v) if hasattr(v, "WhichOneof") else v for k, v in (attrs or {}).items()}
        return build_node(self, known, list(inputs), values, name or op_type)

    def capture(self, tensor: Tensor, op_type: str, name: str) -> Tensor:
        """What stands for a tensor of another graph here: nothing, in a graph that is no function body."""
        raise ValueError(
            f"Operation '{name}' ({op_type}): the input '{tensor.name}' belongs to another graph than the operation."
        )

    def stands_for(self, parameter: Tensor) -> Tensor | None:
        """The outer tensor that a parameter of a body was captured from: none, in a graph that is no body."""
        return None

    def captures_of(self, ops: set[Operation]) -> dict[Tensor, Tensor]:
        """The parameters that stand for results of `ops`, with those results: none, in a graph that is no body."""
        return {}

    def capture_control(self, op: Operation) -> None:
        """Takes note of an op of another graph that ops made here are to wait for."""
        raise ValueError(f"Cannot wait for '{op.name}': it belongs to another graph.")

    def _check_open(self, name: str) -> None:
        if self._finalized:
            raise RuntimeError(f"The graph is finalized and cannot be changed: '{name}' was to be added to it.")

    def _control_for(self, inputs: Sequence[Tensor]) -> list[Operation]:
        if not self._scopes.control:
            return []
        sources = {t.op for t in inputs}
        found: dict[Operation, None] = {}
        for scope in self._scopes.control:
            # An input made inside the scope waits already; the op waits through it.
            if scope.made.isdisjoint(sources):
                found.update(dict.fromkeys(op for op in scope.ops if op not in sources))
        return list(found)

    def _apply_scopes(self, op: Operation) -> None:
        for function in reversed(self._scopes.devices):
            if function is None:
                break
            op.device = _device_string(function(op), op)
        for key, value in self._scopes.attrs.items():
            op.attrs.setdefault(key, value)
        if self._scopes.container and op.op_def.stateful and op.attrs.get("container") == "":
            op.attrs["container"] = self._scopes.container
        if self._scopes.colocated:
            groups: set[str] = set()
            device_set = False
            for other in reversed(self._scopes.colocated):
                groups.update(g.decode() for g in other.colocation_groups())
                if other.device and not device_set:
                    op.device = other.device
                    device_set = True
            op.attrs["_class"] = sorted(groups)
        if self._scopes.gradients and op.type in self._scopes.gradients:
            op.attrs.setdefault("_gradient_op_type", self._scopes.gradients[op.type])
        op._original_op = self._scopes.original_op

    # Names

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """`name` under the current scope, with a suffix _1, _2, ... where it is taken (letter case does not count)."""
        if self._scopes.name:
            name = f"{self._scopes.name}/{name}"
        with self._lock:
            used = self._names_in_use
            key = name.lower()
            count = used.get(key, 0)
            if count == 0:
                if mark_as_used:
                    used[key] = 1
                return name
            suffix = count
            while f"{key}_{suffix}" in used:
                suffix += 1
            if mark_as_used:
                used[key] = suffix + 1
                used[f"{key}_{suffix}"] = 1
            return f"{name}_{suffix}"

    def unique_function_name(self, name: str) -> str:
        """A name for a function body that no other body of the program has."""
        outermost = self
        while outermost.outer_graph is not None:
            outermost = outermost.outer_graph
        with outermost._lock:
            outermost._function_names += 1
            return f"{self._scopes.name}/{name}_{outermost._function_names}".lstrip("/")

    def get_name_scope(self) -> str:
        """The current name scope, without a slash at its end."""
        return self._scopes.name

    @contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Puts new ops under `name/`; a name with '/' at its end enters that very scope, None or '' the root."""
        if name is not None and not isinstance(name, str):
            raise TypeError(f"A name scope must be a string, received {name!r}.")
        if name:
            if not (_VALID_SCOPE_NAME if self._scopes.name else _VALID_OP_NAME).match(name):
                raise ValueError(f"'{name}' is not a valid scope name")
            scope = name[:-1] if name.endswith("/") else self.unique_name(name)
        else:
            scope = ""
        before, self._scopes.name = self._scopes.name, scope
        try:
            yield scope + "/" if scope else ""
        finally:
            self._scopes.name = before

    # Devices, colocation, control dependencies

    @contextmanager
    def device(self, device_name_or_function: Any) -> Iterator[None]:
        """Places new ops: a string or DeviceSpec merges with outer ones, a function decides per op, None resets."""
        wanted = device_name_or_function
        function = wanted if wanted is None or callable(wanted) else devices.merge_device(wanted)
        self._scopes.devices.append(function)
        try:
            yield
        finally:
            self._scopes.devices.pop()

    @contextmanager
    def colocate_with(self, op: Any, ignore_existing: bool = False) -> Iterator[None]:
        """Places new ops on the device of `op`."""
        if op is None and not ignore_existing:
            raise ValueError("Trying to colocate with None; pass ignore_existing=True to leave all groups.")
        before = self._scopes.colocated, self._scopes.devices
        self._scopes.colocated = [] if ignore_existing else list(self._scopes.colocated)
        if op is not None:
            self._scopes.colocated.append(op if isinstance(op, Operation) else _op_of(op))
        # The group decides, so outer device scopes do not count inside.
        self._scopes.devices = []
        try:
            yield
        finally:
            self._scopes.colocated, self._scopes.devices = before

    @contextmanager
    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> Iterator[None]:
        """Makes new ops wait for `control_inputs`; None clears what outer blocks ask for."""
        before = self._scopes.control
        if control_inputs is None:
            self._scopes.control = []
        else:
            if not isinstance(control_inputs, Iterable):
                raise TypeError(f"control_inputs must be a list of operations or tensors, received {control_inputs!r}.")
            ops: dict[Operation, None] = {}
            for item in control_inputs:
                # A variable behind a handle means its op: the handle, or the write after which it is read.
                element = item.op if hasattr(item, "_handle") else item.values if hasattr(item, "dense_shape") else item
                element = self.as_graph_element(getattr(element, "_variable", element), across_functions=True)
                op = element.op if isinstance(element, Tensor) else element
                if op.graph is self:
                    ops[op] = None
                else:
                    self.capture_control(op)
            self._scopes.control = [*before, ControlScope(list(ops))]
        try:
            yield
        finally:
            self._scopes.control = before

    @contextmanager
    def gradient_override_map(self, op_type_map: dict[str, str]) -> Iterator[None]:
        """Ops of the given types made inside use the gradient registered under another name."""
        if not isinstance(op_type_map, dict):
            raise TypeError(f"op_type_map must be a dict from string to string, received {op_type_map!r}.")
        for key, value in op_type_map.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(f"op_type_map must be a dict from string to string, received {op_type_map!r}.")
        before = self._scopes.gradients
        self._scopes.gradients = {**before, **op_type_map}
        try:
            yield
        finally:
            self._scopes.gradients = before

    @contextmanager
    def gradient_of(self, op: Operation) -> Iterator[None]:
        """Notes in new ops that they are for the gradient of `op`, so that an error in one of them can say so."""
        before, self._scopes.original_op = self._scopes.original_op, op
        try:
            yield
        finally:
            self._scopes.original_op = before

    @contextmanager
    def attr_scope(self, attrs: dict[str, Any]) -> Iterator[None]:
        """Gives new ops these attrs, unless they have them already."""
        before = self._scopes.attrs
        self._scopes.attrs = {**before, **attrs}
        try:
            yield
        finally:
            self._scopes.attrs = before

    @contextmanager
    def container(self, container_name: str) -> Iterator[str]:
        """Variables and queues made inside live in the container of that name on their server."""
        before, self._scopes.container = self._scopes.container, container_name
        try:
            yield container_name
        finally:
            self._scopes.container = before

    # Looking up

    def get_operations(self) -> list[Operation]:
        """All operations in the order of their making."""
        with self._lock:
            return list(self._ops.values())

    def find(self, path: str) -> Operation | None:
        """The operation called `name`, or `body::name` for one in a body, if there is one."""
        body, _, name = path.rpartition("::")
        graph = self.bodies.get(body) if body else self
        return None if graph is None else graph._ops.get(name)

    def get_operation_by_name(self, name: str) -> Operation:
        """The operation called `name`."""
        if not isinstance(name, str):
            raise TypeError(f"Operation names are strings (or similar), not {type(name).__name__}.")
        op: Operation = self.as_graph_element(name, allow_tensor=False)
        return op

    def get_tensor_by_name(self, name: str) -> Tensor:
        """The tensor called `name`, such as 'x:0'."""
        if not isinstance(name, str):
            raise TypeError(f"Tensor names are strings (or similar), not {type(name).__name__}.")
        tensor: Tensor = self.as_graph_element(name, allow_operation=False)
        return tensor

    def as_graph_element(
        self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True, across_functions: bool = False
    ) -> Any:
        """The Tensor or Operation of this graph that `obj` (one of these, a variable or a name) means."""
        kinds = " or ".join(k for k, ok in (("Tensor", allow_tensor), ("Operation", allow_operation)) if ok)
        if hasattr(obj, "_as_graph_element"):
            obj = obj._as_graph_element()
        if isinstance(obj, bytes):
            obj = obj.decode()
        if isinstance(obj, str):
            return self._by_name(obj, kinds, allow_tensor, allow_operation)
        if (isinstance(obj, Tensor) and allow_tensor) or (isinstance(obj, Operation) and allow_operation):
            if obj.graph is not self and not across_functions:
                kind = "Tensor" if isinstance(obj, Tensor) else "Operation"
                raise ValueError(f"{kind} {obj} is not an element of this graph.")
            return obj
        raise TypeError(f"Can not convert a {type(obj).__name__} into a {kinds}.")

    def _by_name(self, name: str, kinds: str, allow_tensor: bool, allow_operation: bool) -> Any:
        if ":" in name and allow_tensor:
            op_name, _, index = name.partition(":")
            if not op_name or not index.isdigit():
                raise ValueError(f"The name '{name}' is no Tensor name: it must be <op_name>:<index>.")
            op = self._ops.get(op_name)
            if op is None:
                raise KeyError(
                    f"The name '{name}' refers to a Tensor which does not exist. The operation, '{op_name}', does "
                    "not exist in the graph."
                )
            if int(index) >= len(op.outputs):
                raise KeyError(
                    f"The name '{name}' refers to a Tensor which does not exist. The operation, '{op_name}', exists "
                    f"but only has {len(op.outputs)} outputs."
                )
            return op.outputs[int(index)]
        if ":" in name:
            raise ValueError(f"The name '{name}' appears to refer to a Tensor, not a {kinds}.")
        op = self._ops.get(name)
        if allow_operation:
            if op is None:
                raise KeyError(f"The name '{name}' refers to an Operation not in the graph.")
            return op
        if op is not None:
            raise ValueError(f"The name '{name}' refers to an Operation, not a {kinds}. Did you mean '{name}:0'?")
        raise ValueError(f"The name '{name}' is not the name of a {kinds}: it has no ':<index>'.")

    # Life

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
        """Whether `tensor` may be fed."""
        return tensor.graph is self and tensor not in self._unfeedable

    def prevent_fetching(self, op: Operation) -> None:
        """Marks `op` as one that may not be fetched."""
        self._unfetchable.add(op)

    def is_fetchable(self, element: Any) -> bool:
        """Whether a tensor or operation may be fetched."""
        return element.graph is self and getattr(element, "op", element) not in self._unfetchable

    def as_graph_def(self, from_version: int | None = None, add_shapes: bool = False) -> Any:
        """This graph as a GraphDef proto."""
        from penstock.graph.graphdef import graph_def

        return graph_def(self, from_version=from_version, add_shapes=add_shapes)


def _device_string(chosen: Any, op: Operation) -> str:
    if isinstance(chosen, str):
        return chosen
    if hasattr(chosen, "to_string"):
        return str(chosen.to_string())
    raise TypeError(
        f"Operation '{op.name}': the device function must return a string or a DeviceSpec, received {chosen!r}."
    )


def _op_of(value: Any) -> Operation:
    from penstock.graph.convert import convert_to_tensor

    if hasattr(value, "op"):
        op: Operation = value.op
        return op
    return convert_to_tensor(value).op


class _Stack(threading.local):
    """What is default in a thread: the innermost `with`, or a fallback."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    @property
    def top(self) -> Any:
        return self.items[-1] if self.items else None

    @contextmanager
    def pushed(self, item: Any) -> Iterator[Any]:
        self.items.append(item)
        try:
            yield item
        finally:
            # Not a plain pop: InteractiveSession leaves in any order.
            for i in range(len(self.items) - 1, -1, -1):
                if self.items[i] is item:
                    del self.items[i]
                    break


_graphs = _Stack()
_sessions = _Stack()
_global_graph: list[Graph] = []
_global_lock = threading.Lock()


def get_default_graph() -> Graph:
    """The default graph of this thread: the innermost `as_default`, or the process-wide one.

    >>> tf.get_default_graph().get_operations()
    """
    items = _graphs.items
    if items:
        graph: Graph = items[-1]
        return graph
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


def default_session_context(session: Any) -> Any:
    """A context in which `session` is the default session of this thread."""
    return _sessions.pushed(session)


def get_default_session() -> Any:
    """The default session of this thread, or None."""
    return _sessions.top


def session_for(session: Any, graph: Graph, purpose: str) -> Any:
    """`session`, or else the default one, checked to run `graph`."""
    chosen = session if session is not None else get_default_session()
    if chosen is None:
        raise ValueError(f"Cannot {purpose}: no default session is registered. Use `with sess.as_default()`.")
    if chosen.graph is not graph:
        raise ValueError(f"Cannot {purpose}: the session's graph is different from the graph of what is run.")
    return chosen
