"""The current scopes while a thread adds nodes to a graph: names, devices, control dependencies and the like."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.graph import device as devices
from penstock.graph.hooks import hooks
from penstock.graph.operation import GraphData, Operation, Tensor

VALID_OP_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*\Z")
_VALID_SCOPE_NAME = re.compile(r"[A-Za-z0-9_.\\/>-]*\Z")


class ControlScope:
    """One `control_dependencies` block: the ops that new ops wait for, and the ops made inside it."""

    def __init__(self, ops: list[Operation]) -> None:
        self.ops = ops
        self.made: set[Operation] = set()


class InitialScopes:
    """The scopes that a thread starts with when it first uses the graph."""

    def __init__(self) -> None:
        self.is_set = False
        self.devices: list[Callable[[Operation], str] | None] = []
        self.colocated: list[Operation] = []
        self.control: list[ControlScope] = []

    def remember(self, scopes: Scopes) -> None:
        """Stores the scopes of a thread. Only the first call has an effect."""
        if not self.is_set:
            self.is_set = True
            self.devices, self.colocated = list(scopes.devices), list(scopes.colocated)
            self.control = list(scopes.control)


class Scopes(threading.local):
    """The current scopes while a thread adds nodes. Each thread has its own."""

    def __init__(self, initial: InitialScopes) -> None:
        self.name = ""
        self.devices = list(initial.devices)
        self.colocated = list(initial.colocated)
        self.control = list(initial.control)
        self.attrs: dict[str, Any] = {}
        self.gradients: dict[str, str] = {}
        self.container = ""
        self.original_op: Operation | None = None


class GraphScopes(GraphData):
    """The part of a Graph that enters scopes, and names and places new nodes by them."""

    def __init__(self) -> None:
        super().__init__()
        self._initial_scopes = InitialScopes()
        self._scopes = Scopes(self._initial_scopes)

    def switch_to_thread_local(self) -> None:
        """Makes later threads start with the current devices, colocations and control dependencies.

        Scopes belong to a thread even before this call. Only the first call has an effect.

        >>> with tf.device("/cpu:1"):
        ...     graph.switch_to_thread_local()
        """
        self._initial_scopes.remember(self._scopes)

    def _control_for(self, inputs: Sequence[Tensor]) -> list[Operation]:
        if not self._scopes.control:
            return []
        sources = {t.op for t in inputs}
        found: dict[Operation, None] = {}
        for scope in self._scopes.control:
            # An input made inside the scope waits already, and the op waits through it.
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
        """`name` under the current scope, with a suffix _1, _2, ... if it is taken (ignoring letter case)."""
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
        outermost: GraphData = self
        while outermost.outer_graph is not None:
            outermost = outermost.outer_graph
        with outermost._lock:
            outermost._function_names += 1
            return f"{self._scopes.name}/{name}_{outermost._function_names}".lstrip("/")

    def get_name_scope(self) -> str:
        """The current name scope, without a trailing slash."""
        return self._scopes.name

    @contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Puts new ops under `name/`; a name with a trailing '/' enters exactly that scope, None or '' the root."""
        if name is not None and not isinstance(name, str):
            raise TypeError(f"A name scope must be a string, received {name!r}.")
        if name:
            if not (_VALID_SCOPE_NAME if self._scopes.name else VALID_OP_NAME).match(name):
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

    def scoped_device(self, operation: Operation) -> str:
        """The device that the device scopes of this thread give to an operation."""
        for function in reversed(self._scopes.devices):
            if function is None:
                break
            operation.device = str(function(operation))
        return operation.device

    @contextmanager
    def colocate_with(self, op: Any, ignore_existing: bool = False) -> Iterator[None]:
        """Places new ops on the device of `op`."""
        if op is None and not ignore_existing:
            raise ValueError("Trying to colocate with None; pass ignore_existing=True to leave all groups.")
        before = self._scopes.colocated, self._scopes.devices
        self._scopes.colocated = [] if ignore_existing else list(self._scopes.colocated)
        if op is not None:
            found = op if isinstance(op, Operation) else _op_of(op)
            if found.graph.is_eager and not self.is_eager:
                # The group is that of the node which stands for an eager variable in this graph.
                found = self.capture(found.outputs[0], found.type, found.name).op
            self._scopes.colocated.append(found)
        # The group decides the device, so outer device scopes are ignored inside.
        self._scopes.devices = []
        try:
            yield
        finally:
            self._scopes.colocated, self._scopes.devices = before

    @contextmanager
    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> Iterator[None]:
        """Makes new ops wait for `control_inputs`; None clears the dependencies of outer blocks."""
        before = self._scopes.control
        if control_inputs is None:
            self._scopes.control = []
        else:
            if not isinstance(control_inputs, Iterable):
                raise TypeError(f"control_inputs must be a list of operations or tensors, received {control_inputs!r}.")
            ops: dict[Operation, None] = {}
            for item in control_inputs:
                # A variable with a handle stands for its op: the handle, or the write after which it is read.
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
        """Makes ops of the given types, created inside, use the gradient registered under another name."""
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
        """Marks new ops as part of the gradient of `op`, so that an error in one of them can say so."""
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
        """Puts variables and queues made inside into the container of that name on their server."""
        before, self._scopes.container = self._scopes.container, container_name
        try:
            yield container_name
        finally:
            self._scopes.container = before


def _device_string(chosen: Any, op: Operation) -> str:
    if isinstance(chosen, str):
        return chosen
    if hasattr(chosen, "to_string"):
        return str(chosen.to_string())
    raise TypeError(
        f"Operation '{op.name}': the device function must return a string or a DeviceSpec, received {chosen!r}."
    )


def _op_of(value: Any) -> Operation:
    op: Operation = value.op if hasattr(value, "op") else hooks.convert_to_tensor(value).op
    return op
