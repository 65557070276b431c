"""Collections: named lists of things that belong to a graph."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class MessageForm(NamedTuple):
    """Converts the items of a collection to and from messages of a meta graph."""

    proto_type: Any
    to_proto: Callable[..., Any] | None
    from_proto: Callable[..., Any] | None


_FORMS: dict[str, MessageForm] = {}


def register_proto_function(
    collection_name: str,
    proto_type: Any = None,
    to_proto: Callable[..., Any] | None = None,
    from_proto: Callable[..., Any] | None = None,
) -> None:
    """Lets meta graphs keep a collection: its items are written by `to_proto` and read by `from_proto`.

    >>> ops.register_proto_function("savers", SaverDef, Saver.to_proto, Saver.from_proto)
    """
    for function in (to_proto, from_proto):
        if function is not None and not callable(function):
            raise TypeError(f"register_proto_function('{collection_name}') takes functions, received {function!r}.")
    if collection_name in _FORMS:
        raise KeyError(f"The collection '{collection_name}' has functions already.")
    _FORMS[collection_name] = MessageForm(proto_type, to_proto, from_proto)


def message_form(collection_name: str) -> MessageForm | None:
    """The message form that was registered for a collection, or None."""
    return _FORMS.get(collection_name)


class Collections:
    """The part of a Graph that keeps named lists: variables, losses, summaries, and the collections of users."""

    def __init__(self) -> None:
        self._collections: dict[Any, list[Any]] = {}
        self._collections_lock = threading.Lock()

    def add_to_collection(self, name: Any, value: Any) -> None:
        """Appends `value` to the collection `name`."""
        if getattr(self, "_finalized", False):
            raise RuntimeError(f"The graph is finalized and cannot be changed: collection '{name}' was to grow.")
        with self._collections_lock:
            self._collections.setdefault(name, []).append(value)

    def add_to_collections(self, names: Iterable[Any] | str, value: Any) -> None:
        """Appends `value` to each of the collections `names`, each once."""
        for name in dict.fromkeys((names,) if isinstance(names, str) else names):
            self.add_to_collection(name, value)

    def get_collection_ref(self, name: Any) -> list[Any]:
        """The list itself: changing it changes the collection."""
        with self._collections_lock:
            return self._collections.setdefault(name, [])

    def get_collection(self, name: Any, scope: str | None = None) -> list[Any]:
        """A copy of the collection; with `scope`, the items whose name matches it from the start."""
        with self._collections_lock:
            items = list(self._collections.get(name, ()))
        if scope is None:
            return items
        matches = re.compile(scope).match
        return [item for item in items if hasattr(item, "name") and matches(item.name)]

    def get_all_collection_keys(self) -> list[str]:
        """The names of all collections."""
        with self._collections_lock:
            return [key for key in self._collections if isinstance(key, str)]

    @property
    def collections(self) -> list[str]:
        return self.get_all_collection_keys()

    def clear_collection(self, name: Any) -> None:
        """Empties a collection."""
        with self._collections_lock:
            self._collections.pop(name, None)
