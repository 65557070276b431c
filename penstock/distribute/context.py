"""The strategy that a thread is in, and if the code that runs now is that of one replica or that of all together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from penstock.graph.sessions import Stack


@dataclass(frozen=True)
class Place:
    """A strategy, and the replica whose code runs; without one the code is that of all replicas together."""

    strategy: Any
    replica: Any = None


class _Places(Stack):
    default: ClassVar[Place]  # outside of all strategies; strategy.py sets it

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = None  # the scope that experimental_set_strategy has entered in this thread


_places = _Places()


def set_default_place(place: Place) -> None:
    """Sets the place of code that is in no strategy's scope."""
    _Places.default = place


def current_place() -> Place:
    """The place of the code that runs now."""
    place: Place = _places.top or _Places.default
    return place


@contextmanager
def at(place: Place) -> Iterator[None]:
    """A context at another place."""
    with _places.pushed(place):
        yield


def get_strategy() -> Any:
    """The strategy whose scope this is, or the default one: `tf.distribute.get_strategy().num_replicas_in_sync`."""
    return current_place().strategy


def has_strategy() -> bool:
    """Tells if this is the scope of a strategy.

    >>> with strategy.scope():
    ...     assert tf.distribute.has_strategy()
    """
    return current_place().strategy is not _Places.default.strategy


def in_cross_replica_context() -> bool:
    """Tells if this code is that of all replicas together: in a scope, but not in the function given to `run`."""
    return current_place().replica is None


def get_replica_context() -> Any:
    """The replica whose code runs, or None for code of all replicas together.

    >>> def replica_fn():
    ...     return tf.distribute.get_replica_context().replica_id_in_sync_group
    >>> strategy.run(replica_fn)
    """
    return current_place().replica


def experimental_set_strategy(strategy: Any) -> None:
    """Makes a strategy this thread's current one from now on, without a `with`; None goes back to the default one."""
    if len(_places.items) > (_places.kept is not None):
        raise RuntimeError("Must not be called inside a `tf.distribute.Strategy` scope.")
    if _places.kept is not None:
        _places.kept.__exit__(None, None, None)
        _places.kept = None
    if strategy is not None:
        _places.kept = strategy.scope()
        _places.kept.__enter__()


def require_cross_replica_context(strategy: Any) -> None:
    """Raises RuntimeError where a replica's own code runs, or that of another strategy."""
    place = current_place()
    if place.strategy is not strategy and has_strategy():
        raise mixed(place.strategy, strategy)
    if place.replica is not None and has_strategy():
        raise RuntimeError("Method requires being in cross-replica context, use get_replica_context().merge_call()")


def mixed(current: Any, other: Any) -> RuntimeError:
    """The error for two strategies in each other's scopes."""
    return RuntimeError(f"Mixing different tf.distribute.Strategy objects: {current!r} is not {other!r}")
