"""ObjectGraph: the objects that a root holds, each with its place in a checkpoint and the values that are saved of it.

The key of a value is the shortest path to its object, `/`, `.ATTRIBUTES/` and the name of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorboard.compat.proto.trackable_object_graph_pb2 import TrackableObjectGraph

from penstock.checkpoint.slices import Slice
from penstock.trackable.base import children_of, offers_slices, offers_state
from penstock.variables.slices import SaveSliceInfo
from penstock.variables.variable import Variable

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
VARIABLE_VALUE = "VARIABLE_VALUE"


@dataclass(frozen=True)
class Entry:
    """One tensor, or one slice of a tensor, to save: `read` gives its value."""

    key: str
    read: Callable[[], Any]
    slice: SaveSliceInfo | None = None

    @property
    def part(self) -> Slice:
        """The slice as bundles name it."""
        assert self.slice is not None
        return slice_of(self.slice)


def slice_of(info: SaveSliceInfo) -> Slice:
    """The slice that a part of a variable is, as bundles name it."""
    return Slice(tuple(info.var_offset), tuple(info.var_shape))


@dataclass
class Node:
    """An object of the graph."""

    value: Any
    path: str  # with escaped names
    children: dict[str, int] = field(default_factory=dict)
    slots: list[tuple[int, str, int]] = field(default_factory=list)  # the variable, the slot's name, the slot
    entries: list[Entry] | None = None  # computed once: the state of an iterator may change


def escaped(name: str) -> str:
    """A name as a part of a key: `x/y` is `x.Sy`."""
    return name.replace(".", "..").replace("/", ".S")


class ObjectGraph:
    """All objects that can be reached from a root, in the order of a search in breadth.

    >>> [node.path for node in ObjectGraph(checkpoint).nodes]
    ['', 'model', 'model/kernel']
    """

    def __init__(self, root: Any, attached: Mapping[str, Any] | None = None) -> None:
        self.nodes = [Node(root, "")]
        self._ids = {id(root): 0}
        done = 0
        while done < len(self.nodes):
            node = self.nodes[done]
            children = children_of(node.value)
            if done == 0:
                children = {**children, **(attached or {})}
            for name, child in children.items():
                node.children[name] = self._add(child, f"{node.path}/{escaped(name)}" if node.path else escaped(name))
            done += 1
        for node in self.nodes[:done]:
            self._add_slots(node, self.nodes[:done])

    def _add(self, value: Any, path: str) -> int:
        found = self._ids.get(id(value))
        if found is None:
            found = self._ids[id(value)] = len(self.nodes)
            self.nodes.append(Node(value, path))
        return found

    def _add_slots(self, optimizer: Node, nodes: Iterable[Node]) -> None:
        if not hasattr(optimizer.value, "get_slot_names"):
            return
        for name in optimizer.value.get_slot_names():
            for number, node in enumerate(nodes):
                slot = optimizer.value.get_slot(node.value, name) if isinstance(node.value, Variable) else None
                if slot is not None:
                    path = f"{node.path}/.OPTIMIZER_SLOT/{optimizer.path}/{escaped(name)}"
                    optimizer.slots.append((number, name, self._add(slot, path)))

    def id_of(self, value: Any) -> int | None:
        """The number of an object, or None."""
        return self._ids.get(id(value))

    def entries(self, node: Node) -> list[Entry]:
        """The values to save of an object."""
        if node.entries is None:
            node.entries = self._entries(node)
        return node.entries

    def _entries(self, node: Node) -> list[Entry]:
        prefix = f"{node.path}/.ATTRIBUTES/"
        value = node.value
        if isinstance(value, Variable):
            return [Entry(prefix + VARIABLE_VALUE, value.read_value)]
        if offers_slices(value):
            return [Entry(prefix + VARIABLE_VALUE, part.read_value, info) for part, info in value._save_slices()]
        if offers_state(value):
            return [Entry(prefix + name, _given(state)) for name, state in value._saved_state().items()]
        return []

    def proto(self) -> Any:
        """The graph as the message that a checkpoint has."""
        message = TrackableObjectGraph()
        for node in self.nodes:
            written = message.nodes.add()
            for name, number in node.children.items():
                written.children.add(node_id=number, local_name=name)
            for key in dict.fromkeys(entry.key.partition("-")[0] for entry in self.entries(node)):
                name = key.rpartition("/")[2]
                full_name = full_name_of(node.value) if name == VARIABLE_VALUE else ""
                written.attributes.add(name=name, full_name=full_name, checkpoint_key=key)
            for original, name, slot in node.slots:
                written.slot_variables.add(
                    original_variable_node_id=original, slot_name=name, slot_variable_node_id=slot
                )
        _mark_values(message)
        return message


def has_values(value: Any) -> bool:
    """Tells if a checkpoint has values of an object itself."""
    return isinstance(value, Variable) or offers_slices(value) or offers_state(value)


def full_name_of(value: Any) -> str:
    """The name of a variable in checkpoints that go by names."""
    if isinstance(value, Variable):
        return value._shared_name
    return str(getattr(value, "name", "")).partition(":")[0]


def _given(value: Any) -> Callable[[], Any]:
    return lambda: value


def _mark_values(message: Any) -> None:
    """Sets `has_checkpoint_values` where an object or one that it holds has values."""
    holders: dict[int, list[int]] = {}
    for number, node in enumerate(message.nodes):
        for child in (*(c.node_id for c in node.children), *(s.slot_variable_node_id for s in node.slot_variables)):
            holders.setdefault(child, []).append(number)
    stack = [number for number, node in enumerate(message.nodes) if node.attributes]
    marked = set(stack)
    while stack:
        fresh = [number for number in holders.get(stack.pop(), ()) if number not in marked]
        marked.update(fresh)
        stack += fresh
    for number, node in enumerate(message.nodes):
        node.has_checkpoint_values.value = number in marked
