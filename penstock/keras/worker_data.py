"""Epochs over datasets that the workers make and read themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from penstock.distribute.input import InputContext
from penstock.keras.engines import Coordinated, Result
from penstock.keras.inputs import DatasetCreator, Epochs, batches_of


class WorkerEpochs:
    """Counts the steps of epochs whose batches only the workers see."""

    def __init__(
        self, engine: Coordinated, x: Any, steps: int | None, steps_per_execution: int, class_weight: Any
    ) -> None:
        self._engine, self._x = engine, x
        self.steps_per_execution = steps_per_execution
        if class_weight is not None:
            raise ValueError("class_weight is not applied on workers: have the dataset give sample weights.")
        self.num_batches = steps if steps is not None else batches_of(x)
        if self.num_batches is None:
            raise ValueError("steps_per_epoch must be given, since the dataset is infinite or its size is not known.")
        self._is_finite = steps is None
        self._iterator: Any = None
        self.last: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Any]:
        if self._iterator is None:
            # The first batch, made here, tells the shapes from which the model is built.
            yield from ((0, 0, batches) for _, _, batches in Epochs(self._x, steps_per_epoch=1))
            return
        assert self.num_batches is not None
        for begin in range(0, self.num_batches, self.steps_per_execution):
            yield begin, min(begin + self.steps_per_execution, self.num_batches) - 1, None

    def reset(self) -> None:
        """Makes the datasets of the workers."""
        coordinator = self._engine.coordinator
        strategy, options = coordinator.strategy, getattr(self._x, "input_options", None)
        dataset = coordinator.create_per_worker_dataset(
            lambda: strategy.distribute_datasets_from_function(self._made, options)
        )
        self._iterator = iter(dataset)

    def _made(self, context: InputContext) -> Any:
        if isinstance(self._x, DatasetCreator):
            dataset = self._x(context)
        else:
            dataset = self._x.shard(context.num_input_pipelines, context.input_pipeline_id)
        # Workers take steps as they are free, so that one of them may need more batches than its part has.
        return dataset.repeat() if self._is_finite else dataset

    def start(self, step: Callable[[Any], Any], count: int) -> Result:
        """Has a worker run a step on its next batches."""
        return self._engine.start_on(step, self._iterator, count)
