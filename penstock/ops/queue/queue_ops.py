"""The ops that make queues, put elements in and take them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle, behind
from penstock.ops.queue import queue_resources

_NO_SHAPES: list[TensorShape] = []
_NO_TYPES: list[DType] = []


def _found(
    resource: Callable[..., Any],
    kind: type[queue_resources.Queue],
    dtypes: Sequence[DType],
    shapes: Sequence[TensorShape],
    capacity: int,
    **kwargs: Any,
) -> np.ndarray:
    """The handle of a node's queue, which is made at its first use."""
    found = resource(lambda name: kind(name, dtypes, shapes, capacity, **kwargs))
    if type(found) is not kind or found.dtypes != tuple(dtypes):
        wanted, held = (", ".join(d.name for d in types) for types in (dtypes, getattr(found, "dtypes", ())))
        raise InvalidArgumentError(
            f"{found} exists already and holds ({held}), so it is not a {kind.kind} of ({wanted}). "
            "Use another shared_name."
        )
    return as_handle(found)


@op("FIFOQueueV2", "-> handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def fifo_queue_v2(
    *,
    component_types: list[DType],
    shapes: list[TensorShape] = _NO_SHAPES,
    capacity: int = -1,
    container: str = "",
    shared_name: str = "",
    resource: Any,
) -> np.ndarray:
    return _found(resource, queue_resources.Queue, component_types, shapes, capacity)


@op("PaddingFIFOQueueV2", "-> handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def padding_fifo_queue_v2(
    *,
    component_types: list[DType],
    shapes: list[TensorShape] = _NO_SHAPES,
    capacity: int = -1,
    container: str = "",
    shared_name: str = "",
    resource: Any,
) -> np.ndarray:
    return _found(resource, queue_resources.PaddedQueue, component_types, shapes, capacity)


@op("RandomShuffleQueueV2", "-> handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def random_shuffle_queue_v2(
    *,
    component_types: list[DType],
    shapes: list[TensorShape] = _NO_SHAPES,
    capacity: int = -1,
    min_after_dequeue: int = 0,
    seed: int = 0,
    seed2: int = 0,
    container: str = "",
    shared_name: str = "",
    resource: Any,
) -> np.ndarray:
    return _found(
        resource,
        queue_resources.ShuffledQueue,
        component_types,
        shapes,
        capacity,
        min_after_dequeue=min_after_dequeue,
        seed=seed,
        seed2=seed2,
    )


@op("PriorityQueueV2", "-> handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def priority_queue_v2(
    *,
    component_types: list[DType] = _NO_TYPES,
    shapes: list[TensorShape],
    capacity: int = -1,
    container: str = "",
    shared_name: str = "",
    resource: Any,
) -> np.ndarray:
    dtypes = [dt.int64, *component_types]
    return _found(resource, queue_resources.SortedQueue, dtypes, [TensorShape.of(()), *shapes], capacity)


@op(
    "QueueEnqueueV2",
    "resource, list(Tcomponents) ->",
    host=True,
    stateful=True,
    blocking=True,
    gives_way=True,
    no_gradient=True,
)
def queue_enqueue_v2(
    handle: Any, components: list[np.ndarray], *, Tcomponents: list[DType], timeout_ms: int = -1, ctx: Any
) -> None:
    queue = behind(handle)
    queue.check(Tcomponents, components, many=False)
    # A copy, since a fed array may change once the step is over.
    queue.enqueue([tuple(np.array(c) for c in components)], ctx)


@op(
    "QueueEnqueueManyV2",
    "resource, list(Tcomponents) ->",
    host=True,
    stateful=True,
    blocking=True,
    gives_way=True,
    no_gradient=True,
)
def queue_enqueue_many_v2(
    handle: Any, components: list[np.ndarray], *, Tcomponents: list[DType], timeout_ms: int = -1, ctx: Any
) -> None:
    queue = behind(handle)
    queue.check(Tcomponents, components, many=True)
    copies = [np.array(c) for c in components]
    queue.enqueue([tuple(c[i, ...] for c in copies) for i in range(len(copies[0]))], ctx)


def _element_shapes(op: Operation) -> list[TensorShape]:
    """The shapes of one element, from the queue's node if it is in this graph."""
    queue = op.input_list[0].op
    known = list(queue.attrs.get("shapes", ()))
    if known and queue.type == "PriorityQueueV2":
        known.insert(0, TensorShape.of(()))
    return known if len(known) == len(op.outputs) else [TensorShape.of(None)] * len(op.outputs)


def _batch_shapes(op: Operation) -> list[TensorShape]:
    n = constant_value(op.input_list[1]) if op.type == "QueueDequeueManyV2" else None
    return [TensorShape.of((None if n is None else int(n),)).concatenate(s) for s in _element_shapes(op)]


@op(
    "QueueDequeueV2",
    "resource -> components: list(component_types)",
    host=True,
    stateful=True,
    blocking=True,
    gives_way=True,
    no_gradient=True,
    shape=_element_shapes,
)
def queue_dequeue_v2(handle: Any, *, component_types: list[DType], timeout_ms: int = -1, ctx: Any) -> list[np.ndarray]:
    queue = behind(handle)
    queue.check(component_types, (), many=False)
    return list(queue.dequeue(1, ctx)[0])


@op(
    "QueueDequeueManyV2",
    "resource, int32 -> components: list(component_types)",
    host=True,
    stateful=True,
    blocking=True,
    gives_way=True,
    no_gradient=True,
    shape=_batch_shapes,
)
def queue_dequeue_many_v2(
    handle: Any, n: np.ndarray, *, component_types: list[DType], timeout_ms: int = -1, ctx: Any
) -> list[np.ndarray]:
    return _dequeue_batch(behind(handle), component_types, int(n), ctx, up_to=False)


@op(
    "QueueDequeueUpToV2",
    "resource, int32 -> components: list(component_types)",
    host=True,
    stateful=True,
    blocking=True,
    gives_way=True,
    no_gradient=True,
    shape=_batch_shapes,
)
def queue_dequeue_up_to_v2(
    handle: Any, n: np.ndarray, *, component_types: list[DType], timeout_ms: int = -1, ctx: Any
) -> list[np.ndarray]:
    return _dequeue_batch(behind(handle), component_types, int(n), ctx, up_to=True)


def _dequeue_batch(
    queue: queue_resources.Queue, dtypes: Sequence[DType], count: int, ctx: Any, up_to: bool
) -> list[np.ndarray]:
    queue.check(dtypes, (), many=True)
    queue.require_shapes()
    if count < 0:
        raise InvalidArgumentError(f"{queue}: the number of elements must be >= 0, received {count}.")
    return queue.batch(queue.dequeue(count, ctx, up_to))


@op("QueueCloseV2", "resource ->", host=True, stateful=True, blocking=True, no_gradient=True)
def queue_close_v2(handle: Any, *, cancel_pending_enqueues: bool = False, ctx: Any) -> None:
    behind(handle).seal(cancel_pending_enqueues, ctx)


@op("QueueIsClosedV2", "resource -> is_closed: bool", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def queue_is_closed_v2(handle: Any) -> np.ndarray:
    return np.array(behind(handle).is_closed)


@op("QueueSizeV2", "resource -> size: int32", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def queue_size_v2(handle: Any) -> np.ndarray:
    return np.array(behind(handle).size(), np.int32)
