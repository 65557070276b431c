"""The accumulators that accumulator ops use: sums of dense and of sparse gradients, shared by all steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph.dtype import DType
from penstock.graph.shape import TensorShape
from penstock.kernel.waiting import Held, WaitableItems
from penstock.memory import aligned_empty

_HALVES = frozenset((1, 2, 4, 8, 16, 32, 64))  # to multiply by their inverses is exact, and quicker than to divide
_LARGE = 1 << 16  # bytes: a larger sum is put into aligned memory, which the update reads without a copy


class Accumulator(WaitableItems):
    """A sum of gradients and their number. Gradients older than `global_step` are dropped.

    >>> accumulator.apply(0, gradient); accumulator.take(1, step)
    """

    kind = "ConditionalAccumulator"

    def __init__(self, name: str, dtype: DType, shape: TensorShape, reduction: str) -> None:
        super().__init__(name)
        self.dtype = dtype
        self.shape = shape
        self.reduction = reduction
        self.global_step = 0
        self.count = 0
        self._sum: Any = None
        self._usual: Any = None  # the shape of the gradients that were added last

    def size(self) -> int:
        """The current number of gradients."""
        return self.count

    def set_global_step(self, step: int) -> None:
        """Drops gradients of earlier steps from now on; those that were added already stay."""
        with self._held():
            self.global_step = step

    def apply(self, local_step: int, *gradient: np.ndarray) -> None:
        """Adds a gradient that was computed at `local_step`."""
        with self._held():
            self._apply(local_step, *gradient)

    def take(self, required: int, ctx: Any) -> Any:
        """Waits for `required` gradients and returns their mean or sum; later gradients belong to the next step."""
        self.check(required)
        with self._held():
            self._wait_for(required, ctx)
            return self._take()

    def check(self, required: int) -> None:
        """Raises InvalidArgumentError if that is no number of gradients to wait for."""
        if required < 1:
            raise InvalidArgumentError(f"{self}: num_required must be >= 1, received {required}.")

    def _apply(self, local_step: int, *gradient: Any) -> None:
        if local_step < self.global_step:
            return
        self._add(*gradient)
        self.count += 1
        self._notify()

    def has(self, required: int) -> bool:
        """Tells if as many gradients can be taken now. If it is closed, waiting for them raises."""
        return not self._gone and self.count >= required

    def _wait_for(self, required: int, ctx: Any) -> None:
        ready = lambda: self.count >= required  # noqa: E731
        self._wait(ready, ctx, again=ready)

    def total(self) -> Any:
        """The sum, which changes by itself from now on; None if there is none."""
        if self._sum.__class__ is JointSum:
            self._sum = self._sum.part(self)
            self._usual = self._sum.shape
        return self._sum

    def _take(self) -> Any:
        result = self._result()
        self._begin_next()
        return result

    def _begin_next(self) -> None:
        self.count, self._sum = 0, None
        self.global_step += 1

    def _add(self, *parts: Any) -> None:
        (gradient,) = parts
        total = self.total()
        if total is None:
            if gradient.shape != self._usual and not self.shape.is_compatible_with(gradient.shape):
                refuse(f"{self} takes gradients of shape {self.shape}, received {list(gradient.shape)}.")
            self._usual = gradient.shape
        elif gradient.shape != self._usual:
            refuse(f"{self} takes gradients of shape {list(self._usual)}, received {list(gradient.shape)}.")
        self._sum = _added(total, gradient)

    def _result(self) -> Any:
        return _reduced(self.total(), self.reduction, self.count)


class JointSum:
    """The sums of several accumulators, one after the other in a vector."""

    __slots__ = ("accumulators", "vector")

    def __init__(self, accumulators: JointAccumulators) -> None:
        self.accumulators = accumulators
        self.vector: Any = None

    def part(self, accumulator: Accumulator) -> Any:
        """The sum of one of them."""
        return self.accumulators.split(self.vector)[self.accumulators.each.index(accumulator)]


class JointAccumulators:
    """Accumulators of known shapes as one, which takes and gives vectors: what is added to all is added at once.

    Each keeps its count and its step, and everybody else may use it as before.

    >>> both = JointAccumulators([of_weights, of_biases], [TensorShape([784, 10]), TensorShape([10])])
    >>> both.apply(0, gradients); both.take(1, step)
    """

    def __init__(self, accumulators: Sequence[Accumulator], shapes: Sequence[TensorShape]) -> None:
        self.each = tuple(accumulators)
        self.dtype = accumulators[0].dtype
        self._shapes: list[Any] = [shape.as_list() for shape in shapes]
        *self._ends, self._size = itertools.accumulate(map(math.prod, self._shapes))
        self._is_alike = len({(each.dtype, each.reduction) for each in accumulators}) == 1
        self._all_held = Held(sorted(accumulators, key=id))

    def split(self, vector: np.ndarray) -> list[np.ndarray]:
        """The parts of a vector, one for each accumulator, as views."""
        parts = np.split(vector, self._ends)
        return [part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def apply(self, local_step: int, gradients: np.ndarray) -> None:
        """Adds gradients that were computed at `local_step`, one after the other in a vector."""
        if gradients.shape != (self._size,):
            refuse(f"{self.each[0]} and others take {self._size} numbers, received {list(gradients.shape)}.")
        with self._all_held:
            joint = self._joint_sum()
            if joint is None or local_step < max([each.global_step for each in self.each]):
                for each, gradient in zip(self.each, self.split(gradients), strict=True):
                    each._apply(local_step, gradient)
                return
            joint.vector = _added(joint.vector, gradients)
            for each in self.each:
                each._sum = joint
                each.count += 1
                each._notify()

    def take(self, required: int, ctx: Any) -> np.ndarray:
        """Waits until each has `required` gradients. Returns the means or sums one after the other in a vector."""
        self.each[0].check(required)
        while True:
            with self._all_held:
                short = next((each for each in self.each if not each.has(required)), None)
                if short is None:
                    return self._taken()
            with short._held():
                short._wait_for(required, ctx)

    def _taken(self) -> np.ndarray:
        joint, first = self._joint_sum(), self.each[0]
        if joint is None:
            return np.concatenate([each._take() for each in self.each], axis=None)
        result = _reduced(joint.vector, first.reduction, first.count)
        for each in self.each:
            each._begin_next()
        return result

    def _joint_sum(self) -> JointSum | None:
        """The sum of all, or a new one if there is none; None if some have had gradients by themselves since."""
        total = self.each[0]._sum
        if not self._is_alike or any([each._sum is not total for each in self.each]):
            return None
        if total is None:
            return JointSum(self)
        return total if total.__class__ is JointSum and total.accumulators.each == self.each else None


class SparseAccumulator(Accumulator):
    """Gradients by row: the mean of a row is over the gradients that have it.

    Rows are matched as in TensorFlow: a gradient should have its rows in rising order, each once. Rows of one gradient
    are never added up. Two gradients are merged like sorted lists: their rows are added if equal indices meet.
    """

    kind = "SparseConditionalAccumulator"

    def _add(self, *parts: Any) -> None:
        indices, values, shape = parts
        self._check(indices, values, shape)
        if self._sum is None:
            self._sum = np.array(indices), np.array(values), np.ones(len(indices), np.int64)
            return
        old_indices, old_values, old_counts = self._sum
        size, old_places, places = _merged(old_indices, indices)
        rows, counts = np.empty(size, np.int64), np.zeros(size, np.int64)
        total = np.zeros((size, *values.shape[1:]), values.dtype)
        rows[old_places], rows[places] = old_indices, indices
        counts[old_places], total[old_places] = old_counts, old_values
        counts[places] += 1
        total[places] += values
        self._sum = rows, total, counts

    def _check(self, indices: np.ndarray, values: np.ndarray, shape: np.ndarray | None) -> None:
        """Raises InvalidArgumentError if a gradient does not fit."""
        if indices.ndim != 1 or values.ndim == 0 or len(values) != len(indices):
            refuse(
                f"{self} takes one row per index, received indices of shape {list(indices.shape)} and values of "
                f"shape {list(values.shape)}."
            )
        rows: int | None = None
        if shape is not None:
            received = [None if d < 0 else int(d) for d in shape]
            fits = _begins(self.shape, received) and TensorShape([None, *received[1:]]).is_compatible_with(values.shape)
            if not fits:
                refuse(
                    f"{self} takes gradients of shape {self.shape}, received {received} with values of shape "
                    f"{list(values.shape)}."
                )
            rows = received[0] if received else None
        if self.shape.rank is not None:
            dims = self.shape.as_list()
            if not _begins(TensorShape(dims[1:]), values.shape[1:]):
                refuse(f"{self} has rows of shape {dims[1:]}, received {list(values.shape[1:])}.")
            rows = dims[0] if dims and dims[0] is not None else rows
        if len(indices) and (indices.min() < 0 or (rows is not None and indices.max() >= rows)):
            refuse(
                f"{self} has {'unknown many' if rows is None else rows} rows, received the indices "
                f"{indices.tolist()[:10]}."
            )
        if self._sum is not None and values.shape[1:] != self._sum[1].shape[1:]:
            refuse(f"{self} has rows of shape {list(self._sum[1].shape[1:])}, received {list(values.shape[1:])}.")

    def _result(self) -> Any:
        indices, values, counts = self._sum
        if self.reduction == "MEAN":
            values = _divided(values, counts.reshape(-1, *[1] * (values.ndim - 1)))
        rows = self.shape.as_list()[0] if self.shape.rank else None
        return indices, values, np.array([-1 if rows is None else rows, *values.shape[1:]], np.int64)


def _merged(old: np.ndarray, new: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """The number of rows after two lists of indices are merged, and the place of each index of both lists."""
    if np.all(old[1:] > old[:-1]) and np.all(new[1:] > new[:-1]):
        union = np.union1d(old, new)
        return len(union), np.searchsorted(union, old), np.searchsorted(union, new)
    places: tuple[list[int], list[int]] = [], []
    left, right = [*old.tolist(), math.inf], [*new.tolist(), math.inf]
    i = j = size = 0
    while i < len(old) or j < len(new):
        first, second = left[i] <= right[j], right[j] <= left[i]
        if first:
            places[0].append(size)
            i += 1
        if second:
            places[1].append(size)
            j += 1
        size += 1
    return size, np.array(places[0], np.intp), np.array(places[1], np.intp)


def _begins(shape: TensorShape, dims: Sequence[int | None]) -> bool:
    """True if `shape` is a prefix of `dims`: an accumulator may be declared with fewer dimensions."""
    return shape.rank is None or (shape.rank <= len(dims) and shape.is_compatible_with(dims[: shape.rank]))


def _added(total: Any, gradient: np.ndarray) -> Any:
    """The sum with one more gradient; the first one makes it."""
    if total is None:
        # A read-only gradient, such as a tensor of another process, cannot change, so it is not copied.
        return gradient.copy() if gradient.flags.writeable else gradient
    if total.flags.writeable:
        total += gradient
        return total
    place = aligned_empty(gradient.shape, gradient.dtype) if gradient.nbytes > _LARGE else None
    return np.add(total, gradient, out=place)


def _reduced(total: Any, reduction: str, count: int) -> np.ndarray:
    return np.asarray(total if reduction == "SUM" or count == 1 else _divided(total, count))


def _divided(total: np.ndarray, count: Any) -> Any:
    if total.dtype.kind in "iu":
        return (total / count).astype(total.dtype)
    place = total if total.flags.writeable else None  # a writeable sum belongs to the accumulator alone
    if count.__class__ is int and count in _HALVES and total.dtype.kind == "f":
        return np.multiply(total, total.dtype.type(1 / count), out=place)
    return np.divide(total, np.asarray(count).astype(total.dtype), out=place)


def refuse(message: str) -> None:
    raise InvalidArgumentError(message)
