"""Batches of examples: queues that queue runners fill and from which a step takes many examples at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.ops.array.selection import boolean_mask
from penstock.ops.control.flow import cond
from penstock.ops.control.grouping import group
from penstock.ops.io import summary
from penstock.ops.math.arithmetic import maximum
from penstock.ops.math.casting import cast
from penstock.ops.queue.queues import FIFOQueue, PaddingFIFOQueue, RandomShuffleQueue
from penstock.train.example_form import ExampleForm
from penstock.train.queue_runner import QueueRunner, add_queue_runner


def _shapes(lists: Sequence[Sequence[Tensor]], given: Any, enqueue_many: bool) -> list[TensorShape]:
    if given is not None:
        return [TensorShape(s) for s in given]
    found = []
    for column in zip(*lists, strict=True):
        shapes = [t.shape for t in column]
        if enqueue_many:
            shapes = [s.with_rank_at_least(1)[1:] for s in shapes]
        merged = shapes[0]
        for other in shapes[1:]:
            merged = merged.most_specific_compatible_shape(other)
        found.append(merged)
    return found


def _enqueue_ops(queue: Any, lists: Sequence[Sequence[Tensor]], count: int, enqueue_many: bool, keep: Any) -> list[Any]:
    """An enqueue operation per thread; `keep` tells which examples to enqueue (None for all)."""
    put = queue.enqueue_many if enqueue_many else queue.enqueue

    def add(tensors: Sequence[Tensor]) -> Any:
        if keep is None:
            return put(list(tensors))
        if enqueue_many:
            return put([boolean_mask(t, keep) for t in tensors])
        return cond(keep, lambda: put(list(tensors)), group)

    made = [add(tensors) for tensors in lists]
    return made * count if len(lists) == 1 else made


def _batched(
    lists: Sequence[Any],
    batch_size: Any,
    threads: int,
    enqueue_many: bool,
    shapes: Any,
    dynamic_pad: bool,
    allow_smaller: bool,
    shared_name: str | None,
    name: str | None,
    default: str,
    keep: Any,
    make_queue: Callable[..., Any],
    fullness: Callable[[Any], tuple[str, Any]],
) -> Any:
    form = ExampleForm(lists[0], enqueue_many)
    with name_scope(name, default, [t for each in lists for t in form.items(each)]) as scope:
        flat = [form.flat(each) for each in lists]
        if any([t.dtype for t in each] != [t.dtype for t in flat[0]] for each in flat):
            raise TypeError(f"Every example must have tensors of the same types, received {flat}.")
        keep = None if keep is None else convert_to_tensor(keep)
        known = None if keep is None else constant_value(keep)
        if known is not None and known.all():
            keep = None
        dims = _shapes(flat, shapes, enqueue_many)
        dims = [d if kind is None else TensorShape([3]) for d, kind in zip(dims, form.sparse, strict=True)]
        types = [t.dtype.base_dtype for t in flat[0]]
        queue = make_queue(types, dims, PaddingFIFOQueue if dynamic_pad else FIFOQueue, shared_name)
        add_queue_runner(QueueRunner(queue, _enqueue_ops(queue, flat, threads, enqueue_many, keep)))
        summary.scalar(*fullness(queue))
        take = queue.dequeue_up_to if allow_smaller else queue.dequeue_many
        return form.rebuilt(take(batch_size, name=scope))


def _fifo(capacity: int) -> tuple[Callable[..., Any], Callable[[Any], tuple[str, Any]]]:
    def make(types: Any, dims: Any, kind: Any, shared_name: str | None) -> Any:
        return kind(capacity=capacity, dtypes=types, shapes=dims, shared_name=shared_name)

    def fullness(queue: Any) -> tuple[str, Any]:
        return f"fraction_of_{capacity}_full", cast(queue.size(), dt.float32) * (1.0 / capacity)

    return make, fullness


def _shuffled(capacity: int, least: int, seed: Any) -> tuple[Callable[..., Any], Callable[[Any], tuple[str, Any]]]:
    if capacity <= least:
        raise ValueError(f"capacity {capacity} must be bigger than min_after_dequeue {least}.")

    def make(types: Any, dims: Any, kind: Any, shared_name: str | None) -> Any:
        return RandomShuffleQueue(
            capacity=capacity, min_after_dequeue=least, seed=seed, dtypes=types, shapes=dims, shared_name=shared_name
        )

    def fullness(queue: Any) -> tuple[str, Any]:
        over = cast(maximum(0, queue.size() - least), dt.float32) * (1.0 / (capacity - least))
        return f"fraction_over_{least}_of_{capacity - least}_full", over

    return make, fullness


def batch(
    tensors: Any,
    batch_size: TensorLike,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of examples, which `num_threads` threads make.

    >>> images, labels = tf.train.batch([image, label], batch_size=32, num_threads=4)
    """
    return maybe_batch(
        tensors,
        None,
        batch_size,
        num_threads,
        capacity,
        enqueue_many,
        shapes,
        dynamic_pad,
        allow_smaller_final_batch,
        shared_name,
        name,
    )


def maybe_batch(
    tensors: Any,
    keep_input: TensorLike,
    batch_size: TensorLike,
    num_threads: int = 1,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of those examples for which `keep_input` is true."""
    return _batched(
        [tensors],
        batch_size,
        num_threads,
        enqueue_many,
        shapes,
        dynamic_pad,
        allow_smaller_final_batch,
        shared_name,
        name,
        "batch",
        keep_input,
        *_fifo(capacity),
    )


def batch_join(
    tensors_list: Sequence[Any],
    batch_size: TensorLike,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of examples of several sources, each with its own thread."""
    return maybe_batch_join(
        tensors_list,
        None,
        batch_size,
        capacity,
        enqueue_many,
        shapes,
        dynamic_pad,
        allow_smaller_final_batch,
        shared_name,
        name,
    )


def maybe_batch_join(
    tensors_list: Sequence[Any],
    keep_input: TensorLike,
    batch_size: TensorLike,
    capacity: int = 32,
    enqueue_many: bool = False,
    shapes: Any = None,
    dynamic_pad: bool = False,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of those examples of several sources for which `keep_input` is true."""
    return _batched(
        list(tensors_list),
        batch_size,
        1,
        enqueue_many,
        shapes,
        dynamic_pad,
        allow_smaller_final_batch,
        shared_name,
        name,
        "batch_join",
        keep_input,
        *_fifo(capacity),
    )


def shuffle_batch(
    tensors: Any,
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches of examples in random order; at least `min_after_dequeue` others are mixed with them.

    >>> images, labels = tf.train.shuffle_batch([image, label], 32, capacity=2000, min_after_dequeue=1000)
    """
    return maybe_shuffle_batch(
        tensors,
        batch_size,
        capacity,
        min_after_dequeue,
        None,
        num_threads,
        seed,
        enqueue_many,
        shapes,
        allow_smaller_final_batch,
        shared_name,
        name,
    )


def maybe_shuffle_batch(
    tensors: Any,
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    keep_input: TensorLike,
    num_threads: int = 1,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches in random order of those examples for which `keep_input` is true."""
    return _batched(
        [tensors],
        batch_size,
        num_threads,
        enqueue_many,
        shapes,
        False,
        allow_smaller_final_batch,
        shared_name,
        name,
        "shuffle_batch",
        keep_input,
        *_shuffled(capacity, min_after_dequeue, seed),
    )


def shuffle_batch_join(
    tensors_list: Sequence[Any],
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches in random order of examples of several sources."""
    return maybe_shuffle_batch_join(
        tensors_list,
        batch_size,
        capacity,
        min_after_dequeue,
        None,
        seed,
        enqueue_many,
        shapes,
        allow_smaller_final_batch,
        shared_name,
        name,
    )


def maybe_shuffle_batch_join(
    tensors_list: Sequence[Any],
    batch_size: TensorLike,
    capacity: int,
    min_after_dequeue: int,
    keep_input: TensorLike,
    seed: int | None = None,
    enqueue_many: bool = False,
    shapes: Any = None,
    allow_smaller_final_batch: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> Any:
    """Batches in random order of those examples of several sources for which `keep_input` is true."""
    return _batched(
        list(tensors_list),
        batch_size,
        1,
        enqueue_many,
        shapes,
        False,
        allow_smaller_final_batch,
        shared_name,
        name,
        "shuffle_batch_join",
        keep_input,
        *_shuffled(capacity, min_after_dequeue, seed),
    )
