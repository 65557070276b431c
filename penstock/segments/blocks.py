"""Small variables that one segment updates lie together, in blocks: XLA gets one array for all of a type.

To pass an array to XLA and to get one back takes 3 us, much more than the update of a small variable. Everybody else
sees the variables as before: reading one gives a view of its block, and a new value from elsewhere takes it out of the
block, into which it comes back with the next run of the segment.

Small arrays that come from other tasks, or go to them, are joined to bundles only for the call of the segment. Larger
variables lie together where a pass has joined their updates.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph.shape import TensorShape
from penstock.segments.stored_variable import USED_UP, Part, StoredVariable, is_used_up, locks_of, placed

LARGEST = 1 << 11  # bytes: to copy a larger variable takes longer than to pass it
FEWEST = 32  # variables: for fewer it does not pay to compile longer
MOST = 256  # variables in one block: with more XLA compiles much longer
_AT_ONCE = 8  # arrays that are joined at a time: XLA compiles three times as long if it joins all at once


class Block:
    """Holds variables of one type in one array. Only who holds the locks of all of them may call `taken` and `put`."""

    def __init__(self, variables: Sequence[StoredVariable], jax_device: Any) -> None:
        self.array: Any = None
        self._variables = variables
        self._jax_device = jax_device
        self._viewed: tuple[Any, np.ndarray] | None = None  # the array, and the view of it that readers share
        self._parts: list[Part] = []
        end = 0
        for variable in variables:
            start, end = end, end + variable.declared_bytes // variable.dtype.size
            self._parts.append(Part(self, start, end, variable.shape.as_list(), variable.declared_bytes))

    def view(self) -> np.ndarray | None:
        """Returns the array for readers, who hold no lock; None while an update writes into it."""
        array, viewed = self.array, self._viewed
        if viewed is None or viewed[0] is not array:
            try:
                self._viewed = viewed = array, np.asarray(array)
            except RuntimeError:
                if not array.is_deleted():
                    raise
                return None
        return viewed[1]

    def taken(self) -> Any:
        """Returns the array of the current values, to be donated. Variables that have left the block come back."""
        if not self.is_whole():
            values = [np.asarray(variable.read()) for variable in self._variables]
            self.replace(placed(joined_on_host(values), self._jax_device))
        self._viewed = None  # XLA writes into memory that nobody else uses
        return self.array

    def put(self, array: Any) -> None:
        """Stores the new values of all variables, after `taken`."""
        self.array = array

    def is_whole(self) -> bool:
        """Tells if the values of all variables are in the block."""
        return all(map(operator.is_, [variable.held for variable in self._variables], self._parts))

    def current(self) -> Any:
        """Returns the values of all variables as one array, and leaves them where they are."""
        if self.is_whole():
            self._viewed = None  # XLA writes into memory that nobody else uses
            return self.array
        values = [variable.value for variable in self._variables]
        for value in values:
            if value is None or value is USED_UP:
                return value
        return joined_on_host([np.asarray(value) for value in values])

    def replace(self, array: Any) -> None:
        """Stores the new values of all variables."""
        self.array = array
        for variable, part in zip(self._variables, self._parts, strict=True):
            variable.held = part

    def forget(self) -> None:
        """Marks all variables as uninitialised."""
        for variable in self._variables:
            variable.forget()

    def split(self, array: Any) -> list[Any]:
        """Returns the values of the variables, inside compiled code."""
        return split(array, [part.shape for part in self._parts])


class JoinedVariable(StoredVariable):
    """Stands for several variables that one update takes as one (passes/join.py): they lie in a block of their own.

    >>> both = JoinedVariable((weights, biases), jax.devices("cpu")[0])
    >>> both.value = both.read() - 0.1 * gradient
    """

    __slots__ = ("__weakref__", "_block", "_parts")

    def __init__(self, parts: Sequence[StoredVariable], jax_device: Any) -> None:
        count = sum(part.declared_bytes // part.dtype.size for part in parts)
        name = f"{parts[0].name} and {len(parts) - 1} more"
        super().__init__(name, parts[0].dtype, TensorShape((count,)), parts[0].on_cpu)
        self._parts = parts
        self._block = Block(parts, jax_device)
        self.lock = locks_of(parts)

    @property
    def locks(self) -> tuple[tuple[int, Any], ...]:
        return tuple([pair for part in self._parts for pair in part.locks])

    @property
    def value(self) -> Any:
        return self._block.current()

    @value.setter
    def value(self, value: Any) -> None:
        self._block.replace(value)

    def read(self) -> Any:
        for part in self._parts:
            if part.held is None:
                part.read()  # raises an error that names it
        return super().read()

    def forget(self) -> None:
        self._block.forget()

    def settle(self) -> None:
        self._parts[0].settle()

    def nbytes(self) -> int:
        return sum(part.nbytes() for part in self._parts)


class Blocks:
    """Holds the variables that a segment updates as XLA gets them: first blocks, then those that are in none.

    >>> old = blocks.taken()
    >>> blocks.put(blocks.joined([value + 1 for value in blocks.split(old)]))
    """

    def __init__(self, variables: Sequence[StoredVariable], jax_device: Any, is_used: bool) -> None:
        alone = [(i, v) for i, v in enumerate(variables) if is_used and v.__class__ is StoredVariable]
        self._places = _groups((i, v.declared_bytes, v.dtype) for i, v in alone)
        self._blocks = [Block([variables[i] for i in places], jax_device) for places in self._places]
        together = {i for places in self._places for i in places}
        self._alone = [i for i in range(len(variables)) if i not in together]
        self._others = [variables[i] for i in self._alone]

    def taken(self) -> list[Any]:
        """Returns the current values, to be donated."""
        others = [variable.value for variable in self._others]
        return [*(block.taken() for block in self._blocks), *others] if self._blocks else others

    def put(self, new: Sequence[Any]) -> None:
        """Stores new values."""
        for block, value in zip(self._blocks, new, strict=False):
            block.put(value)
        for variable, value in zip(self._others, new[len(self._blocks) :], strict=True):
            variable.value = value

    def forget_lost(self, old: Sequence[Any]) -> None:
        """Marks variables as uninitialised whose buffers were donated to a call that failed, for lack of memory say."""
        holders: list[Block | StoredVariable] = [*self._blocks, *self._others]
        for holder, value in zip(holders, old, strict=True):
            if is_used_up(value):
                holder.forget()

    # Inside compiled code

    def split(self, packed: Sequence[Any]) -> Sequence[Any]:
        """Returns one value for each variable."""
        if not self._blocks:
            return packed
        values = dict(zip(self._alone, packed[len(self._blocks) :], strict=True))
        for block, places, array in zip(self._blocks, self._places, packed, strict=False):
            values.update(zip(places, block.split(array), strict=True))
        return [values[i] for i in range(len(values))]

    def joined(self, values: Sequence[Any]) -> Sequence[Any]:
        """Returns one value for each variable in the form that XLA gets them."""
        if not self._blocks:
            return values
        blocks = [joined([values[i] for i in places]) for places in self._places]
        return [*blocks, *(values[i] for i in self._alone)]


@jax.tree_util.register_pytree_node_class
class Bundle:
    """Holds the arrays that a segment gets or returns, of which many small ones of a type are one array."""

    def __init__(self, arrays: Sequence[Any], layout: tuple[Any, ...]) -> None:
        self._arrays = arrays  # first those that are joined, then the others
        self._layout = layout  # places and shapes of what is in each of the joined ones

    def tree_flatten(self) -> tuple[Sequence[Any], tuple[Any, ...]]:
        return self._arrays, self._layout

    @classmethod
    def tree_unflatten(cls, layout: tuple[Any, ...], arrays: Sequence[Any]) -> Bundle:
        return cls(arrays, layout)

    def split(self) -> list[Any]:
        """Returns all arrays. Outside of compiled code those that were joined are views in the host's memory."""
        values: dict[int, Any] = {}
        for array, (places, shapes) in zip(self._arrays, self._layout, strict=False):
            values.update(zip(places, split(array, shapes), strict=True))
        others = self._arrays[len(self._layout) :]
        rest = iter(others)
        return [values[i] if i in values else next(rest) for i in range(len(values) + len(others))]


def bundled(arrays: Sequence[Any], places: Sequence[int], join: Callable[[Sequence[Any]], Any]) -> Any:
    """Returns arrays with those at `places` joined that are small and many, or the same if there are none."""
    if len(places) < FEWEST:
        return arrays
    groups = _groups((i, arrays[i].nbytes, arrays[i].dtype) for i in places if hasattr(arrays[i], "nbytes"))
    if not groups:
        return arrays
    together = {i for group in groups for i in group}
    parts = [join([arrays[i] for i in group]) for group in groups]
    layout = tuple([(tuple(group), tuple([arrays[i].shape for i in group])) for group in groups])
    return Bundle([*parts, *(array for i, array in enumerate(arrays) if i not in together)], layout)


def _groups(found: Iterable[tuple[int, int, Any]]) -> list[list[int]]:
    """Returns the places of each block of small arrays, of which places, bytes and types are given."""
    by_type: dict[Any, list[int]] = {}
    for place, nbytes, dtype in found:
        if 0 < nbytes <= LARGEST:
            by_type.setdefault(dtype, []).append(place)
    many = [places for places in by_type.values() if len(places) >= FEWEST]
    return [places[i : i + MOST] for places in many for i in range(0, len(places), MOST)]


def split(array: Any, shapes: Sequence[Any]) -> list[Any]:
    """Returns the arrays that were joined: outside of compiled code views in the host's memory."""
    is_traced = isinstance(array, jax.core.Tracer)
    whole, end = array if is_traced else np.asarray(array), 0
    parts = []
    for shape in shapes:
        start, end = end, end + math.prod(shape)
        part = jax.lax.slice(whole, (start,), (end,)) if is_traced else whole[start:end]
        parts.append(part.reshape(shape))
    return parts


def joined_on_host(values: Sequence[np.ndarray]) -> np.ndarray:
    """Returns small arrays as one."""
    return np.concatenate(values, axis=None)


def joined(values: Sequence[Any]) -> Any:
    """Returns small arrays as one, inside compiled code."""
    flat = [jnp.reshape(value, -1) for value in values]
    while len(flat) > 1:
        flat = list(jax.lax.optimization_barrier(tuple(flat)))  # else XLA joins all at once
        flat = [jnp.concatenate(flat[i : i + _AT_ONCE]) for i in range(0, len(flat), _AT_ONCE)]
    return flat[0]
