"""Accumulators: gradients gathered from many steps, given back as one once there are enough of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape, as_shape
from penstock.kernel import shapes
from penstock.kernel.types import NUMBERS, QUANTIZED
from penstock.kernel.waiting import Waitable, as_handle, from_handle
from penstock.memory import aligned_empty
from penstock.ops.math import casting

_TYPES = Types(*NUMBERS, *QUANTIZED)
_REDUCTIONS = ("MEAN", "SUM")
_LARGE = 1 << 16  # bytes: a sum of more is put where the update can read it without a copy


class Accumulator(Waitable):
    """A sum of gradients and how many they are. Gradients older than `global_step` are dropped.

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
        """How many gradients are in it now."""
        return self.count

    def set_global_step(self, step: int) -> None:
        """Gradients of earlier steps are dropped from now on; those that are in stay."""
        with self._held():
            self.global_step = step

    def apply(self, local_step: int, *gradient: np.ndarray) -> None:
        """Adds a gradient that was computed at `local_step`."""
        with self._held():
            if local_step < self.global_step:
                return
            self._add(*gradient)
            self.count += 1
            self._notify()

    def take(self, required: int, ctx: Any) -> Any:
        """All that was gathered, once there are `required` gradients; the next ones belong to the next step."""
        if required < 1:
            raise InvalidArgumentError(f"{self}: num_required must be >= 1, received {required}.")
        with self._held():
            ready = lambda: self.count >= required  # noqa: E731
            self._wait(ready, ctx, again=ready)
            result = self._result()
            self.count, self._sum = 0, None
            self.global_step += 1
            return result

    def _add(self, *parts: Any) -> None:
        (gradient,) = parts
        if self._sum is None:
            if gradient.shape != self._usual and not self.shape.is_compatible_with(gradient.shape):
                _refuse(f"{self} takes gradients of shape {self.shape}, received {list(gradient.shape)}.")
            self._usual = gradient.shape
        elif gradient.shape != self._usual:
            _refuse(f"{self} takes gradients of shape {list(self._usual)}, received {list(gradient.shape)}.")
        if self._sum is None:
            # What nobody may change, as a tensor of another process, is taken as it is.
            self._sum = gradient.copy() if gradient.flags.writeable else gradient
        elif self._sum.flags.writeable:
            self._sum += gradient
        else:
            place = aligned_empty(gradient.shape, gradient.dtype) if gradient.nbytes > _LARGE else None
            self._sum = np.add(self._sum, gradient, out=place)

    def _result(self) -> Any:
        return np.asarray(self._sum if self.reduction == "SUM" else _divided(self._sum, self.count))


class SparseAccumulator(Accumulator):
    """Gradients by row: the mean of a row is over those gradients that have it.

    Rows are told apart as TensorFlow does: a gradient should name its rows in rising order, each once. Rows of one
    gradient are never added up here, and two gradients meet in a row if both come to it at the same time as they are
    gone through together, smaller indices first.
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
        """InvalidArgumentError where a gradient does not fit."""
        if indices.ndim != 1 or values.ndim == 0 or len(values) != len(indices):
            _refuse(
                f"{self} takes one row per index, received indices of shape {list(indices.shape)} and values of "
                f"shape {list(values.shape)}."
            )
        rows: int | None = None
        if shape is not None:
            received = [None if d < 0 else int(d) for d in shape]
            fits = _begins(self.shape, received) and TensorShape([None, *received[1:]]).is_compatible_with(values.shape)
            if not fits:
                _refuse(
                    f"{self} takes gradients of shape {self.shape}, received {received} with values of shape "
                    f"{list(values.shape)}."
                )
            rows = received[0] if received else None
        if self.shape.rank is not None:
            dims = self.shape.as_list()
            if not _begins(TensorShape(dims[1:]), values.shape[1:]):
                _refuse(f"{self} has rows of shape {dims[1:]}, received {list(values.shape[1:])}.")
            rows = dims[0] if dims and dims[0] is not None else rows
        if len(indices) and (indices.min() < 0 or (rows is not None and indices.max() >= rows)):
            _refuse(
                f"{self} has {'unknown many' if rows is None else rows} rows, received the indices "
                f"{indices.tolist()[:10]}."
            )
        if self._sum is not None and values.shape[1:] != self._sum[1].shape[1:]:
            _refuse(f"{self} has rows of shape {list(self._sum[1].shape[1:])}, received {list(values.shape[1:])}.")

    def _result(self) -> Any:
        indices, values, counts = self._sum
        if self.reduction == "MEAN":
            values = _divided(values, counts.reshape(-1, *[1] * (values.ndim - 1)))
        rows = self.shape.as_list()[0] if self.shape.rank else None
        return indices, values, np.array([-1 if rows is None else rows, *values.shape[1:]], np.int64)


def _merged(old: np.ndarray, new: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
    """How many rows two lists of indices have together, and the place in them of each index of both lists."""
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
    """Whether `dims` begin as `shape`; an accumulator may say less of its gradients than they have dimensions."""
    return shape.rank is None or (shape.rank <= len(dims) and shape.is_compatible_with(dims[: shape.rank]))


def _divided(total: np.ndarray, count: Any) -> Any:
    if total.dtype.kind in "iu":
        return (total / count).astype(total.dtype)
    # What may be written to is ours alone.
    return np.divide(total, np.asarray(count).astype(total.dtype), out=total if total.flags.writeable else None)


def _refuse(message: str) -> None:
    raise InvalidArgumentError(message)


def _found(
    resource: Callable[..., Any], kind: type[Accumulator], dtype: DType, shape: TensorShape, reduction: str
) -> np.ndarray:
    found = resource(lambda name: kind(name, dtype, shape, reduction))
    if type(found) is not kind or found.dtype != dtype or not found.shape.is_compatible_with(shape):
        _refuse(f"{found} exists already, and is not a {kind.kind} of {dtype.name} {shape}. Use another shared_name.")
    return as_handle(found)


def _pair(op: Operation) -> list[TensorShape]:
    return [TensorShape.of((2,))]  # as TensorFlow has it, though it is one handle


def _gradient_shape(op: Operation) -> list[TensorShape]:
    return [op.input_list[0].op.attrs.get("shape", TensorShape.of(None))]


def _unknown(op: Operation) -> list[TensorShape]:
    return [TensorShape.of(None) for _ in op.outputs]


@op(
    "ResourceConditionalAccumulator",
    "-> handle: resource",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=_pair,
    dtype=_TYPES,
)
def resource_conditional_accumulator(
    *,
    dtype: DType,
    shape: TensorShape,
    container: str = "",
    shared_name: str = "",
    reduction_type: str = "MEAN",
    resource: Any,
) -> np.ndarray:
    return _found(resource, Accumulator, dtype, shape, reduction_type)


@op(
    "SparseConditionalAccumulator",
    "-> handle: &string",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=_pair,
    dtype=_TYPES,
)
def sparse_conditional_accumulator(
    *,
    dtype: DType,
    shape: TensorShape,
    container: str = "",
    shared_name: str = "",
    reduction_type: str = "MEAN",
    resource: Any,
) -> np.ndarray:
    return _found(resource, SparseAccumulator, dtype, shape, reduction_type)


@op(
    "ResourceAccumulatorApplyGradient",
    "resource, int64, dtype ->",
    host=True,
    stateful=True,
    no_gradient=True,
    dtype=_TYPES,
)
def resource_accumulator_apply_gradient(
    handle: Any, local_step: np.ndarray, gradient: np.ndarray, *, dtype: DType
) -> None:
    accumulator = from_handle(handle)
    if accumulator.dtype != dtype:
        _refuse(f"{accumulator} holds {accumulator.dtype.name}, received {dtype.name}.")
    accumulator.apply(int(local_step), gradient)


@op(
    "SparseAccumulatorApplyGradient",
    "&string, int64, int64, dtype, int64 ->",
    host=True,
    stateful=True,
    no_gradient=True,
    dtype=_TYPES,
)
def sparse_accumulator_apply_gradient(
    handle: Any,
    local_step: np.ndarray,
    gradient_indices: np.ndarray,
    gradient_values: np.ndarray,
    gradient_shape: np.ndarray,
    *,
    dtype: DType,
    has_known_shape: bool,
) -> None:
    accumulator = from_handle(handle)
    if accumulator.dtype != dtype:
        _refuse(f"{accumulator} holds {accumulator.dtype.name}, received {dtype.name}.")
    shape = gradient_shape if has_known_shape else None
    accumulator.apply(int(local_step), gradient_indices, gradient_values, shape)


@op(
    "ResourceAccumulatorTakeGradient",
    "resource, int32 -> average: dtype",
    host=True,
    stateful=True,
    blocking=True,
    can_suspend=True,
    no_gradient=True,
    shape=_gradient_shape,
    dtype=_TYPES,
)
def resource_accumulator_take_gradient(handle: Any, num_required: np.ndarray, *, dtype: DType, ctx: Any) -> Any:
    return from_handle(handle).take(int(num_required), ctx)


@op(
    "SparseAccumulatorTakeGradient",
    "&string, int32 -> indices: int64, values: dtype, shape: int64",
    host=True,
    stateful=True,
    blocking=True,
    can_suspend=True,
    no_gradient=True,
    shape=_unknown,
    dtype=_TYPES,
)
def sparse_accumulator_take_gradient(handle: Any, num_required: np.ndarray, *, dtype: DType, ctx: Any) -> Any:
    return from_handle(handle).take(int(num_required), ctx)


@op(
    "ResourceAccumulatorNumAccumulated",
    "resource -> num_accumulated: int32",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def resource_accumulator_num_accumulated(handle: Any) -> np.ndarray:
    return np.array(from_handle(handle).count, np.int32)


@op(
    "AccumulatorNumAccumulated",
    "&string -> num_accumulated: int32",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def accumulator_num_accumulated(handle: Any) -> np.ndarray:
    return np.array(from_handle(handle).count, np.int32)


@op("ResourceAccumulatorSetGlobalStep", "resource, int64 ->", host=True, stateful=True, no_gradient=True)
def resource_accumulator_set_global_step(handle: Any, new_global_step: np.ndarray) -> None:
    from_handle(handle).set_global_step(int(new_global_step))


@op("AccumulatorSetGlobalStep", "&string, int64 ->", host=True, stateful=True, no_gradient=True)
def accumulator_set_global_step(handle: Any, new_global_step: np.ndarray) -> None:
    from_handle(handle).set_global_step(int(new_global_step))


class ConditionalAccumulatorBase:
    """What accumulators of dense and of sparse gradients have in common."""

    _num_accumulated = resource_accumulator_num_accumulated
    _set_global_step = resource_accumulator_set_global_step

    def __init__(self, dtype: Any, shape: Any, accumulator_ref: Tensor) -> None:
        self._dtype = as_dtype(dtype)
        self._shape = as_shape(shape)
        self._accumulator_ref = accumulator_ref
        self._name = accumulator_ref.op.name.split("/")[-1]

    @property
    def accumulator_ref(self) -> Tensor:
        """The handle of the accumulator, as a tensor."""
        return self._accumulator_ref

    @property
    def name(self) -> str:
        return self._name

    @property
    def dtype(self) -> DType:
        return self._dtype

    def num_accumulated(self, name: str | None = None) -> Tensor:
        """How many gradients are in it: an int32 scalar."""
        count: Tensor = type(self)._num_accumulated(self._accumulator_ref, name=name or f"{self._name}_NumAccumulated")
        return count

    def set_global_step(self, new_global_step: Any, name: str | None = None) -> Operation:
        """Drops gradients with an earlier `local_step` from now on."""
        step = casting.cast(convert_to_tensor(new_global_step), dt.int64)
        node: Operation = type(self)._set_global_step(self._accumulator_ref, step, name=name)
        return node


class ConditionalAccumulator(ConditionalAccumulatorBase):
    """Gathers gradients and gives their mean: `acc.apply_grad(g, step)`, then `acc.take_grad(num_workers)`."""

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        shared_name: str | None = None,
        name: str = "conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        _check_reduction(reduction_type)
        handle = resource_conditional_accumulator(
            dtype=dtype, shape=shape, shared_name=shared_name or "", reduction_type=reduction_type, name=name
        )
        super().__init__(dtype, shape, handle)

    def apply_grad(self, grad: Any, local_step: Any = 0, name: str | None = None) -> Operation:
        """Adds a gradient, unless `local_step` is behind the accumulator's step."""
        grad = convert_to_tensor(grad, self._dtype)
        grad.shape.assert_is_compatible_with(self._shape)
        step = casting.cast(convert_to_tensor(local_step), dt.int64)
        node: Operation = resource_accumulator_apply_gradient(self._accumulator_ref, step, grad, name=name)
        return node

    def take_grad(self, num_required: Any, name: str | None = None) -> Tensor:
        """The mean (or sum) of all gradients, once there are `num_required`. The accumulator is empty then."""
        result: Tensor = resource_accumulator_take_gradient(
            self._accumulator_ref, num_required, dtype=self._dtype, name=name
        )
        result.set_shape(self._shape)
        return result


class SparseGradient(NamedTuple):
    """What `SparseConditionalAccumulator.take_grad` gives."""

    indices: Tensor
    values: Tensor
    shape: Tensor


class SparseConditionalAccumulator(ConditionalAccumulatorBase):
    """Gathers gradients that have only some rows, as IndexedSlices; each row is averaged over those that have it."""

    _num_accumulated = accumulator_num_accumulated
    _set_global_step = accumulator_set_global_step

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        shared_name: str | None = None,
        name: str = "sparse_conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        _check_reduction(reduction_type)
        handle = sparse_conditional_accumulator(
            dtype=dtype, shape=shape, shared_name=shared_name or "", reduction_type=reduction_type, name=name
        )
        super().__init__(dtype, shape, handle)

    def apply_indexed_slices_grad(self, grad: IndexedSlices, local_step: Any = 0, name: str | None = None) -> Operation:
        """Adds a gradient given as IndexedSlices."""
        return self.apply_grad(grad.indices, grad.values, grad.dense_shape, local_step, name)

    def apply_grad(
        self, grad_indices: Any, grad_values: Any, grad_shape: Any = None, local_step: Any = 0, name: str | None = None
    ) -> Operation:
        """Adds the rows `grad_values` at `grad_indices`, unless `local_step` is behind the accumulator's step."""
        step = casting.cast(convert_to_tensor(local_step), dt.int64)
        indices = casting.cast(grad_indices, dt.int64)
        shape = casting.cast([] if grad_shape is None else grad_shape, dt.int64)
        node: Operation = sparse_accumulator_apply_gradient(
            self._accumulator_ref,
            step,
            indices,
            grad_values,
            shape,
            dtype=self._dtype,
            has_known_shape=grad_shape is not None,
            name=name,
        )
        return node

    def take_grad(self, num_required: Any, name: str | None = None) -> SparseGradient:
        """`(indices, values, shape)` of all gradients, once there are `num_required`."""
        return SparseGradient(
            *sparse_accumulator_take_gradient(self._accumulator_ref, num_required, dtype=self._dtype, name=name)
        )

    def take_indexed_slices_grad(self, num_required: Any, name: str | None = None) -> IndexedSlices:
        """As `take_grad`, as IndexedSlices."""
        taken = self.take_grad(num_required, name)
        return IndexedSlices(indices=taken.indices, values=taken.values, dense_shape=taken.shape)


def _check_reduction(reduction_type: str) -> None:
    if reduction_type not in _REDUCTIONS:
        raise ValueError(f"reduction_type must be one of {_REDUCTIONS}, received {reduction_type!r}.")
