"""Datasets whose elements are shared out among replicas."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.distribute.values import PerReplica
from penstock.errors import OutOfRangeError
from penstock.graph import nest
from penstock.ops.array.reshaping import shape


@dataclass(frozen=True)
class InputOptions:
    """Settings of distributed datasets. Prefetching to devices does not change what they give."""

    experimental_fetch_to_device: bool | None = None
    experimental_replication_mode: Any = None
    experimental_place_dataset_on_device: bool = False
    experimental_per_replica_buffer_size: int = 1


class InputReplicationMode(enum.Enum):
    """Selects if an input function is called once for the replicas of a worker, or once for each replica."""

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


class InputContext:
    """Tells an input function which of the input pipelines it makes.

    >>> def input_fn(context):
    ...     return tf.data.Dataset.range(8).shard(context.num_input_pipelines, context.input_pipeline_id)
    """

    def __init__(self, num_input_pipelines: int = 1, input_pipeline_id: int = 0, num_replicas_in_sync: int = 1) -> None:
        if not 0 <= input_pipeline_id < num_input_pipelines:
            raise ValueError(f"There is no input pipeline {input_pipeline_id} of {num_input_pipelines}.")
        self.num_input_pipelines = num_input_pipelines
        self.input_pipeline_id = input_pipeline_id
        self.num_replicas_in_sync = num_replicas_in_sync

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The batch size of a replica; raises ValueError unless the replicas can share the batch evenly."""
        if global_batch_size % self.num_replicas_in_sync:
            raise ValueError(
                f"The `global_batch_size` {global_batch_size} is not divisible by `num_replicas_in_sync` "
                f"{self.num_replicas_in_sync}."
            )
        return global_batch_size // self.num_replicas_in_sync

    def __repr__(self) -> str:
        return (
            f"tf.distribute.InputContext(input pipeline id {self.input_pipeline_id}, total: {self.num_input_pipelines})"
        )


@dataclass(frozen=True)
class ValueContext:
    """Tells a function of `experimental_distribute_values_from_function` for which replica it makes a value."""

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1


class _Distributed:
    """A dataset for the replicas of a strategy."""

    def __init__(self, strategy: Any, options: InputOptions | None, refusal: str | None) -> None:
        self._strategy = strategy
        self.options = options
        self._refusal = refusal

    def __iter__(self) -> DistributedIterator:
        if self._refusal is not None:
            raise ValueError(self._refusal)
        return DistributedIterator(self, iter(self._made()), self._strategy.num_replicas_in_sync)

    @property
    def element_spec(self) -> Any:
        return self._made().element_spec

    def _made(self) -> Any:
        """The dataset itself."""
        raise NotImplementedError

    def _step(self, elements: Iterator[Any], count: int) -> Any:
        """The next values of several replicas."""
        raise NotImplementedError


class DistributedIterator:
    """Iterates over a distributed dataset. Each element has a value per replica.

    >>> iterator = iter(strategy.experimental_distribute_dataset(dataset))
    >>> strategy.run(step, args=(next(iterator),))
    """

    def __init__(self, dataset: _Distributed, elements: Iterator[Any], count: int) -> None:
        self._dataset, self._elements, self._count = dataset, elements, count

    def __iter__(self) -> DistributedIterator:
        return self

    def __next__(self) -> Any:
        if self._count == 1:
            return next(self._elements)
        return self._dataset._step(self._elements, self._count)

    def get_next(self) -> Any:
        """The next element; raises OutOfRangeError after the last."""
        try:
            return next(self)
        except StopIteration as error:
            raise OutOfRangeError("End of sequence") from error

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec


class DistributedDataset(_Distributed):
    """Gives each replica its part of each batch. `strategy.experimental_distribute_dataset` makes it."""

    def __init__(self, dataset: Any, strategy: Any, options: InputOptions | None) -> None:
        refusal = strategy.extended.dataset_refusal
        super().__init__(strategy, options, refusal and refusal[0])
        self.dataset = dataset

    def _made(self) -> Any:
        return self.dataset

    def _step(self, elements: Iterator[Any], count: int) -> Any:
        return nest.map_structure(lambda t: _cut(t, count), next(elements))


def _cut(tensor: Any, count: int) -> PerReplica:
    """The parts of a batch: even ones, of which those of the last replicas may be smaller, or empty."""
    if not tensor.shape.rank:
        raise ValueError("A distributed dataset must be batched: its elements have no first axis to share out.")
    rows: Any = tensor.shape.as_list()[0]
    if rows is None:
        dims: Any = shape(tensor)
        rows = dims[0]
    each = -(-rows // count)
    return PerReplica(tensor[i * each : (i + 1) * each] for i in range(count))


class DistributedDatasetsFromFunction(_Distributed):
    """Gives each replica an element of its own. `strategy.distribute_datasets_from_function` makes it."""

    def __init__(self, dataset_fn: Callable[..., Any], strategy: Any, options: InputOptions | None) -> None:
        refusal = strategy.extended.dataset_refusal
        super().__init__(strategy, options, refusal and refusal[1])
        if not callable(dataset_fn):
            raise TypeError(f"distribute_datasets_from_function takes a function, received {dataset_fn!r}.")
        self.dataset_fn = dataset_fn

    def _made(self) -> Any:
        return self.dataset_fn(InputContext(num_replicas_in_sync=self._strategy.num_replicas_in_sync))

    def _step(self, elements: Iterator[Any], count: int) -> Any:
        step = [next(elements)]
        for _ in range(count - 1):
            found = next(elements, None)
            # The replicas run together: with eager execution there may be empty batches for some at the end.
            step.append(nest.map_structure(_none_of, step[0]) if found is None else found)
        return nest.map_structure(lambda *parts: PerReplica(parts), *step)


def _none_of(batch: Any) -> Any:
    if not batch.shape.rank:
        raise ValueError("A distributed dataset must be batched: there are fewer elements than replicas at its end.")
    return batch[:0]
