"""Lists of tensors, on which TensorArray is built. A list is a value (`kernel/lists.py`): writing returns a new one."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError, UnimplementedError
from penstock.graph.constant import constant_value_as_shape
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.jaxprs.symbols import as_size
from penstock.kernel import shapes
from penstock.kernel.lists import RowList, StackedList, UnknownItem, is_known
from penstock.kernel.types import INDEX32, Array
from penstock.ops.array.creation import zeros_like, zeros_like_op
from penstock.ops.array.reshaping import shape
from penstock.ops.array.slicing import strided_slice
from penstock.ops.engine.vjp import differentiable

List = StackedList | RowList


def _declared(element_shape: Any) -> TensorShape:
    """The static shape of an item, from an input; a scalar -1 means that nothing is known."""
    return TensorShape.of(None) if element_shape.shape.rank == 0 else constant_value_as_shape(element_shape)


def _known_shape(element_shape: Array) -> tuple[int, ...] | None:
    """The shape of an item, from a value; None unless every dimension is known."""
    if element_shape.ndim == 0 or any(as_size(d) < 0 for d in element_shape):
        return None
    return tuple(map(as_size, element_shape))


def _item_shape(op: Operation) -> list[TensorShape]:
    return [_declared(op.input_list[-1])]


def _unwritten(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Could not {what} the TensorArray: an element was never written, and the shape of its elements is not known."
    )


@op(
    "TensorListReserve",
    "shape_type, int32 -> handle: variant",
    static="element_shape num_elements",
    shape=shapes.scalar,
    shape_type=INDEX32,
    no_gradient=True,
)
def tensor_list_reserve(element_shape: Array, num_elements: Array, *, element_dtype: DType) -> List:
    return StackedList(None, as_size(num_elements), np.dtype(element_dtype.as_numpy_dtype), _known_shape(element_shape))


def _from_tensor_grad(op: Operation, dlist: Any) -> list[Any]:
    return [tensor_list_stack(dlist, op.input_list[1], element_dtype=op.attrs["element_dtype"]), None]


@op(
    "TensorListFromTensor",
    "element_dtype, shape_type -> output_handle: variant",
    static="element_shape",
    shape=shapes.scalar,
    shape_type=INDEX32,
    grad=_from_tensor_grad,
)
def tensor_list_from_tensor(tensor: Array, element_shape: Array) -> List:
    return StackedList(tensor, tensor.shape[0], tensor.dtype)


def _stack_grad(op: Operation, dy: Any) -> list[Any]:
    return [tensor_list_from_tensor(dy, op.input_list[1]), None]


@op(
    "TensorListStack",
    "variant, int32 -> tensor: element_dtype",
    static="element_shape",
    grad=_stack_grad,
    shape=lambda op: [TensorShape.of((None,)).concatenate(_declared(op.input_list[1]))],
)
def tensor_list_stack(
    input_handle: List, element_shape: Array, *, element_dtype: DType, num_elements: int = -1
) -> Array:
    try:
        return input_handle.stack(_known_shape(element_shape))
    except UnknownItem:
        if input_handle.size:
            raise _unwritten("stack") from None
        raise UnimplementedError(
            "a TensorArray of size zero can be stacked only if the shape of its elements is known."
        ) from None


def _get_item_grad(op: Operation, dy: Any) -> list[Any]:
    handle, index, _ = op.input_list
    return [tensor_list_add_item(zeros_like_op(handle), index, dy), None, None]


@op(
    "TensorListGetItem",
    "variant, int32, int32 -> item: element_dtype",
    static="element_shape",
    shape=_item_shape,
    grad=_get_item_grad,
)
def tensor_list_get_item(input_handle: List, index: Array, element_shape: Array, *, element_dtype: DType) -> Array:
    try:
        return input_handle.get(index, _known_shape(element_shape))
    except UnknownItem:
        raise _unwritten("read from") from None


def _add_item_grad(op: Operation, dlist: Any) -> list[Any]:
    _, index, item = op.input_list
    return [dlist, None, _row(dlist, index, item)]


@op(
    "TensorListAddItem",
    "variant, int32, element_dtype -> output_handle: variant",
    shape=shapes.scalar,
    grad=_add_item_grad,
)
def tensor_list_add_item(input_handle: List, index: Array, item: Array) -> List:
    """A list with `item` added to the one at `index`: sums the gradients of reads."""
    return input_handle.add(index, item)


def _row(dlist: Any, index: Any, like: Any) -> Any:
    """The item at `index` of the gradient of a list, with the shape of `like`."""
    return tensor_list_get_item(dlist, index, shape(like), element_dtype=like.dtype.base_dtype)


def _set_item_grad(op: Operation, dlist: Any) -> list[Any]:
    _, index, item = op.input_list
    if not differentiable(item.dtype):
        return [None, None, None]
    rest, row = tensor_list_take_item(dlist, index, item)
    return [rest, None, row]


def _take_item_grad(op: Operation, drest: Any, drow: Any) -> list[Any]:
    _, index, item = op.input_list
    return [tensor_list_add_item(tensor_list_set_item(drest, index, zeros_like(item)), index, drow), None, None]


@op(
    "TensorListTakeItem",
    "variant, int32, element_dtype -> rest: variant, item: element_dtype",
    grad=_take_item_grad,
    shape=lambda op: [TensorShape.of(()), op.input_list[2].shape],
)
def tensor_list_take_item(input_handle: List, index: Array, like: Array) -> tuple[List, Array]:
    """The list with zeros instead of the item at `index`, and that item: the gradient of a write."""
    return input_handle.take(index, like.shape)


def _index_must_be_known(attrs: dict[str, Any]) -> frozenset[int]:
    return frozenset({1} if attrs["resize_if_index_out_of_bounds"] else ())


@op(
    "TensorListSetItem",
    "variant, int32, element_dtype -> output_handle: variant",
    shape=shapes.scalar,
    static_of=_index_must_be_known,
    grad=_set_item_grad,
)
def tensor_list_set_item(
    input_handle: List, index: Array, item: Array, *, resize_if_index_out_of_bounds: bool = False
) -> List:
    if resize_if_index_out_of_bounds:
        input_handle = input_handle.resized(int(index) + 1)
    return input_handle.set(index, item)


@op("TensorListLength", "variant -> length: int32", shape=shapes.scalar, no_gradient=True)
def tensor_list_length(input_handle: List) -> Array:
    return np.array(input_handle.size, np.int32)


def _gather_grad(op: Operation, dy: Any) -> list[Any]:
    handle, indices, _ = op.input_list
    return [tensor_list_add_rows(zeros_like_op(handle), dy, indices), None, None]


@op(
    "TensorListGather",
    "variant, int32, int32 -> values: element_dtype",
    static="element_shape",
    grad=_gather_grad,
    shape=lambda op: [op.input_list[1].shape.concatenate(_declared(op.input_list[2]))],
)
def tensor_list_gather(input_handle: List, indices: Array, element_shape: Array, *, element_dtype: DType) -> Array:
    try:
        return input_handle.items_at(indices, _known_shape(element_shape))
    except UnknownItem:
        raise _unwritten("gather from") from None


def _rows(dlist: Any, indices: Any, like: Any) -> Any:
    item = strided_slice(shape(like), [1], [0], end_mask=1)
    return tensor_list_gather(dlist, indices, item, element_dtype=like.dtype.base_dtype)


def _add_rows_grad(op: Operation, dlist: Any) -> list[Any]:
    _, tensor, indices = op.input_list
    return [dlist, _rows(dlist, indices, tensor), None]


@op(
    "TensorListAddRows",
    "variant, element_dtype, int32 -> output_handle: variant",
    shape=shapes.scalar,
    grad=_add_rows_grad,
)
def tensor_list_add_rows(input_handle: List, tensor: Array, indices: Array) -> List:
    """A list with the rows of `tensor` added to the items at `indices`."""
    return input_handle.add_rows(indices, tensor)


def _scatter_grad(op: Operation, dlist: Any) -> list[Any]:
    _, tensor, indices = op.input_list
    if not differentiable(tensor.dtype):
        return [None, None, None]
    return [tensor_list_scatter(dlist, zeros_like(tensor), indices), _rows(dlist, indices, tensor), None]


@op(
    "TensorListScatterIntoExistingList",
    "variant, element_dtype, int32 -> output_handle: variant",
    shape=shapes.scalar,
    grad=_scatter_grad,
)
def tensor_list_scatter(input_handle: List, tensor: Array, indices: Array) -> List:
    return input_handle.scatter(indices, tensor)


def _concat_grad(op: Operation, dy: Any, _: Any) -> list[Any]:
    return [tensor_list_split(dy, op.input_list[1], op.outputs[1]), None, None]


def _concat_shape(op: Operation) -> list[TensorShape]:
    item = _declared(op.input_list[1])
    rest = TensorShape.of(None) if item.rank is None else TensorShape.of((None, *item.as_list()[1:]))
    return [rest, TensorShape.of((None,))]


@op(
    "TensorListConcatV2",
    "variant, shape_type, int64 -> tensor: element_dtype, lengths: int64",
    static="element_shape leading_dims",
    shape=_concat_shape,
    shape_type=INDEX32,
    grad=_concat_grad,
)
def tensor_list_concat(
    input_handle: List, element_shape: Array, leading_dims: Array, *, element_dtype: DType
) -> tuple[Array, Array]:
    """All items joined along their first dimension, and the length of each."""
    try:
        return input_handle.concat(_known_shape(element_shape)), input_handle.lengths()
    except UnknownItem:
        raise _unwritten("join the elements of") from None


def _split_grad(op: Operation, dlist: Any) -> list[Any]:
    tensor, element_shape, _ = op.input_list
    joined, _ = tensor_list_concat(dlist, element_shape, [], element_dtype=tensor.dtype.base_dtype)
    return [joined, None, None]


@op(
    "TensorListSplit",
    "element_dtype, shape_type, int64 -> output_handle: variant",
    static="element_shape lengths",
    shape=shapes.scalar,
    shape_type=INDEX32,
    grad=_split_grad,
)
def tensor_list_split(tensor: Array, element_shape: Array, lengths: Array) -> List:
    """Consecutive pieces of `tensor` along its first dimension, of the given lengths."""
    total = int(lengths.sum())
    if total != tensor.shape[0]:
        raise ValueError(f"the lengths {lengths.tolist()} add up to {total}, but there are {tensor.shape[0]} rows")
    if is_known(lengths) and len(set(lengths.tolist())) == 1:
        length = int(lengths[0])
        return StackedList(tensor.reshape((len(lengths), length, *tensor.shape[1:])), len(lengths), tensor.dtype)
    ends = np.cumsum(lengths)
    return RowList([tensor[e - n : e] for e, n in zip(ends, lengths, strict=True)], tensor.dtype)
