"""Values that differ between replicas, and how those of several replicas become one."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Tensor
from penstock.ops.array.joining import concat
from penstock.ops.math.arithmetic import add_n
from penstock.ops.math.casting import cast
from penstock.variables.enums import VariableAggregation


class ReduceOp(enum.Enum):
    """Selects how values of several replicas become one: `tf.distribute.ReduceOp.SUM`."""

    SUM = "SUM"
    MEAN = "MEAN"

    @staticmethod
    def from_variable_aggregation(aggregation: VariableAggregation) -> ReduceOp:
        """The reduction that an aggregation of variables stands for."""
        if aggregation not in (VariableAggregation.SUM, VariableAggregation.MEAN):
            raise ValueError(f"There is no ReduceOp for the aggregation {aggregation}: use SUM or MEAN.")
        return ReduceOp[aggregation.name]


def as_reduce_op(reduce_op: Any) -> ReduceOp:
    """A ReduceOp, given as such or by its name: `as_reduce_op("sum")`."""
    if isinstance(reduce_op, ReduceOp):
        return reduce_op
    try:
        return ReduceOp(reduce_op.upper())
    except (AttributeError, ValueError):
        raise ValueError(
            f"reduce_op must be 'SUM' or 'MEAN' or a tf.distribute.ReduceOp, received {reduce_op!r}."
        ) from None


class DistributedValues(tuple[Any, ...]):
    """A value per replica. To structures it is a tuple, so that functions take it and return it."""

    __slots__ = ()

    @property
    def values(self) -> tuple[Any, ...]:
        """The value of each replica, by its number."""
        return tuple(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}:{{{', '.join(f'{i}: {value!r}' for i, value in enumerate(self))}}}"


class PerReplica(DistributedValues):
    """The results of a function, one of each replica."""

    __slots__ = ()


def select(structure: Any, replica: int) -> Any:
    """The structure that a replica sees: its own one of each value that differs between replicas."""
    return map_values(lambda v: v[replica] if isinstance(v, DistributedValues) else v, structure)


def map_values(function: Callable[[Any], Any], structure: Any) -> Any:
    """Applies a function to each leaf, where values that differ between replicas are leaves."""
    if isinstance(structure, DistributedValues):
        return function(structure)
    if isinstance(structure, Mapping):
        made = {key: map_values(function, value) for key, value in structure.items()}
        return made if type(structure) is dict else type(structure)(made)  # type: ignore[call-arg]
    if isinstance(structure, (list, tuple)):
        items = [map_values(function, value) for value in structure]
        return structure._make(items) if hasattr(structure, "_make") else type(structure)(items)
    return function(structure)


def regroup(structures: Sequence[Any]) -> Any:
    """One structure of values per replica, from one structure of each replica."""
    if len(structures) == 1:
        return structures[0]
    return nest.map_structure(lambda *values: _grouped(values), *structures)


def _grouped(values: tuple[Any, ...]) -> Any:
    first = values[0]
    return first if all(v is first for v in values) else PerReplica(values)


def local_results(value: Any) -> tuple[Any, ...]:
    """The values of the replicas of this process: `(value,)` if it does not differ between them."""
    return value.values if isinstance(value, DistributedValues) else (value,)


def reduced(reduce_op: ReduceOp, values: Sequence[Any]) -> Any:
    """The sum or mean of values of replicas: tensors, or IndexedSlices, which stay sparse."""
    count = len(values)
    if count == 1:
        return values[0]
    if all(isinstance(v, IndexedSlices) for v in values):
        rows: Any = concat([v.values for v in values], 0)
        indices = concat([v.indices for v in values], 0)
        rows = rows / cast(count, rows.dtype) if reduce_op is ReduceOp.MEAN else rows
        return IndexedSlices(rows, indices, values[0].dense_shape)
    total: Any = add_n([convert_to_tensor(v) for v in values])
    return total / cast(count, total.dtype) if reduce_op is ReduceOp.MEAN else total


def gathered(values: Sequence[Any], axis: int) -> Tensor:
    """The values of replicas, one after the other along an axis."""
    if any(isinstance(v, IndexedSlices) for v in values):
        raise NotImplementedError("gather and all_gather take dense tensors, received IndexedSlices.")
    tensors = [convert_to_tensor(v) for v in values]
    if tensors[0].shape.rank == 0:
        raise ValueError("gather and all_gather need values with at least one axis, received scalars.")
    joined: Tensor = tensors[0] if len(tensors) == 1 else concat(tensors, axis)
    return joined
