"""Trackable: an object whose parts are saved and restored by name.

Three kinds of objects take part in object checkpoints. Containers (`Trackable`: modules, checkpoints, wrapped lists and
dicts; and whatever has `_trackable_children`) have children by name. Variables have one value. Other objects offer one
of these protocols:

- `_save_slices() -> list[tuple[Variable, SaveSliceInfo]]`: a variable in parts, saved as slices of one tensor;
- `_saved_state() -> dict[str, array]` and `_restore_state(dict[str, array])`: tables, iterators, Python state.
"""

from __future__ import annotations

from typing import Any, Protocol

from penstock.variables.variable import Variable


class Position(Protocol):
    """The place of an object in a checkpoint that was read: children that come later get their values from it."""

    def attach(self, name: str, child: Any) -> None: ...

    def attach_slot(self, variable: Any, name: str, slot: Any) -> None: ...

    def names(self, waiting: bool = False) -> set[str]: ...


class Trackable:
    """An object with children: `_trackable_children` gives them by name."""

    _checkpoint_positions: tuple[Position, ...] = ()

    def _trackable_children(self) -> dict[str, Any]:
        """The children, in the order in which a checkpoint lists them."""
        return {}

    def _attached(self, name: str, child: Any) -> None:
        """Gives a new child what checkpoints that were read before have for it."""
        for position in self._checkpoint_positions:
            position.attach(name, child)

    def _restored_from(self, position: Position) -> None:
        """Remembers the place of this object in a checkpoint, for children that come later.

        A checkpoint that was read before is remembered only if it has children that the new one lacks.
        """
        names = position.names()
        kept = [before for before in self._checkpoint_positions if before.names(waiting=True) - names]
        object.__setattr__(self, "_checkpoint_positions", (*kept, position))


def is_trackable(value: Any) -> bool:
    """Tells if an object takes part in checkpoints."""
    if isinstance(value, tuple):
        return any(is_trackable(item) for item in value)
    is_known = isinstance(value, Variable) or hasattr(type(value), "_trackable_children")
    return is_known or offers_state(value) or offers_slices(value) or is_table(value)


def offers_state(value: Any) -> bool:
    """Tells if an object is saved as named arrays."""
    return hasattr(type(value), "_saved_state") and hasattr(type(value), "_restore_state")


def offers_slices(value: Any) -> bool:
    """Tells if an object is a variable in parts."""
    return hasattr(type(value), "_save_slices")


def is_table(value: Any) -> bool:
    """Tells if an object is a lookup table."""
    return hasattr(type(value), "lookup") and hasattr(type(value), "resource_handle")


def children_of(value: Any) -> dict[str, Any]:
    """The children of any object, by name."""
    if hasattr(type(value), "_trackable_children"):
        return dict(value._trackable_children())
    if isinstance(value, tuple):
        names = [*getattr(value, "_fields", ()), *map(str, range(len(value)))]
        items = [*(value if hasattr(value, "_fields") else ()), *value]
        return {name: item for name, item in zip(names, items, strict=True) if is_trackable(item)}
    return {}


class PythonState(Trackable):
    """State of a Python object in a checkpoint: `serialize` gives it as a string, `deserialize` takes it back.

    >>> class Counter(tf.train.experimental.PythonState):
    ...     def serialize(self): return str(self.count)
    ...     def deserialize(self, text): self.count = int(text)
    """

    def serialize(self) -> str | bytes:
        """The state, as text or bytes."""
        raise NotImplementedError

    def deserialize(self, string_value: bytes) -> None:
        """Takes a state back that `serialize` gave."""
        raise NotImplementedError

    def _saved_state(self) -> dict[str, Any]:
        return {"py_state": self.serialize()}

    def _restore_state(self, state: dict[str, Any]) -> None:
        self.deserialize(state["py_state"].item())
