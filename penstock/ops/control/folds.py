"""map_fn, scan, foldl and foldr: loops over the first dimension of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.function import Function
from penstock.graph.hooks import hooks
from penstock.graph.opdef import registered
from penstock.graph.operation import Tensor
from penstock.graph.ragged_tensor import Ragged, tensor_or_ragged
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.sparse_tensor import SparseTensor
from penstock.graph.typing import DTypeLike
from penstock.ops.control.flow import while_loop
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.ragged import carrying
from penstock.ops.sparse.serialize import (
    deserialize_many_sparse,
    deserialize_sparse,
    serialize_many_sparse,
    serialize_sparse,
)


def _unstacked(elems: Any, label: str) -> tuple[Any, list[TensorArray], Tensor]:
    """The elements as TensorArrays over their first dimension, and its size."""
    if not callable(label) and not nest.flatten(elems):
        raise ValueError("elems must hold at least one tensor.")
    tensors = [convert_to_tensor(e, name="elems") for e in nest.flatten(elems)]
    for tensor in tensors:
        if tensor.shape.rank == 0:
            raise ValueError(f"elements in elems must be 1+ dimensional Tensors, not scalars; received {tensor!r}.")
    size = _length(tensors)
    arrays = [TensorArray(t.dtype.base_dtype, size=size, name="elems").unstack(t) for t in tensors]
    return elems, arrays, size


def _length(tensors: list[Tensor]) -> Tensor:
    known = next((t.shape.as_list()[0] for t in tensors if t.shape.rank and t.shape.as_list()[0] is not None), None)
    if known is not None:
        return convert_to_tensor(known, dtype=dt.int32, name="size")
    shape = _op("Shape")(tensors[0], out_type=dt.int32)
    size: Tensor = _op("StridedSlice")(shape, [0], [1], [1], shrink_axis_mask=1)
    return size


def _op(name: str) -> Any:
    return registered(name)


def _less(i: Any, n: Any) -> Tensor:
    result: Tensor = _op("Less")(i, n)
    return result


def _next(i: Tensor) -> Tensor:
    result: Tensor = _op("AddV2")(i, 1)
    return result


def _read(structure: Any, arrays: list[TensorArray], i: Any) -> Any:
    return nest.pack_sequence_as(structure, [a.read(i) for a in arrays])


def _stacked(structure: Any, arrays: Any, elements: list[Tensor]) -> Any:
    results = []
    for array in nest.flatten(arrays):
        tensor = array.stack()
        first = next((e.shape.as_list()[0] for e in elements if e.shape.rank), None)
        tensor.set_shape(TensorShape.of((first,)).concatenate(array.element_shape))
        results.append(tensor)
    return nest.pack_sequence_as(structure, results)


def map_fn(
    fn: Callable[..., Any],
    elems: Any,
    dtype: DTypeLike | None = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
) -> Any:
    """Applies `fn` to each row of `elems` and stacks the results; `dtype` gives their types if they differ.

    >>> tf.map_fn(lambda x: x * x, tf.range(6))
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, received {fn!r}.")
    fn = hooks.converted(fn)
    with name_scope(name, "map", nest.flatten(elems)):
        given = nest.flatten(elems)
        structure, arrays, size = _unstacked(nest.map_structure(_as_rows, elems), "map")
        result_structure = structure if dtype is None else dtype
        types = [a.dtype for a in arrays] if dtype is None else [_item_type(leaf) for leaf in nest.flatten(dtype)]
        results = [TensorArray(t, size=size, infer_shape=infer_shape) for t in types]

        def body(i: Tensor, outputs: list[TensorArray]) -> Any:
            rows = [_from_row(e, a.read(i)) for e, a in zip(given, arrays, strict=True)]
            values = fn(nest.pack_sequence_as(structure, rows))
            if dtype is not None:
                nest.assert_same_structure(dtype, values, check_types=False)
            flat = [_as_row(v, t) for v, t in zip(nest.flatten(values), types, strict=True)]
            return _next(i), [a.write(i, v) for a, v in zip(outputs, flat, strict=True)]

        _, outputs = while_loop(
            lambda i, _: _less(i, size),
            body,
            (0, results),
            maximum_iterations=size,
            return_same_structure=True,
            back_prop=back_prop,
        )
        elements = [convert_to_tensor(e) for e in given if not isinstance(e, (SparseTensor, Ragged))]
        stacked = _stacked(result_structure, outputs, elements)
        if dtype is not None:
            return nest.map_structure(_from_items, dtype, stacked)
        return nest.pack_sequence_as(structure, list(map(_from_rows, given, nest.flatten(stacked))))


def map_fn_v2(
    fn: Callable[..., Any],
    elems: Any,
    dtype: DTypeLike | None = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: Any = None,
) -> Any:
    """Applies `fn` to each row of `elems` and stacks the results; `fn_output_signature` gives their types or specs.

    >>> tf.map_fn(lambda x: tf.cast(x, tf.float32), tf.range(6), fn_output_signature=tf.float32)
    """
    types = fn_output_signature if fn_output_signature is not None else dtype
    if types is not None:
        types = nest.map_structure(lambda leaf: leaf if _is_ragged(leaf) else getattr(leaf, "dtype", leaf), types)
    return map_fn(fn, elems, types, parallel_iterations, back_prop, swap_memory, infer_shape, name)


def vectorized_map(fn: Callable[..., Any], elems: Any, fallback_to_while_loop: bool = True, warn: bool = True) -> Any:
    """Applies `fn` to each row of `elems` and stacks the results, whatever their types.

    >>> tf.vectorized_map(lambda x: x * x, tf.range(6))
    """
    found: list[Any] = []
    rows = [convert_to_tensor(e) for e in nest.flatten(elems)]
    specs = [(r.dtype.base_dtype, TensorShape.of(r.shape._dims[1:] if r.shape._dims else None)) for r in rows]

    def types(*row: Tensor) -> list[Tensor]:
        found.append(fn(nest.pack_sequence_as(elems, list(row))))
        return []

    Function.trace("row", specs, types)  # only the types of the results are wanted
    dtypes = nest.map_structure(lambda leaf: convert_to_tensor(leaf).dtype.base_dtype, found[0])
    return map_fn(fn, elems, dtypes)


def _as_rows(elem: Any) -> Any:
    """A dense tensor unchanged, others as rows in one value each, which can be read and written one by one."""
    if isinstance(elem, Ragged):
        return carrying.to_variant(elem, rows=True)
    return serialize_many_sparse(elem) if isinstance(elem, SparseTensor) else convert_to_tensor(elem, name="elems")


def _is_ragged(spec: Any) -> bool:
    return hasattr(spec, "ragged_rank")


def _item_type(leaf: Any) -> Any:
    """The type of the items that hold results: specs of ragged ones have handles."""
    return dt.variant if _is_ragged(leaf) else leaf


def _as_row(value: Any, item_type: Any) -> Any:
    if isinstance(value, SparseTensor):
        return serialize_sparse(value)
    if item_type is dt.variant:
        return carrying.to_variant(tensor_or_ragged(value))
    return value


def _from_items(spec: Any, rows: Any) -> Any:
    """The stacked results of a function, of which `spec` describes one."""
    if not _is_ragged(spec):
        return rows
    shape = TensorShape.of((None,)).concatenate(spec.shape)
    return carrying.from_variant(rows, spec.dtype, spec.ragged_rank + 1, spec.row_splits_dtype, shape)


def _from_row(elem: Any, row: Tensor) -> Any:
    if isinstance(elem, Ragged):
        return carrying.from_variant(row, elem.dtype, elem.ragged_rank - 1, elem.row_splits.dtype, elem.shape[1:])
    if not isinstance(elem, SparseTensor):
        return row
    rank = elem.shape.rank
    return deserialize_sparse(row, elem.dtype, None if rank is None else rank - 1)


def _from_rows(elem: Any, rows: Tensor) -> Any:
    if isinstance(elem, Ragged):
        return carrying.from_variant(rows, elem.dtype, elem.ragged_rank, elem.row_splits.dtype, elem.shape)
    return deserialize_many_sparse(rows, elem.dtype, elem.shape.rank) if isinstance(elem, SparseTensor) else rows


def scan(
    fn: Callable[..., Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """All the partial results of folding `fn(accumulated, element)` over the rows of `elems`.

    >>> tf.scan(lambda a, x: a + x, tf.range(5))  # [0, 1, 3, 6, 10]
    """
    return _fold(fn, elems, initializer, reverse, name or "scan", back_prop, keep=True, infer_shape=infer_shape)


def foldl(
    fn: Callable[..., Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """Folds `fn(accumulated, element)` over the rows of `elems`, from the first to the last.

    >>> tf.foldl(lambda a, x: a + x, tf.range(5))  # 10
    """
    return _fold(fn, elems, initializer, False, name or "foldl", back_prop, keep=False)


def foldr(
    fn: Callable[..., Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """Folds `fn(accumulated, element)` over the rows of `elems`, from the last to the first."""
    return _fold(fn, elems, initializer, True, name or "foldr", back_prop, keep=False)


def _fold(
    fn: Any,
    elems: Any,
    initializer: Any,
    reverse: bool,
    name: str,
    back_prop: bool,
    keep: bool,
    infer_shape: bool = True,
) -> Any:
    if not callable(fn):
        raise TypeError(f"fn must be callable, received {fn!r}.")
    with name_scope(name, None, nest.flatten(elems)):
        structure, arrays, size = _unstacked(elems, name)
        elements = [convert_to_tensor(e) for e in nest.flatten(elems)]
        last = _op("Sub")(size, 1)
        if initializer is None:
            start_structure = structure
            start = [a.read(last if reverse else 0) for a in arrays]
            done = 1
        else:
            start_structure = initializer
            start = [convert_to_tensor(v) for v in nest.flatten(initializer)]
            done = 0
        results = (
            [TensorArray(t.dtype.base_dtype, size=size, element_shape=t.shape if infer_shape else None) for t in start]
            if keep
            else []
        )
        if keep and done:
            results = [r.write(last if reverse else 0, s) for r, s in zip(results, start, strict=True)]

        def body(i: Tensor, current: list[Tensor], outputs: list[TensorArray]) -> Any:
            at = _op("Sub")(last, i) if reverse else i
            values = fn(nest.pack_sequence_as(start_structure, current), _read(structure, arrays, at))
            flat = [convert_to_tensor(v) for v in nest.flatten(values)]
            return _next(i), flat, [o.write(at, v) for o, v in zip(outputs, flat, strict=False)]

        _, final, outputs = while_loop(
            lambda i, *_: _less(i, size),
            body,
            (done, start, results),
            maximum_iterations=size,
            return_same_structure=True,
            back_prop=back_prop,
        )
        return _stacked(start_structure, outputs, elements) if keep else nest.pack_sequence_as(start_structure, final)
