"""Variables with a copy on each device of a MirroredStrategy. In a replica they are that replica's copy."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from penstock.distribute.context import current_place
from penstock.distribute.values import PerReplica, ReduceOp, local_results, reduced, select
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.ops.math.casting import cast
from penstock.variables.eager import EagerVariable
from penstock.variables.enums import VariableAggregation


class MirroredVariable(EagerVariable):
    """A variable whose copies stay the same: what replicas write is aggregated first, and then written to each.

    Without an aggregation, a replica writes to its own copy.
    """

    def __init__(self, strategy: Any, copies: Sequence[Any]) -> None:
        primary = dict(copies[0].__dict__)
        del primary["_handle"]
        self.__dict__.update(primary)
        self._distribute_strategy = strategy
        self.values: tuple[Any, ...] = tuple(copies)
        for copy in copies:
            copy._container = weakref.ref(self)

    @property
    def _replica(self) -> Any:
        """The replica of this variable's strategy whose code runs, or None."""
        place = current_place()
        return place.replica if place.strategy is self._distribute_strategy else None

    @property
    def _own(self) -> Any:
        """The copy of the replica whose code runs, or the first."""
        replica = self._replica
        return self.values[0 if replica is None else replica.replica_id_in_sync_group]

    @property
    def _handle(self) -> Tensor:  # type: ignore[override]
        handle: Tensor = self._own._handle
        return handle

    def _written(self, op: Any, read_value: bool = True) -> Any:
        return self

    def _update(self, write: Callable[[Any, Any], Any], value: Any) -> MirroredVariable:
        """Calls `write(copy, value)` for the copies that a write at this place changes."""
        replica = self._replica
        if replica is None:
            self._write_all(write, value)
        elif self._aggregation is VariableAggregation.NONE:
            write(self._own, value)
        else:
            replica.merge_call(lambda _, values: self._write_all(write, self._aggregated(values)), args=(value,))
        return self

    def _write_all(self, write: Callable[[Any, Any], Any], value: Any) -> None:
        for number, copy in enumerate(self.values):
            write(copy, select(value, number))

    def _aggregated(self, values: Any) -> Any:
        if self._aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            return select(values, 0)
        return reduced(ReduceOp.from_variable_aggregation(self._aggregation), local_results(values))

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        return self._update(lambda copy, v: copy.assign(v, use_locking, name, False), value)

    def _assign_by(self, update: Callable[..., Any], delta: Any, name: str | None, read_value: bool) -> Any:
        return self._update(lambda copy, v: copy._assign_by(update, v, name, False), delta)

    def _scatter(self, kind: str, sparse_delta: Any, use_locking: bool, name: str | None) -> Any:
        return self._update(lambda copy, v: copy._scatter(kind, v, use_locking, name), sparse_delta)


class SyncOnReadVariable(MirroredVariable):
    """A variable whose copies differ: each replica changes its own. Outside of replicas it is their aggregation."""

    def _update(self, write: Callable[[Any, Any], Any], value: Any) -> MirroredVariable:
        if self._replica is not None:
            write(self._own, value)
        else:
            self._write_all(write, value)
        return self

    def assign(self, value: Any, use_locking: bool = False, name: str | None = None, read_value: bool = True) -> Any:
        if self._aggregation is VariableAggregation.SUM and self._replica is None:
            # So that the sum of the copies is the value.
            tensor: Any = convert_to_tensor(value, dtype=self._dtype)
            value = tensor / cast(len(self.values), tensor.dtype)
        return super().assign(value, use_locking, name, read_value)

    def _assign_by(self, update: Callable[..., Any], delta: Any, name: str | None, read_value: bool) -> Any:
        if self._aggregation is VariableAggregation.SUM and self._replica is None:
            raise ValueError(
                f"Variable '{self.name}' is the sum of what the replicas have: outside of `strategy.run` it can be "
                "assigned, but not added to."
            )
        return super()._assign_by(update, delta, name, read_value)

    def _read(self) -> Tensor:
        if self._replica is not None:
            return super()._read()
        value: Tensor = self._aggregated(PerReplica(copy._read() for copy in self.values))
        return value
