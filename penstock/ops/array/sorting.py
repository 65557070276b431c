"""Order: sorting, places in sorted sequences, and the n-th smallest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor, make_constant
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.opdef import OpDef, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel.shapes import merge
from penstock.kernel.types import INDEX32, REALS, Array
from penstock.ops.array import arranging, gathering, ranges, reshaping
from penstock.ops.math import casting, compare, reduce, unary
from penstock.ops.nn import layer_parts

_INT32 = dt.int32


# Sorting, by the largest entries (TopKV2)


def sort(values: TensorLike, axis: TensorLike = -1, direction: str = "ASCENDING", name: str | None = None) -> Tensor:
    """`values` sorted along `axis`.

    >>> tf.sort([3.0, 1.0, 2.0])
    """
    with name_scope(name, "sort"):
        return _sorted(values, axis, direction, places=False)


def argsort(
    values: TensorLike,
    axis: TensorLike = -1,
    direction: str = "ASCENDING",
    stable: bool = False,
    name: str | None = None,
) -> Tensor:
    """The indices that sort `values` along `axis`; equal entries keep their order.

    >>> tf.argsort([3.0, 1.0, 2.0])
    """
    with name_scope(name, "argsort"):
        return _sorted(values, axis, direction, places=True)


def _sorted(values: Any, axis: Any, direction: str, places: bool) -> Tensor:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"direction must be ASCENDING or DESCENDING, received {direction!r}.")
    at = constant_value(convert_to_tensor(axis, name="axis"))
    if at is None or at.ndim:
        raise ValueError(f"axis must be a constant scalar, received {axis!r}.")
    tensor = convert_to_tensor(values, name="values")
    if direction == "DESCENDING":
        return _descending(tensor, int(at), places)
    kind = tensor.dtype.base_dtype
    if kind.is_unsigned:
        reflected: Any = kind.max - tensor
        found: Any = _descending(reflected, int(at), places)
        return found if places else kind.max - found  # type: ignore[no-any-return]
    reflected = unary.negative(tensor)
    if kind.is_integer:
        # The smallest integer has no negative; -x - 1 maps the whole range onto itself.
        reflected = reflected - 1
    found = _descending(reflected, int(at), places)
    if not places:
        found = unary.negative(found)
        found = found - 1 if kind.is_integer else found
    result: Tensor = found
    return result


def _descending(tensor: Tensor, axis: int, places: bool) -> Tensor:
    count = reshaping.shape(tensor)[axis]  # type: ignore[index]
    rank: Any = reshaping.rank(tensor)
    known = tensor.shape.rank
    if axis == -1 or (known is not None and axis + 1 == known):
        return _largest(tensor, count, places)
    if known is not None:
        order = np.arange(known)
        at = axis % known
        order[at], order[-1] = known - 1, at
        swapped: Tensor = make_constant(order, _INT32, name="transposition")
    else:
        at = axis + rank if axis < 0 else axis
        swapped = gathering.tensor_scatter_nd_update(ranges.range(rank), [[at], [rank - 1]], [rank - 1, at])
    return arranging.transpose(_largest(arranging.transpose(tensor, swapped), count, places), swapped)


def _largest(tensor: Tensor, count: Tensor, places: bool) -> Tensor:
    """All entries along the last axis, largest first, or their indices."""
    found: Tensor = layer_parts.top_k_v2(tensor, count)[int(places)]
    found.set_shape(tensor.shape)
    return found


# Places in sorted sequences


def _bound_shape(op: Operation) -> list[TensorShape]:
    sequences, values = (t.shape.with_rank(2) for t in op.input_list)
    merge(sequences[:1], values[:1])
    return [values]


def _bound(name: str, side: str) -> OpDef:
    @op(name, "T, T -> output: out_type", shape=_bound_shape, no_gradient=True, out_type=INDEX32)
    def kernel(sorted_inputs: Array, values: Array, *, out_type: DType = _INT32) -> Array:
        if sorted_inputs.ndim != 2 or values.ndim != 2 or sorted_inputs.shape[0] != values.shape[0]:
            raise ValueError(
                f"sorted_inputs and values must be matrices with as many rows, received shapes "
                f"{list(sorted_inputs.shape)} and {list(values.shape)}"
            )

        def search(row: Array, wanted: Array) -> Array:
            return jnp.searchsorted(row, wanted, side=side)

        return jax.vmap(search)(sorted_inputs, values).astype(out_type.as_numpy_dtype)

    return kernel


lower_bound = _bound("LowerBound", "left")
upper_bound = _bound("UpperBound", "right")


def searchsorted(
    sorted_sequence: TensorLike,
    values: TensorLike,
    side: str = "left",
    out_type: DTypeLike = _INT32,
    name: str | None = None,
) -> Tensor:
    """Finds where to insert `values` into each row of `sorted_sequence` so that it stays sorted.

    >>> tf.searchsorted([1, 3, 5], [2, 5])
    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', received {side!r}.")
    sequence, wanted = convert_to_tensor(sorted_sequence), convert_to_tensor(values)
    length, count = (_dims(t)[-1] for t in (sequence, wanted))  # type: ignore[index]
    rows = reshaping.reshape(sequence, [-1, length])
    wanted_rows = reshaping.reshape(wanted, [-1, count])
    bound = lower_bound if side == "left" else upper_bound
    found = bound(rows, wanted_rows, out_type=as_dtype(out_type), name=name)
    return reshaping.reshape(found, _dims(wanted))


def _dims(tensor: Tensor) -> Tensor:
    return reshaping.shape_internal(tensor, const_name="shape_as_tensor")


# The n-th smallest


def _nth_shape(op: Operation) -> list[TensorShape]:
    shape, count = op.input_list[0].shape, constant_value(op.input_list[1])
    if shape.rank is None:
        return [shape]
    dims = shape.with_rank_at_least(1).as_list()
    if count is not None and int(count) < 0:
        raise ValueError(f"n must be non-negative, received {int(count)}")
    if count is not None and dims[-1] is not None and dims[-1] <= int(count):
        raise ValueError(f"Input must have last dimension > n = {int(count)}, but is {dims[-1]}")
    return [TensorShape.of(tuple(dims[:-1]))]


def _nth_grad(op: Operation, grad: Tensor) -> list[Any]:
    """The gradient, shared evenly among the entries that equal the n-th."""
    tensor, output = op.input_list[0], op.outputs[0]
    chosen: Any = casting.cast(compare.equal(reshaping.expand_dims(output, -1), tensor), grad.dtype)
    spread: Any = reshaping.expand_dims(grad, -1)
    count = reshaping.expand_dims(reduce.reduce_sum(chosen, -1), -1)
    return [chosen / count * spread, None]


@op("NthElement", "T, int32 -> values: T", static="n", shape=_nth_shape, grad=_nth_grad, T=REALS)
def nth_element_op(input: Array, n: Array, *, reverse: bool = False) -> Array:
    at = int(n)
    if input.ndim < 1 or not 0 <= at < input.shape[-1]:
        raise ValueError(f"Input must have last dimension > n = {at} >= 0, received shape {list(input.shape)}")
    return jnp.sort(input, axis=-1)[..., input.shape[-1] - 1 - at if reverse else at]


def nth_element(input: Any, n: Any, reverse: bool = False, name: str | None = None) -> Tensor:
    """The n-th smallest (or largest with `reverse`) entry of the last dimension, counted from 0.

    >>> tf.contrib.nn.nth_element(x, 2)
    """
    result: Tensor = nth_element_op(input, n, reverse=reverse, name=name)
    return result
