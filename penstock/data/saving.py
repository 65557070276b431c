"""Saving a dataset to a folder, and loading it again."""

from __future__ import annotations

import json
import os
from typing import Any

from penstock import gfile
from penstock.checkpoint import files
from penstock.data import caching, nodes, specs, structure
from penstock.data.base import DatasetBase
from penstock.data.pipeline import Pipeline
from penstock.data.source_ops import number, text
from penstock.data.structure import DatasetSpec
from penstock.errors import DataLossError
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle, from_handle


def _elements(folder: str) -> str:
    return os.path.join(folder, "elements")


def _description(folder: str) -> str:
    return os.path.join(folder, "dataset_spec.json")


@op("_SaveDataset", "variant, string ->", host=True, stateful=True, blocking=True, no_gradient=True)
def save_dataset(input_dataset: Any, path: Any, *, spec: str, ctx: Any, functions: Any) -> None:
    folder = text(path)
    gfile.makedirs(folder)
    pipeline = Pipeline(from_handle(input_dataset), functions)
    writer = caching.Writer(_elements(folder))
    try:
        while True:
            try:
                writer.add(pipeline.next(ctx))
            except StopIteration:
                break
        writer.finish()
    finally:
        writer.discard()
        pipeline.close()
    # Written last: a folder with this file is complete.
    data = {"spec": json.loads(spec), "count": writer.count}
    files.write_whole(_description(folder), json.dumps(data).encode())


@op("_LoadDataset", "string, int64 -> handle: variant", host=True, no_gradient=True, shape=shapes.scalar)
def load_dataset(path: Any, count: Any, *, output_types: list[DType], output_shapes: list[TensorShape]) -> Any:
    return as_handle(nodes.Saved(_elements(text(path)), number(count)))


class Saving(DatasetBase):
    """Datasets in files."""

    def save(
        self, path: Any, compression: Any = None, shard_func: Any = None, checkpoint_args: Any = None
    ) -> Operation:
        """Writes all elements to a folder, from which `Dataset.load(path)` reads them. They are not compressed."""
        if shard_func is not None or checkpoint_args is not None:
            raise NotImplementedError("Dataset.save: shard_func and checkpoint_args are not supported.")
        folder = convert_to_tensor(os.fspath(path), dtype=dt.string, name="path")
        spec = json.dumps(specs.encoded(self._spec))
        node: Operation = save_dataset(self._variant_tensor, folder, spec=spec)
        return node

    @staticmethod
    def load(path: Any, element_spec: Any = None, compression: Any = None, reader_func: Any = None) -> Any:
        """The dataset that `save` wrote: `tf.data.Dataset.load("/tmp/saved")`."""
        if reader_func is not None:
            raise NotImplementedError("Dataset.load: reader_func is not supported.")
        folder = os.fspath(path)
        try:
            found = json.loads(files.read(_description(folder)))
            spec, count = specs.decoded(found["spec"]), int(found["count"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataLossError(f"'{_description(folder)}' does not describe a saved dataset: {error}.") from error
        variant = load_dataset(
            convert_to_tensor(folder, dtype=dt.string),
            convert_to_tensor(count, dtype=dt.int64),
            output_types=structure.types_of(spec),
            output_shapes=structure.shapes_of(spec),
        )
        return DatasetSpec.dataset_class(variant, spec if element_spec is None else element_spec)
