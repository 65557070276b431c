"""Queues: elements that some steps put in and others take out, in order, at random, padded or by priority."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import device, get_seed, init_scope, name_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle, from_handle
from penstock.ops.array import gathering, joining
from penstock.ops.queue import resources

_NO_SHAPES: list[TensorShape] = []
_NO_TYPES: list[DType] = []


def _found(
    resource: Callable[..., Any],
    kind: type[resources.Queue],
    dtypes: Sequence[DType],
    shapes: Sequence[TensorShape],
    capacity: int,
    **kwargs: Any,
) -> np.ndarray:
    """The handle of the queue that a node stands for, made at its first use."""
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
    return _found(resource, resources.Queue, component_types, shapes, capacity)


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
    return _found(resource, resources.PaddedQueue, component_types, shapes, capacity)


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
        resources.ShuffledQueue,
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
    return _found(resource, resources.SortedQueue, dtypes, [TensorShape.of(()), *shapes], capacity)


@op(
    "QueueEnqueueV2",
    "resource, list(Tcomponents) ->",
    host=True,
    stateful=True,
    blocking=True,
    can_suspend=True,
    no_gradient=True,
)
def queue_enqueue_v2(
    handle: Any, components: list[np.ndarray], *, Tcomponents: list[DType], timeout_ms: int = -1, ctx: Any
) -> None:
    queue = from_handle(handle)
    queue.check(Tcomponents, components, many=False)
    # A copy, for what was fed may change once the step is over.
    queue.enqueue([tuple(np.array(c) for c in components)], ctx)


@op(
    "QueueEnqueueManyV2",
    "resource, list(Tcomponents) ->",
    host=True,
    stateful=True,
    blocking=True,
    can_suspend=True,
    no_gradient=True,
)
def queue_enqueue_many_v2(
    handle: Any, components: list[np.ndarray], *, Tcomponents: list[DType], timeout_ms: int = -1, ctx: Any
) -> None:
    queue = from_handle(handle)
    queue.check(Tcomponents, components, many=True)
    copies = [np.array(c) for c in components]
    queue.enqueue([tuple(c[i, ...] for c in copies) for i in range(len(copies[0]))], ctx)


def _element_shapes(op: Operation) -> list[TensorShape]:
    """The shapes of one element, from the node of the queue where it is at hand."""
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
    can_suspend=True,
    no_gradient=True,
    shape=_element_shapes,
)
def queue_dequeue_v2(handle: Any, *, component_types: list[DType], timeout_ms: int = -1, ctx: Any) -> list[np.ndarray]:
    queue = from_handle(handle)
    queue.check(component_types, (), many=False)
    return list(queue.dequeue(1, ctx)[0])


@op(
    "QueueDequeueManyV2",
    "resource, int32 -> components: list(component_types)",
    host=True,
    stateful=True,
    blocking=True,
    can_suspend=True,
    no_gradient=True,
    shape=_batch_shapes,
)
def queue_dequeue_many_v2(
    handle: Any, n: np.ndarray, *, component_types: list[DType], timeout_ms: int = -1, ctx: Any
) -> list[np.ndarray]:
    return _dequeue_batch(from_handle(handle), component_types, int(n), ctx, up_to=False)


@op(
    "QueueDequeueUpToV2",
    "resource, int32 -> components: list(component_types)",
    host=True,
    stateful=True,
    blocking=True,
    can_suspend=True,
    no_gradient=True,
    shape=_batch_shapes,
)
def queue_dequeue_up_to_v2(
    handle: Any, n: np.ndarray, *, component_types: list[DType], timeout_ms: int = -1, ctx: Any
) -> list[np.ndarray]:
    return _dequeue_batch(from_handle(handle), component_types, int(n), ctx, up_to=True)


def _dequeue_batch(
    queue: resources.Queue, dtypes: Sequence[DType], count: int, ctx: Any, up_to: bool
) -> list[np.ndarray]:
    queue.check(dtypes, (), many=True)
    queue.require_shapes()
    if count < 0:
        raise InvalidArgumentError(f"{queue}: the number of elements must be >= 0, received {count}.")
    return queue.batch(queue.dequeue(count, ctx, up_to))


@op("QueueCloseV2", "resource ->", host=True, stateful=True, blocking=True, no_gradient=True)
def queue_close_v2(handle: Any, *, cancel_pending_enqueues: bool = False, ctx: Any) -> None:
    from_handle(handle).seal(cancel_pending_enqueues, ctx)


@op("QueueIsClosedV2", "resource -> is_closed: bool", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def queue_is_closed_v2(handle: Any) -> np.ndarray:
    return np.array(from_handle(handle).is_closed)


@op("QueueSizeV2", "resource -> size: int32", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def queue_size_v2(handle: Any) -> np.ndarray:
    return np.array(from_handle(handle).size(), np.int32)


class QueueBase:
    """What all queues have in common. An element is a tuple of tensors, or a dict of them where the queue has names.

    >>> queue = tf.FIFOQueue(10, [tf.float32, tf.int32], names=["x", "y"])
    >>> put, taken = queue.enqueue({"x": 1.0, "y": 2}), queue.dequeue()["x"]
    """

    def __init__(self, dtypes: Any, shapes: Any, names: Any, queue_ref: Tensor) -> None:
        self._dtypes: list[DType] = dtypes
        if shapes is not None and len(shapes) != len(dtypes):
            raise ValueError(f"Queue: {len(dtypes)} components need as many shapes, received {shapes!r}.")
        unknown = [TensorShape.of(None)] * len(dtypes)
        self._shapes: list[TensorShape] = unknown if shapes is None else [as_shape(s) for s in shapes]
        if names is not None and len(names) != len(dtypes):
            raise ValueError(f"Queue: {len(dtypes)} components need as many names, received {names!r}.")
        self._names: list[str] | None = names
        self._queue_ref = queue_ref
        self._name = queue_ref.op.name.split("/")[-1]

    @staticmethod
    def from_list(index: Any, queues: Sequence[QueueBase]) -> QueueBase:
        """The queue at `index` (a tensor) of several that hold the same: `tf.QueueBase.from_list(i, [q0, q1])`."""
        if not queues or not isinstance(queues, (list, tuple)) or not all(isinstance(q, QueueBase) for q in queues):
            raise TypeError(f"from_list: queues must be a list of at least one queue, received {queues!r}.")
        first = queues[0]
        if any(q.dtypes != first.dtypes for q in queues):
            raise TypeError(f"from_list: queues must hold the same types, received {[q.dtypes for q in queues]}.")
        if any(q.names != first.names for q in queues):
            raise ValueError(f"from_list: queues must have the same names, received {[q.names for q in queues]}.")
        common = list(first.shapes)
        for queue in queues[1:]:
            pairs = zip(common, queue.shapes, strict=True)
            common = [a.most_specific_compatible_shape(b) for a, b in pairs]
        chosen = gathering.gather(joining.stack([q.queue_ref for q in queues]), index)
        return QueueBase(first.dtypes, common, first.names, chosen)

    @property
    def queue_ref(self) -> Tensor:
        """The handle of the queue, as a tensor."""
        return self._queue_ref

    @property
    def name(self) -> str:
        return self._queue_ref.op.name

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

    def enqueue(self, vals: Any, name: str | None = None) -> Operation:
        """Puts in one element, as soon as there is room: `queue.enqueue((x, y))`."""
        with name_scope(name, f"{self._name}_enqueue", self._listed(vals)) as scope:
            tensors = self._converted(vals)
            for tensor, shape in zip(tensors, self._shapes, strict=False):
                tensor.shape.assert_is_compatible_with(shape)
            node: Operation = queue_enqueue_v2(self._queue_ref, tensors, name=scope)
        return node

    def enqueue_many(self, vals: Any, name: str | None = None) -> Operation:
        """Puts in as many elements as the components have rows: `queue.enqueue_many((rows, labels))`."""
        with name_scope(name, f"{self._name}_EnqueueMany", self._listed(vals)) as scope:
            tensors = self._converted(vals)
            batch = TensorShape.of((None,))
            for tensor, shape in zip(tensors, self._shapes, strict=False):
                rows = tensor.shape.with_rank_at_least(1)
                batch = batch.merge_with(rows[:1])
                rows[1:].assert_is_compatible_with(shape)
            node: Operation = queue_enqueue_many_v2(self._queue_ref, tensors, name=scope)
        return node

    def dequeue(self, name: str | None = None) -> Any:
        """Takes out one element, waiting for it: `x, y = queue.dequeue()`."""
        outputs = queue_dequeue_v2(self._queue_ref, component_types=self._dtypes, name=name or f"{self._name}_Dequeue")
        for tensor, shape in zip(outputs, self._shapes, strict=True):
            tensor.set_shape(shape)
        return self._element(outputs)

    def dequeue_many(self, n: Any, name: str | None = None) -> Any:
        """Takes out `n` elements as one batch, waiting for them: `rows, labels = queue.dequeue_many(32)`."""
        outputs = queue_dequeue_many_v2(
            self._queue_ref, n, component_types=self._dtypes, name=name or f"{self._name}_DequeueMany"
        )
        count = constant_value(outputs[0].op.input_list[1])
        return self._batch(outputs, None if count is None else int(count))

    def dequeue_up_to(self, n: Any, name: str | None = None) -> Any:
        """As `dequeue_many`, but gives a smaller batch when the queue is closed and has fewer left."""
        outputs = queue_dequeue_up_to_v2(
            self._queue_ref, n, component_types=self._dtypes, name=name or f"{self._name}_DequeueUpTo"
        )
        return self._batch(outputs, None)

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Operation:
        """Takes no more elements. Those who wait to enqueue are waited for, or cancelled if so asked."""
        node: Operation = queue_close_v2(
            self._queue_ref, cancel_pending_enqueues=cancel_pending_enqueues, name=name or f"{self._name}_Close"
        )
        return node

    def is_closed(self, name: str | None = None) -> Tensor:
        """Whether the queue is closed: a bool scalar."""
        closed: Tensor = queue_is_closed_v2(self._queue_ref, name=name or f"{self._name}_Is_Closed")
        return closed

    def size(self, name: str | None = None) -> Tensor:
        """How many elements the queue holds: an int32 scalar."""
        size: Tensor = queue_size_v2(self._queue_ref, name=name or f"{self._name}_Size")
        return size

    def _listed(self, vals: Any) -> list[Any]:
        if isinstance(vals, (list, tuple)):
            return list(vals)
        return list(vals.values()) if isinstance(vals, dict) else [vals]

    def _converted(self, vals: Any) -> list[Tensor]:
        """An element as tensors in the order of the components."""
        if isinstance(vals, dict):
            if self._names is None:
                raise ValueError(f"Queue '{self.name}' has no names, so it takes no dict; received {vals!r}.")
            if sorted(map(str, vals)) != sorted(self._names):
                raise ValueError(f"Queue '{self.name}' takes a dict of {self._names}, received {sorted(vals)}.")
            vals = [vals[key] for key in self._names]
        elif self._names is not None:
            raise ValueError(f"Queue '{self.name}' takes a dict of {self._names}, received {vals!r}.")
        pairs = zip(self._listed(vals), self._dtypes, strict=False)
        return [convert_to_tensor(v, dtype=d, name=f"component_{i}") for i, (v, d) in enumerate(pairs)]

    def _batch(self, outputs: list[Tensor], count: int | None) -> Any:
        for tensor, shape in zip(outputs, self._shapes, strict=True):
            tensor.set_shape(TensorShape.of((count,)).concatenate(shape))
        return self._element(outputs)

    def _element(self, tensors: list[Tensor]) -> Any:
        if self._names is not None:
            return dict(zip(self._names, tensors, strict=True))
        return tensors[0] if len(tensors) == 1 else tensors


class FIFOQueue(QueueBase):
    """A queue that gives elements in the order in which they came: `tf.FIFOQueue(10, [tf.float32], shapes=[[2]])`."""

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "fifo_queue",
    ) -> None:
        dtypes = _types(dtypes)
        shapes = _shapes(shapes, dtypes)
        with init_scope(), device("CPU"):
            handle = fifo_queue_v2(
                component_types=dtypes, shapes=shapes or [], capacity=capacity, shared_name=shared_name or "", name=name
            )
        super().__init__(dtypes, shapes, _names(names, dtypes), handle)


class RandomShuffleQueue(QueueBase):
    """A queue that gives a random one of its elements: `tf.RandomShuffleQueue(100, 20, tf.float32, seed=1)`.

    While it is open, at least `min_after_dequeue` elements stay in it to choose from.
    """

    def __init__(
        self,
        capacity: int,
        min_after_dequeue: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        seed: int | None = None,
        shared_name: str | None = None,
        name: str = "random_shuffle_queue",
    ) -> None:
        dtypes = _types(dtypes)
        shapes = _shapes(shapes, dtypes)
        seed1, seed2 = get_seed(seed)
        if seed1 is not None and seed is None and shared_name is not None:
            # Every replica names the same queue, so the seed must not depend on how many ops its graph has.
            digest = hashlib.md5(f"{seed1}{shared_name}".encode(), usedforsecurity=False).hexdigest()
            seed2 = int(digest[:8], 16) & 0x7FFFFFFF
        handle = random_shuffle_queue_v2(
            component_types=dtypes,
            shapes=shapes or [],
            capacity=capacity,
            min_after_dequeue=min_after_dequeue,
            seed=seed1 or 0,
            seed2=seed2 or 0,
            shared_name=shared_name or "",
            name=name,
        )
        super().__init__(dtypes, shapes, _names(names, dtypes), handle)


class PaddingFIFOQueue(QueueBase):
    """A FIFOQueue whose batches are padded with zeros: `tf.PaddingFIFOQueue(10, [tf.int32], shapes=[[None]])`."""

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "padding_fifo_queue",
    ) -> None:
        dtypes = _types(dtypes)
        shapes = _shapes(shapes, dtypes, partial=True)
        if shapes is None:
            raise ValueError("PaddingFIFOQueue: shapes must be given, with None for dimensions to pad.")
        handle = padding_fifo_queue_v2(
            component_types=dtypes, shapes=shapes, capacity=capacity, shared_name=shared_name or "", name=name
        )
        super().__init__(dtypes, shapes, _names(names, dtypes), handle)


class PriorityQueue(QueueBase):
    """A queue that gives the element with the smallest priority: `tf.PriorityQueue(10, [tf.string], [[]])`.

    The priority, an int64 scalar, comes first in each element, before the components that `types` names.
    """

    def __init__(
        self,
        capacity: int,
        types: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "priority_queue",
    ) -> None:
        types = _types(types)
        shapes = _shapes(shapes, types)
        handle = priority_queue_v2(
            component_types=types, shapes=shapes or [], capacity=capacity, shared_name=shared_name or "", name=name
        )
        dtypes = [dt.int64, *types]
        super().__init__(dtypes, shapes and [TensorShape.of(()), *shapes], _names(names, dtypes), handle)


def _types(dtypes: Any) -> list[DType]:
    return [as_dtype(d) for d in dtypes] if isinstance(dtypes, (list, tuple)) else [as_dtype(dtypes)]


def _shapes(shapes: Any, dtypes: list[DType], partial: bool = False) -> list[TensorShape] | None:
    if shapes is None:
        return None
    if isinstance(shapes, TensorShape) or all(isinstance(s, int) for s in shapes):
        shapes = [shapes]  # the shape of the only component
    found = [as_shape(s) for s in shapes]
    if len(found) != len(dtypes):
        raise ValueError(f"Queue: {len(dtypes)} components need as many shapes, received {len(found)}.")
    if any(s.rank is None if partial else not s.is_fully_defined() for s in found):
        wanted = "have a known rank" if partial else "be fully defined"
        raise ValueError(f"Queue: all shapes must {wanted}, received {found}.")
    return found


def _names(names: Any, dtypes: list[DType]) -> list[str] | None:
    if names is None:
        return None
    found = [names] if isinstance(names, str) else list(names)
    if len(found) != len(dtypes):
        raise ValueError(f"Queue: {len(dtypes)} components need as many names, received {names!r}.")
    return found
