"""Transformations for `dataset.apply(...)`: those of tf.data.experimental and tf.contrib.data beyond the methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.data import structure, transform_ops
from penstock.data.dataset import Dataset
from penstock.data.functions import trace
from penstock.data.inputs import as_int64, known_size, seeds
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike

Transformation = Callable[[Dataset], Any]


def shuffle_and_repeat(buffer_size: TensorLike, count: TensorLike = None, seed: Any = None) -> Transformation:
    """`shuffle` and then `repeat`: `dataset.apply(tf.data.experimental.shuffle_and_repeat(10000))`."""

    def apply(dataset: Dataset) -> Any:
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

    def apply(dataset: Dataset) -> Any:
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

    def apply(dataset: Dataset) -> Any:
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
    return lambda dataset: dataset.ignore_errors()


def unbatch() -> Transformation:
    """Splits each element into its rows: `dataset.apply(tf.data.experimental.unbatch())`."""
    return lambda dataset: dataset.unbatch()


def unique() -> Transformation:
    """Each element once: `dataset.apply(tf.data.experimental.unique())`."""
    return lambda dataset: dataset.unique()


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

    def apply(dataset: Dataset) -> Any:
        wanted = structure.flatten_up_to(dataset.element_spec, expected_shapes)
        leaves = zip(structure.flatten(dataset.element_spec), wanted, strict=True)
        merged = [leaf.with_shape(leaf.shape.merge_with(s)) for leaf, s in leaves]
        return Dataset(dataset._variant_tensor, structure.pack(dataset.element_spec, merged), dataset.options())

    return apply


def scan(initial_state: Any, scan_func: Callable[..., Any]) -> Transformation:
    """`scan_func(state, element)` gives the next state and an element: `apply(scan(zero, lambda s, x: (s + x, s)))`."""
    return lambda dataset: dataset.scan(initial_state, scan_func)


def take_while(predicate: Callable[..., Any]) -> Transformation:
    """The elements up to the first for which `predicate` is false."""
    return lambda dataset: dataset.take_while(predicate)


def group_by_window(*args: Any, **kwargs: Any) -> Transformation:
    """`Dataset.group_by_window` as a transformation, with the same arguments."""
    return lambda dataset: dataset.group_by_window(*args, **kwargs)


def bucket_by_sequence_length(*args: Any, **kwargs: Any) -> Transformation:
    """`Dataset.bucket_by_sequence_length` as a transformation, with the same arguments."""
    return lambda dataset: dataset.bucket_by_sequence_length(*args, **kwargs)


def rejection_resample(*args: Any, **kwargs: Any) -> Transformation:
    """`Dataset.rejection_resample` as a transformation, with the same arguments."""
    return lambda dataset: dataset.rejection_resample(*args, **kwargs)


def dense_to_sparse_batch(batch_size: TensorLike, row_shape: Any) -> Transformation:
    """`Dataset.sparse_batch` as a transformation."""
    return lambda dataset: dataset.sparse_batch(batch_size, row_shape)


def dense_to_ragged_batch(
    batch_size: TensorLike, drop_remainder: Any = False, row_splits_dtype: Any = dt.int64
) -> Transformation:
    """`Dataset.ragged_batch` as a transformation."""
    return lambda dataset: dataset.ragged_batch(batch_size, drop_remainder, row_splits_dtype)


def assert_cardinality(expected_cardinality: TensorLike) -> Transformation:
    """Promises a number of elements; it is an error if there are more or fewer.

    >>> dataset.filter(known).apply(tf.data.experimental.assert_cardinality(42))
    """
    return lambda dataset: dataset._made(
        transform_ops.assert_cardinality_dataset, as_int64(expected_cardinality, "cardinality")
    )


# Sources


def Counter(start: TensorLike = 0, step: Any = 1, dtype: DTypeLike = dt.int64) -> Any:
    """Counts without end: `tf.data.experimental.Counter(start=1)`."""
    return Dataset.counter(start, step, dtype)


class RandomDataset(Dataset):
    """Random integers without end: `tf.data.experimental.RandomDataset(seed=1)`."""

    def __init__(self, seed: Any = None) -> None:
        found = Dataset.random(seed)
        super().__init__(found._variant_tensor, found.element_spec)


def choose_from_datasets(
    datasets: Sequence[Dataset], choice_dataset: Dataset, stop_on_empty_dataset: bool = False
) -> Any:
    """`Dataset.choose_from_datasets`, which goes on with the others when a dataset has ended."""
    return Dataset.choose_from_datasets(datasets, choice_dataset, stop_on_empty_dataset)


def sample_from_datasets(
    datasets: Sequence[Dataset], weights: Any = None, seed: Any = None, stop_on_empty_dataset: bool = False
) -> Any:
    """`Dataset.sample_from_datasets`: `tf.data.experimental.sample_from_datasets([a, b], [0.9, 0.1])`."""
    return Dataset.sample_from_datasets(datasets, weights, seed, stop_on_empty_dataset)
