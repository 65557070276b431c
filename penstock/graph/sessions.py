"""The default session of a thread, and the stack of defaults that it is on top of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Stack(threading.local):
    """The default object of a thread: that of the innermost `with`, or a fallback."""

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
            # Not a plain pop: InteractiveSessions may exit in any order.
            for i in range(len(self.items) - 1, -1, -1):
                if self.items[i] is item:
                    del self.items[i]
                    break


_sessions = Stack()


def default_session_context(session: Any) -> Any:
    """A context in which `session` is the default session of this thread."""
    return _sessions.pushed(session)


def get_default_session() -> Any:
    """The default session of this thread, or None."""
    return _sessions.top


def session_for(session: Any, graph: object, purpose: str) -> Any:
    """`session`, or else the default one; raises an error if it runs another graph than `graph`."""
    chosen = session if session is not None else get_default_session()
    if chosen is None:
        raise ValueError(f"Cannot {purpose}: no default session is registered. Use `with sess.as_default()`.")
    if chosen.graph is not graph:
        raise ValueError(f"Cannot {purpose}: the session's graph is different from the graph of what is run.")
    return chosen
