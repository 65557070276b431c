"""Methods of datasets that join elements into batches and windows, or split them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.data import structure, transform_ops
from penstock.data.base import DatasetBase
from penstock.data.functions import trace
from penstock.data.inputs import as_bool, as_int64, known_size
from penstock.data.padding import padded_shape_tensors, padding_value_tensors
from penstock.data.structure import DatasetSpec, RaggedRow, RaggedTensorSpec, SparseTensorSpec, TensorSpec
from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import control_dependencies
from penstock.graph.shape import TensorShape, as_shape
from penstock.graph.typing import TensorLike
from penstock.ops.array import gathering, passthrough
from penstock.ops.array.joining import stack
from penstock.ops.debugging import assertion
from penstock.ops.math import casting, compare, reduce
from penstock.ops.ragged.ragged_tensor import RaggedTensor


class Batches(DatasetBase):
    """Batches, windows and groups of elements."""

    def batch(
        self,
        batch_size: TensorLike,
        drop_remainder: Any = False,
        num_parallel_calls: Any = None,
        deterministic: Any = None,
        name: str | None = None,
    ) -> Any:
        """Joins `batch_size` elements into one; the last batch may be smaller, unless it is dropped."""
        size = as_int64(batch_size, "batch_size")
        drop = as_bool(drop_remainder, "drop_remainder")
        first = TensorShape.of((known_size(size, drop),))
        spec = structure.with_shapes(self._spec, first.concatenate)
        return self._made(transform_ops.batch_dataset, size, drop, spec=spec)

    def padded_batch(
        self,
        batch_size: TensorLike,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: Any = False,
        name: str | None = None,
    ) -> Any:
        """Batches of elements of different shapes: `lines.padded_batch(32, padded_shapes=[None])`."""
        if padded_shapes is None:
            padded_shapes = self.output_shapes
        size = as_int64(batch_size, "batch_size")
        known, shapes = padded_shape_tensors(self._spec, padded_shapes)
        values = padding_value_tensors(self._spec, padding_values)
        drop = as_bool(drop_remainder, "drop_remainder")
        first = TensorShape.of((known_size(size, drop),))
        leaves = zip(structure.flatten(self._spec), known, strict=True)
        spec = structure.pack(self._spec, [leaf.with_shape(first.concatenate(s)) for leaf, s in leaves])
        return self._made(transform_ops.padded_batch_dataset, size, shapes, values, drop, spec=spec)

    def sparse_batch(self, batch_size: TensorLike, row_shape: Any, name: str | None = None) -> Any:
        """Batches as sparse tensors, whose rows have `row_shape`: `lines.sparse_batch(32, [100])`."""
        if not isinstance(self._spec, TensorSpec) or isinstance(self._spec, SparseTensorSpec):
            raise TypeError(f"sparse_batch takes a dataset of dense tensors, received one of {self._spec!r}.")
        rows = as_shape(row_shape)
        spec = SparseTensorSpec(TensorShape.of((None,)).concatenate(rows), self._spec.dtype)
        dims = convert_to_tensor(np.array([-1 if d is None else d for d in rows.as_list()], np.int64))
        op = transform_ops.dense_to_sparse_batch_dataset
        return self._made(op, as_int64(batch_size, "batch_size"), dims, spec=spec)

    def ragged_batch(
        self,
        batch_size: TensorLike,
        drop_remainder: Any = False,
        row_splits_dtype: Any = dt.int64,
        name: str | None = None,
    ) -> Any:
        """Batches of elements of different sizes, as ragged tensors: `lines.ragged_batch(32)`."""
        parts = [_as_row(leaf) for leaf in structure.flatten(self._spec)]
        if not any(parts):
            return self.batch(batch_size, drop_remainder)

        def rows(*element: Any) -> Any:
            whole = element[0] if len(element) == 1 and type(self._spec) is not tuple else element
            leaves = zip(parts, structure.flatten(whole), strict=True)
            return structure.pack(self._spec, [leaf if part is None else part(leaf) for part, leaf in leaves])

        batches = self.map(rows).batch(batch_size, drop_remainder)  # type: ignore[attr-defined]
        if dt.as_dtype(row_splits_dtype) == dt.int64:
            return batches
        return batches.map(lambda *batch: _with_splits(batch, row_splits_dtype))

    def unbatch(self, name: str | None = None) -> Any:
        """Splits each element into its rows."""
        for leaf in structure.flatten(self._spec):
            if leaf.shape.rank == 0:
                raise ValueError(f"unbatch: a component is a scalar, which has no rows: {leaf!r}.")
        spec = structure.with_shapes(self._spec, lambda s: s if s.rank is None else s[1:])
        return self._made(transform_ops.unbatch_dataset, spec=spec)

    def rebatch(self, batch_size: TensorLike, drop_remainder: Any = False, name: str | None = None) -> Any:
        """Batches of another size, or of sizes that come round: `batches.rebatch([2, 3])`."""
        sizes = as_int64(batch_size, "batch_sizes")
        drop = as_bool(drop_remainder, "drop_remainder")
        known, dropped = constant_value(sizes), constant_value(drop)
        different = set() if known is None else set(known.reshape(-1).tolist())
        first = TensorShape.of((different.pop() if dropped and len(different) == 1 else None,))
        spec = structure.with_shapes(self._spec, lambda s: s if s.rank is None else first.concatenate(s[1:]))
        return self._made(transform_ops.rebatch_dataset, sizes, drop, spec=spec)

    def window(
        self,
        size: TensorLike,
        shift: TensorLike = None,
        stride: Any = 1,
        drop_remainder: Any = False,
        name: str | None = None,
    ) -> Any:
        """Datasets of `size` elements each: `dataset.window(3, 1).flat_map(lambda w: w.batch(3))`."""
        drop = as_bool(drop_remainder, "drop_remainder")
        length = as_int64(size, "size")
        moved = length if shift is None else as_int64(shift, "shift")
        spec = structure.map_leaves(DatasetSpec, self._spec)
        return self._made(transform_ops.window_dataset, length, moved, as_int64(stride, "stride"), drop, spec=spec)

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: Callable[..., Any],
        window_size: Any = None,
        window_size_func: Callable[..., Any] | None = None,
        name: str | None = None,
    ) -> Any:
        """Collects `window_size` elements with the same key and continues with the dataset of `reduce_func`.

        >>> dataset.group_by_window(key, lambda key, window: window.batch(32), window_size=32)
        """
        if (window_size is None) == (window_size_func is None):
            raise ValueError("group_by_window: give one of window_size and window_size_func.")
        number = TensorSpec((), dt.int64)
        key = trace(key_func, "group_by_window_key", self._spec)
        if not (isinstance(key.spec, TensorSpec) and key.spec.dtype == dt.int64):
            raise TypeError(f"`key_func` must return a single int64 scalar, received {key.result!r:.100}.")
        size_func = window_size_func or (lambda _: convert_to_tensor(window_size, dtype=dt.int64))
        size = trace(size_func, "group_by_window_size", number)
        reduced = trace(reduce_func, "group_by_window_reduce", number, DatasetSpec(self._spec))
        if not isinstance(reduced.spec, DatasetSpec):
            raise TypeError(f"`reduce_func` must return a `Dataset` object, received {reduced.result!r:.100}.")
        return self._made(
            transform_ops.group_by_window_dataset,
            key.captured,
            reduced.captured,
            size.captured,
            key_func=key.function,
            reduce_func=reduced.function,
            window_size_func=size.function,
            spec=reduced.spec.element_spec,
        )

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Any:
        """Padded batches of elements of similar length.

        >>> dataset.bucket_by_sequence_length(lambda x: tf.size(x), [10, 20], [32, 16, 8])
        """
        if len(bucket_batch_sizes) != len(bucket_boundaries) + 1:
            raise ValueError("len(bucket_batch_sizes) must equal len(bucket_boundaries) + 1.")

        def key(*element: Any) -> Tensor:
            length = casting.cast(element_length_func(*element), dt.int64)
            smaller = compare.less_equal(np.array(bucket_boundaries, np.int64), length)
            return reduce.reduce_sum(casting.cast(smaller, dt.int64))

        def size(number: Tensor) -> Tensor:
            found: Tensor = gathering.gather(convert_to_tensor(np.array(bucket_batch_sizes, np.int64)), number)
            return found

        def batch(number: Tensor, window: Any) -> Any:
            count = size(number)
            if no_padding:
                return window.batch(count, drop_remainder)
            shapes = padded_shapes if padded_shapes is not None else window.output_shapes
            if pad_to_bucket_boundary:
                short = compare.less(number, np.int64(len(bucket_boundaries)))
                told = "When pad_to_bucket_boundary=True, elements must have length < max(bucket_boundaries)."
                with control_dependencies([assertion.Assert(short, [told])]):
                    number = passthrough.identity(number)
                boundary = gathering.gather(np.array([b - 1 for b in bucket_boundaries], np.int64), number)
                spec = window.element_spec
                padded = [_to_boundary(s, boundary) for s in structure.flatten_up_to(spec, shapes)]
                shapes = structure.pack(spec, padded)
            return window.padded_batch(count, shapes, padding_values, drop_remainder)

        return self.group_by_window(key, batch, window_size_func=size)


def _as_row(leaf: Any) -> Callable[[Any], Any] | None:
    """The function that makes a component a row of ragged batches; None if its size is known."""
    if isinstance(leaf, (SparseTensorSpec, RaggedTensorSpec, DatasetSpec)) or leaf.shape.is_fully_defined():
        return None
    if leaf.shape.rank is None:
        raise ValueError(f"ragged_batch: the rank of a component must be known, received {leaf!r}.")
    ragged_rank = max(i for i, size in enumerate(leaf.shape.as_list()) if size is None)
    return (lambda t: RaggedTensor.from_tensor(t, ragged_rank=ragged_rank)) if ragged_rank else RaggedRow


def _with_splits(batch: tuple[Any, ...], dtype: Any) -> Any:
    changed = structure.map_leaves(
        lambda leaf: leaf.with_row_splits_dtype(dtype) if isinstance(leaf, RaggedTensor) else leaf, batch
    )
    return changed[0] if len(changed) == 1 else changed


def _to_boundary(shape: Any, boundary: Tensor) -> Any:
    dims = TensorShape(shape).as_list()
    return stack([boundary if d is None else convert_to_tensor(d, dtype=dt.int64) for d in dims]) if dims else shape
