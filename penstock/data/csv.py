"""Datasets of CSV files and of files of Examples, as batches of named columns."""

from __future__ import annotations

import csv
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock import gfile
from penstock.data.dataset import Dataset, as_paths
from penstock.data.nodes import Lines
from penstock.data.readers import TextLineDataset, TFRecordDataset
from penstock.data.sources import lines
from penstock.data.transformations import ignore_errors as without_errors
from penstock.data.transformations import parallel_interleave
from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.typing import TensorLike
from penstock.ops.io.decode_csv import decode_csv
from penstock.ops.io.parse_features import parse_example


def _default(value: Any) -> Any:
    """Converts the default of a column for `decode_csv`: a type means that there is no default."""
    if isinstance(value, dt.DType):
        return np.empty(0, object if value == dt.string else value.as_numpy_dtype)
    return value if hasattr(value, "dtype") or isinstance(value, (list, tuple)) else [value]


class CsvDataset(Dataset):
    """The rows of CSV files, one component per column: `CsvDataset("a.csv", [tf.float32, [0]], header=True)`.

    A row is a line: quoted fields cannot contain line breaks.
    """

    def __init__(
        self,
        filenames: TensorLike,
        record_defaults: Sequence[Any],
        compression_type: Any = None,
        buffer_size: TensorLike = None,
        header: bool = False,
        field_delim: str = ",",
        use_quote_delim: bool = True,
        na_value: str = "",
        select_cols: Any = None,
    ) -> None:
        defaults = [_default(d) for d in record_defaults]
        dataset = as_paths(filenames).flat_map(
            lambda path: TextLineDataset(path, compression_type, buffer_size).skip(int(header))
        )
        rows = dataset.map(
            lambda line: tuple(
                decode_csv(line, defaults, field_delim, use_quote_delim, na_value=na_value, select_cols=select_cols)
            )
        )
        super().__init__(rows._variant_tensor, rows.element_spec)


def make_csv_dataset(
    file_pattern: TensorLike,
    batch_size: int,
    column_names: Any = None,
    column_defaults: Any = None,
    label_name: Any = None,
    select_columns: Any = None,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    header: bool = True,
    num_epochs: Any = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: Any = None,
    prefetch_buffer_size: Any = None,
    num_parallel_reads: Any = None,
    sloppy: bool = False,
    num_rows_for_inference: int | None = 100,
    compression_type: Any = None,
    ignore_errors: bool = False,
) -> Any:
    """Batches of CSV rows as dicts by column; the label column, if named, is returned separately.

    >>> tf.data.experimental.make_csv_dataset("train-*.csv", 32, label_name="price", num_epochs=1)
    """
    paths = _matching(file_pattern)
    first = _first_rows(paths, field_delim, use_quote_delim, num_rows_for_inference, compression_type)
    if column_names is None:
        if not header:
            raise ValueError("make_csv_dataset: without a header, column_names must be given.")
        column_names = first[0]
    names = list(column_names)
    if len(set(names)) < len(names):
        raise ValueError(f"make_csv_dataset: the names of the columns differ, received {names}.")
    chosen = sorted(
        names.index(c) if isinstance(c, str) else int(c) for c in (names if select_columns is None else select_columns)
    )
    if column_defaults is None:
        column_defaults = [_inferred(first[int(header) :], c, na_value) for c in chosen]
    kept = [names[c] for c in chosen]
    if label_name is not None and label_name not in kept:
        raise ValueError(f"make_csv_dataset: label_name must be one of the columns {kept}, received {label_name!r}.")

    def columns(*values: Any) -> Any:
        row = OrderedDict(zip(kept, values, strict=True))
        return row if label_name is None else (row, row.pop(label_name))

    def rows(path: Any) -> Dataset:
        return CsvDataset(
            path,
            column_defaults,
            compression_type,
            header=header,
            field_delim=field_delim,
            use_quote_delim=use_quote_delim,
            na_value=na_value,
            select_cols=chosen,
        )

    dataset = Dataset.from_tensor_slices(np.array(paths, object))
    if shuffle:
        dataset = dataset.shuffle(len(paths), shuffle_seed)
    dataset = dataset.apply(parallel_interleave(rows, num_parallel_reads or 1, sloppy=sloppy))
    if ignore_errors:
        dataset = dataset.apply(without_errors())
    if shuffle:
        dataset = dataset.shuffle(shuffle_buffer_size, shuffle_seed)
    dataset = dataset.repeat(num_epochs).batch(batch_size, drop_remainder=num_epochs is None).map(columns)
    return dataset.prefetch(1 if prefetch_buffer_size is None else prefetch_buffer_size)


def _matching(file_pattern: Any) -> list[str]:
    patterns = [file_pattern] if isinstance(file_pattern, str) else list(file_pattern)
    found = sorted(path for p in patterns for path in gfile.glob(p))
    if not found:
        raise ValueError(f"No files match {file_pattern!r}.")
    return found


def _first_rows(paths: Any, delimiter: str, quotes: bool, count: int | None, compression: Any) -> list[list[str]]:
    """The header and up to `count` rows of the first file."""
    quoting: Any = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    found = []
    text = (line[0].item().decode() for line in lines(Lines((paths[0],), compression or "")))
    for row in csv.reader(text, delimiter=delimiter, quoting=quoting):
        found.append(row)
        if count is not None and len(found) > count:
            break
    if not found:
        raise InvalidArgumentError(f"'{paths[0]}' is empty.")
    return found


def _inferred(rows: list[list[str]], column: int, missing: str) -> Any:
    """The narrowest type that fits all values of a column, as a default of that type."""
    for dtype, convert in ((np.int32, int), (np.int64, int), (np.float32, float), (np.float64, float)):
        if all(row[column] in ("", missing) or _fits(row[column], dtype, convert) for row in rows):
            return np.zeros(1, dtype)
    return [""]


def _fits(text: str, dtype: Any, convert: Any) -> bool:
    try:
        value = convert(text)
    except ValueError:
        return False
    limits = np.iinfo(dtype) if convert is int else np.finfo(dtype)
    return bool(limits.min <= value <= limits.max) or value != value or abs(value) == float("inf")


def parse_example_dataset(features: dict[str, Any], num_parallel_calls: int = 1) -> Any:
    """Parses batches of Examples: `dataset.batch(32).apply(tf.data.experimental.parse_example_dataset(features))`."""
    parallel = None if num_parallel_calls == 1 else num_parallel_calls
    return lambda dataset: dataset.map(lambda batch: parse_example(batch, features), parallel)


def make_batched_features_dataset(
    file_pattern: TensorLike,
    batch_size: int,
    features: dict[str, Any],
    reader: Any = TFRecordDataset,
    label_key: Any = None,
    reader_args: Any = None,
    num_epochs: Any = None,
    shuffle: bool = True,
    shuffle_buffer_size: int = 10000,
    shuffle_seed: Any = None,
    prefetch_buffer_size: Any = None,
    reader_num_threads: int = 1,
    parser_num_threads: int = 2,
    sloppy_ordering: bool = False,
    drop_final_batch: bool = False,
) -> Any:
    """Batches of parsed Examples as dicts: `make_batched_features_dataset("train-*", 32, features, num_epochs=1)`."""
    dataset = Dataset.list_files(file_pattern, shuffle, shuffle_seed)
    dataset = dataset.apply(
        parallel_interleave(lambda path: reader(path, *(reader_args or [])), reader_num_threads, sloppy=sloppy_ordering)
    )
    if shuffle:
        dataset = dataset.shuffle(shuffle_buffer_size, shuffle_seed)
    dataset = dataset.repeat(num_epochs).batch(batch_size, drop_final_batch or num_epochs is None)

    def parse(batch: Any) -> Any:
        parsed = parse_example(batch, features)
        return parsed if label_key is None else (parsed, parsed.pop(label_key))

    dataset = dataset.map(parse, num_parallel_calls=parser_num_threads)
    return dataset.prefetch(1 if prefetch_buffer_size is None else prefetch_buffer_size)
