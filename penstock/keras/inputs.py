"""The data of fit, evaluate and predict: what Keras takes, datasets of penstock, and functions that make these."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from penstock.data.dataset import Dataset
from penstock.distribute.input import InputContext, InputOptions


class DatasetCreator:
    """A function that makes the dataset of each worker, for `fit`.

    >>> def dataset_fn(context):
    ...     return tf.data.Dataset.range(8).shard(context.num_input_pipelines, context.input_pipeline_id).batch(2)
    >>> model.fit(tf.keras.utils.experimental.DatasetCreator(dataset_fn), steps_per_epoch=4)
    """

    def __init__(self, dataset_fn: Callable[[InputContext], Any], input_options: InputOptions | None = None) -> None:
        if not callable(dataset_fn):
            raise TypeError(f"`dataset_fn` for `DatasetCreator` must be a `callable`. Received: {dataset_fn}")
        if input_options is not None and not isinstance(input_options, InputOptions):
            raise TypeError(
                "`input_options` for `DatasetCreator` must be a `tf.distribute.InputOptions`. Received: "
                f"{input_options}"
            )
        self.dataset_fn = dataset_fn
        self.input_options = input_options

    def __call__(self, context: InputContext) -> Any:
        dataset = self.dataset_fn(context)
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"The `callable` provided to `DatasetCreator` must return a Dataset. It returns {dataset!r}"
            )
        return dataset


def is_dataset(x: Any) -> bool:
    """Tells if data is a dataset of penstock, or makes one."""
    return isinstance(x, (Dataset, DatasetCreator))


def batches_of(x: Any) -> int | None:
    """The number of elements of a dataset; None if it is infinite or not known."""
    dataset = x(InputContext()) if isinstance(x, DatasetCreator) else x
    count = int(dataset.cardinality().numpy())
    return count if count >= 0 else None


class _Adapter(DataAdapter):
    """A dataset as Keras' loops take data."""

    def __init__(self, x: Any, class_weight: Any = None) -> None:
        self._dataset = x(InputContext()) if isinstance(x, DatasetCreator) else x
        count = int(self._dataset.cardinality().numpy())
        self._count = count if count >= 0 else None
        self._class_weight = class_weight

    def get_numpy_iterator(self) -> Iterator[Any]:
        for batch in self._dataset:
            yield batch if self._class_weight is None else with_class_weight(batch, self._class_weight)

    @property
    def num_batches(self) -> int | None:
        return self._count

    @property
    def batch_size(self) -> None:
        return None

    has_partial_batch = False
    partial_batch_size = None


def with_class_weight(batch: Any, class_weight: dict[int, float]) -> Any:
    """A batch (x, y) with the weights of the examples' classes."""
    if len(batch) > 2:
        raise ValueError("You cannot `class_weight` and `sample_weight` at the same time.")
    x, y = batch
    labels = np.asarray(y)
    if labels.ndim > 1:
        labels = labels.argmax(-1) if labels.shape[-1] > 1 else labels[..., 0]
    weights = np.array([class_weight.get(int(label), 1.0) for label in labels.reshape(-1)], "float32")
    return x, y, weights.reshape(labels.shape)


class Epochs(EpochIterator):
    """Iterates over the batches of an epoch, of any data; each item has as many batches as an execution runs."""

    def __init__(self, x: Any, y: Any = None, *, class_weight: Any = None, **settings: Any) -> None:
        if not is_dataset(x):
            super().__init__(x, y, class_weight=class_weight, **settings)
            return
        if y is not None or settings.get("sample_weight") is not None:
            raise ValueError("A dataset gives inputs, targets and sample weights together: leave out `y` and weights.")
        super().__init__(np.zeros([1, 1]), steps_per_epoch=settings.get("steps_per_epoch"))
        self.steps_per_execution = settings.get("steps_per_execution", 1)
        self.data_adapter = _Adapter(x, class_weight)
        self._num_batches = self.data_adapter.num_batches

    def __next__(self) -> tuple[int, int, list[Any]]:
        begin, _, iterator = next(self._epoch_iterator)
        batches = list(itertools.islice(iterator, self.steps_per_execution))
        if batches:
            return begin, begin + len(batches) - 1, batches
        if self.steps_per_epoch:
            self._interrupted_warning()
        self._num_batches, self._current_iterator = self._num_batches or begin, None
        self.data_adapter.on_epoch_end()
        raise StopIteration
