"""Restoration: the objects of a checkpoint that was read, bound to objects of the program as these are made."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.trackable_object_graph_pb2 import TrackableObjectGraph

from penstock import logging
from penstock.checkpoint.bundle import BundleReader
from penstock.errors import DataLossError, InvalidArgumentError
from penstock.graph.scopes import init_scope
from penstock.trackable.base import children_of, offers_slices, offers_state
from penstock.train.object_graph import GRAPH_KEY, VARIABLE_VALUE, slice_of
from penstock.variables.slices import SaveSliceInfo
from penstock.variables.variable import Variable


def read_object_graph(reader: BundleReader) -> Any:
    """The object graph of a checkpoint, checked; None for a checkpoint that goes by names."""
    if not reader.has(GRAPH_KEY):
        return None
    try:
        message = TrackableObjectGraph.FromString(reader.read(GRAPH_KEY).item())
    except (DecodeError, TypeError, ValueError) as error:
        raise DataLossError(f"The object graph of checkpoint '{reader.prefix}' cannot be read.") from error
    count = len(message.nodes)
    for number, node in enumerate(message.nodes):
        named = [child.node_id for child in node.children]
        named += [i for s in node.slot_variables for i in (s.original_variable_node_id, s.slot_variable_node_id)]
        if any(not 0 <= i < count for i in named):
            raise DataLossError(f"Object {number} of checkpoint '{reader.prefix}' names an object that is not there.")
    if not count:
        raise DataLossError(f"The object graph of checkpoint '{reader.prefix}' is empty.")
    return message


@dataclass(frozen=True)
class _Place:
    """The place of an object in a restoration."""

    restoration: Restoration
    number: int

    def attach(self, name: str, child: Any) -> None:
        for reference in self.restoration.graph.nodes[self.number].children:
            if reference.local_name == name:
                self.restoration.bind(reference.node_id, child)

    def attach_slot(self, variable: Any, name: str, slot: Any) -> None:
        """Restores a slot that an optimizer has made."""
        for reference in self.restoration.graph.nodes[self.number].slot_variables:
            original = self.restoration.bound(reference.original_variable_node_id)
            if reference.slot_name == name and original is variable:
                self.restoration.bind(reference.slot_variable_node_id, slot)

    def names(self, waiting: bool = False) -> set[str]:
        """The names of all children and slots; with `waiting`, of those that no object was bound to yet."""
        node = self.restoration.graph.nodes[self.number]
        found = {child.local_name: child.node_id for child in node.children}
        for slot in node.slot_variables:
            found[f"/{slot.slot_name}/{slot.original_variable_node_id}"] = slot.slot_variable_node_id
        return {name for name, number in found.items() if not (waiting and self.restoration.is_bound(number))}

    def __deepcopy__(self, memo: Any) -> _Place:
        return self


class Restoration:
    """One reading of a checkpoint. Objects are known weakly: it keeps none of them alive."""

    def __init__(self, reader: BundleReader, graph: Any) -> None:
        self.reader = reader
        self.graph = graph
        self.unused_attributes: dict[int, list[str]] = {}
        self._bound: dict[int, Callable[[], Any]] = {}
        self._slots: dict[int, list[tuple[int, Any]]] = {}  # by optimizer and by variable: what both must be known for
        for number, node in enumerate(graph.nodes):
            for slot in node.slot_variables:
                self._slots.setdefault(number, []).append((number, slot))
                self._slots.setdefault(slot.original_variable_node_id, []).append((number, slot))

    def place(self, number: int) -> _Place:
        """The place of an object, which objects are told that get children later."""
        return _Place(self, number)

    def bound(self, number: int) -> Any:
        """The object of the program that is bound to an object of the checkpoint, or None."""
        reference = self._bound.get(number)
        return None if reference is None else reference()

    @property
    def bound_objects(self) -> list[Any]:
        """All objects that are bound and still there."""
        return [found for number in self._bound if (found := self.bound(number)) is not None]

    def is_bound(self, number: int) -> bool:
        """Tells if an object of the checkpoint was ever bound."""
        return number in self._bound

    def bind(self, number: int, value: Any) -> None:
        """Binds an object, restores it and what it holds, in breadth."""
        with init_scope():
            waiting = deque([(number, value)])
            while waiting:
                number, value = waiting.popleft()
                if number in self._bound:
                    known = self.bound(number)
                    if known is not None and known is not value:
                        logging.warning(
                            "Inconsistent references when loading the checkpoint into this object graph: one object of "
                            "the checkpoint matches several objects of the program, %r and %r.",
                            known,
                            value,
                        )
                    continue
                self._bound[number] = _weak(value)
                self._restore(number, value)
                if hasattr(type(value), "_restored_from"):
                    value._restored_from(self.place(number))
                children = children_of(value)
                for child in self.graph.nodes[number].children:
                    if child.local_name in children:
                        waiting.append((child.node_id, children[child.local_name]))
                waiting += self._known_slots(number)

    def _known_slots(self, number: int) -> list[tuple[int, Any]]:
        found = []
        for owner, slot in self._slots.get(number, ()):
            optimizer, variable = self.bound(owner), self.bound(slot.original_variable_node_id)
            if hasattr(optimizer, "get_slot") and isinstance(variable, Variable):
                made = optimizer.get_slot(variable, slot.slot_name)
                if made is not None:
                    found.append((slot.slot_variable_node_id, made))
        return found

    def _restore(self, number: int, value: Any) -> None:
        attributes = {a.name: a.checkpoint_key for a in self.graph.nodes[number].attributes}
        if not attributes:
            return
        used = restore_value(self.reader, attributes, value)
        unused = [name for name in attributes if name not in used]
        if unused:
            self.unused_attributes[number] = unused


def restore_value(reader: BundleReader, attributes: dict[str, str], value: Any) -> set[str]:
    """Sets an object to what a checkpoint has of it, by keys. Returns the names of what was used."""
    if isinstance(value, Variable) and VARIABLE_VALUE in attributes:
        _assign(value, reader.read(attributes[VARIABLE_VALUE]), attributes[VARIABLE_VALUE])
        return {VARIABLE_VALUE}
    if offers_slices(value) and VARIABLE_VALUE in attributes:
        for part, info in value._save_slices():
            _assign(part, _read_part(reader, attributes[VARIABLE_VALUE], info), attributes[VARIABLE_VALUE])
        return {VARIABLE_VALUE}
    if offers_state(value):
        keys = [key for key in reader.names() for root in attributes.values() if _belongs(key, root)]
        value._restore_state({key.rpartition(".ATTRIBUTES/")[2]: reader.read(key) for key in keys})
        return set(attributes)
    return set()


def _belongs(key: str, root: str) -> bool:
    return key == root or key.startswith(f"{root}-")


def _read_part(reader: BundleReader, key: str, info: SaveSliceInfo) -> np.ndarray:
    if reader.shape(key) != tuple(info.full_shape):
        raise InvalidArgumentError(
            f"Received incompatible tensor with shape {reader.shape(key)} when attempting to restore variable with "
            f"shape {tuple(info.full_shape)} and name {key}."
        )
    return reader.read_slice(key, slice_of(info))


def _assign(variable: Any, value: np.ndarray, key: str) -> None:
    if not variable.shape.is_compatible_with(value.shape):
        raise ValueError(
            f"Received incompatible tensor with shape {value.shape} when attempting to restore variable with shape "
            f"{variable.shape} and name {key}."
        )
    expected = variable.dtype.base_dtype.as_numpy_dtype
    if np.dtype(expected) != value.dtype:
        raise InvalidArgumentError(
            f"'{key}' is {value.dtype} in the checkpoint, but {variable.dtype.base_dtype.name} in the program."
        )
    variable.assign(value)


def _weak(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # tuples and wrapped dicts of some kinds have no weak references
        return lambda: value
