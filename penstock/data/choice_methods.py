"""Methods of datasets that choose elements: from several datasets, or by chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.data import joining_ops, source_ops, structure
from penstock.data.base import DatasetBase
from penstock.data.inputs import seeds
from penstock.data.structure import DatasetSpec, TensorSpec
from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.array import gathering, reshaping, selection
from penstock.ops.array.joining import stack, tile
from penstock.ops.math import arithmetic, casting, compare, reduce, unary
from penstock.ops.random.stateful import random_uniform
from penstock.ops.random.stateless import stateless_multinomial_op


class Choices(DatasetBase):
    """Numbers without end, and elements of several datasets."""

    @staticmethod
    def counter(start: TensorLike = 0, step: Any = 1, dtype: DTypeLike = dt.int64, name: str | None = None) -> Any:
        """Counts without end: `tf.data.Dataset.counter(start=1)`."""
        limit = np.iinfo(np.int64).max if np.sign(step) >= 0 else np.iinfo(np.int64).min
        return DatasetSpec.dataset_class.range(start, limit, step, output_type=dt.as_dtype(dtype))

    @staticmethod
    def random(seed: Any = None, rerandomize_each_iteration: bool | None = None, name: str | None = None) -> Any:
        """Random integers without end: `tf.data.Dataset.random(seed=1)`."""
        spec = TensorSpec((), dt.int64)
        variant = source_ops.random_dataset(*seeds(seed), output_types=[dt.int64], output_shapes=[spec.shape])
        return DatasetSpec.dataset_class(variant, spec)

    @staticmethod
    def choose_from_datasets(datasets: Sequence[Any], choice_dataset: Any, stop_on_empty_dataset: bool = True) -> Any:
        """Takes the next element from the one of `datasets` that the next number of `choice_dataset` names.

        >>> tf.data.Dataset.choose_from_datasets([a, b], tf.data.Dataset.range(2).repeat())
        """
        if not datasets:
            raise ValueError("choose_from_datasets: `datasets` is empty, give one at least.")
        if not structure.is_one_of(choice_dataset.element_spec, dt.int64):
            raise TypeError(
                "`choice_dataset` must be a dataset of scalar int64 tensors, received one of "
                f"{choice_dataset.element_spec!r}."
            )
        spec = _common_spec(datasets)
        variant = joining_ops.directed_interleave_dataset(
            choice_dataset._variant_tensor,
            [d._variant_tensor for d in datasets],
            output_types=structure.types_of(spec),
            output_shapes=structure.shapes_of(spec),
            stop_on_empty_dataset=bool(stop_on_empty_dataset),
        )
        return DatasetSpec.dataset_class(variant, spec)

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[Any],
        weights: Any = None,
        seed: Any = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Any:
        """Takes elements from randomly chosen datasets: `tf.data.Dataset.sample_from_datasets([a, b], [0.9, 0.1])`."""
        count = len(datasets)
        if not count:
            raise ValueError("sample_from_datasets: `datasets` is empty, give one at least.")
        if isinstance(weights, DatasetBase):
            numbers = DatasetSpec.dataset_class.zip((weights, Choices.random(seed).batch(2)))
            chosen = numbers.map(lambda chances, seed: _choice(unary.log(reshaping.reshape(chances, [1, -1])), seed))
            return Choices.choose_from_datasets(datasets, chosen, stop_on_empty_dataset)
        logits: Any = np.ones((1, count), np.float32)
        if weights is not None:
            chances = weights if isinstance(weights, Tensor) else _float(weights)
            if chances.shape != (count,) and not isinstance(chances, Tensor):
                given = f"{weights!r:.100}"
                raise ValueError(f"sample_from_datasets: {count} datasets need as many weights, received {given}.")
            if not isinstance(chances, Tensor):
                datasets = [d for d, chance in zip(datasets, chances, strict=True) if chance > 0]
                chances = chances[chances > 0]
                if not len(chances):
                    raise ValueError("sample_from_datasets: all weights are zero.")
            logits = reshaping.reshape(unary.log(chances), [1, -1])
        if len(datasets) == 1:
            return datasets[0]
        chosen = Choices.random(seed).batch(2).map(lambda seed: _choice(logits, seed))
        return Choices.choose_from_datasets(datasets, chosen, stop_on_empty_dataset)

    def rejection_resample(
        self,
        class_func: Callable[..., Any],
        target_dist: Any,
        initial_dist: Any = None,
        seed: Any = None,
        name: str | None = None,
    ) -> Any:
        """Drops elements so that their classes are distributed as `target_dist`: pairs of a class and an element.

        Without `initial_dist`, the classes seen so far are counted.

        >>> dataset.rejection_resample(lambda x, y: y, target_dist=[0.5, 0.5])
        """
        target = casting.cast(convert_to_tensor(target_dist), dt.float32)
        make = DatasetSpec.dataset_class

        def classed(*element: Any) -> Any:
            return class_func(*element), _unpacked(element)

        original = self.map(classed)  # type: ignore[attr-defined]
        static = None
        if initial_dist is not None:
            given = casting.cast(convert_to_tensor(initial_dist), dt.float32)
            mixtures = make.from_tensors(_mixture(given, target)).repeat()
            known = constant_value(given), constant_value(target)
            static = None if known[0] is None or known[1] is None else np.min(known[1] / known[0])
        else:
            mixtures = _estimates(original.map(lambda label, _: label), len(target_dist)).map(
                lambda initial: _mixture(initial, target)
            )
        if static == 1:
            return original

        def kept(mixture: Any, pair: Any) -> Tensor:
            chance = gathering.gather(mixture[0], pair[0])
            found: Tensor = compare.less(random_uniform([], seed=seed, dtype=chance.dtype), chance)
            return found

        filtered = make.zip((mixtures, original)).filter(kept).map(lambda _, pair: pair).prefetch(3)
        if static == 0:
            return filtered
        shares = mixtures.map(lambda _, share: stack([share, 1.0 - share]))
        return Choices.sample_from_datasets([original, filtered], shares, seed, stop_on_empty_dataset=True)


def _float(weights: Any) -> np.ndarray:
    """Weights as an array: Python's numbers are float32 here, as elsewhere."""
    return np.asarray(weights, weights.dtype if isinstance(weights, np.ndarray) else np.float32)


def _choice(logits: Any, seed: Tensor) -> Tensor:
    """A class by two random numbers."""
    found: Tensor = reshaping.reshape(stateless_multinomial_op(logits, 1, seed), [])
    return found


def _mixture(initial: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The chances of classes to be kept, and the share of elements that are taken whatever their class.

    Together they give the target, with as few elements dropped as possible.
    """
    ratio: Any = arithmetic.divide(target, arithmetic.add(initial, np.finfo(np.float32).tiny))
    least: Any = reduce.reduce_min(ratio)
    return arithmetic.divide(ratio - least, reduce.reduce_max(ratio) - least), least


def _unpacked(element: tuple[Any, ...]) -> Any:
    return element[0] if len(element) == 1 else element


_ESTIMATED = 32  # elements between two estimates


def _estimates(labels: Any, classes: int) -> Any:
    """For each label the distribution of those up to its batch, which begins as if each class had come ten times."""

    def count(counts: Tensor, batch: Tensor) -> Any:
        new = reduce.reduce_sum(selection.one_hot(batch, classes, dtype=dt.int64), 0)
        counts = arithmetic.add(counts, new)
        estimate = casting.cast(arithmetic.truediv(counts, reduce.reduce_sum(counts)), dt.float32)
        return counts, tile(reshaping.reshape(estimate, [1, -1]), [_ESTIMATED, 1])

    return labels.batch(_ESTIMATED).scan(np.full(classes, 10, np.int64), count).unbatch()


def _common_spec(datasets: Sequence[Any]) -> Any:
    """The structure of elements of any of the datasets."""
    first = datasets[0]
    for other in datasets[1:]:
        if other.output_types != first.output_types:
            found = f"{first.output_types}, {other.output_types}"
            raise TypeError(f"All datasets must have the same types, received {found}.")
    leaves = []
    for column in zip(*[structure.flatten(d.element_spec) for d in datasets], strict=True):
        shape = column[0].shape
        for leaf in column[1:]:
            shape = shape.most_specific_compatible_shape(leaf.shape)
        leaves.append(column[0].with_shape(shape))
    return structure.pack(first.element_spec, leaves)
