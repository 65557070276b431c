"""Packing: resources as plain data, to move them to another task.

A packed resource is its kind, its settings as JSON, and arrays. Kinds that are not listed here cannot move.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import DataLossError
from penstock.graph.dtype import as_dtype
from penstock.graph.shape import TensorShape
from penstock.ops.lookup.table_ops import StaticTable, Table
from penstock.ops.queue.accumulator_resources import Accumulator, SparseAccumulator
from penstock.ops.queue.queue_resources import PaddedQueue, Queue, ShuffledQueue, SortedQueue
from penstock.segments.stored_variable import StoredVariable, placed
from penstock.worker.devices import Device

Settings = dict[str, Any]


@dataclass(frozen=True)
class Packed:
    """A resource as plain data."""

    kind: str
    settings: str
    arrays: Sequence[np.ndarray]


def can_move(resource: Any) -> bool:
    """Tells if a resource can be packed."""
    return type(resource) in _KINDS


def bytes_of(resource: Any) -> int:
    """About how many bytes a resource holds that can move."""
    if isinstance(resource, StoredVariable):
        return resource.nbytes()
    return sum(int(array.nbytes) for array in packed(resource).arrays) if can_move(resource) else 0


def packed(resource: Any) -> Packed:
    """A resource as plain data. No step may change it meanwhile."""
    kind = type(resource)
    settings, arrays = _KINDS[kind][0](resource)
    return Packed(kind.__name__, json.dumps(settings), arrays)


def unpacked(name: str, content: Packed, device: Device) -> Any:
    """The resource that was packed, on a device. Its arrays are copied, since they may be in borrowed memory."""
    try:
        unpack = next(both[1] for kind, both in _KINDS.items() if kind.__name__ == content.kind)
        return unpack(name, json.loads(content.settings), content.arrays, device)
    except (StopIteration, ValueError, TypeError, KeyError) as error:
        raise DataLossError(
            f"The resource '{name}' arrived as a {content.kind} that cannot be read: {error!r}."
        ) from error


# Variables


def _pack_variable(variable: StoredVariable) -> tuple[Settings, list[np.ndarray]]:
    settings = {"dtype": variable.dtype.name, "shape": _dims(variable.shape)}
    return settings, [] if variable.value is None else [variable.snapshot()]


def _unpack_variable(name: str, settings: Settings, arrays: Sequence[np.ndarray], device: Device) -> StoredVariable:
    on_cpu = device.jax_device.platform == "cpu"
    variable = StoredVariable(name, as_dtype(settings["dtype"]), _shape(settings["shape"]), on_cpu)
    for value in arrays:
        if not variable.overwrite(value, device.jax_device):
            variable.value = np.array(value) if value.dtype == object else placed(np.array(value), device.jax_device)
    return variable


# Queues


def _pack_queue(queue: Queue) -> tuple[Settings, list[np.ndarray]]:
    elements = list(queue._elements)
    settings: Settings = {
        "dtypes": [dtype.name for dtype in queue.dtypes],
        "shapes": [_dims(shape) for shape in queue.shapes],
        "capacity": queue.capacity,
        "closed": queue.is_closed,
        "elements": len(elements),
    }
    if isinstance(queue, ShuffledQueue):
        settings |= {"keep": queue._keep, "random": queue._random.bit_generator.state}
    if isinstance(queue, SortedQueue):
        elements = [element for _, _, element in sorted(elements, key=lambda found: found[:2])]
    return settings, [np.asarray(part) for element in elements for part in element]


def _unpack_queue(kind: type[Queue]) -> Callable[..., Queue]:
    def unpack(name: str, settings: Settings, arrays: Sequence[np.ndarray], device: Device) -> Queue:
        further = {"min_after_dequeue": settings["keep"], "seed": 0, "seed2": 0} if "keep" in settings else {}
        dtypes = [as_dtype(dtype) for dtype in settings["dtypes"]]
        queue = kind(name, dtypes, [_shape(dims) for dims in settings["shapes"]], settings["capacity"], **further)
        if isinstance(queue, ShuffledQueue):
            queue._random.bit_generator.state = settings["random"]
        parts = iter(arrays)
        for _ in range(settings["elements"]):
            queue._put(tuple(np.array(next(parts)) for _ in dtypes))
        queue.is_closed = settings["closed"]
        return queue

    return unpack


# Accumulators


def _pack_accumulator(accumulator: Accumulator) -> tuple[Settings, list[np.ndarray]]:
    settings = {
        "dtype": accumulator.dtype.name,
        "shape": _dims(accumulator.shape),
        "reduction": accumulator.reduction,
        "step": accumulator.global_step,
        "count": accumulator.count,
    }
    total = accumulator.total()
    return settings, [] if total is None else list(total) if isinstance(total, tuple) else [total]


def _unpack_accumulator(kind: type[Accumulator]) -> Callable[..., Accumulator]:
    def unpack(name: str, settings: Settings, arrays: Sequence[np.ndarray], device: Device) -> Accumulator:
        accumulator = kind(name, as_dtype(settings["dtype"]), _shape(settings["shape"]), settings["reduction"])
        accumulator.global_step, accumulator.count = settings["step"], settings["count"]
        if arrays:
            parts = tuple(np.array(array) for array in arrays)
            accumulator._sum = parts if kind is SparseAccumulator else parts[0]
            accumulator._usual = arrays[0].shape
        return accumulator

    return unpack


# Tables


def _pack_table(table: Table) -> tuple[Settings, list[np.ndarray]]:
    settings: Settings = {
        "key_dtype": table.key_dtype.name,
        "value_dtype": table.value_dtype.name,
        "key_shape": list(table.key_shape),
        "value_shape": list(table.value_shape),
    }
    if isinstance(table, StaticTable):
        settings["initialized"] = table.initialized
    return settings, list(Table.export(table))


def _unpack_table(kind: type[Table]) -> Callable[..., Table]:
    def unpack(name: str, settings: Settings, arrays: Sequence[np.ndarray], device: Device) -> Table:
        types = as_dtype(settings["key_dtype"]), as_dtype(settings["value_dtype"])
        keys, values = arrays
        if kind is StaticTable:
            static = StaticTable(name, *types)
            Table.insert(static, keys, values)
            static.initialized = settings["initialized"]
            return static
        table = kind(name, *types, TensorShape.of(tuple(settings["value_shape"])))
        table.insert(keys, values)
        return table

    return unpack


def _dims(shape: TensorShape) -> list[int | None] | None:
    return None if shape.rank is None else list(shape.as_list())


def _shape(dims: list[int | None] | None) -> TensorShape:
    return TensorShape.of(None if dims is None else tuple(dims))


_QUEUES = (Queue, ShuffledQueue, PaddedQueue, SortedQueue)
_KINDS: dict[type[Any], tuple[Callable[..., Any], Callable[..., Any]]] = {
    StoredVariable: (_pack_variable, _unpack_variable),
    **{kind: (_pack_queue, _unpack_queue(kind)) for kind in _QUEUES},
    **{kind: (_pack_accumulator, _unpack_accumulator(kind)) for kind in (Accumulator, SparseAccumulator)},
    **{kind: (_pack_table, _unpack_table(kind)) for kind in (Table, StaticTable)},
}
