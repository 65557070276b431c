"""Strategy: where variables are, and which devices run copies of a step. Subclasses decide; this is what they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.distribute.context import (
    Place,
    at,
    current_place,
    has_strategy,
    mixed,
    require_cross_replica_context,
    set_default_place,
)
from penstock.distribute.input import DistributedDataset, DistributedDatasetsFromFunction, ValueContext
from penstock.distribute.replicas import ReplicaContext, run_replicas
from penstock.distribute.values import (
    DistributedValues,
    PerReplica,
    ReduceOp,
    as_reduce_op,
    gathered,
    local_results,
    map_values,
    reduced,
    regroup,
    select,
)
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.scopes import device
from penstock.ops.array.gathering import gather
from penstock.ops.array.reshaping import shape
from penstock.ops.math.casting import cast
from penstock.ops.math.reduce import reduce_prod, reduce_sum
from penstock.variables.creation import variable_creator_scope
from penstock.variables.variable import Variable


class Strategy:
    """Runs a step on several devices. Use one of the subclasses.

    >>> strategy = tf.distribute.MirroredStrategy()
    >>> with strategy.scope():
    ...     v = tf.Variable(1.0)
    >>> strategy.run(lambda x: x * v, args=(2.0,))
    """

    def __init__(self, extended: StrategyExtended) -> None:
        self._extended = extended

    @property
    def extended(self) -> StrategyExtended:
        """More methods, for libraries."""
        return self._extended

    @property
    def cluster_resolver(self) -> Any:
        """The resolver that the strategy was given, or None."""
        return None

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas whose values are reduced together."""
        return len(self._extended.worker_devices)

    @contextmanager
    def scope(self) -> Iterator[Strategy]:
        """A context in which variables are made as the strategy wants, and which is its cross-replica context."""
        if current_place().strategy is self:
            yield self
            return
        if has_strategy():
            raise mixed(current_place().strategy, self)
        with at(Place(self)), variable_creator_scope(self._extended._create_marked):
            yield self

    def run(self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Calls `fn` once per replica, each on its device, and returns the results by replica.

        Of an argument that has a value per replica, each replica gets its own.
        """
        if not callable(fn):
            raise TypeError(f"strategy.run takes a function, received {fn!r}.")
        with self.scope():
            require_cross_replica_context(self)
            return self._extended._run(fn, tuple(args), dict(kwargs or {}))

    def reduce(self, reduce_op: Any, value: Any, axis: Any) -> Any:
        """The sum or mean of values per replica; of their elements too, along `axis`, unless it is None.

        >>> strategy.reduce("SUM", strategy.run(step), axis=None)
        """
        op = as_reduce_op(reduce_op)
        require_cross_replica_context(self)
        if axis is None:
            return map_values(lambda v: self._extended._reduce(op, v), value)
        return map_values(lambda v: self._reduce_along(op, v, axis), value)

    def _reduce_along(self, op: ReduceOp, value: Any, axis: Any) -> Any:
        tensors = [convert_to_tensor(v) for v in local_results(value)]
        totals = [reduce_sum(t, axis=axis) for t in tensors]
        total: Any = reduced(ReduceOp.SUM, totals)
        if op is ReduceOp.SUM:
            return total
        counts = [reduce_prod(gather(shape(t), axis)) for t in tensors]
        return total / cast(reduced(ReduceOp.SUM, counts), total.dtype)

    def gather(self, value: Any, axis: int) -> Any:
        """Joins the values of the replicas along `axis`."""
        require_cross_replica_context(self)
        return map_values(lambda v: gathered(local_results(v), axis), value)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The values of all replicas of this process: `(value,)` if there is only one."""
        return local_results(value)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> DistributedDataset:
        """A dataset each of whose batches is shared out among the replicas."""
        return DistributedDataset(dataset, self, options)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any = None
    ) -> DistributedDatasetsFromFunction:
        """A dataset of `dataset_fn(input_context)`, each element of which goes to one replica."""
        return DistributedDatasetsFromFunction(dataset_fn, self, options)

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def experimental_distribute_values_from_function(self, value_fn: Callable[..., Any]) -> Any:
        """`value_fn(ValueContext(replica, replicas))` of each replica, as values per replica."""
        count = self.num_replicas_in_sync
        made = [value_fn(ValueContext(i, count)) for i in range(count)]
        return made[0] if count == 1 else nest.map_structure(lambda *values: PerReplica(values), *made)


class StrategyExtended:
    """The part of a strategy that libraries use: `strategy.extended`. Subclasses override what differs."""

    experimental_require_static_shapes = False
    experimental_should_init = True
    should_checkpoint = True
    should_save_summary = True
    experimental_between_graph = False
    dataset_refusal: tuple[str, str] | None = None  # why datasets, and those of functions, cannot be iterated here

    def __init__(self, container_strategy: Strategy) -> None:
        self._strategy = container_strategy

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device of each replica."""
        raise NotImplementedError

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The devices that hold variables."""
        return self.worker_devices

    # Variables

    def _create(self, make: Callable[..., Any], near: Any, **kwargs: Any) -> Any:
        """Makes a variable, beside the variable `near` unless it is None."""
        return make(**kwargs)

    def _create_marked(self, make: Callable[..., Any], colocate_with: Any = None, **kwargs: Any) -> Any:
        variable = self._create(make, colocate_with, **kwargs)
        variable._distribute_strategy = self._strategy
        return variable

    def variable_created_in_scope(self, v: Any) -> bool:
        """Tells if a variable was made in the scope of this strategy."""
        return getattr(v, "_distribute_strategy", None) is self._strategy

    @contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """Puts the variables made inside where another variable of this strategy is, such as slots of optimizers."""
        if not self.variable_created_in_scope(colocate_with_variable):
            raise ValueError(
                "`colocate_vars_with` must only be passed a variable created in this tf.distribute.Strategy.scope(), "
                f"not {colocate_with_variable!r}"
            )

        def create(make: Callable[..., Any], **kwargs: Any) -> Any:
            return make(**{"colocate_with": colocate_with_variable, **kwargs})

        with self._strategy.scope(), variable_creator_scope(create):
            yield

    def value_container(self, value: Any) -> Any:
        """The variable that holds a value of one replica."""
        container = getattr(value, "_container", None)
        return value if container is None else container()

    def update(
        self, var: Any, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        """Calls `fn(var, *args, **kwargs)` where the variable is, once for each of its copies."""
        results = []
        for number, copy in enumerate(self._copies(var)):
            with device(copy.device):
                results.append(fn(copy, *select(tuple(args), number), **select(dict(kwargs or {}), number)))
        # With eager execution the updates have happened, and in a function they will happen in the program's order.
        return None if group else regroup(results)

    def _copies(self, var: Any) -> Sequence[Variable]:
        return [var]

    # Replicas

    def call_for_each_replica(self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """Calls `fn` once per replica, like `Strategy.run`."""
        return self._strategy.run(fn, args, kwargs)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return run_replicas(self._strategy, fn, args, kwargs)

    def _reduce(self, op: ReduceOp, value: Any) -> Any:
        if isinstance(value, DistributedValues):
            return reduced(op, value)
        if self._strategy.num_replicas_in_sync == 1 or op is ReduceOp.MEAN or _is_zero(value):
            return value
        raise ValueError(
            f"{value!r} is one value and not one per replica, so that its sum over "
            f"{self._strategy.num_replicas_in_sync} replicas is not defined. Reduce what strategy.run has returned."
        )

    def reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any = None) -> Any:
        """The sum or mean of values per replica. All destinations can read it."""
        return self._reduce(as_reduce_op(reduce_op), value)

    def batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Sequence[Any], options: Any = None) -> list[Any]:
        """`reduce_to` of each pair."""
        return [self.reduce_to(reduce_op, value, destinations) for value, destinations in value_destination_pairs]

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """The tensor itself: ops of any device can take it."""
        return tensor

    def non_slot_devices(self, var_list: Sequence[Any]) -> Any:
        """The devices for variables of an optimizer that belong to no other variable."""
        return self.parameter_devices


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and value == 0


class _DefaultDistributionStrategy(Strategy):
    """The strategy of code that is in no scope: one replica, and variables as they are."""

    def __init__(self) -> None:
        super().__init__(_DefaultExtended(self))

    @contextmanager
    def scope(self) -> Iterator[Strategy]:
        if has_strategy():
            raise mixed(current_place().strategy, self)
        yield self


class _DefaultExtended(StrategyExtended):
    @property
    def worker_devices(self) -> tuple[str, ...]:
        return ("",)


def _default_place() -> Place:
    strategy = _DefaultDistributionStrategy()
    return Place(strategy, ReplicaContext(strategy))


set_default_place(_default_place())
