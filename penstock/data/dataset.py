"""Dataset: the description of an input pipeline, as programs build it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.data import iterator, iterator_ops, joining_ops, source_ops, sparse_ops, structure, transform_ops
from penstock.data.batch_methods import Batches
from penstock.data.choice_methods import Choices
from penstock.data.elements import Elements
from penstock.data.functions import Traced, by_value, scalar_bool, trace, trace_stable
from penstock.data.generator import generator_tensor
from penstock.data.inputs import AUTOTUNE, as_int64, normalized, seeds
from penstock.data.saving import Saving
from penstock.data.structure import DatasetSpec, RaggedTensorSpec, SparseTensorSpec, TensorSpec
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.scopes import control_dependencies, device, name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.ops.array import passthrough, reshaping
from penstock.ops.debugging import assertion
from penstock.ops.io import files
from penstock.ops.math import compare
from penstock.ops.ragged import row_ops


class Dataset(Batches, Choices, Elements, Saving):
    """A sequence of elements, each one a nest of tensors, that a program iterates over.

    >>> dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(10000).batch(100).repeat()
    >>> for image, label in dataset: ...
    """

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
    def from_tensors(tensors: Any, name: str | None = None) -> Dataset:
        """One element: `Dataset.from_tensors((features, labels))`."""
        spec, components = normalized(tensors)
        return Dataset(source_ops.tensor_dataset(components, output_shapes=structure.shapes_of(spec)), spec)

    @staticmethod
    def from_tensor_slices(tensors: Any, name: str | None = None) -> Dataset:
        """One element per row: `Dataset.from_tensor_slices({"x": x, "y": y})`. Rows are not copied."""
        spec, components = normalized(tensors)
        if not components:
            raise ValueError("Invalid `tensors`: it must have at least one component.")
        rows = TensorShape.of((None,))
        for i, leaf in enumerate(structure.flatten(spec)):
            if isinstance(leaf, SparseTensorSpec):
                components[i] = sparse_ops.unstack_sparse(components[i])
            if isinstance(leaf, RaggedTensorSpec):
                components[i] = row_ops.unstacked_variant(components[i])
            if leaf.shape.rank == 0:
                raise ValueError(f"from_tensor_slices: every component needs rows, received a scalar of {leaf.dtype}.")
            if leaf.shape.rank is not None:
                rows = rows.merge_with(leaf.shape[:1])
        sliced = structure.with_shapes(spec, lambda s: s if s.rank is None else s[1:])
        return Dataset(source_ops.tensor_slice_dataset(components, output_shapes=structure.shapes_of(sliced)), sliced)

    @staticmethod
    def from_sparse_tensor_slices(sparse_tensor: Any) -> Dataset:
        """One element per row of a sparse tensor, the same as `from_tensor_slices`."""
        return Dataset.from_tensor_slices(sparse_tensor)

    @staticmethod
    def from_generator(
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Any = None,
        output_signature: Any = None,
        name: str | None = None,
    ) -> Dataset:
        """The elements of `generator()`, run in this process: `Dataset.from_generator(lambda: range(3), tf.int64)`.

        `output_signature` is a nest of specs, in place of `output_types` and `output_shapes`.
        """
        if (output_types is None) == (output_signature is None):
            raise TypeError("from_generator: give either output_signature or output_types.")
        spec = structure.from_legacy(output_types, output_shapes) if output_signature is None else output_signature
        return Dataset(*generator_tensor(generator, spec, args))

    @staticmethod
    def range(*args: Any, **kwargs: Any) -> Dataset:
        """Integers, by the arguments of Python's range: `Dataset.range(2, 10, 2)`."""
        dtype: DType = dt.as_dtype(kwargs.pop("output_type", dt.int64))
        kwargs.pop("name", None)
        start, stop, step = {1: (0, *args, 1), 2: (*args, 1), 3: args}.get(len(args), (0, None, 1))
        if stop is None or kwargs:
            raise ValueError(f"Dataset.range takes one to three numbers, received {args} {kwargs or ''}.")
        spec = TensorSpec((), dtype)
        inputs = as_int64(start, "start"), as_int64(stop, "stop"), as_int64(step, "step")
        return Dataset(source_ops.range_dataset(*inputs, output_types=[dtype], output_shapes=[spec.shape]), spec)

    @staticmethod
    def zip(*args: Any, datasets: Any = None, name: str | None = None) -> Dataset:
        """Pairs the elements of several datasets: `Dataset.zip(features, labels)`, or of a nest of datasets."""
        if datasets is None:
            datasets = args[0] if len(args) == 1 else args
        flat = structure.flatten(datasets)
        for dataset in flat:
            if not isinstance(dataset, Dataset):
                wrong = "a list: use a tuple instead" if isinstance(dataset, list) else repr(dataset)
                raise TypeError(f"Dataset.zip takes a dataset or a nest of datasets, received {wrong}.")
        spec = structure.pack(datasets, [d.element_spec for d in flat])
        variant = joining_ops.zip_dataset(
            [d._variant_tensor for d in flat],
            output_types=structure.types_of(spec),
            output_shapes=structure.shapes_of(spec),
        )
        return Dataset(variant, spec)

    @staticmethod
    def list_files(
        file_pattern: TensorLike, shuffle: bool | None = None, seed: int | None = None, name: str | None = None
    ) -> Dataset:
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

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: Any = None,
        deterministic: Any = None,
        synchronous: Any = None,
        use_unbounded_threadpool: Any = None,
        name: str | None = None,
    ) -> Any:
        """Applies `map_func` to each element: `dataset.map(lambda x, y: (x / 255, y), num_parallel_calls=4)`."""
        traced = trace(map_func, "Dataset.map", self._spec)
        return self._mapped(traced, num_parallel_calls)

    def _mapped(self, traced: Traced, num_parallel_calls: Any) -> Any:
        if num_parallel_calls is None:
            return self._made(transform_ops.map_dataset, traced.captured, f=traced.function, spec=traced.spec)
        parallel = as_int64(num_parallel_calls, "num_parallel_calls")
        return self._made(
            transform_ops.parallel_map_dataset, traced.captured, parallel, f=traced.function, spec=traced.spec
        )

    map_with_legacy_function = map

    def flat_map(self, map_func: Callable[..., Any], name: str | None = None) -> Any:
        """The elements of the datasets that `map_func` makes, one dataset after the other."""
        traced, spec = self._datasets(map_func, "Dataset.flat_map")
        return self._made(transform_ops.flat_map_dataset, traced.captured, f=traced.function, spec=spec)

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: TensorLike = None,
        block_length: TensorLike = None,
        num_parallel_calls: Any = None,
        deterministic: Any = None,
        name: str | None = None,
    ) -> Any:
        """Like `flat_map`, but alternates between `cycle_length` datasets: `names.interleave(TFRecordDataset, 4)`."""
        traced, spec = self._datasets(map_func, "Dataset.interleave")
        inputs = [as_int64(cycle_length, "cycle_length", AUTOTUNE), as_int64(block_length, "block_length", 1)]
        if num_parallel_calls is None:
            return self._made(transform_ops.interleave_dataset, traced.captured, *inputs, f=traced.function, spec=spec)
        parallel = as_int64(num_parallel_calls, "num_parallel_calls")
        return self._made(
            transform_ops.parallel_interleave_dataset, traced.captured, *inputs, parallel, f=traced.function, spec=spec
        )

    def filter(self, predicate: Callable[..., Any], name: str | None = None) -> Any:
        """The elements for which `predicate` is true: `dataset.filter(lambda x: x > 0)`."""
        traced = scalar_bool(trace(predicate, "Dataset.filter", self._spec))
        return self._made(transform_ops.filter_dataset, traced.captured, predicate=traced.function)

    filter_with_legacy_function = filter

    def take_while(self, predicate: Callable[..., Any], name: str | None = None) -> Any:
        """The elements up to the first for which `predicate` is false: `dataset.take_while(lambda x: x < 9)`."""
        traced = scalar_bool(trace(predicate, "take_while", self._spec))
        return self._made(transform_ops.take_while_dataset, traced.captured, predicate=traced.function)

    def scan(self, initial_state: Any, scan_func: Callable[..., Any], name: str | None = None) -> Any:
        """`scan_func(state, element)` gives the next state and an element: `scan(zero, lambda s, x: (s + x, s))`."""
        state, tensors = normalized(initial_state)
        found: dict[str, Any] = {}

        def once(spec: Any) -> Traced:
            traced = trace(scan_func, "scan", spec, self._spec)
            if type(traced.spec) is not tuple or len(traced.spec) != 2:
                raise TypeError("`scan_func` must return a pair of the new state and an element.")
            found["output"] = traced.spec[1]
            return Traced(traced.function, traced.spec[0], traced.result)

        traced = trace_stable(once, state)
        return self._made(transform_ops.scan_dataset, tensors, traced.captured, f=traced.function, spec=found["output"])

    def unique(self, name: str | None = None) -> Any:
        """Each element once."""
        return self._made(transform_ops.unique_dataset)

    def ignore_errors(self, log_warning: bool = False, name: str | None = None) -> Any:
        """Leaves out the elements that fail: `dataset.map(parse).ignore_errors()`."""
        return self._made(transform_ops.ignore_errors_dataset)

    # Order and number

    def shuffle(
        self,
        buffer_size: TensorLike,
        seed: Any = None,
        reshuffle_each_iteration: bool | None = None,
        name: str | None = None,
    ) -> Any:
        """Elements in random order, each a random one of the next `buffer_size`: `dataset.shuffle(10000, seed=1)`."""
        size = as_int64(buffer_size, "buffer_size")
        first, second = seeds(seed)
        again = reshuffle_each_iteration is None or bool(reshuffle_each_iteration)
        return self._made(transform_ops.shuffle_dataset, size, first, second, reshuffle_each_iteration=again)

    def repeat(self, count: TensorLike = None, name: str | None = None) -> Any:
        """Repeats the elements `count` times, or forever."""
        return self._made(transform_ops.repeat_dataset, as_int64(count, "count", -1))

    def take(self, count: TensorLike, name: str | None = None) -> Any:
        """The first `count` elements; -1 for all."""
        return self._made(transform_ops.take_dataset, as_int64(count, "count"))

    def skip(self, count: TensorLike, name: str | None = None) -> Any:
        """All but the first `count` elements."""
        return self._made(transform_ops.skip_dataset, as_int64(count, "count"))

    def shard(self, num_shards: TensorLike, index: Any, name: str | None = None) -> Any:
        """Every `num_shards`-th element, starting at `index`: `names.shard(num_workers, worker_index)`."""
        shards, which = as_int64(num_shards, "num_shards"), as_int64(index, "index")
        return self._made(transform_ops.shard_dataset, shards, which)

    def concatenate(self, dataset: Dataset, name: str | None = None) -> Any:
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
        return self._made(joining_ops.concatenate_dataset, dataset._variant_tensor, spec=spec)

    def enumerate(self, start: TensorLike = 0, name: str | None = None) -> Dataset:
        """Each element with its number: `for i, x in enumerate(...)`."""
        return Dataset.zip((Dataset.range(start, np.iinfo(np.int64).max), self))

    # Execution

    def cache(self, filename: TensorLike = "", name: str | None = None) -> Any:
        """Keeps the elements of the first iteration, in memory or in a file."""
        path = convert_to_tensor(filename or "", dtype=dt.string, name="filename")
        return self._made(transform_ops.cache_dataset, path)

    def prefetch(self, buffer_size: TensorLike, name: str | None = None) -> Any:
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
