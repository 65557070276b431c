"""Ops that make one dataset of several."""

from __future__ import annotations

from typing import Any

from penstock.data import nodes
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle, from_handle

_OPTIONS: dict[str, Any] = {"host": True, "no_gradient": True, "shape": shapes.scalar}


@op("ZipDataset", "N*variant -> handle: variant", **_OPTIONS)
def zip_dataset(
    input_datasets: list[Any], *, output_types: list[DType], output_shapes: list[TensorShape], N: int
) -> Any:
    return as_handle(nodes.Zipped(tuple(map(from_handle, input_datasets))))


@op("ConcatenateDataset", "variant, variant -> handle: variant", **_OPTIONS)
def concatenate_dataset(
    input_dataset: Any, another_dataset: Any, *, output_types: list[DType], output_shapes: list[TensorShape]
) -> Any:
    return as_handle(nodes.Concatenated((from_handle(input_dataset), from_handle(another_dataset))))


@op("DirectedInterleaveDataset", "variant, N*variant -> handle: variant", **_OPTIONS)
def directed_interleave_dataset(
    selector_input_dataset: Any,
    data_input_datasets: list[Any],
    *,
    output_types: list[DType],
    output_shapes: list[TensorShape],
    N: int,
    stop_on_empty_dataset: bool = False,
) -> Any:
    inputs = tuple(map(from_handle, data_input_datasets))
    return as_handle(nodes.Selected(from_handle(selector_input_dataset), inputs, stop_on_empty_dataset))
