"""Queues: some steps put elements in, others take them out in order, at random, padded or by priority."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import device, get_seed, init_scope, name_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.typing import TensorLike
from penstock.ops.array import gathering, joining
from penstock.ops.queue.components import HasComponents, listed, types_of
from penstock.ops.queue.queue_ops import (
    fifo_queue_v2,
    padding_fifo_queue_v2,
    priority_queue_v2,
    queue_close_v2,
    queue_dequeue_many_v2,
    queue_dequeue_up_to_v2,
    queue_dequeue_v2,
    queue_enqueue_many_v2,
    queue_enqueue_v2,
    queue_is_closed_v2,
    queue_size_v2,
    random_shuffle_queue_v2,
)


class QueueBase(HasComponents):
    """Base class of queues. An element is a tuple of tensors, or a dict of them if the queue has names.

    >>> queue = tf.FIFOQueue(10, [tf.float32, tf.int32], names=["x", "y"])
    >>> put, taken = queue.enqueue({"x": 1.0, "y": 2}), queue.dequeue()["x"]
    """

    def __init__(self, dtypes: Any, shapes: Any, names: Any, queue_ref: Tensor) -> None:
        super().__init__("Queue", dtypes, shapes, names)
        self._queue_ref = queue_ref
        self._name = queue_ref.op.name.split("/")[-1]

    @staticmethod
    def from_list(index: Any, queues: Sequence[QueueBase]) -> QueueBase:
        """The queue at `index` (a tensor) of several with the same types: `tf.QueueBase.from_list(i, [q0, q1])`."""
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

    def enqueue(self, vals: Any, name: str | None = None) -> Operation:
        """Puts in one element, as soon as there is room: `queue.enqueue((x, y))`."""
        with name_scope(name, f"{self._name}_enqueue", listed(vals)) as scope:
            tensors = self._converted(vals)
            for tensor, shape in zip(tensors, self._shapes, strict=False):
                tensor.shape.assert_is_compatible_with(shape)
            node: Operation = queue_enqueue_v2(self._queue_ref, tensors, name=scope)
        return node

    def enqueue_many(self, vals: Any, name: str | None = None) -> Operation:
        """Puts in as many elements as the components have rows: `queue.enqueue_many((rows, labels))`."""
        with name_scope(name, f"{self._name}_EnqueueMany", listed(vals)) as scope:
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

    def dequeue_many(self, n: TensorLike, name: str | None = None) -> Any:
        """Takes out `n` elements as one batch, waiting for them: `rows, labels = queue.dequeue_many(32)`."""
        outputs = queue_dequeue_many_v2(
            self._queue_ref, n, component_types=self._dtypes, name=name or f"{self._name}_DequeueMany"
        )
        count = constant_value(outputs[0].op.input_list[1])
        return self._batch(outputs, None if count is None else int(count))

    def dequeue_up_to(self, n: TensorLike, name: str | None = None) -> Any:
        """As `dequeue_many`, but returns a smaller batch if the queue is closed and has fewer elements left."""
        outputs = queue_dequeue_up_to_v2(
            self._queue_ref, n, component_types=self._dtypes, name=name or f"{self._name}_DequeueUpTo"
        )
        return self._batch(outputs, None)

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Operation:
        """Closes the queue to new elements. Waits for pending enqueues, or cancels them if told to."""
        node: Operation = queue_close_v2(
            self._queue_ref, cancel_pending_enqueues=cancel_pending_enqueues, name=name or f"{self._name}_Close"
        )
        return node

    def is_closed(self, name: str | None = None) -> Tensor:
        """True if the queue is closed: a bool scalar."""
        closed: Tensor = queue_is_closed_v2(self._queue_ref, name=name or f"{self._name}_Is_Closed")
        return closed

    def size(self, name: str | None = None) -> Tensor:
        """The number of elements: an int32 scalar."""
        size: Tensor = queue_size_v2(self._queue_ref, name=name or f"{self._name}_Size")
        return size

    def _converted(self, vals: Any) -> list[Tensor]:
        """An element as tensors in the order of the components."""
        pairs = zip(self._in_order(f"Queue '{self.name}'", vals), self._dtypes, strict=False)
        return [convert_to_tensor(v, dtype=d, name=f"component_{i}") for i, (v, d) in enumerate(pairs)]

    def _batch(self, outputs: list[Tensor], count: int | None) -> Any:
        for tensor, shape in zip(outputs, self._shapes, strict=True):
            tensor.set_shape(TensorShape.of((count,)).concatenate(shape))
        return self._element(outputs)

    def _element(self, tensors: list[Tensor]) -> Any:
        return tensors[0] if self._names is None and len(tensors) == 1 else self._named(tensors)


class FIFOQueue(QueueBase):
    """A queue that returns elements in the order in which they came: `tf.FIFOQueue(10, [tf.float32], shapes=[[2]])`."""

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        name: str = "fifo_queue",
    ) -> None:
        dtypes = types_of(dtypes)
        shapes = _shapes(shapes, dtypes)
        with init_scope(), device("CPU"):
            handle = fifo_queue_v2(
                component_types=dtypes, shapes=shapes or [], capacity=capacity, shared_name=shared_name or "", name=name
            )
        super().__init__(dtypes, shapes, _names(names, dtypes), handle)


class RandomShuffleQueue(QueueBase):
    """A queue that returns a random one of its elements: `tf.RandomShuffleQueue(100, 20, tf.float32, seed=1)`.

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
        dtypes = types_of(dtypes)
        shapes = _shapes(shapes, dtypes)
        seed1, seed2 = get_seed(seed)
        if seed1 is not None and seed is None and shared_name is not None:
            # All replicas share the queue, so the seed must not depend on the number of ops in a graph.
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
        dtypes = types_of(dtypes)
        shapes = _shapes(shapes, dtypes, partial=True)
        if shapes is None:
            raise ValueError("PaddingFIFOQueue: shapes must be given, with None for dimensions to pad.")
        handle = padding_fifo_queue_v2(
            component_types=dtypes, shapes=shapes, capacity=capacity, shared_name=shared_name or "", name=name
        )
        super().__init__(dtypes, shapes, _names(names, dtypes), handle)


class PriorityQueue(QueueBase):
    """A queue that returns the element with the smallest priority: `tf.PriorityQueue(10, [tf.string], [[]])`.

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
        types = types_of(types)
        shapes = _shapes(shapes, types)
        handle = priority_queue_v2(
            component_types=types, shapes=shapes or [], capacity=capacity, shared_name=shared_name or "", name=name
        )
        dtypes = [dt.int64, *types]
        super().__init__(dtypes, shapes and [TensorShape.of(()), *shapes], _names(names, dtypes), handle)


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
