"""Ops that make datasets of tensors, numbers, files and generators."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.data import nodes
from penstock.data.sources import flattened
from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.dtype import DType
from penstock.graph.function import Function
from penstock.graph.opdef import op
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle

_STRING = [dt.string]


def _frozen(components: list[Any]) -> tuple[np.ndarray, ...]:
    """Makes arrays read-only, since they are returned more than once."""
    views = []
    for component in components:
        view = np.asarray(component, None if not isinstance(component, (bytes, str)) else object).view()
        view.setflags(write=False)
        views.append(view)
    return tuple(views)


def number(value: Any) -> int:
    """A scalar tensor as an integer."""
    return int(np.asarray(value).reshape(()))


def text(value: Any) -> str:
    """A scalar string tensor as text."""
    return flattened(value)[0]


@op("TensorDataset", "list(Toutput_types) -> handle: variant", host=True, no_gradient=True, shape=shapes.scalar)
def tensor_dataset(components: list[Any], *, Toutput_types: list[DType], output_shapes: list[TensorShape]) -> Any:
    return as_handle(nodes.Tensors(_frozen(components)))


@op("TensorSliceDataset", "list(Toutput_types) -> handle: variant", host=True, no_gradient=True, shape=shapes.scalar)
def tensor_slice_dataset(
    components: list[Any], *, Toutput_types: list[DType], output_shapes: list[TensorShape], is_files: bool = False
) -> Any:
    arrays = _frozen(components)
    if any(a.ndim == 0 for a in arrays):
        raise InvalidArgumentError("All components must be at least 1-dimensional: scalars have no slices.")
    if len({len(a) for a in arrays}) > 1:
        found = ", ".join(str(list(a.shape)) for a in arrays)
        raise InvalidArgumentError(f"All components must have as many rows, received shapes {found}.")
    return as_handle(nodes.Slices(arrays))


@op("RangeDataset", "int64, int64, int64 -> handle: variant", host=True, no_gradient=True, shape=shapes.scalar)
def range_dataset(
    start: Any, stop: Any, step: Any, *, output_types: list[DType], output_shapes: list[TensorShape]
) -> Any:
    if number(step) == 0:
        raise InvalidArgumentError("step must be a non-zero integer.")
    return as_handle(nodes.Range(number(start), number(stop), number(step), output_types[0].as_numpy_dtype))


@op("RandomDataset", "int64, int64 -> handle: variant", host=True, no_gradient=True, shape=shapes.scalar)
def random_dataset(seed: Any, seed2: Any, *, output_types: list[DType], output_shapes: list[TensorShape]) -> Any:
    return as_handle(nodes.RandomNumbers(number(seed), number(seed2)))


@op("TextLineDataset", "string, string, int64 -> handle: variant", host=True, no_gradient=True, shape=shapes.scalar)
def text_line_dataset(filenames: Any, compression_type: Any, buffer_size: Any) -> Any:
    return as_handle(nodes.Lines(flattened(filenames), text(compression_type)))


@op("TFRecordDataset", "string, string, int64 -> handle: variant", host=True, no_gradient=True, shape=shapes.scalar)
def tf_record_dataset(filenames: Any, compression_type: Any, buffer_size: Any) -> Any:
    return as_handle(nodes.Records(flattened(filenames), text(compression_type)))


@op(
    "FixedLengthRecordDatasetV2",
    "string, int64, int64, int64, int64, string -> handle: variant",
    host=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def fixed_length_record_dataset(
    filenames: Any, header_bytes: Any, record_bytes: Any, footer_bytes: Any, buffer_size: Any, compression_type: Any
) -> Any:
    header, size, footer = number(header_bytes), number(record_bytes), number(footer_bytes)
    if header < 0 or footer < 0 or size <= 0:
        raise InvalidArgumentError(
            f"record_bytes must be positive, header_bytes and footer_bytes not negative; received {size}, {header} "
            f"and {footer}."
        )
    return as_handle(nodes.FixedLengthRecords(flattened(filenames), header, size, footer, text(compression_type)))


@op(
    "GeneratorDataset",
    "list(Tinit_func_args), list(Tnext_func_args), list(Tfinalize_func_args) -> handle: variant",
    host=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def generator_dataset(
    init_func_other_args: list[Any],
    next_func_other_args: list[Any],
    finalize_func_other_args: list[Any],
    *,
    init_func: Function,
    next_func: Function,
    finalize_func: Function,
    Tinit_func_args: list[DType],
    Tnext_func_args: list[DType],
    Tfinalize_func_args: list[DType],
    output_types: list[DType],
    output_shapes: list[TensorShape],
) -> Any:
    start = nodes.Closure(init_func, tuple(init_func_other_args))
    advance = nodes.Closure(next_func, tuple(next_func_other_args))
    finish = nodes.Closure(finalize_func, tuple(finalize_func_other_args))
    return as_handle(nodes.Generated(start, advance, finish))
