"""Ops that save tensors to checkpoint files, and restore them."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.checkpoint import bundle
from penstock.checkpoint.slices import Slice
from penstock.errors import InvalidArgumentError
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel.types import Array

_READ_AT_ONCE = 1 << 20  # bytes of variables that a save reads at once, or more


def _text(value: Any) -> str:
    item = np.asarray(value, object).reshape(-1)[0]
    return item.decode() if isinstance(item, bytes) else str(item)


def _texts(values: Any, what: str, count: int) -> list[str]:
    items = [s.decode() if isinstance(s, bytes) else str(s) for s in np.asarray(values, object).reshape(-1)]
    if len(items) != count:
        raise InvalidArgumentError(f"There are {len(items)} {what} for {count} tensors.")
    return items


def _slice(spec: str, name: str) -> tuple[tuple[int, ...], Slice]:
    try:
        return Slice.parse(spec)
    except ValueError as error:
        raise InvalidArgumentError(f"The slice of '{name}' is malformed: {error}.") from error


@op(
    "SaveV2",
    "string, string, string, list(dtypes) ->",
    host=True,
    stateful=True,
    no_gradient=True,
    takes_variables=True,
)
def save_v2(prefix: Array, tensor_names: Array, shape_and_slices: Array, tensors: list[Any]) -> None:
    """Writes tensors as a checkpoint. Variables are passed as objects, and read a few at a time."""
    names = _texts(tensor_names, "names", len(tensors))
    specs = _texts(shape_and_slices, "slices", len(tensors))
    with bundle.BundleWriter(_text(prefix)) as writer:
        for group in _groups(tensors):
            values = [t if isinstance(t, np.ndarray) else t.snapshot() for t in (tensors[i] for i in group)]
            while values:
                i, value = group.pop(0), values.pop(0)
                if specs[i]:
                    shape, part = _slice(specs[i], names[i])
                    writer.add_slice(names[i], shape, part, value)
                else:
                    writer.add(names[i], value)
                del value  # so that updates may reuse its memory


def _groups(tensors: list[Any]) -> list[list[int]]:
    """Positions of tensors to read at once: a 25th of all bytes, or one tensor.

    A variable that is being saved cannot be updated in place, so a step needs more memory meanwhile: the size of a
    group. But a variable that a step updates can be read only when the step is over, so reading the variables one by
    one could take as many steps.
    """
    sizes = [t.nbytes if isinstance(t, np.ndarray) else t.nbytes() for t in tensors]
    limit = max(_READ_AT_ONCE, sum(sizes) // 25)
    groups: list[list[int]] = []
    held = 0
    for i, size in enumerate(sizes):
        if not groups or held + size > limit:
            groups.append([])
            held = 0
        groups[-1].append(i)
        held += size
    return groups


def _restored_shapes(node: Operation) -> list[TensorShape]:
    return [TensorShape.of(None) for _ in node.outputs]


@op(
    "RestoreV2",
    "string, string, string -> tensors: list(dtypes)",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=_restored_shapes,
)
def restore_v2(prefix: Array, tensor_names: Array, shape_and_slices: Array, *, dtypes: list[DType]) -> list[Any]:
    """Reads tensors, or slices of them, from a checkpoint."""
    names = _texts(tensor_names, "names", len(dtypes))
    specs = _texts(shape_and_slices, "slices", len(dtypes))
    reader = bundle.BundleReader(_text(prefix))
    results = []
    for name, spec, dtype in zip(names, specs, dtypes, strict=True):
        stored = reader.dtype(name)
        if stored is not as_dtype(dtype).base_dtype:
            raise InvalidArgumentError(
                f"'{name}' is {stored.name} in checkpoint '{reader.prefix}', but {dtype.name} in the graph."
            )
        if spec:
            shape, part = _slice(spec, name)
            results.append(reader.read_slice(name, part, shape))
        else:
            results.append(reader.read(name))
    return results


@op("MergeV2Checkpoints", "string, string ->", host=True, stateful=True, no_gradient=True)
def merge_v2_checkpoints(
    checkpoint_prefixes: Array,
    destination_prefix: Array,
    *,
    delete_old_dirs: bool = True,
    allow_missing_files: bool = False,
) -> None:
    """Merges the shards that several tasks have written into one checkpoint."""
    prefixes = [s.decode() for s in np.asarray(checkpoint_prefixes, object).reshape(-1)]
    if allow_missing_files:
        prefixes = [prefix for prefix in prefixes if bundle.exists(prefix)]
    bundle.merge(prefixes, _text(destination_prefix), delete_old_dirs)


def _scalar(node: Operation) -> list[TensorShape]:
    return [TensorShape([])]


@op("ShardedFilename", "string, int32, int32 -> filename: string", host=True, no_gradient=True, shape=_scalar)
def sharded_filename(basename: Array, shard: Array, num_shards: Array) -> Array:
    """`basename-00001-of-00002`."""
    name = f"{_text(basename)}-{int(shard):05d}-of-{int(num_shards):05d}"
    return np.asarray(name.encode(), object)


@op("ShardedFilespec", "string, int32 -> filename: string", host=True, no_gradient=True, shape=_scalar)
def sharded_filespec(basename: Array, num_shards: Array) -> Array:
    """`basename-?????-of-00002`."""
    return np.asarray(f"{_text(basename)}-?????-of-{int(num_shards):05d}".encode(), object)
