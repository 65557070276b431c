"""The scopes and collections of the default graph, as functions."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from penstock.graph.device import DeviceSpecV2
from penstock.graph.graph import get_default_graph, graph_of


class name_scope:
    """Puts the ops made inside under a name.

    `name_scope(name, default_name, values)` is the form for library functions: `default_name` is used when the
    caller gave no name, and `values` tell the graph.

    >>> with tf.name_scope("layer"):
    ...     tf.constant(1.0).name
    'layer/Const:0'
    """

    def __init__(self, name: str | None, default_name: str | None = None, values: Any = None) -> None:
        if not (default_name is None or isinstance(default_name, str)):
            raise TypeError(f"default_name must be a string, received {default_name!r}; are the arguments in order?")
        self._name = default_name if name is None else name
        if self._name is None and values is not None:
            raise ValueError(f"At least one of name ({name}) and default_name ({default_name}) must be given.")
        self._values = list(values) if isinstance(values, Iterable) else []
        self._exits: list[ExitStack] = []

    @property
    def name(self) -> str | None:
        return self._name

    def __enter__(self) -> str:
        graph = graph_of([v for v in self._values if v is not None])
        exits = ExitStack()
        if graph is not get_default_graph():
            exits.enter_context(graph.as_default())
        scope: str = exits.enter_context(graph.name_scope(self._name))
        self._exits.append(exits)
        return scope

    def __exit__(self, *exc: Any) -> None:
        self._exits.pop().close()


op_scope = name_scope


def device(device_name_or_function: Any) -> AbstractContextManager[None]:
    """Places the ops made inside: `with tf.device("/job:ps/task:0"):`."""
    return get_default_graph().device(device_name_or_function)


def device_v2(device_name: Any) -> AbstractContextManager[None]:
    """Places the ops made inside, by name: `with tf.device("CPU:0"):`. Functions are for the 1.x API alone."""
    if callable(device_name):
        raise RuntimeError("tf.device does not take functions; tf.compat.v1.device does, in graphs.")
    name = getattr(device_name, "name", device_name)  # a tf.config.LogicalDevice has a name
    if not (name is None or isinstance(name, (str, DeviceSpecV2))):
        raise ValueError(f"Expecting a string device name, received {device_name!r} of type {type(device_name)}.")
    return get_default_graph().device(name)


def colocate_with(op: Any, ignore_existing: bool = False) -> AbstractContextManager[None]:
    """Places the ops made inside on the device of `op`."""
    return get_default_graph().colocate_with(op, ignore_existing)


def maybe_colocate_with(op: Any, colocate: bool) -> AbstractContextManager[None]:
    """`colocate_with(op)` if asked for, else an empty context."""
    return colocate_with(op) if colocate else nullcontext()


def control_dependencies(control_inputs: Any) -> AbstractContextManager[None]:
    """Makes the ops made inside wait: `with tf.control_dependencies([update]):`."""
    return get_default_graph().control_dependencies(control_inputs)


def get_current_name_scope() -> str:
    """The name scope that new ops get, without a slash at its end: `tf.get_current_name_scope()`."""
    return get_default_graph()._scopes.name


def container(container_name: str) -> AbstractContextManager[str]:
    """Names the resource container of the variables and queues made inside."""
    return get_default_graph().container(container_name)


def add_to_collection(name: Any, value: Any) -> None:
    """Appends to a collection of the default graph."""
    get_default_graph().add_to_collection(name, value)


def add_to_collections(names: Any, value: Any) -> None:
    """Appends to several collections of the default graph."""
    get_default_graph().add_to_collections(names, value)


def get_collection(key: Any, scope: str | None = None) -> list[Any]:
    """A copy of a collection of the default graph, filtered by scope."""
    return get_default_graph().get_collection(key, scope)


def get_collection_ref(key: Any) -> list[Any]:
    """A collection of the default graph itself."""
    return get_default_graph().get_collection_ref(key)


def get_all_collection_keys() -> list[str]:
    """The names of all collections of the default graph."""
    return get_default_graph().get_all_collection_keys()


def init_scope() -> AbstractContextManager[None]:
    """Leaves function bodies and control dependencies, so that ops made inside belong to the outermost graph."""
    return _InitScope()


class _InitScope:
    def __enter__(self) -> None:
        graph = get_default_graph()
        # The name scope is kept, since get_variable in the body of a loop resets it there.
        scope = graph.get_name_scope()
        devices: list[Any] = []  # device scopes of the bodies that are left, which still apply inside
        while graph.outer_graph is not None:
            devices = [*graph._scopes.devices, *devices]
            graph = graph.outer_graph
        self._exit = ExitStack()
        self._exit.enter_context(graph.as_default())
        for function in devices:
            self._exit.enter_context(graph.device(function))
        self._exit.enter_context(graph.name_scope(f"{scope}/" if scope else None))
        self._exit.enter_context(graph.control_dependencies(None))

    def __exit__(self, *exc: Any) -> None:
        self._exit.close()


def set_random_seed(seed: int | None) -> None:
    """Sets the graph-level seed, from which random ops without their own seed derive one."""
    get_default_graph().seed = seed


DEFAULT_GRAPH_SEED = 87654321
_MAX_SEED = 2**31 - 1


def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """The pair of seeds for a new random op, or (None, None) when neither graph nor op has one."""
    graph = get_default_graph()
    if graph.seed is not None:
        if op_seed is None:
            op_seed = graph.next_op_seed()
        return seed_pair(graph.seed, op_seed)
    if op_seed is not None:
        return seed_pair(DEFAULT_GRAPH_SEED, op_seed)
    return None, None


def seed_pair(first: int, second: int) -> tuple[int, int]:
    """Two seeds as the attrs of a node hold them.

    >>> seed_pair(0, 0)  # in a node this means that it has no seed
    (0, 2147483647)
    """
    seeds = first % _MAX_SEED, second % _MAX_SEED
    return (0, _MAX_SEED) if seeds == (0, 0) else seeds
