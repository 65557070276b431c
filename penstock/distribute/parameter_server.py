"""ParameterServerStrategy: variables live on parameter servers, whole or in shards; workers run scheduled functions."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from penstock import logging
from penstock.distribute.recovery import KeptState, PSRecovery
from penstock.distribute.sharded_variable import ShardedVariable, known_dims, shard_sizes
from penstock.distribute.strategy import Strategy, StrategyExtended
from penstock.distribute.synchronous import GradientExchange
from penstock.eager.cluster import connect
from penstock.eager.runtime import runtime
from penstock.graph.convert import convert_to_tensor
from penstock.graph.device import DeviceSpecV2
from penstock.graph.dtype import as_dtype
from penstock.graph.graph import executing_eagerly
from penstock.graph.operation import Tensor
from penstock.graph.scopes import device, init_scope
from penstock.graph.shape import TensorShape, as_shape
from penstock.master.cluster import ClusterSpec

_JOBS = ("chief", "worker", "evaluator", "ps")


class ParameterServerStrategyV2(Strategy):
    """Trains with variables on parameter servers and steps on workers, driven by this process, the coordinator.

    Variables made in its scope go to the parameter servers in turn. `variable_partitioner` says into how many shards a
    variable is cut; these go to the servers in turn as well.

    A `ClusterCoordinator` trains without waiting for slow workers; with `synchronous=True` it sums the gradients of all
    workers but `backup_workers` of them for each step. `ps_recovery` tells it how to go on after a parameter server was
    lost: a directory, or a `PSRecovery`, for checkpoints of the variables.

    >>> resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    >>> strategy = tf.distribute.ParameterServerStrategy(resolver)
    >>> with strategy.scope():
    ...     w = tf.Variable(tf.zeros([784, 10]))
    >>> w.device
    '/job:ps/replica:0/task:0/device:CPU:0'
    """

    def __init__(
        self,
        cluster_resolver: Any,
        variable_partitioner: Callable[..., Sequence[int]] | None = None,
        *,
        synchronous: bool = False,
        backup_workers: int = 0,
        ps_recovery: Any = None,
    ) -> None:
        cluster = _verified(cluster_resolver)
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise TypeError(
                f"variable_partitioner must be a function of `shape` and `dtype`, received {variable_partitioner!r}."
            )
        workers = cluster.num_tasks("worker")
        if backup_workers < 0 or (backup_workers and not synchronous) or backup_workers >= workers:
            raise ValueError(
                "backup_workers must be fewer than the workers, and 0 unless the training is synchronous; received "
                f"{backup_workers} with {workers} workers and synchronous={synchronous}."
            )
        self._cluster_resolver = cluster_resolver
        self._cluster_coordinator: Any = None  # the one ClusterCoordinator of this strategy
        self.synchronous, self.backup_workers = synchronous, backup_workers
        self.kept_state: KeptState | None = None
        if ps_recovery is not None:
            settings = ps_recovery if isinstance(ps_recovery, PSRecovery) else PSRecovery(ps_recovery)
            self.kept_state = KeptState(settings)
        super().__init__(_Extended(self, cluster.num_tasks("ps"), variable_partitioner))
        connect(cluster, "chief", 0)

    @property
    def cluster_resolver(self) -> Any:
        return self._cluster_resolver


def _verified(resolver: Any) -> ClusterSpec:
    """The cluster of a resolver, if it is one for parameter servers."""
    if not hasattr(resolver, "cluster_spec"):
        raise AttributeError(
            "ParameterServerStrategy takes a tf.distribute.cluster_resolver.ClusterResolver, received an object "
            f"without `cluster_spec`: {resolver!r}."
        )
    cluster = ClusterSpec(resolver.cluster_spec())
    if not cluster:
        raise ValueError(
            "Cluster spec must be non-empty in `tf.distribute.cluster_resolver.ClusterResolver`. "
            f"{type(resolver).__name__} gives no tasks. One that reads TF_CONFIG needs it to be set, as in "
            '{"cluster": {"ps": ["host0:2222"], "worker": ["host1:2222"]}}.'
        )
    job, task = resolver.task_type, resolver.task_id
    unknown = sorted({*cluster.jobs, *([job] if job else [])} - set(_JOBS))
    if unknown:
        raise ValueError(f"Disallowed task type found in cluster spec: {unknown}. Use {_JOBS}. It has {cluster!r}.")
    if "chief" in cluster.jobs and cluster.num_tasks("chief") > 1:
        raise ValueError(f"There must be at most one 'chief' job. The cluster is {cluster!r}.")
    for needed in ("worker", "ps"):
        if needed not in cluster.jobs or not cluster.num_tasks(needed):
            raise ValueError(f"There must be at least one {needed}. The cluster is {cluster!r}.")
    if job in cluster.jobs and task is not None and task > max(cluster.task_indices(job)):
        raise ValueError(f"The `task_id` {task} exceeds the maximum id of {job}.")
    return cluster


class _Extended(StrategyExtended):
    experimental_between_graph = True
    dataset_refusal = (
        "To use this dataset, you need to pass this dataset to ClusterCoordinator.create_per_worker_dataset.",
        "You need to use this dataset in ClusterCoordinator.create_per_worker_dataset.",
    )

    def __init__(self, strategy: Strategy, servers: int, partitioner: Callable[..., Sequence[int]] | None) -> None:
        super().__init__(strategy)
        self._partitioner = partitioner
        self.exchanges: dict[Any, GradientExchange] = {}  # of synchronous training, by the place in the program
        self._server = itertools.cycle(range(servers))  # the next one that gets a variable

    @functools.cached_property
    def worker_devices(self) -> tuple[str, ...]:
        """The devices of a worker that run replicas: its GPUs, else its CPU."""
        counts: dict[int, int] = {}
        for name in runtime.cluster_device_names:
            spec = DeviceSpecV2.from_string(name)
            if spec.job == "worker" and spec.task is not None:
                counts[spec.task] = counts.get(spec.task, 0) + (spec.device_type == "GPU")
        gpus = min(counts.values(), default=0)
        return tuple(f"/device:GPU:{i}" for i in range(gpus)) or ("/device:CPU:0",)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The device of this process, as in TensorFlow; `device` of a variable tells where that one is."""
        return (
            DeviceSpecV2.from_string(runtime.device_names[0]).replace(device_type="CPU", device_index=0).to_string(),
        )

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if executing_eagerly():
            logging.warning(
                "strategy.run was called outside of a function given to ClusterCoordinator.schedule, so that it runs "
                "in this process and not on a worker, which can be slow."
            )
        return super()._run(fn, args, kwargs)

    # Variables

    def _create(self, make: Callable[..., Any], near: Any, **kwargs: Any) -> Any:
        if near is not None:
            beside = near.variables[0] if isinstance(near, ShardedVariable) else near
            return self._create_on(beside.device, make, **kwargs)
        if kwargs.get("initial_value") is None:
            raise ValueError("The `initial_value` of a variable in the scope of a strategy must be given.")
        if self._partitioner is None:
            return self._create_on_next(make, **kwargs)
        return self._create_sharded(make, **kwargs)

    def _create_on_next(self, make: Callable[..., Any], **kwargs: Any) -> Any:
        return self._create_on(f"/job:ps/replica:0/task:{next(self._server)}/device:CPU:0", make, **kwargs)

    def _create_on(self, where: str, make: Callable[..., Any], **kwargs: Any) -> Any:
        kept: KeptState | None = self._strategy.kept_state  # type: ignore[attr-defined]
        with device(None), device(where):
            return make(**kwargs) if kept is None else kept.create(make, where, **kwargs)

    def _create_sharded(self, make: Callable[..., Any], **kwargs: Any) -> Any:
        initial, shape, dtype = kwargs.pop("initial_value"), kwargs.pop("shape", None), kwargs.pop("dtype", None)
        whole: Tensor | None = None
        if not callable(initial) or shape is None or dtype is None:
            with init_scope():
                whole = convert_to_tensor(initial() if callable(initial) else initial, dtype=dtype)
            shape, dtype = whole.shape if shape is None else shape, whole.dtype
        known, kind = as_shape(shape), as_dtype(dtype)
        shards = self._shards(known, kind)
        if shards == 1:
            value = initial if whole is None else whole
            return self._create_on_next(make, initial_value=value, shape=shape, dtype=dtype, **kwargs)
        rows = known_dims(known)[0]
        name = kwargs.pop("name", None)
        variables: list[Any] = []
        begin = 0
        for i, size in enumerate(shard_sizes(rows, shards)):
            value = functools.partial(_initial_shard, initial if whole is None else whole, known, begin, size)
            part = f"{name}/part_{i}" if name else None
            variables.append(self._create_on_next(make, initial_value=value, dtype=kind, name=part, **kwargs))
            variables[-1]._distribute_strategy = self._strategy
            begin += size
        return ShardedVariable(variables)

    def _shards(self, shape: TensorShape, dtype: Any) -> int:
        if not shape.rank or not shape.is_fully_defined():
            return 1  # a scalar cannot be cut, and rows that may change in number cannot be shared out
        assert self._partitioner is not None
        partitions = self._partitioner(shape=shape, dtype=dtype)
        if not partitions or partitions[0] < 1 or any(p != 1 for p in partitions[1:]):
            raise ValueError(
                "variable_partitioner must return a list/tuple whose elements are 1 besides the first element "
                f"(non-zero), got: {partitions!r}"
            )
        return min(partitions[0], known_dims(shape)[0])


def _initial_shard(initial: Any, shape: TensorShape, begin: int, size: int) -> Any:
    """The first value of a shard, from that of the whole variable, or from a function that can make any part of it."""
    value = initial
    if callable(initial):
        part = (size, *known_dims(shape)[1:])
        asked = {"partition_shape": part, "partition_offset": (begin, *[0] * (len(part) - 1))}
        value = convert_to_tensor(initial(**asked) if _takes(initial, asked) else initial())
        if value.shape == part:
            return value
    if value.shape != shape:
        raise ValueError(f"The initial value of a variable of shape {shape} is of shape {value.shape}.")
    return value[begin : begin + size]


def _takes(function: Callable[..., Any], keywords: dict[str, Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # a function of C, which does not tell
        return False
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values()) or all(k in parameters for k in keywords)
