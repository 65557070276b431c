"""The scopes in force while a thread adds nodes to a graph: names, devices, control dependencies and the like."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from penstock.graph.operation import Operation


class ControlScope:
    """One `control_dependencies` block: what new ops wait for, and the ops made inside it."""

    def __init__(self, ops: list[Operation]) -> None:
        self.ops = ops
        self.made: set[Operation] = set()


class Beginning:
    """The scopes that a thread begins with which has not used the graph before."""

    def __init__(self) -> None:
        self.is_set = False
        self.devices: list[Callable[[Operation], str] | None] = []
        self.colocated: list[Operation] = []
        self.control: list[ControlScope] = []

    def remember(self, scopes: Scopes) -> None:
        """Takes those of a thread. Only the first call counts."""
        if not self.is_set:
            self.is_set = True
            self.devices, self.colocated = list(scopes.devices), list(scopes.colocated)
            self.control = list(scopes.control)


class Scopes(threading.local):
    """The scopes in force while a thread adds nodes. Each thread has its own."""

    def __init__(self, beginning: Beginning) -> None:
        self.name = ""
        self.devices = list(beginning.devices)
        self.colocated = list(beginning.colocated)
        self.control = list(beginning.control)
        self.attrs: dict[str, Any] = {}
        self.gradients: dict[str, str] = {}
        self.container = ""
        self.original_op: Operation | None = None
