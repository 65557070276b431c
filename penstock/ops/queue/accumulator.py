"""Accumulators: they collect gradients of many steps, and return their mean or sum once there are enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import NUMBERS, QUANTIZED
from penstock.kernel.waiting import as_handle, from_handle
from penstock.ops.math import casting
from penstock.ops.queue.accumulator_resources import Accumulator, SparseAccumulator, refuse

_TYPES = Types(*NUMBERS, *QUANTIZED)
_REDUCTIONS = ("MEAN", "SUM")


def _found(
    resource: Callable[..., Any], kind: type[Accumulator], dtype: DType, shape: TensorShape, reduction: str
) -> np.ndarray:
    found = resource(lambda name: kind(name, dtype, shape, reduction))
    if type(found) is not kind or found.dtype != dtype or not found.shape.is_compatible_with(shape):
        refuse(f"{found} exists already, and is not a {kind.kind} of {dtype.name} {shape}. Use another shared_name.")
    return as_handle(found)


def _pair(op: Operation) -> list[TensorShape]:
    return [TensorShape.of((2,))]  # two elements as in TensorFlow, though it is one handle


def _gradient_shape(op: Operation) -> list[TensorShape]:
    source = op.input_list[0].op
    # In a branch or loop the handle comes in by a node that says nothing about the accumulator.
    return [source.attrs["shape"] if source.type.endswith("ConditionalAccumulator") else TensorShape.of(None)]


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
        refuse(f"{accumulator} holds {accumulator.dtype.name}, received {dtype.name}.")
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
        refuse(f"{accumulator} holds {accumulator.dtype.name}, received {dtype.name}.")
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


@op(
    "ResourceAccumulatorGlobalStep",
    "resource -> global_step: int64",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def resource_accumulator_global_step(handle: Any) -> np.ndarray:
    return np.array(from_handle(handle).global_step, np.int64)


@op("AccumulatorSetGlobalStep", "&string, int64 ->", host=True, stateful=True, no_gradient=True)
def accumulator_set_global_step(handle: Any, new_global_step: np.ndarray) -> None:
    from_handle(handle).set_global_step(int(new_global_step))


class ConditionalAccumulatorBase:
    """Base class of the accumulators of dense and of sparse gradients."""

    _num_accumulated = resource_accumulator_num_accumulated
    _set_global_step = resource_accumulator_set_global_step

    def __init__(self, dtype: DTypeLike, shape: ShapeLike, accumulator_ref: Tensor) -> None:
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
        """The number of gradients: an int32 scalar."""
        count: Tensor = type(self)._num_accumulated(self._accumulator_ref, name=name or f"{self._name}_NumAccumulated")
        return count

    def set_global_step(self, new_global_step: TensorLike, name: str | None = None) -> Operation:
        """Drops gradients with an earlier `local_step` from now on."""
        step = casting.cast(convert_to_tensor(new_global_step), dt.int64)
        node: Operation = type(self)._set_global_step(self._accumulator_ref, step, name=name)
        return node


class ConditionalAccumulator(ConditionalAccumulatorBase):
    """Collects gradients and returns their mean: `acc.apply_grad(g, step)`, then `acc.take_grad(num_workers)`."""

    def __init__(
        self,
        dtype: DTypeLike,
        shape: ShapeLike = None,
        shared_name: str | None = None,
        name: str = "conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        _check_reduction(reduction_type)
        handle = resource_conditional_accumulator(
            dtype=dtype, shape=shape, shared_name=shared_name or "", reduction_type=reduction_type, name=name
        )
        super().__init__(dtype, shape, handle)

    def apply_grad(self, grad: TensorLike, local_step: TensorLike = 0, name: str | None = None) -> Operation:
        """Adds a gradient, unless `local_step` is older than the accumulator's step."""
        grad = convert_to_tensor(grad, self._dtype)
        grad.shape.assert_is_compatible_with(self._shape)
        step = casting.cast(convert_to_tensor(local_step), dt.int64)
        node: Operation = resource_accumulator_apply_gradient(self._accumulator_ref, step, grad, name=name)
        return node

    def _global_step(self) -> Tensor:
        """The accumulator's step, which rises whenever its gradients are taken."""
        step: Tensor = resource_accumulator_global_step(self._accumulator_ref)
        return step

    def take_grad(self, num_required: TensorLike, name: str | None = None) -> Tensor:
        """The mean (or sum) of all gradients, once there are `num_required`; empties the accumulator."""
        result: Tensor = resource_accumulator_take_gradient(
            self._accumulator_ref, num_required, dtype=self._dtype, name=name
        )
        result.set_shape(self._shape)
        return result


class SparseGradient(NamedTuple):
    """The result of `SparseConditionalAccumulator.take_grad`."""

    indices: Tensor
    values: Tensor
    shape: Tensor


class SparseConditionalAccumulator(ConditionalAccumulatorBase):
    """Collects IndexedSlices, gradients of some rows; each row is averaged over the gradients that have it."""

    _num_accumulated = accumulator_num_accumulated
    _set_global_step = accumulator_set_global_step

    def __init__(
        self,
        dtype: DTypeLike,
        shape: ShapeLike = None,
        shared_name: str | None = None,
        name: str = "sparse_conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        _check_reduction(reduction_type)
        handle = sparse_conditional_accumulator(
            dtype=dtype, shape=shape, shared_name=shared_name or "", reduction_type=reduction_type, name=name
        )
        super().__init__(dtype, shape, handle)

    def apply_indexed_slices_grad(
        self, grad: IndexedSlices, local_step: TensorLike = 0, name: str | None = None
    ) -> Operation:
        """Adds a gradient given as IndexedSlices."""
        return self.apply_grad(grad.indices, grad.values, grad.dense_shape, local_step, name)

    def apply_grad(
        self,
        grad_indices: TensorLike,
        grad_values: TensorLike,
        grad_shape: ShapeLike = None,
        local_step: TensorLike = 0,
        name: str | None = None,
    ) -> Operation:
        """Adds the rows `grad_values` at `grad_indices`, unless `local_step` is older than the accumulator's step."""
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

    def take_grad(self, num_required: TensorLike, name: str | None = None) -> SparseGradient:
        """`(indices, values, shape)` of all gradients, once there are `num_required`."""
        return SparseGradient(
            *sparse_accumulator_take_gradient(self._accumulator_ref, num_required, dtype=self._dtype, name=name)
        )

    def take_indexed_slices_grad(self, num_required: TensorLike, name: str | None = None) -> IndexedSlices:
        """As `take_grad`, as IndexedSlices."""
        taken = self.take_grad(num_required, name)
        return IndexedSlices(indices=taken.indices, values=taken.values, dense_shape=taken.shape)


def _check_reduction(reduction_type: str) -> None:
    if reduction_type not in _REDUCTIONS:
        raise ValueError(f"reduction_type must be one of {_REDUCTIONS}, received {reduction_type!r}.")
