"""Staging areas: one step stores values for a later step, so that transfers and computation overlap."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.graph import get_default_graph
from penstock.graph.opdef import op
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.ops.queue.components import HasComponents, types_of
from penstock.ops.queue.queue_resources import Queue


class _Area(Queue):
    kind = "StagingArea"


def _area(resource: Any, dtypes: list[DType], capacity: int) -> _Area:
    found = resource(lambda name: _Area(name, dtypes, [], capacity or -1))
    if not isinstance(found, _Area):
        raise InvalidArgumentError(f"{found} is no staging area. Use another shared_name.")
    return found


@op("Stage", "list(dtypes) ->", host=True, stateful=True, blocking=True, no_gradient=True)
def stage(
    values: list[Any],
    *,
    capacity: int = 0,
    memory_limit: int = 0,
    dtypes: list[DType],
    container: str = "",
    shared_name: str = "",
    resource: Any,
    ctx: Any,
) -> None:
    _area(resource, dtypes, capacity).enqueue([tuple(np.array(v) for v in values)], ctx)


@op(
    "Unstage",
    "-> values: list(dtypes)",
    host=True,
    stateful=True,
    blocking=True,
    no_gradient=True,
    shape=lambda node: [TensorShape.of(None)] * len(node.outputs),
)
def unstage(
    *,
    capacity: int = 0,
    memory_limit: int = 0,
    dtypes: list[DType],
    container: str = "",
    shared_name: str = "",
    resource: Any,
    ctx: Any,
) -> Any:
    return list(_area(resource, dtypes, capacity).dequeue(1, ctx)[0])


@op("StageSize", "-> size: int32", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def stage_size(
    *,
    capacity: int = 0,
    memory_limit: int = 0,
    dtypes: list[DType],
    container: str = "",
    shared_name: str = "",
    resource: Any,
) -> Any:
    return np.asarray(_area(resource, dtypes, capacity).size(), np.int32)


@op("StageClear", "->", host=True, stateful=True, no_gradient=True)
def stage_clear(
    *,
    capacity: int = 0,
    memory_limit: int = 0,
    dtypes: list[DType],
    container: str = "",
    shared_name: str = "",
    resource: Any,
    ctx: Any,
) -> None:
    area = _area(resource, dtypes, capacity)
    while area.size():
        area.dequeue(1, ctx)


class StagingArea(HasComponents):
    """Holds values between steps: one step `put`s them, another `get`s them, oldest first.

    >>> area = StagingArea([tf.float32]); put = area.put([images]); (images,) = area.get()
    """

    def __init__(
        self,
        dtypes: Any,
        shapes: Any = None,
        names: list[str] | None = None,
        shared_name: str | None = None,
        capacity: int = 0,
        memory_limit: int = 0,
    ) -> None:
        super().__init__("StagingArea", types_of(dtypes), shapes, names)
        self._name = get_default_graph().unique_name("StagingArea") if shared_name is None else shared_name
        self._attrs: dict[str, Any] = {
            "capacity": capacity,
            "memory_limit": memory_limit,
            "dtypes": self._dtypes,
            "shared_name": self._name,
        }

    @property
    def name(self) -> str:
        return self._name

    def put(self, values: Any, name: str | None = None) -> Any:
        """The operation that stores values."""
        items = self._in_order(f"StagingArea '{self._name}'", values)
        with name_scope(name, f"{self._name}_put", items) as scope:
            tensors = [convert_to_tensor(v, dtype=d) for v, d in zip(items, self._dtypes, strict=True)]
            return stage(tensors, **self._attrs, name=scope)

    def get(self, name: str | None = None) -> Any:
        """The values that were stored first; removes them."""
        tensors = unstage(**self._attrs, name=name or f"{self._name}_get")
        for tensor, known in zip(tensors, self._shapes, strict=True):
            tensor.set_shape(known)
        return self._named(list(tensors))

    def size(self, name: str | None = None) -> Any:
        """The number of stored elements."""
        return stage_size(**self._attrs, name=name or f"{self._name}_size")

    def clear(self, name: str | None = None) -> Any:
        """The operation that drops all stored values."""
        return stage_clear(**self._attrs, name=name or f"{self._name}_clear")
