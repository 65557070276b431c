"""Resources outlive a step: variables, queues, tables... A resource manager keeps those of one device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from penstock.errors import NotFoundError


class ResourceManager:
    """Keeps the resources of one device, by container and name."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may remove a resource while it is held
        self._resources: dict[tuple[str, str], Any] = {}

    def lookup_or_create(self, container: str, name: str, create: Callable[[], Any]) -> Any:
        """Returns the resource of that name, and makes it by `create` if there is none."""
        key = (container, name)
        with self._lock:
            found = self._resources.get(key)
            if found is None:
                found = self._resources[key] = create()
            return found

    def lookup(self, container: str, name: str) -> Any:
        """Returns the resource of that name. Raises NotFoundError if there is none."""
        with self._lock:
            found = self._resources.get((container, name))
        if found is None:
            raise NotFoundError(None, name, f"Resource '{name}' does not exist in container '{container}'.")
        return found

    def remove(self, container: str, name: str) -> None:
        """Closes the resource of that name, if there is one."""
        with self._lock:
            found = self._resources.pop((container, name), None)
        _close(found)

    def put(self, container: str, name: str, resource: Any) -> None:
        """Keeps a resource that came from another task, in place of one that a step may have made meanwhile."""
        with self._lock:
            replaced = self._resources.get((container, name))
            self._resources[container, name] = resource
        _close(replaced)

    def items(self) -> list[tuple[tuple[str, str], Any]]:
        """Returns all resources with their keys."""
        with self._lock:
            return list(self._resources.items())

    def clear(self, containers: list[str] | None = None) -> None:
        """Closes the resources of the given containers, or of all."""
        with self._lock:
            gone = [k for k in self._resources if not containers or k[0] in containers]
            closed = [self._resources.pop(k) for k in gone]
        for resource in closed:
            _close(resource)


def _close(resource: Any) -> None:
    close = getattr(resource, "close", None)
    if close is not None:
        close()
