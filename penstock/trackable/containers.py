"""Lists and dicts that are attributes of trackable objects: they are wrapped, so that their items are saved by name."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any, SupportsIndex

from penstock.trackable.base import Trackable, is_trackable


class NoDependency:
    """Marks a value that an attribute shall hold as it is: `self.cache = NoDependency([...])`."""

    def __init__(self, value: Any) -> None:
        self.value = value


def wrap(value: Any) -> Any:
    """The value as a trackable object holds it: lists and dicts become wrapped copies; tuples get wrapped items."""
    if isinstance(value, NoDependency):
        return value.value
    if type(value) is list:
        return ListWrapper(value)
    if type(value) is dict:
        return _DictWrapper(value)
    if type(value) is collections.OrderedDict:
        return _OrderedDictWrapper(value)
    if isinstance(value, tuple) and any(_is_structure(item) for item in value):
        items = [wrap(item) for item in value]
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    return value


def _is_structure(value: Any) -> bool:
    inside = isinstance(value, tuple) and any(_is_structure(item) for item in value)
    return inside or type(value) in (list, dict, collections.OrderedDict)


class AutoTrackable(Trackable):
    """Tracks each trackable object that is assigned to an attribute.

    >>> root = AutoTrackable()
    >>> root.v = tf.Variable(1.0)
    """

    def __setattr__(self, name: str, value: Any) -> None:
        value = wrap(value)
        super().__setattr__(name, value)
        if self._checkpoint_positions and is_trackable(value):
            self._attached(name, value)

    def _trackable_children(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if is_trackable(value)}


class ListWrapper(list[Any], Trackable):
    """A list whose items are saved by their positions. Items may be appended; what moves items forbids saving."""

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(map(wrap, items))
        self._moved = False

    def _trackable_children(self) -> dict[str, Any]:
        found = {str(i): item for i, item in enumerate(self) if is_trackable(item)}
        if self._moved:
            raise ValueError(
                f"Unable to save the object {self!r} (a list wrapper constructed to track trackable objects): an item "
                "was replaced, removed or moved, and items are known to checkpoints by their positions. Make a new "
                "list and assign it to the attribute, or keep the list in a tf.Module attribute of another kind."
            )
        return found

    def append(self, item: Any) -> None:
        super().append(wrap(item))
        self._attached(str(len(self) - 1), self[-1])

    def extend(self, items: Iterable[Any]) -> None:
        for item in items:
            self.append(item)

    def __iadd__(self, items: Iterable[Any]) -> ListWrapper:  # type: ignore[misc]
        self.extend(items)
        return self

    def __imul__(self, count: SupportsIndex) -> ListWrapper:
        if count.__index__() < 1:
            self.clear()
        self.extend(list(self) * (count.__index__() - 1))
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        self._mark()
        super().__setitem__(key, list(map(wrap, value)) if isinstance(key, slice) else wrap(value))
        self._mark()

    def __delitem__(self, key: Any) -> None:
        self._mark()
        super().__delitem__(key)

    def insert(self, index: SupportsIndex, item: Any) -> None:
        super().insert(index, wrap(item))
        self._mark()

    def pop(self, index: SupportsIndex = -1) -> Any:
        self._mark()
        return super().pop(index)

    def remove(self, item: Any) -> None:
        self._mark()
        super().remove(item)

    def clear(self) -> None:
        self._mark()
        super().clear()

    def sort(self, **options: Any) -> None:
        self._mark()
        super().sort(**options)

    def reverse(self) -> None:
        self._mark()
        super().reverse()

    def _mark(self) -> None:
        self._moved = self._moved or any(is_trackable(item) for item in self)

    def __reduce__(self) -> Any:
        return ListWrapper, (list(self),)

    def __repr__(self) -> str:
        return f"ListWrapper({super().__repr__()})"


class _DictWrapper(dict[Any, Any], Trackable):
    """A dict whose items are saved by their keys, which must be strings."""

    def __init__(self, items: Any = ()) -> None:
        super().__init__()
        self.update(items)

    def _trackable_children(self) -> dict[str, Any]:
        found = {key: value for key, value in self.items() if is_trackable(value)}
        for key in found:
            if not isinstance(key, str):
                raise ValueError(
                    f"Unable to save the object {self!r} (a dictionary wrapper constructed automatically on attribute "
                    f"assignment): the key {key!r} of a trackable object is no string. Use strings as keys."
                )
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        value = wrap(value)
        super().__setitem__(key, value)
        if isinstance(key, str):
            self._attached(key, value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *items: Any, **more: Any) -> None:
        for key, value in dict(*items, **more).items():
            self[key] = value

    def __ior__(self, items: Any) -> _DictWrapper:  # type: ignore[misc]
        self.update(items)
        return self

    def __reduce__(self) -> Any:
        return type(self), (dict(self),)

    def __repr__(self) -> str:
        return f"DictWrapper({super().__repr__()})"


class _OrderedDictWrapper(_DictWrapper, collections.OrderedDict[Any, Any]):
    """An OrderedDict whose items are saved by their keys."""


_OrderedDictWrapper.__name__ = "_DictWrapper"
