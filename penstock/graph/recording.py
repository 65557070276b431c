"""Recorders: objects of this thread, such as gradient tapes, that are told of each operation as it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.graph.sessions import Stack


class Recorder(Protocol):
    """Is told of operations, and of variables that are read."""

    keeps_operations: bool

    def record(self, operation: Any) -> None:
        """Is told of an operation that was made."""

    def tracks(self, tensors: Sequence[Any]) -> bool:
        """Tells if an operation with these inputs would be kept."""

    def variable_accessed(self, variable: Any) -> None:
        """Is told of a variable that is about to be read."""


recorders = Stack()


def variable_accessed(variable: Any) -> None:
    """Tells the recorders of this thread that a variable is about to be read."""
    for recorder in recorders.items:
        recorder.variable_accessed(variable)


class VariableWatcher:
    """Collects the variables that are read or written while it is open.

    >>> with VariableWatcher() as watcher:
    ...     y = v * 2.0
    >>> watcher.variables
    """

    keeps_operations = False

    def __init__(self) -> None:
        self._found: dict[int, Any] = {}

    @property
    def variables(self) -> list[Any]:
        """The variables, in the order of their first use."""
        return list(self._found.values())

    def __enter__(self) -> VariableWatcher:
        recorders.items = [*recorders.items, self]
        return self

    def __exit__(self, *exc: Any) -> None:
        recorders.items = [r for r in recorders.items if r is not self]

    def record(self, operation: Any) -> None:
        """Does nothing: only variables count."""

    def tracks(self, tensors: Sequence[Any]) -> bool:
        """Tells that no operations are kept."""
        return False

    def variable_accessed(self, variable: Any) -> None:
        """Notes a variable."""
        self._found[id(variable)] = variable
