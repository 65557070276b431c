"""The components of an element of a queue or staging area, in the forms in which programs pass it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.graph.dtype import DType, as_dtype
from penstock.graph.operation import Tensor
from penstock.graph.shape import TensorShape, as_shape


class HasComponents:
    """Elements are lists of tensors, one of each type, or dicts of them if there are names.

    >>> queue = tf.FIFOQueue(10, [tf.float32, tf.int32], names=["x", "y"]); queue.dtypes
    [tf.float32, tf.int32]
    """

    def __init__(self, what: str, dtypes: list[DType], shapes: Sequence[Any] | None, names: list[str] | None) -> None:
        for given, parts in (("shapes", shapes), ("names", names)):
            if parts is not None and len(parts) != len(dtypes):
                raise ValueError(f"{what}: {len(dtypes)} components need as many {given}, received {parts!r}.")
        self._dtypes = dtypes
        self._shapes = [TensorShape.of(None)] * len(dtypes) if shapes is None else [as_shape(s) for s in shapes]
        self._names = names

    @property
    def dtypes(self) -> list[DType]:
        """One type per component."""
        return self._dtypes

    @property
    def shapes(self) -> list[TensorShape]:
        """One shape per component."""
        return self._shapes

    @property
    def names(self) -> list[str] | None:
        """One name per component, or None."""
        return self._names

    def _in_order(self, what: str, values: Any) -> list[Any]:
        """The parts of an element in the order of the components."""
        if isinstance(values, Mapping):
            if self._names is None:
                raise ValueError(f"{what} has no names, so it takes no dict; received {values!r}.")
            if sorted(map(str, values)) != sorted(self._names):
                raise ValueError(f"{what} takes a dict of {self._names}, received {sorted(values)}.")
            return [values[name] for name in self._names]
        if self._names is not None:
            raise ValueError(f"{what} takes a dict of {self._names}, received {values!r}.")
        return listed(values)

    def _named(self, tensors: list[Tensor]) -> Any:
        """An element of tensors in the order of the components: a dict if there are names."""
        return tensors if self._names is None else dict(zip(self._names, tensors, strict=True))


def listed(values: Any) -> list[Any]:
    """The parts of an element, in the order in which they are given."""
    if isinstance(values, (list, tuple)):
        return list(values)
    return list(values.values()) if isinstance(values, Mapping) else [values]


def types_of(dtypes: Any) -> list[DType]:
    """One type or several, as a list."""
    return [as_dtype(d) for d in (dtypes if isinstance(dtypes, (list, tuple)) else [dtypes])]
