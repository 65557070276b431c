"""A StoredVariable holds the value of a variable between steps, and says when it may be read and replaced."""

from __future__ import annotations

import itertools
import operator
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.errors import FailedPreconditionError, InvalidArgumentError
from penstock.graph.dtype import DType
from penstock.graph.shape import TensorShape
from penstock.memory import HUGE, table_copy

LET_GO_SECONDS = 0.1  # longer than XLA needs; after that the memory is freed later
_order = itertools.count()


class _UsedUp:
    """Stands in for the value of a variable while an update writes into its memory."""

    nbytes = 0


USED_UP = _UsedUp()


_of_jax: set[type] = set()  # the classes of arrays of jax that were met


def is_jax_array(value: Any) -> bool:
    """Tells if a value is a jax.Array. To ask jax takes longer than to run most small kernels, so it is asked once."""
    if value.__class__ in _of_jax:
        return True
    if isinstance(value, jax.Array):
        _of_jax.add(value.__class__)
        return True
    return False


def is_used_up(value: Any) -> bool:
    """Tells if the buffer of a variable's value has been donated."""
    return value is USED_UP or (is_jax_array(value) and value.is_deleted())


@dataclass(slots=True, eq=False)
class Part:
    """Stands in for the value of a variable that is in a block: elements from `start` to `end` of its array."""

    block: Any
    start: int
    end: int
    shape: Sequence[int | None]
    nbytes: int

    def value(self) -> Any:
        """Returns the value, a view of the block; USED_UP while an update writes into that."""
        view = self.block.view()
        return USED_UP if view is None else view[self.start : self.end].reshape(self.shape)


class Locks(tuple[Any, ...]):
    """Holds several locks at once.

    >>> with locks_of([weights, biases]):
    ...     weights.value = biases.value
    """

    __slots__ = ()

    def __enter__(self) -> None:
        for lock in self:
            lock.acquire()

    def __exit__(self, *_: object) -> None:
        for lock in self:
            lock.release()


def locks_of(variables: Iterable[StoredVariable]) -> Locks:
    """Returns the locks of variables, in the order in which all take them, so that no two wait for each other."""
    pairs = sorted([pair for v in variables for pair in v.locks], key=operator.itemgetter(0))
    return Locks([lock for _, lock in pairs])


def placed(value: Any, jax_device: Any) -> Any:
    """Returns `value` on a device, in the form that results of compiled code have there.

    jax compiles separately for arrays that are committed to their device and for others. Results are committed on
    devices whose compiled code names the device, to write to host memory, and not on a CPU.
    """
    if jax_device.platform != "cpu":
        return jax.device_put(value, jax_device)
    with jax.default_device(jax_device):
        return jax.device_put(value)


def let_go(jax_device: Any, lent: Sequence[weakref.ref[Any]] = ()) -> None:
    """Makes jax let go of the NumPy arrays that it was called with: it does so at its next call only.

    Until then their memory is not freed, and a region of shared memory is not released. XLA may be done with what is
    `lent` a moment after the results are there, and tells nobody, so that jax is called again.
    """
    deadline = time.monotonic() + LET_GO_SECONDS
    jax.device_put(np.int8(0), jax_device)
    while any(used() is not None for used in lent) and time.monotonic() < deadline:
        time.sleep(0.0002)
        jax.device_put(np.int8(0), jax_device)


_copied = jax.jit(jnp.copy)
_copied_to = jax.jit(lambda donated, value: jnp.copy(value), donate_argnums=0, keep_unused=True)


class StoredVariable:
    """Holds the value of a variable. The value is replaced and never changed, so a reader has a consistent snapshot.

    A writer holds `lock` from its read to its write. Readers take no lock at first: an update may donate the old buffer
    to its result, and a reader that is too late for it tries again with the lock. Locks are taken in the order of
    `order`.
    """

    __slots__ = ("declared_bytes", "dtype", "held", "in_place", "is_huge", "lock", "name", "on_cpu", "order", "shape")

    def __init__(self, name: str, dtype: DType, shape: TensorShape, on_cpu: bool = False) -> None:
        self.name = name
        self.on_cpu = on_cpu  # its value is in the host's memory
        self.dtype = dtype
        self.shape = shape
        self.declared_bytes = (shape.num_elements() or 0) * dtype.size  # 0 if its shape may change
        self.is_huge = self.declared_bytes >= HUGE  # copies of it are avoided
        self.held: Any = None  # its value, or the Part of a block that has it
        self.in_place = False  # NumPy writes into it
        self.lock: Any = threading.Lock()
        self.order = next(_order)

    @property
    def value(self) -> Any:
        """The current value: None if there is none, USED_UP while an update writes into its memory."""
        held = self.held
        return held.value() if held.__class__ is Part else held

    @value.setter
    def value(self, value: Any) -> None:
        self.held = value

    @property
    def locks(self) -> tuple[tuple[int, Any], ...]:
        """The locks that a writer holds, each with its place in the order in which all take locks."""
        return ((self.order, self.lock),)

    def forget(self) -> None:
        """Marks it as uninitialised."""
        self.held = None

    def read(self) -> Any:
        """Returns the current value. Raises FailedPreconditionError if there is none."""
        value = self.value
        if value is USED_UP:
            with self.lock:
                value = self.value
        if value is None:
            raise FailedPreconditionError(None, self.name, f"Attempting to use uninitialized value {self.name}")
        return value

    def taken(self) -> np.ndarray:
        """Takes the current value out, as an array that nobody else uses, to write into while the lock is held.

        Other readers wait for the lock meanwhile. Readers that came before keep what they have read.
        """
        self.in_place = True
        value, self.value = self.read(), USED_UP
        # The two references are the name above and the argument of the call.
        alone = value.__class__ is np.ndarray and value.base is None and sys.getrefcount(value) == 2
        return value if alone and value.flags.writeable else table_copy(np.asarray(value))

    def overwrite(self, value: Any, jax_device: Any) -> bool:
        """Copies an array to the memory of the current value, or to new memory, while the lock is held.

        That memory belongs to XLA, so that updates can write into it. They would copy a value in NumPy's memory first.
        Returns False, and does nothing, for variables that are not huge and for what NumPy does not hold.
        """
        if not self.is_huge or not isinstance(value, np.ndarray) or value.dtype == object:
            return False
        old, self.value = self.value, USED_UP
        fits = isinstance(old, jax.Array) and (old.shape, old.dtype) == (value.shape, value.dtype)
        try:
            with jax.default_device(jax_device):
                self.value = _copied_to(old, value) if fits else _copied(value)
            let_go(jax_device)
        finally:
            if self.value is USED_UP:  # that has failed, for lack of memory say
                self.value = None
        return True

    def require_shape(self, value: Any, node: str) -> None:
        """Raises InvalidArgumentError if `value`, which `node` assigns, does not fit the declared shape."""
        if not self.shape.is_compatible_with(value.shape):
            raise InvalidArgumentError(
                None,
                node,
                f"Assign requires shapes of both tensors to match: variable '{self.name}' has shape {self.shape}, "
                f"'{node}' gives {value.shape}.",
            )

    def copy(self) -> np.ndarray:
        """Returns a copy of the current value."""
        try:
            return np.array(self.read())
        except RuntimeError:  # an update has used up the buffer
            with self.lock:
                return np.array(self.read())

    def snapshot(self) -> np.ndarray:
        """Returns the current value without a copy if it is in the host's memory. Updates do not write to it."""
        try:
            return self._on_host(self.read())
        except RuntimeError:  # an update has used up the buffer
            with self.lock:
                return self._on_host(self.read())

    def _on_host(self, value: Any) -> np.ndarray:
        if not self.on_cpu and isinstance(value, jax.Array):
            # np.asarray(value) would keep the transferred copy as long as `value` lives.
            value = jax.device_put(value, jax.devices("cpu")[0])
        return np.asarray(value)

    def settle(self) -> None:
        """Blocks until the current value is computed."""
        held = self.held
        value = held.block.array if held.__class__ is Part else held
        if hasattr(value, "block_until_ready"):
            try:
                value.block_until_ready()
            except RuntimeError:
                if not value.is_deleted():
                    raise  # if it is deleted, the next update has taken it, so it was computed

    def nbytes(self) -> int:
        """Returns how many bytes it holds; 0 while it is uninitialised."""
        return 0 if self.held is None else int(self.held.nbytes)

    close = forget
