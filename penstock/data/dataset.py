"""Dataset: the description of an input pipeline, as programs build it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.data import iterator, iterator_ops, source_ops, structure, transform_ops
from penstock.data.functions import Traced, by_value, scalar_bool, trace, trace_stable
from penstock.data.generator import generator_tensor
from penstock.data.options import Options
from penstock.data.padding import padded_shape_tensors, padding_value_tensors
from penstock.data.structure import DatasetSpec, SparseTensorSpec, TensorSpec
from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.opdef import OpDef
from penstock.graph.operation import Tensor
from penstock.graph.scopes import control_dependencies, device, get_seed, name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.ops.array import passthrough, reshaping
from penstock.ops.debugging import assertion
from penstock.ops.io import files
from penstock.ops.math import casting, compare

AUTOTUNE = -1


def as_int64(value: Any, name: str, default: int | None = None) -> Tensor:
    """Converts a count to the scalar tensor that dataset ops take."""
    return convert_to_tensor(default if value is None else value, dtype=dt.int64, name=name)


def seeds(seed: Any) -> tuple[Tensor, Tensor]:
    """The two seeds of a dataset op, by the rules for random ops; zeros mean that there is no seed."""
    if isinstance(seed, Tensor):
        first, _ = get_seed(0)
        return as_int64(first or 0, "seed"), casting.cast(seed, dt.int64, name="seed2")
    first, second = get_seed(seed)
    return as_int64(first or 0, "seed"), as_int64(second or 0, "seed2")


class Dataset:
    """A sequence of elements, each one a nest of tensors, that a program iterates over.

    >>> dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(10000).batch(100).repeat()
    >>> image, label = tf.data.make_one_shot_iterator(dataset).get_next()
    """

    def __init__(self, variant_tensor: Tensor, element_spec: Any, options: Options | None = None) -> None:
        self._variant_tensor = variant_tensor
        self._spec = element_spec
        self._options = options

    # Properties

    @property
    def element_spec(self) -> Any:
        """The types and shapes of an element."""
        return self._spec

    @property
    def output_types(self) -> Any:
        return iterator.get_legacy_output_types(self)

    @property
    def output_shapes(self) -> Any:
        return iterator.get_legacy_output_shapes(self)

    @property
    def output_classes(self) -> Any:
        return iterator.get_legacy_output_classes(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} shapes: {self.output_shapes}, types: {self.output_types}>"

    def __iter__(self) -> Any:
        raise RuntimeError(
            "dataset.__iter__() is only supported when eager execution is enabled; in a graph, use "
            "tf.data.make_one_shot_iterator(dataset).get_next()."
        )

    def options(self) -> Options:
        """The options of this dataset and of its inputs."""
        return self._options or Options()

    def with_options(self, options: Options) -> Dataset:
        """The same elements, with these options set."""
        return Dataset(self._variant_tensor, self._spec, self.options().merge(options))

    def _made(self, op: OpDef, *inputs: Any, spec: Any = None, **attrs: Any) -> Dataset:
        """Applies a dataset op to this dataset."""
        spec = self._spec if spec is None else spec
        attrs["Toutput_types" if "Toutput_types" in op.attrs else "output_types"] = structure.types_of(spec)
        variant = op(self._variant_tensor, *inputs, output_shapes=structure.shapes_of(spec), **attrs)
        return Dataset(variant, spec, self._options)

    # Iterators

    def make_one_shot_iterator(self) -> iterator.Iterator:
        """An iterator that needs no initialization. The dataset may not use placeholders, variables or tables."""
        try:
            factory = by_value(self._variant_tensor, "make_dataset")
        except ValueError as error:
            raise ValueError(
                "Failed to create a one-shot iterator for a dataset: it takes no placeholders and nothing that has "
                "state, such as a variable or a table. Use `Dataset.make_initializable_iterator()` instead. "
                f"(Original error: {error})"
            ) from error
        with device("CPU:0"):
            handle = iterator_ops.one_shot_iterator(
                dataset_factory=factory,
                output_types=structure.types_of(self._spec),
                output_shapes=structure.shapes_of(self._spec),
            )
        return iterator.Iterator(handle, None, None, None, spec=self._spec)

    def make_initializable_iterator(self, shared_name: str | None = None) -> iterator.Iterator:
        """An iterator whose `initializer` must be run first, and may be run again."""
        with device("CPU:0"):
            handle = iterator_ops.iterator_v2(
                shared_name=shared_name or "",
                output_types=structure.types_of(self._spec),
                output_shapes=structure.shapes_of(self._spec),
            )
            initializer = iterator_ops.make_iterator(self._variant_tensor, handle)
        return iterator.Iterator(handle, initializer, None, None, spec=self._spec)

    # Sources

    @staticmethod
    def from_tensors(tensors: Any) -> Dataset:
        """One element: `Dataset.from_tensors((features, labels))`."""
        spec, components = normalized(tensors)
        return Dataset(source_ops.tensor_dataset(components, output_shapes=structure.shapes_of(spec)), spec)

    @staticmethod
    def from_tensor_slices(tensors: Any) -> Dataset:
        """One element per row: `Dataset.from_tensor_slices({"x": x, "y": y})`. Rows are not copied."""
        spec, components = normalized(tensors)
        if not components:
            raise ValueError("Invalid `tensors`: it must have at least one component.")
        rows = TensorShape.of((None,))
        for leaf in structure.flatten(spec):
            if isinstance(leaf, SparseTensorSpec):
                raise TypeError("from_tensor_slices: sparse tensors are not sliced; use tf.sparse.to_dense first.")
            if leaf.shape.rank == 0:
                raise ValueError(f"from_tensor_slices: every component needs rows, received a scalar of {leaf.dtype}.")
            if leaf.shape.rank is not None:
                rows = rows.merge_with(leaf.shape[:1])
        sliced = structure.with_shapes(spec, lambda s: s if s.rank is None else s[1:])
        return Dataset(source_ops.tensor_slice_dataset(components, output_shapes=structure.shapes_of(sliced)), sliced)

    @staticmethod
    def from_sparse_tensor_slices(sparse_tensor: Any) -> Dataset:
        """Not supported: sparse tensors are never sliced."""
        raise NotImplementedError("from_sparse_tensor_slices: sparse tensors are not sliced; use tf.sparse.to_dense.")

    @staticmethod
    def from_generator(
        generator: Callable[..., Any], output_types: Any, output_shapes: Any = None, args: Any = None
    ) -> Dataset:
        """The elements of `generator()`, run in this process: `Dataset.from_generator(lambda: range(3), tf.int64)`."""
        return Dataset(*generator_tensor(generator, output_types, output_shapes, args))

    @staticmethod
    def range(*args: Any, **kwargs: Any) -> Dataset:
        """Integers, by the arguments of Python's range: `Dataset.range(2, 10, 2)`."""
        dtype: DType = dt.as_dtype(kwargs.pop("output_type", dt.int64))
        start, stop, step = {1: (0, *args, 1), 2: (*args, 1), 3: args}.get(len(args), (0, None, 1))
        if stop is None or kwargs:
            raise ValueError(f"Dataset.range takes one to three numbers, received {args} {kwargs or ''}.")
        spec = TensorSpec((), dtype)
        inputs = as_int64(start, "start"), as_int64(stop, "stop"), as_int64(step, "step")
        return Dataset(source_ops.range_dataset(*inputs, output_types=[dtype], output_shapes=[spec.shape]), spec)

    @staticmethod
    def zip(datasets: Any) -> Dataset:
        """Pairs the elements of several datasets: `Dataset.zip((features, labels))`."""
        flat = structure.flatten(datasets)
        for dataset in flat:
            if not isinstance(dataset, Dataset):
                wrong = "a list: use a tuple instead" if isinstance(dataset, list) else repr(dataset)
                raise TypeError(f"Dataset.zip takes a dataset or a nest of datasets, received {wrong}.")
        spec = structure.pack(datasets, [d.element_spec for d in flat])
        variant = transform_ops.zip_dataset(
            [d._variant_tensor for d in flat],
            output_types=structure.types_of(spec),
            output_shapes=structure.shapes_of(spec),
        )
        return Dataset(variant, spec)

    @staticmethod
    def list_files(file_pattern: TensorLike, shuffle: bool | None = None, seed: int | None = None) -> Dataset:
        """The files that match a pattern, in random order by default: `Dataset.list_files("data/*")`."""
        with name_scope(None, "list_files"):
            pattern = convert_to_tensor(file_pattern, dtype=dt.string, name="file_pattern")
            found = files.matching_files(pattern)
            any_found = compare.greater(reshaping.size(found), 0, name="match_not_empty")
            check = assertion.Assert(any_found, ["No files matched pattern: ", pattern], name="assert_not_empty")
            with control_dependencies([check]):
                found = passthrough.identity(found)
            dataset = Dataset.from_tensor_slices(found)
            if shuffle is None or shuffle:
                dataset = dataset.shuffle(reshaping.size(found, out_type=dt.int64), seed=seed)
        return dataset

    # Functions of elements

    def map(self, map_func: Callable[..., Any], num_parallel_calls: Any = None, deterministic: Any = None) -> Dataset:
        """Applies `map_func` to each element: `dataset.map(lambda x, y: (x / 255, y), num_parallel_calls=4)`."""
        traced = trace(map_func, "Dataset.map", self._spec)
        return self._mapped(traced, num_parallel_calls)

    def _mapped(self, traced: Traced, num_parallel_calls: Any) -> Dataset:
        if num_parallel_calls is None:
            return self._made(transform_ops.map_dataset, traced.captured, f=traced.function, spec=traced.spec)
        parallel = as_int64(num_parallel_calls, "num_parallel_calls")
        return self._made(
            transform_ops.parallel_map_dataset, traced.captured, parallel, f=traced.function, spec=traced.spec
        )

    map_with_legacy_function = map

    def flat_map(self, map_func: Callable[..., Any]) -> Dataset:
        """The elements of the datasets that `map_func` makes, one dataset after the other."""
        traced, spec = self._datasets(map_func, "Dataset.flat_map")
        return self._made(transform_ops.flat_map_dataset, traced.captured, f=traced.function, spec=spec)

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: TensorLike = AUTOTUNE,
        block_length: TensorLike = 1,
        num_parallel_calls: Any = None,
    ) -> Dataset:
        """Like `flat_map`, but alternates between `cycle_length` datasets: `names.interleave(TFRecordDataset, 4)`."""
        traced, spec = self._datasets(map_func, "Dataset.interleave")
        inputs = [as_int64(cycle_length, "cycle_length"), as_int64(block_length, "block_length")]
        if num_parallel_calls is None:
            return self._made(transform_ops.interleave_dataset, traced.captured, *inputs, f=traced.function, spec=spec)
        parallel = as_int64(num_parallel_calls, "num_parallel_calls")
        return self._made(
            transform_ops.parallel_interleave_dataset, traced.captured, *inputs, parallel, f=traced.function, spec=spec
        )

    def _datasets(self, function: Callable[..., Any], name: str) -> tuple[Traced, Any]:
        traced = trace(function, name, self._spec)
        if not isinstance(traced.spec, DatasetSpec):
            raise TypeError(f"`map_func` of {name} must return a `Dataset` object, received {traced.result!r:.200}.")
        return traced, traced.spec.element_spec

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """The elements for which `predicate` is true: `dataset.filter(lambda x: x > 0)`."""
        traced = scalar_bool(trace(predicate, "Dataset.filter", self._spec))
        return self._made(transform_ops.filter_dataset, traced.captured, predicate=traced.function)

    filter_with_legacy_function = filter

    def reduce(self, initial_state: Any, reduce_func: Callable[..., Any]) -> Any:
        """The state after all elements: `dataset.reduce(np.int64(0), lambda total, x: total + x)`."""
        with name_scope(None, "initial_state"):
            state, tensors = normalized(initial_state)
        traced = trace_stable(lambda spec: trace(reduce_func, "Dataset.reduce", spec, self._spec_argument()), state)
        results = iterator_ops.reduce_dataset(
            self._variant_tensor,
            tensors,
            traced.captured,
            f=traced.function,
            output_types=structure.types_of(traced.spec),
            output_shapes=structure.shapes_of(traced.spec),
        )
        return structure.from_tensors(traced.spec, results)

    def _spec_argument(self) -> Any:
        return self._spec

    # Batches

    def batch(self, batch_size: TensorLike, drop_remainder: Any = False) -> Dataset:
        """Joins `batch_size` elements into one; the last batch may be smaller, unless it is dropped."""
        size = as_int64(batch_size, "batch_size")
        drop = convert_to_tensor(drop_remainder, dtype=dt.bool, name="drop_remainder")
        first = TensorShape.of((known_size(size, drop),))
        spec = structure.with_shapes(self._spec, first.concatenate)
        return self._made(transform_ops.batch_dataset, size, drop, spec=spec)

    def padded_batch(
        self, batch_size: TensorLike, padded_shapes: Any = None, padding_values: Any = None, drop_remainder: Any = False
    ) -> Dataset:
        """Batches of elements of different shapes: `lines.padded_batch(32, padded_shapes=[None])`."""
        if padded_shapes is None:
            padded_shapes = self.output_shapes
        size = as_int64(batch_size, "batch_size")
        known, shapes = padded_shape_tensors(self._spec, padded_shapes)
        values = padding_value_tensors(self._spec, padding_values)
        drop = convert_to_tensor(drop_remainder, dtype=dt.bool, name="drop_remainder")
        first = TensorShape.of((known_size(size, drop),))
        leaves = zip(structure.flatten(self._spec), known, strict=True)
        spec = structure.pack(self._spec, [leaf.with_shape(first.concatenate(s)) for leaf, s in leaves])
        return self._made(transform_ops.padded_batch_dataset, size, shapes, values, drop, spec=spec)

    def unbatch(self) -> Dataset:
        """Splits each element into its rows."""
        spec = structure.with_shapes(self._spec, lambda s: s if s.rank is None else s[1:])
        return self._made(transform_ops.unbatch_dataset, spec=spec)

    def window(
        self, size: TensorLike, shift: TensorLike = None, stride: Any = 1, drop_remainder: Any = False
    ) -> Dataset:
        """Datasets of `size` elements each: `dataset.window(3, 1).flat_map(lambda w: w.batch(3))`."""
        drop = convert_to_tensor(drop_remainder, dtype=dt.bool, name="drop_remainder")
        length = as_int64(size, "size")
        moved = length if shift is None else as_int64(shift, "shift")
        spec = structure.map_leaves(DatasetSpec, self._spec)
        return self._made(transform_ops.window_dataset, length, moved, as_int64(stride, "stride"), drop, spec=spec)

    # Order and number

    def shuffle(
        self, buffer_size: TensorLike, seed: Any = None, reshuffle_each_iteration: bool | None = None
    ) -> Dataset:
        """Elements in random order, each a random one of the next `buffer_size`: `dataset.shuffle(10000, seed=1)`."""
        size = as_int64(buffer_size, "buffer_size")
        first, second = seeds(seed)
        again = reshuffle_each_iteration is None or bool(reshuffle_each_iteration)
        return self._made(transform_ops.shuffle_dataset, size, first, second, reshuffle_each_iteration=again)

    def repeat(self, count: TensorLike = None) -> Dataset:
        """Repeats the elements `count` times, or forever."""
        return self._made(transform_ops.repeat_dataset, as_int64(count, "count", -1))

    def take(self, count: TensorLike) -> Dataset:
        """The first `count` elements; -1 for all."""
        return self._made(transform_ops.take_dataset, as_int64(count, "count"))

    def skip(self, count: TensorLike) -> Dataset:
        """All but the first `count` elements."""
        return self._made(transform_ops.skip_dataset, as_int64(count, "count"))

    def shard(self, num_shards: TensorLike, index: Any) -> Dataset:
        """Every `num_shards`-th element, starting at `index`: `names.shard(num_workers, worker_index)`."""
        shards, which = as_int64(num_shards, "num_shards"), as_int64(index, "index")
        count, number = constant_value(shards), constant_value(which)
        if count is not None and count < 1:
            raise ValueError(f"num_shards must be >= 1, received {int(count)}.")
        if number is not None and (number < 0 or (count is not None and number >= count)):
            raise ValueError(f"index must be in [0, num_shards), received {int(number)} of {count} shards.")
        return self._made(transform_ops.shard_dataset, shards, which)

    def concatenate(self, dataset: Dataset) -> Dataset:
        """The elements of this dataset, then those of `dataset`."""
        mine, others = structure.flatten(self._spec), structure.flatten(dataset.element_spec)
        if structure.map_leaves(lambda s: s.dtype, self._spec) != structure.map_leaves(
            lambda s: s.dtype, dataset.element_spec
        ):
            raise TypeError(
                f"Two datasets to concatenate have different types {self.output_types} and {dataset.output_types}"
            )
        pairs = zip(mine, others, strict=True)
        common = [a.with_shape(a.shape.most_specific_compatible_shape(b.shape)) for a, b in pairs]
        spec = structure.pack(self._spec, common)
        return self._made(transform_ops.concatenate_dataset, dataset._variant_tensor, spec=spec)

    def enumerate(self, start: TensorLike = 0) -> Dataset:
        """Each element with its number: `for i, x in enumerate(...)`."""
        return Dataset.zip((Dataset.range(start, np.iinfo(np.int64).max), self))

    # Execution

    def cache(self, filename: TensorLike = "") -> Dataset:
        """Keeps the elements of the first iteration, in memory or in a file."""
        path = convert_to_tensor(filename or "", dtype=dt.string, name="filename")
        return self._made(transform_ops.cache_dataset, path)

    def prefetch(self, buffer_size: TensorLike) -> Dataset:
        """Makes elements in advance, in a thread: `dataset.batch(100).prefetch(1)`."""
        return self._made(transform_ops.prefetch_dataset, as_int64(buffer_size, "buffer_size", AUTOTUNE))

    def apply(self, transformation_func: Callable[[Dataset], Dataset]) -> Dataset:
        """`transformation_func(self)`, for chains: `dataset.apply(tf.data.experimental.ignore_errors())`."""
        dataset = transformation_func(self)
        if not isinstance(dataset, Dataset):
            raise TypeError(f"`transformation_func` must return a Dataset, received {dataset!r:.200}.")
        return dataset


DatasetV1 = DatasetV1Adapter = Dataset
DatasetSpec.dataset_class = Dataset


def normalized(value: Any) -> tuple[Any, list[Tensor]]:
    """Converts a nest of values to its spec and its component tensors, named `component_0` and so on."""
    with name_scope(None, "normalize_element"):
        return structure.to_tensors(value, lambda i: f"component_{i}")


def known_size(size: Tensor, drop: Tensor) -> int | None:
    """The static size of a batch: known only if a smaller last one is dropped."""
    dropped, count = constant_value(drop), constant_value(size)
    return int(count) if dropped is not None and dropped and count is not None else None


def make_one_shot_iterator(dataset: Dataset) -> iterator.Iterator:
    """An iterator that needs no initialization: `tf.data.make_one_shot_iterator(dataset).get_next()`."""
    return dataset.make_one_shot_iterator()


def make_initializable_iterator(dataset: Dataset, shared_name: str | None = None) -> iterator.Iterator:
    """An iterator whose `initializer` must be run first: `sess.run(iterator.initializer)`."""
    return dataset.make_initializable_iterator(shared_name)


def as_paths(filenames: Any) -> Any:
    """Converts file names, or a dataset of them, to a dataset of single names."""
    if isinstance(filenames, Dataset):
        if filenames.output_types != dt.string:
            raise TypeError(f"`filenames` must be a dataset of strings, received one of {filenames.output_types}.")
        return filenames
    names = convert_to_tensor(filenames, dtype=dt.string)
    flat = reshaping.reshape(names, [-1], name="flat_filenames")
    spec = TensorSpec((), dt.string)
    return Dataset(source_ops.tensor_slice_dataset([flat], output_shapes=[spec.shape]), spec)
