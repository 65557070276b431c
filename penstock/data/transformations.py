"""Transformations for `dataset.apply(...)`: those of tf.data.experimental and tf.contrib.data beyond the methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.data import source_ops, structure, transform_ops
from penstock.data.dataset import Dataset, as_int64, known_size, normalized, seeds
from penstock.data.functions import Traced, scalar_bool, trace, trace_stable
from penstock.data.structure import DatasetSpec, TensorSpec
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.array import gathering
from penstock.ops.array.joining import stack
from penstock.ops.math import casting, compare, reduce

Transformation = Callable[[Dataset], Dataset]


def shuffle_and_repeat(buffer_size: TensorLike, count: TensorLike = None, seed: Any = None) -> Transformation:
    """`shuffle` and then `repeat`: `dataset.apply(tf.data.experimental.shuffle_and_repeat(10000))`."""

    def apply(dataset: Dataset) -> Dataset:
        size, times = as_int64(buffer_size, "buffer_size"), as_int64(count, "count", -1)
        return dataset._made(transform_ops.shuffle_and_repeat_dataset, size, *seeds(seed), times)

    return apply


def map_and_batch(
    map_func: Callable[..., Any],
    batch_size: TensorLike,
    num_parallel_batches: Any = None,
    drop_remainder: Any = False,
    num_parallel_calls: Any = None,
) -> Transformation:
    """`map` and then `batch`: `dataset.apply(tf.data.experimental.map_and_batch(parse, 32, num_parallel_calls=4))`."""
    if num_parallel_batches is not None and num_parallel_calls is not None:
        raise ValueError("map_and_batch: num_parallel_batches and num_parallel_calls cannot both be given.")

    def apply(dataset: Dataset) -> Dataset:
        traced = trace(map_func, "map_and_batch", dataset.element_spec)
        size = as_int64(batch_size, "batch_size")
        parallel = as_int64(num_parallel_calls or -1, "num_parallel_calls")
        drop = convert_to_tensor(drop_remainder, dtype=dt.bool, name="drop_remainder")
        spec = structure.with_shapes(traced.spec, TensorShape.of((known_size(size, drop),)).concatenate)
        op = transform_ops.map_and_batch_dataset
        return dataset._made(op, traced.captured, size, parallel, drop, f=traced.function, spec=spec)

    return apply


def map_and_batch_with_legacy_function(*args: Any, **kwargs: Any) -> Transformation:
    """The same as `map_and_batch`."""
    return map_and_batch(*args, **kwargs)


def parallel_interleave(
    map_func: Callable[..., Any],
    cycle_length: TensorLike,
    block_length: TensorLike = 1,
    sloppy: Any = False,
    buffer_output_elements: Any = None,
    prefetch_input_elements: Any = None,
) -> Transformation:
    """`interleave` with a thread per open dataset: `apply(parallel_interleave(TFRecordDataset, cycle_length=4))`."""

    def apply(dataset: Dataset) -> Dataset:
        traced, spec = dataset._datasets(map_func, "parallel_interleave")
        return dataset._made(
            transform_ops.legacy_parallel_interleave_dataset,
            traced.captured,
            as_int64(cycle_length, "cycle_length"),
            as_int64(block_length, "block_length"),
            as_int64(buffer_output_elements, "buffer_output_elements", -1),
            as_int64(prefetch_input_elements, "prefetch_input_elements", -1),
            f=traced.function,
            spec=spec,
        )

    return apply


def ignore_errors() -> Transformation:
    """Leaves out the elements that fail: `dataset.apply(tf.data.experimental.ignore_errors())`."""
    return lambda dataset: dataset._made(transform_ops.ignore_errors_dataset)


def unbatch() -> Transformation:
    """Splits each element into its rows: `dataset.apply(tf.data.experimental.unbatch())`."""
    return lambda dataset: dataset.unbatch()


def unique() -> Transformation:
    """Each element once: `dataset.apply(tf.data.experimental.unique())`."""
    return lambda dataset: dataset._made(transform_ops.unique_dataset)


def enumerate_dataset(start: TensorLike = 0) -> Transformation:
    """Each element with its number."""
    return lambda dataset: dataset.enumerate(start)


def filter_for_shard(num_shards: Any, shard_index: Any) -> Transformation:
    """`dataset.shard` as a transformation."""
    return lambda dataset: dataset.shard(num_shards, shard_index)


def batch_and_drop_remainder(batch_size: TensorLike) -> Transformation:
    """Batches, without a smaller last one."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(
    batch_size: TensorLike, padded_shapes: Any, padding_values: Any = None
) -> Transformation:
    """Padded batches, without a smaller last one."""
    return lambda dataset: dataset.padded_batch(batch_size, padded_shapes, padding_values, drop_remainder=True)


def copy_to_device(target_device: str, source_device: str = "/cpu:0") -> Transformation:
    """The same dataset: data is copied to a device when compiled code needs it."""
    return lambda dataset: dataset


def prefetch_to_device(device: str, buffer_size: TensorLike = None) -> Transformation:
    """`prefetch`: data is copied to a device when compiled code needs it."""
    return lambda dataset: dataset.prefetch(buffer_size)


def assert_element_shape(expected_shapes: Any) -> Transformation:
    """Sets the static shapes `expected_shapes`; elements of other shapes are an error."""

    def apply(dataset: Dataset) -> Dataset:
        wanted = structure.flatten_up_to(dataset.element_spec, expected_shapes)
        leaves = zip(structure.flatten(dataset.element_spec), wanted, strict=True)
        merged = [leaf.with_shape(leaf.shape.merge_with(s)) for leaf, s in leaves]
        return Dataset(dataset._variant_tensor, structure.pack(dataset.element_spec, merged), dataset.options())

    return apply


def scan(initial_state: Any, scan_func: Callable[..., Any]) -> Transformation:
    """`scan_func(state, element)` gives the next state and an element: `apply(scan(zero, lambda s, x: (s + x, s)))`."""

    def apply(dataset: Dataset) -> Dataset:
        state, tensors = normalized(initial_state)
        found: dict[str, Any] = {}

        def once(spec: Any) -> Traced:
            traced = trace(scan_func, "scan", spec, dataset.element_spec)
            if type(traced.spec) is not tuple or len(traced.spec) != 2:
                raise TypeError("`scan_func` must return a pair of the new state and an element.")
            found["output"] = traced.spec[1]
            return Traced(traced.function, traced.spec[0], traced.result)

        traced = trace_stable(once, state)
        return dataset._made(
            transform_ops.scan_dataset, tensors, traced.captured, f=traced.function, spec=found["output"]
        )

    return apply


def take_while(predicate: Callable[..., Any]) -> Transformation:
    """The elements up to the first for which `predicate` is false."""

    def apply(dataset: Dataset) -> Dataset:
        traced = scalar_bool(trace(predicate, "take_while", dataset.element_spec))
        return dataset._made(transform_ops.take_while_dataset, traced.captured, predicate=traced.function)

    return apply


def group_by_window(
    key_func: Callable[..., Any],
    reduce_func: Callable[..., Any],
    window_size: Any = None,
    window_size_func: Callable[..., Any] | None = None,
) -> Transformation:
    """Collects `window_size` elements with the same key and continues with the dataset that `reduce_func` returns.

    >>> dataset.apply(tf.data.experimental.group_by_window(key, lambda key, window: window.batch(32), 32))
    """
    if (window_size is None) == (window_size_func is None):
        raise ValueError("group_by_window: give one of window_size and window_size_func.")

    def apply(dataset: Dataset) -> Dataset:
        number = TensorSpec((), dt.int64)
        key = trace(key_func, "group_by_window_key", dataset.element_spec)
        if not (isinstance(key.spec, TensorSpec) and key.spec.dtype == dt.int64):
            raise ValueError(f"`key_func` must return a single int64 scalar, received {key.result!r:.100}.")
        size_func = window_size_func or (lambda _: convert_to_tensor(window_size, dtype=dt.int64))
        size = trace(size_func, "group_by_window_size", number)
        reduce = trace(reduce_func, "group_by_window_reduce", number, DatasetSpec(dataset.element_spec))
        if not isinstance(reduce.spec, DatasetSpec):
            raise TypeError(f"`reduce_func` must return a `Dataset` object, received {reduce.result!r:.100}.")
        return dataset._made(
            transform_ops.group_by_window_dataset,
            key.captured,
            reduce.captured,
            size.captured,
            key_func=key.function,
            reduce_func=reduce.function,
            window_size_func=size.function,
            spec=reduce.spec.element_spec,
        )

    return apply


def bucket_by_sequence_length(
    element_length_func: Callable[..., Any],
    bucket_boundaries: Sequence[int],
    bucket_batch_sizes: Sequence[int],
    padded_shapes: Any = None,
    padding_values: Any = None,
    pad_to_bucket_boundary: bool = False,
    no_padding: bool = False,
    drop_remainder: bool = False,
) -> Transformation:
    """Padded batches of elements of similar length.

    >>> dataset.apply(tf.data.experimental.bucket_by_sequence_length(lambda x: tf.size(x), [10, 20], [32, 16, 8]))
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

    def batch(number: Tensor, window: Dataset) -> Dataset:
        count = size(number)
        if no_padding:
            return window.batch(count, drop_remainder)
        shapes = padded_shapes if padded_shapes is not None else window.output_shapes
        if pad_to_bucket_boundary:
            limits = np.array([*(b - 1 for b in bucket_boundaries), -1], np.int64)
            boundary = gathering.gather(convert_to_tensor(limits), number)
            shapes = structure.pack(
                window.element_spec,
                [_to_boundary(s, boundary) for s in structure.flatten_up_to(window.element_spec, shapes)],
            )
        return window.padded_batch(count, shapes, padding_values, drop_remainder)

    return group_by_window(key, batch, window_size_func=size)


def _to_boundary(shape: Any, boundary: Tensor) -> Any:
    dims = TensorShape(shape).as_list()
    return stack([boundary if d is None else convert_to_tensor(d, dtype=dt.int64) for d in dims]) if dims else shape


# Sources


def Counter(start: TensorLike = 0, step: Any = 1, dtype: DTypeLike = dt.int64) -> Dataset:
    """Counts without end: `tf.data.experimental.Counter(start=1)`."""
    wanted = dt.as_dtype(dtype)
    limit = np.iinfo(np.int64).max if np.sign(step) >= 0 else np.iinfo(np.int64).min
    return Dataset.range(start, limit, step, output_type=wanted)


class RandomDataset(Dataset):
    """Random integers without end: `tf.data.experimental.RandomDataset(seed=1)`."""

    def __init__(self, seed: Any = None) -> None:
        spec = TensorSpec((), dt.int64)
        variant = source_ops.random_dataset(*seeds(seed), output_types=[dt.int64], output_shapes=[spec.shape])
        super().__init__(variant, spec)


def choose_from_datasets(datasets: Sequence[Dataset], choice_dataset: Dataset) -> Dataset:
    """Takes the next element from the one of `datasets` that the next number of `choice_dataset` names."""
    first = datasets[0]
    if choice_dataset.output_types != dt.int64:
        raise TypeError("`choice_dataset` must be a dataset of scalar int64 tensors.")
    for other in datasets[1:]:
        if other.output_types != first.output_types:
            found = f"{first.output_types}, {other.output_types}"
            raise TypeError(f"All datasets must have the same types, received {found}.")
    common = [structure.flatten(d.element_spec) for d in datasets]
    leaves = []
    for column in zip(*common, strict=True):
        shape = column[0].shape
        for leaf in column[1:]:
            shape = shape.most_specific_compatible_shape(leaf.shape)
        leaves.append(column[0].with_shape(shape))
    spec = structure.pack(first.element_spec, leaves)
    variant = transform_ops.directed_interleave_dataset(
        choice_dataset._variant_tensor,
        [d._variant_tensor for d in datasets],
        output_types=structure.types_of(spec),
        output_shapes=structure.shapes_of(spec),
    )
    return Dataset(variant, spec)


def sample_from_datasets(datasets: Sequence[Dataset], weights: TensorLike = None, seed: Any = None) -> Dataset:
    """Takes elements from randomly chosen datasets: `tf.data.experimental.sample_from_datasets([a, b], [0.9, 0.1])`."""
    count = len(datasets)
    chances = np.full(count, 1.0 / count) if weights is None else np.asarray(weights, np.float64)
    if chances.shape != (count,):
        raise ValueError(f"sample_from_datasets: {count} datasets need as many weights, received {weights!r:.100}.")
    limits = np.floor(np.cumsum(chances / chances.sum()) * 2.0**32).astype(np.int64)
    limits[-1] = 2**32

    def choose(number: Tensor) -> Tensor:
        return reduce.reduce_sum(casting.cast(compare.less_equal(limits, number), dt.int64))

    return choose_from_datasets(datasets, RandomDataset(seed).map(choose))
