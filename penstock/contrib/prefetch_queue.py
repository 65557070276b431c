"""slim.prefetch_queue: makes batches before the step that needs them."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.scopes import name_scope
from penstock.ops.io import summary
from penstock.ops.math.casting import cast
from penstock.ops.queue.queues import FIFOQueue, PaddingFIFOQueue
from penstock.train.queue_runner import QueueRunner, add_queue_runner


def prefetch_queue(
    tensors: Any,
    capacity: int = 8,
    num_threads: int = 1,
    dynamic_pad: bool = False,
    shared_name: str | None = None,
    name: str | None = None,
) -> FIFOQueue | PaddingFIFOQueue:
    """A queue of `tensors` (a list, or a dict by names), filled by `num_threads` threads of a queue runner.

    Towers that each take a batch from one queue get different ones.

    >>> images, labels = slim.prefetch_queue.prefetch_queue([images, labels]).dequeue()
    """
    names = sorted(tensors) if isinstance(tensors, dict) else None
    values = [tensors[key] for key in names] if names is not None else list(tensors)
    with name_scope(name, "prefetch_queue", values):
        values = [convert_to_tensor(value) for value in values]
        kind = PaddingFIFOQueue if dynamic_pad else FIFOQueue
        queue = kind(
            capacity,
            dtypes=[value.dtype.base_dtype for value in values],
            shapes=[value.shape for value in values],
            names=names,
            shared_name=shared_name,
        )
        enqueue = queue.enqueue(values if names is None else dict(zip(names, values, strict=True)))
        add_queue_runner(QueueRunner(queue, [enqueue] * num_threads))
        summary.scalar(f"fraction_of_{capacity}_full", cast(queue.size(), dt.float32) * (1.0 / capacity))
    return queue
