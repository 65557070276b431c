"""Ops that make a dataset from other datasets: each returns a node of the description."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from penstock.data import nodes
from penstock.data.counting import UNKNOWN
from penstock.data.source_ops import number, text
from penstock.errors import InvalidArgumentError
from penstock.graph.dtype import DType
from penstock.graph.function import Function
from penstock.graph.opdef import OpDef, op
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle, from_handle

_OPTIONS: dict[str, Any] = {"host": True, "no_gradient": True, "shape": shapes.scalar}


def _positive(value: Any, what: str, least: int = 1) -> int:
    found = number(value)
    if found < least:
        wanted = "greater than zero" if least == 1 else f"at least {least}"
        raise InvalidArgumentError(f"{what} must be {wanted}, received {found}.")
    return found


def _closure(function: Function, captured: list[Any]) -> nodes.Closure:
    return nodes.Closure(function, tuple(captured))


# Functions of elements


@op("MapDataset", "variant, list(Targuments) -> handle: variant", **_OPTIONS)
def map_dataset(
    input_dataset: Any,
    other_arguments: list[Any],
    *,
    f: Function,
    output_types: list[DType],
    output_shapes: list[TensorShape],
    use_inter_op_parallelism: bool = True,
    preserve_cardinality: bool = False,
) -> Any:
    return as_handle(nodes.Mapped(from_handle(input_dataset), _closure(f, other_arguments)))


@op("ParallelMapDatasetV2", "variant, list(Targuments), int64 -> handle: variant", **_OPTIONS)
def parallel_map_dataset(
    input_dataset: Any,
    other_arguments: list[Any],
    num_parallel_calls: Any,
    *,
    f: Function,
    output_types: list[DType],
    output_shapes: list[TensorShape],
    use_inter_op_parallelism: bool = True,
    deterministic: str = "default",
    preserve_cardinality: bool = False,
) -> Any:
    parallel = _positive(num_parallel_calls, "num_parallel_calls", least=-1)
    if not parallel:
        raise InvalidArgumentError("num_parallel_calls must be greater than zero, received 0.")
    return as_handle(nodes.Mapped(from_handle(input_dataset), _closure(f, other_arguments), parallel))


@op("FlatMapDataset", "variant, list(Targuments) -> handle: variant", **_OPTIONS)
def flat_map_dataset(
    input_dataset: Any,
    other_arguments: list[Any],
    *,
    f: Function,
    output_types: list[DType],
    output_shapes: list[TensorShape],
) -> Any:
    return as_handle(nodes.FlatMapped(from_handle(input_dataset), _closure(f, other_arguments)))


def _interleaved(dataset: Any, closure: nodes.Closure, cycle: Any, block: Any, ahead: int) -> Any:
    cycle_length = number(cycle)
    if cycle_length != -1:
        _positive(cycle, "cycle_length")
    return as_handle(
        nodes.Interleaved(from_handle(dataset), closure, cycle_length, _positive(block, "block_length"), ahead)
    )


@op("InterleaveDataset", "variant, list(Targuments), int64, int64 -> handle: variant", **_OPTIONS)
def interleave_dataset(
    input_dataset: Any,
    other_arguments: list[Any],
    cycle_length: Any,
    block_length: Any,
    *,
    f: Function,
    output_types: list[DType],
    output_shapes: list[TensorShape],
) -> Any:
    return _interleaved(input_dataset, _closure(f, other_arguments), cycle_length, block_length, 0)


@op("ParallelInterleaveDatasetV2", "variant, list(Targuments), int64, int64, int64 -> handle: variant", **_OPTIONS)
def parallel_interleave_dataset(
    input_dataset: Any,
    other_arguments: list[Any],
    cycle_length: Any,
    block_length: Any,
    num_parallel_calls: Any,
    *,
    f: Function,
    output_types: list[DType],
    output_shapes: list[TensorShape],
    sloppy: bool = False,
) -> Any:
    ahead = max(16, 2 * number(block_length))
    return _interleaved(input_dataset, _closure(f, other_arguments), cycle_length, block_length, ahead)


@op(
    "LegacyParallelInterleaveDatasetV2",
    "variant, list(Targuments), int64, int64, int64, int64 -> handle: variant",
    **_OPTIONS,
)
def legacy_parallel_interleave_dataset(
    input_dataset: Any,
    other_arguments: list[Any],
    cycle_length: Any,
    block_length: Any,
    buffer_output_elements: Any,
    prefetch_input_elements: Any,
    *,
    f: Function,
    deterministic: str = "default",
    output_types: list[DType],
    output_shapes: list[TensorShape],
) -> Any:
    wanted = number(buffer_output_elements)
    ahead = max(16, 2 * number(block_length)) if wanted < 0 else max(1, wanted)
    return _interleaved(input_dataset, _closure(f, other_arguments), cycle_length, block_length, ahead)


@op("FilterDataset", "variant, list(Targuments) -> handle: variant", **_OPTIONS)
def filter_dataset(
    input_dataset: Any,
    other_arguments: list[Any],
    *,
    predicate: Function,
    output_types: list[DType],
    output_shapes: list[TensorShape],
) -> Any:
    return as_handle(nodes.Filtered(from_handle(input_dataset), _closure(predicate, other_arguments)))


@op("TakeWhileDataset", "variant, list(Targuments) -> handle: variant", **_OPTIONS)
def take_while_dataset(
    input_dataset: Any,
    other_arguments: list[Any],
    *,
    predicate: Function,
    output_types: list[DType],
    output_shapes: list[TensorShape],
) -> Any:
    return as_handle(nodes.TakenWhile(from_handle(input_dataset), _closure(predicate, other_arguments)))


@op("ScanDataset", "variant, list(Tstate), list(Targuments) -> handle: variant", **_OPTIONS)
def scan_dataset(
    input_dataset: Any,
    initial_state: list[Any],
    other_arguments: list[Any],
    *,
    f: Function,
    output_types: list[DType],
    output_shapes: list[TensorShape],
    preserve_cardinality: bool = False,
) -> Any:
    return as_handle(nodes.Scanned(from_handle(input_dataset), _closure(f, other_arguments), tuple(initial_state)))


@op(
    "GroupByWindowDataset",
    "variant, list(Tkey_func_other_arguments), list(Treduce_func_other_arguments), "
    "list(Twindow_size_func_other_arguments) -> handle: variant",
    **_OPTIONS,
)
def group_by_window_dataset(
    input_dataset: Any,
    key_func_other_arguments: list[Any],
    reduce_func_other_arguments: list[Any],
    window_size_func_other_arguments: list[Any],
    *,
    key_func: Function,
    reduce_func: Function,
    window_size_func: Function,
    output_types: list[DType],
    output_shapes: list[TensorShape],
) -> Any:
    return as_handle(
        nodes.GroupedByWindow(
            from_handle(input_dataset),
            _closure(key_func, key_func_other_arguments),
            _closure(reduce_func, reduce_func_other_arguments),
            _closure(window_size_func, window_size_func_other_arguments),
        )
    )


@op("MapAndBatchDataset", "variant, list(Targuments), int64, int64, bool -> handle: variant", **_OPTIONS)
def map_and_batch_dataset(
    input_dataset: Any,
    other_arguments: list[Any],
    batch_size: Any,
    num_parallel_calls: Any,
    drop_remainder: Any,
    *,
    f: Function,
    output_types: list[DType],
    output_shapes: list[TensorShape],
    preserve_cardinality: bool = False,
) -> Any:
    parallel = number(num_parallel_calls)
    mapped = nodes.Mapped(from_handle(input_dataset), _closure(f, other_arguments), 0 if parallel == 1 else parallel)
    return as_handle(nodes.Batched(mapped, _positive(batch_size, "batch_size"), bool(drop_remainder)))


# Batches


@op("BatchDatasetV2", "variant, int64, bool -> handle: variant", **_OPTIONS)
def batch_dataset(
    input_dataset: Any,
    batch_size: Any,
    drop_remainder: Any,
    *,
    parallel_copy: bool = False,
    output_types: list[DType],
    output_shapes: list[TensorShape],
) -> Any:
    return as_handle(
        nodes.Batched(from_handle(input_dataset), _positive(batch_size, "Batch size"), bool(drop_remainder))
    )


@op("PaddedBatchDatasetV2", "variant, int64, N*int64, list(Toutput_types), bool -> handle: variant", **_OPTIONS)
def padded_batch_dataset(
    input_dataset: Any,
    batch_size: Any,
    padded_shapes: list[Any],
    padding_values: list[Any],
    drop_remainder: Any,
    *,
    parallel_copy: bool = False,
    Toutput_types: list[DType],
    output_shapes: list[TensorShape],
    N: int,
) -> Any:
    wanted = tuple(tuple(int(d) for d in np.asarray(s).reshape(-1)) for s in padded_shapes)
    values = tuple(np.asarray(v, object if isinstance(v, (bytes, str)) else None)[()] for v in padding_values)
    return as_handle(
        nodes.PaddedBatched(
            from_handle(input_dataset), _positive(batch_size, "Batch size"), wanted, values, bool(drop_remainder)
        )
    )


@op("DenseToSparseBatchDataset", "variant, int64, int64 -> handle: variant", **_OPTIONS)
def dense_to_sparse_batch_dataset(
    input_dataset: Any, batch_size: Any, row_shape: Any, *, output_types: list[DType], output_shapes: list[TensorShape]
) -> Any:
    shape = tuple(int(d) for d in np.asarray(row_shape).reshape(-1))
    return as_handle(nodes.SparseBatched(from_handle(input_dataset), _positive(batch_size, "Batch size"), shape))


@op("RebatchDatasetV2", "variant, int64, bool -> handle: variant", **_OPTIONS)
def rebatch_dataset(
    input_dataset: Any,
    batch_sizes: Any,
    drop_remainder: Any,
    *,
    output_types: list[DType],
    output_shapes: list[TensorShape],
) -> Any:
    sizes = tuple(_positive(size, "Batch size") for size in np.asarray(batch_sizes).reshape(-1))
    if not sizes:
        raise InvalidArgumentError("RebatchDataset: batch_sizes is empty, give one at least.")
    return as_handle(nodes.Rebatched(from_handle(input_dataset), sizes, bool(drop_remainder)))


@op("UnbatchDataset", "variant -> handle: variant", **_OPTIONS)
def unbatch_dataset(input_dataset: Any, *, output_types: list[DType], output_shapes: list[TensorShape]) -> Any:
    return as_handle(nodes.Unbatched(from_handle(input_dataset)))


@op("WindowDataset", "variant, int64, int64, int64, bool -> handle: variant", **_OPTIONS)
def window_dataset(
    input_dataset: Any,
    size: Any,
    shift: Any,
    stride: Any,
    drop_remainder: Any,
    *,
    output_types: list[DType],
    output_shapes: list[TensorShape],
) -> Any:
    return as_handle(
        nodes.Windowed(
            from_handle(input_dataset),
            _positive(size, "Window size"),
            _positive(shift, "Window shift"),
            _positive(stride, "Window stride"),
            bool(drop_remainder),
        )
    )


# Order and number


def _buffer_size(value: Any) -> int:
    """The size of a buffer for shuffling; UNKNOWN stands for all elements."""
    return sys.maxsize if number(value) == UNKNOWN else _positive(value, "buffer_size")


@op("ShuffleDataset", "variant, int64, int64, int64 -> handle: variant", **_OPTIONS)
def shuffle_dataset(
    input_dataset: Any,
    buffer_size: Any,
    seed: Any,
    seed2: Any,
    *,
    reshuffle_each_iteration: bool = True,
    output_types: list[DType],
    output_shapes: list[TensorShape],
) -> Any:
    size = _buffer_size(buffer_size)
    return as_handle(
        nodes.Shuffled(from_handle(input_dataset), size, number(seed), number(seed2), reshuffle_each_iteration)
    )


@op("ShuffleAndRepeatDataset", "variant, int64, int64, int64, int64 -> handle: variant", **_OPTIONS)
def shuffle_and_repeat_dataset(
    input_dataset: Any,
    buffer_size: Any,
    seed: Any,
    seed2: Any,
    count: Any,
    *,
    output_types: list[DType],
    output_shapes: list[TensorShape],
    reshuffle_each_iteration: bool = True,
) -> Any:
    size = _buffer_size(buffer_size)
    shuffled = nodes.Shuffled(from_handle(input_dataset), size, number(seed), number(seed2), reshuffle_each_iteration)
    return as_handle(nodes.Repeated(shuffled, number(count)))


def _counting(name: str, count: str, make: Any) -> OpDef:
    """Defines an op with a dataset and a number."""

    def kernel(input_dataset: Any, count: Any, *, output_types: list[DType], output_shapes: list[TensorShape]) -> Any:
        return as_handle(make(from_handle(input_dataset), number(count)))

    kernel.__doc__ = count
    return op(name, "variant, int64 -> handle: variant", **_OPTIONS)(kernel)


repeat_dataset = _counting("RepeatDataset", "Round after round; -1: without end.", nodes.Repeated)
take_dataset = _counting("TakeDataset", "The first ones; -1: all.", nodes.Taken)
skip_dataset = _counting("SkipDataset", "All but the first ones; -1: none.", nodes.Skipped)


@op("ShardDataset", "variant, int64, int64 -> handle: variant", **_OPTIONS)
def shard_dataset(
    input_dataset: Any,
    num_shards: Any,
    index: Any,
    *,
    require_non_empty: bool = False,
    output_types: list[DType],
    output_shapes: list[TensorShape],
) -> Any:
    count, which = number(num_shards), number(index)
    if not 0 <= which < count:
        raise InvalidArgumentError(
            f"ShardDataset: index must be in [0, num_shards), received {which} of {count} shards."
        )
    return as_handle(nodes.Sharded(from_handle(input_dataset), count, which))


@op("CacheDataset", "variant, string -> handle: variant", **_OPTIONS)
def cache_dataset(
    input_dataset: Any, filename: Any, *, output_types: list[DType], output_shapes: list[TensorShape]
) -> Any:
    return as_handle(nodes.Cached(from_handle(input_dataset), text(filename)))


@op("PrefetchDataset", "variant, int64 -> handle: variant", **_OPTIONS)
def prefetch_dataset(
    input_dataset: Any,
    buffer_size: Any,
    *,
    output_types: list[DType],
    output_shapes: list[TensorShape],
    slack_period: int = 0,
) -> Any:
    return as_handle(nodes.Prefetched(from_handle(input_dataset), _positive(buffer_size, "buffer_size", least=-1)))


@op("IgnoreErrorsDataset", "variant -> handle: variant", **_OPTIONS)
def ignore_errors_dataset(input_dataset: Any, *, output_types: list[DType], output_shapes: list[TensorShape]) -> Any:
    return as_handle(nodes.WithoutErrors(from_handle(input_dataset)))


@op("UniqueDataset", "variant -> handle: variant", **_OPTIONS)
def unique_dataset(input_dataset: Any, *, output_types: list[DType], output_shapes: list[TensorShape]) -> Any:
    return as_handle(nodes.Distinct(from_handle(input_dataset)))


@op("AssertCardinalityDataset", "variant, int64 -> handle: variant", **_OPTIONS)
def assert_cardinality_dataset(
    input_dataset: Any, cardinality: Any, *, output_types: list[DType], output_shapes: list[TensorShape]
) -> Any:
    return as_handle(nodes.Counted(from_handle(input_dataset), number(cardinality)))
