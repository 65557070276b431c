"""Datasets of files: TFRecord files, text lines, records of a fixed length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.data import source_ops, transform_ops
from penstock.data.dataset import Dataset, as_paths
from penstock.data.functions import trace
from penstock.data.inputs import as_int64
from penstock.data.structure import TensorSpec
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.typing import TensorLike

_RECORD = TensorSpec((), dt.string)
_BUFFER = 256 * 1024


def _compression(value: Any) -> Tensor:
    return convert_to_tensor("" if value is None else value, dtype=dt.string, name="compression_type")


class _FileDataset(Dataset):
    """The records of files, one file after the other or several at a time."""

    def __init__(self, filenames: TensorLike, read: Callable[[Tensor], Tensor], num_parallel_reads: Any) -> None:
        paths = as_paths(filenames)
        traced = trace(lambda path: Dataset(read(path), _RECORD), type(self).__name__, paths.element_spec)
        attrs = {"f": traced.function, "spec": _RECORD}
        if num_parallel_reads is None:
            variant = paths._made(transform_ops.flat_map_dataset, traced.captured, **attrs)._variant_tensor
        else:
            numbers = (
                as_int64(num_parallel_reads, "cycle_length"),
                as_int64(1, "block_length"),
                as_int64(-1, "buffer_output_elements"),
                as_int64(-1, "prefetch_input_elements"),
            )
            op = transform_ops.legacy_parallel_interleave_dataset
            variant = paths._made(op, traced.captured, *numbers, **attrs)._variant_tensor
        super().__init__(variant, _RECORD)


class TFRecordDataset(_FileDataset):
    """The records of TFRecord files, as strings: `tf.data.TFRecordDataset(["a.tfrecord", "b.tfrecord"])`."""

    def __init__(
        self,
        filenames: TensorLike,
        compression_type: Any = None,
        buffer_size: TensorLike = None,
        num_parallel_reads: Any = None,
    ) -> None:
        def read(path: Tensor) -> Tensor:
            size = as_int64(buffer_size, "buffer_size", _BUFFER)
            found: Tensor = source_ops.tf_record_dataset(path, _compression(compression_type), size)
            return found

        super().__init__(filenames, read, num_parallel_reads)


class TextLineDataset(_FileDataset):
    """The lines of text files, as strings: `tf.data.TextLineDataset("data.csv").skip(1)`."""

    def __init__(
        self,
        filenames: TensorLike,
        compression_type: Any = None,
        buffer_size: TensorLike = None,
        num_parallel_reads: Any = None,
    ) -> None:
        def read(path: Tensor) -> Tensor:
            size = as_int64(buffer_size, "buffer_size", _BUFFER)
            found: Tensor = source_ops.text_line_dataset(path, _compression(compression_type), size)
            return found

        super().__init__(filenames, read, num_parallel_reads)


class FixedLengthRecordDataset(_FileDataset):
    """Records of one length: `tf.data.FixedLengthRecordDataset(images, 28 * 28, header_bytes=16)`."""

    def __init__(
        self,
        filenames: TensorLike,
        record_bytes: TensorLike,
        header_bytes: TensorLike = None,
        footer_bytes: TensorLike = None,
        buffer_size: TensorLike = None,
        compression_type: Any = None,
        num_parallel_reads: Any = None,
    ) -> None:
        def read(path: Tensor) -> Tensor:
            found: Tensor = source_ops.fixed_length_record_dataset(
                path,
                as_int64(header_bytes, "header_bytes", 0),
                as_int64(record_bytes, "record_bytes"),
                as_int64(footer_bytes, "footer_bytes", 0),
                as_int64(buffer_size, "buffer_size", _BUFFER),
                _compression(compression_type),
            )
            return found

        super().__init__(filenames, read, num_parallel_reads)
