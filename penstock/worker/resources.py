"""What outlives a step: variables, queues, tables... in the resource manager of the device that owns them."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from penstock.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from penstock.graph.dtype import DType
from penstock.graph.shape import TensorShape

_order = itertools.count()


class _UsedUp:
    """Stands in for the value of a variable while an update writes into its memory."""

    nbytes = 0


USED_UP = _UsedUp()


def placed(value: Any, jax_device: Any) -> Any:
    """`value` on a device, as compiled code leaves its results there.

    jax tells an array that is bound to its device from one that just is there, and compiles for each. Results are bound
    on devices whose compiled code writes to host memory, which names the device, and not on a CPU.
    """
    if jax_device.platform != "cpu":
        return jax.device_put(value, jax_device)
    with jax.default_device(jax_device):
        return jax.device_put(value)


class Variable:
    """A value that is replaced, never changed: whoever has read it holds a consistent snapshot.

    `lock` is held by whoever replaces the value, across the read and the write. Readers take no lock at first: an
    update may donate the old buffer to its result, and a reader that comes too late for it tries again with the lock.
    Locks are taken in the order of `order`.
    """

    __slots__ = ("dtype", "in_place", "lock", "name", "on_cpu", "order", "shape", "value")

    def __init__(self, name: str, dtype: DType, shape: TensorShape, on_cpu: bool = False) -> None:
        self.name = name
        self.on_cpu = on_cpu  # its values are in the host's memory
        self.dtype = dtype
        self.shape = shape
        self.value: Any = None
        self.in_place = False  # whether NumPy writes into it
        self.lock = threading.Lock()
        self.order = next(_order)

    def read(self) -> Any:
        """The current value."""
        value = self.value
        if value is USED_UP:
            with self.lock:
                value = self.value
        if value is None:
            raise FailedPreconditionError(None, self.name, f"Attempting to use uninitialized value {self.name}")
        return value

    def taken(self) -> np.ndarray:
        """The current value as an array that nobody else has, to write into while the lock is held.

        Others who want to read it meanwhile wait for the lock. Whoever has read it before keeps what was read.
        """
        self.in_place = True
        value, self.value = self.read(), USED_UP
        # Two references: the name above, and the argument.
        alone = value.__class__ is np.ndarray and value.base is None and sys.getrefcount(value) == 2
        return value if alone and value.flags.writeable else np.array(value)

    def require_shape(self, value: Any, node: str) -> None:
        """Demands that `value` fits the declared shape; `node` is what assigns it."""
        if not self.shape.is_compatible_with(value.shape):
            raise InvalidArgumentError(
                None,
                node,
                f"Assign requires shapes of both tensors to match: variable '{self.name}' has shape {self.shape}, "
                f"'{node}' gives {value.shape}.",
            )

    def copy(self) -> np.ndarray:
        """The current value as an array of its own."""
        try:
            return np.array(self.read())
        except RuntimeError:  # an update has used up the buffer
            with self.lock:
                return np.array(self.read())

    def snapshot(self) -> np.ndarray:
        """The current value where it lies in the host's memory. While the array lives, updates use other memory."""
        try:
            return self._on_host(self.read())
        except RuntimeError:  # an update has used up the buffer
            with self.lock:
                return self._on_host(self.read())

    def _on_host(self, value: Any) -> np.ndarray:
        if not self.on_cpu and isinstance(value, jax.Array):
            # `value` itself would keep what was transferred, as long as it lives.
            value = jax.device_put(value, jax.devices("cpu")[0])
        return np.asarray(value)

    def settle(self) -> None:
        """Waits until the current value is computed."""
        value = self.value
        if hasattr(value, "block_until_ready"):
            try:
                value.block_until_ready()
            except RuntimeError:
                if not value.is_deleted():
                    raise  # otherwise the next update has it already, and so it was computed

    def nbytes(self) -> int:
        """Bytes held; 0 while uninitialised."""
        return 0 if self.value is None else int(self.value.nbytes)

    def close(self) -> None:
        """Gives the value up."""
        self.value = None


class ResourceManager:
    """The resources of one device, by container and name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._resources: dict[tuple[str, str], Any] = {}

    def lookup_or_create(self, container: str, name: str, create: Callable[[], Any]) -> Any:
        """The resource of that name, made by `create` if there is none."""
        key = (container, name)
        with self._lock:
            found = self._resources.get(key)
            if found is None:
                found = self._resources[key] = create()
            return found

    def lookup(self, container: str, name: str) -> Any:
        """The resource of that name; NotFoundError if there is none."""
        with self._lock:
            found = self._resources.get((container, name))
        if found is None:
            raise NotFoundError(None, name, f"Resource '{name}' does not exist in container '{container}'.")
        return found

    def items(self) -> list[tuple[tuple[str, str], Any]]:
        """All resources with their keys."""
        with self._lock:
            return list(self._resources.items())

    def clear(self, containers: list[str] | None = None) -> None:
        """Closes the resources of the given containers, or of all."""
        with self._lock:
            gone = [k for k in self._resources if not containers or k[0] in containers]
            closed = [self._resources.pop(k) for k in gone]
        for resource in closed:
            close = getattr(resource, "close", None)
            if close is not None:
                close()
