"""The ops of clocks, which bound the staleness of gradients, and of groups of gradients that are applied together."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle, from_handle
from penstock.ops.queue.clock_resources import Clock, GradientGroups

_WAITS: dict[str, Any] = {
    "host": True,
    "stateful": True,
    "blocking": True,
    "can_suspend": True,
    "no_gradient": True,
    "shape": shapes.scalar,
}


@op("StalenessClock", "-> handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def staleness_clock(
    *, num_workers: int, staleness: int = -1, container: str = "", shared_name: str = "", resource: Any
) -> np.ndarray:
    found = resource(lambda name: Clock(name, num_workers, staleness))
    if type(found) is not Clock or (found.num_workers, found.first_staleness) != (num_workers, staleness):
        held = f"has {found.num_workers} workers and staleness {found.first_staleness}" if type(found) is Clock else ""
        raise InvalidArgumentError(
            f"{found} exists already and {held or 'is no clock'}, received {num_workers} workers and staleness "
            f"{staleness}. All workers must give the same, and a second optimizer needs another name."
        )
    return as_handle(found)


@op("StalenessClockJoin", "resource -> clock: int64", **_WAITS)
def staleness_clock_join(handle: Any, *, worker: int, deadline_secs: float, ctx: Any) -> np.ndarray:
    return np.array(from_handle(handle).join(worker, deadline_secs, ctx), np.int64)


@op("StalenessClockArrive", "resource -> missed: int64", **_WAITS)
def staleness_clock_arrive(handle: Any, *, worker: int, deadline_secs: float, ctx: Any) -> np.ndarray:
    return np.array(from_handle(handle).arrive(worker, deadline_secs, ctx), np.int64)


@op("StalenessClockAdvance", "resource -> clock: int64", **_WAITS)
def staleness_clock_advance(handle: Any, *, worker: int, deadline_secs: float, ctx: Any) -> np.ndarray:
    return np.array(from_handle(handle).advance(worker, deadline_secs, ctx), np.int64)


@op("StalenessClockLeave", "resource ->", host=True, stateful=True, no_gradient=True)
def staleness_clock_leave(handle: Any, *, worker: int) -> None:
    from_handle(handle).leave(worker)


@op(
    "StalenessClockSetStaleness",
    "resource, int64 -> clock: int64",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=shapes.scalar,
)
def staleness_clock_set_staleness(handle: Any, staleness: np.ndarray) -> np.ndarray:
    return np.array(from_handle(handle).set_staleness(int(staleness)), np.int64)


def _clocks_shape(op: Operation) -> list[TensorShape]:
    return [TensorShape.of((None,)), TensorShape.of((None,)), TensorShape.of(())]


@op(
    "StalenessClockState",
    "resource -> clocks: int64, arrived: bool, staleness: int64",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=_clocks_shape,
)
def staleness_clock_state(handle: Any) -> Any:
    clock = from_handle(handle)
    clocks, arrived = zip(*clock.clocks(), strict=True)
    return np.array(clocks, np.int64), np.array(arrived), np.array(clock.staleness(), np.int64)


@op("GradientGroups", "-> handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def gradient_groups(*, group_size: int, container: str = "", shared_name: str = "", resource: Any) -> np.ndarray:
    found = resource(lambda name: GradientGroups(name, group_size))
    if type(found) is not GradientGroups or found.group_size != group_size:
        held = f"has groups of {found.group_size}" if type(found) is GradientGroups else "is something else"
        raise InvalidArgumentError(
            f"{found} exists already and {held}, received a group size of {group_size}. All workers must give the "
            "same, and a second optimizer needs another name."
        )
    return as_handle(found)


@op("GradientGroupsAdd", "resource -> is_last: bool", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def gradient_groups_add(handle: Any) -> np.ndarray:
    return np.array(from_handle(handle).add())


@op("GradientGroupsRequire", "resource, int32 ->", host=True, stateful=True, no_gradient=True)
def gradient_groups_require(handle: Any, available: np.ndarray) -> None:
    from_handle(handle).require(int(available))


@op("GradientGroupsNote", "resource, int64 ->", host=True, stateful=True, no_gradient=True)
def gradient_groups_note(handle: Any, missed: np.ndarray) -> None:
    from_handle(handle).note(missed.reshape(-1).tolist())


def _histogram_shapes(op: Operation) -> list[TensorShape]:
    return [TensorShape.of((None, 2))] * 2


@op(
    "StalenessRecord",
    "resource -> updates: int64, clocks: int64",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=_histogram_shapes,
)
def staleness_record(handle: Any) -> Any:
    """The histograms of a clock or of groups: rows of a staleness and how many gradients had it."""
    record = from_handle(handle).record
    return tuple(
        np.array(sorted(histogram.copy().items()), np.int64).reshape(-1, 2)
        for histogram in (record.updates, record.clocks)
    )
