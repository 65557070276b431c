"""Cluster resolvers: they tell a program which tasks its cluster has, and which of them it is."""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tensorboard.compat.proto.config_pb2 import ConfigProto

from penstock.client.device_lib import list_local_devices
from penstock.graph.device import DeviceSpecV2
from penstock.graph.graph import Graph
from penstock.master.cluster import ClusterSpec
from penstock.session import Session


def master_url(address: str, rpc_layer: str | None) -> str:
    """Returns an address with the protocol before it, if there is one.

    >>> master_url("worker0:2222", "grpc")
    'grpc://worker0:2222'
    """
    return f"{rpc_layer}://{address}" if rpc_layer else address


class ClusterResolver(abc.ABC):
    """Base class of cluster resolvers. A subclass defines `cluster_spec` and `master`.

    Where it knows which task this process is, it sets `task_type`, `task_id` and `rpc_layer` or overrides them.

    >>> class Registry(tf.distribute.cluster_resolver.ClusterResolver):
    ...     def cluster_spec(self):
    ...         return tf.train.ClusterSpec({"worker": ask_registry()})
    ...
    ...     def master(self, task_type=None, task_id=None, rpc_layer=None):
    ...         return self.cluster_spec().task_address(task_type, task_id)
    """

    _task_type: str | None = None
    _task_id: int | None = None
    _rpc_layer: str | None = None

    @abc.abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """Returns the cluster as it is now."""

    @abc.abstractmethod
    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns the target of sessions for a task, by default for this one; it is '' for a local session."""

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: ConfigProto | None = None
    ) -> Mapping[str, int]:
        """Counts the accelerators of a task by type. By default the task is this process; another one is asked.

        >>> resolver.num_accelerators()
        Counter({'GPU': 8})
        """
        own = self.task_type, self.task_id
        asked = own[0] if task_type is None else task_type, own[1] if task_id is None else task_id
        if None in asked or asked == own:
            devices: Any = list_local_devices(config_proto)
        else:
            task = DeviceSpecV2(job=asked[0], task=asked[1])
            devices = _devices_at(self.master(*asked), task.to_string(), config_proto)
        return Counter(device.device_type for device in devices if device.device_type != "CPU")

    @property
    def environment(self) -> str | None:
        """The environment that the program runs in; '' where nothing is known about it."""
        return ""

    @property
    def task_type(self) -> str | None:
        """The job of this task, such as 'worker', or None."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The number of this task in its job, or None."""
        return self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol between tasks, such as 'grpc', or None."""
        return self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer


def _devices_at(master: str, task: str, config_proto: ConfigProto | None) -> list[Any]:
    """Returns the devices of one task of the cluster at `master`."""
    config = ConfigProto()
    if config_proto is not None:
        config.CopyFrom(config_proto)
    # The other tasks of the cluster need not be up.
    config.device_filters[:] = [task]
    target = master_url(master, "grpc") if master and "://" not in master else master
    with Session(target, graph=Graph(), config=config) as session:
        return session.list_devices()


class SimpleClusterResolver(ClusterResolver):
    """Tells what it was told.

    >>> cluster = tf.train.ClusterSpec({"ps": ["ps0:2222"], "worker": ["worker0:2222", "worker1:2222"]})
    >>> resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, task_type="worker", task_id=1)
    >>> resolver.master("ps", 0, rpc_layer="grpc")
    'grpc://ps0:2222'
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not isinstance(cluster_spec, ClusterSpec):
            raise TypeError(f"cluster_spec must be a `tf.train.ClusterSpec`, received {cluster_spec!r}.")
        if not isinstance(master, str):
            raise TypeError(f"master must be a string, received {master!r}.")
        self._cluster_spec = cluster_spec
        self._master = master
        self._task_type, self._task_id, self._rpc_layer = task_type, task_id, rpc_layer
        self._environment = environment
        self._num_accelerators = num_accelerators or {}

    def cluster_spec(self) -> ClusterSpec:
        """Returns the cluster of the constructor."""
        return self._cluster_spec

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns the target for a task of the cluster, by default the master of the constructor."""
        address = self._master
        if task_type is not None and task_id is not None:
            address = self._cluster_spec.task_address(task_type, task_id)
        return master_url(address, rpc_layer or self.rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: ConfigProto | None = None
    ) -> Mapping[str, int]:
        """Returns the accelerators of the constructor, for every task."""
        return self._num_accelerators

    @property
    def environment(self) -> str:
        """The environment of the constructor."""
        return self._environment


class UnionClusterResolver(ClusterResolver):
    """Joins the clusters of several resolvers. All else is what the first of them tells, unless it is given here.

    >>> parts = [SimpleClusterResolver(tf.train.ClusterSpec({"worker": [at]})) for at in ("a:2222", "b:2222")]
    >>> tf.distribute.cluster_resolver.UnionResolver(*parts).cluster_spec()
    ClusterSpec({'worker': ['a:2222', 'b:2222']})
    """

    def __init__(
        self,
        *resolvers: ClusterResolver,
        rpc_layer: str | None = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ) -> None:
        if not resolvers:
            raise ValueError("A union needs at least one ClusterResolver, received none.")
        for resolver in resolvers:
            if not isinstance(resolver, ClusterResolver):
                raise TypeError(f"All arguments must be ClusterResolvers, received {resolver!r}.")
        self._resolvers = resolvers
        self._task_type, self._task_id, self._rpc_layer = task_type, task_id, rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """Returns all tasks: lists of a job are joined, and where one gives numbers, those must not meet.

        Raises KeyError where two resolvers have a task of the same job and number.
        """
        clusters = [resolver.cluster_spec().as_dict() for resolver in self._resolvers]
        jobs = dict.fromkeys(job for cluster in clusters for job in cluster)
        return ClusterSpec({job: _joined(job, [c[job] for c in clusters if job in c]) for job in jobs})

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns the target for a task of the union, by default the master of the first resolver."""
        if task_type is None or task_id is None:
            return self._resolvers[0].master(rpc_layer=rpc_layer)
        return master_url(self.cluster_spec().task_address(task_type, task_id), rpc_layer or self._rpc_layer)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: ConfigProto | None = None
    ) -> Mapping[str, int]:
        """Returns what the first resolver counts."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)

    @property
    def environment(self) -> str | None:
        """The environment of the first resolver."""
        return self._resolvers[0].environment

    @property
    def task_type(self) -> str | None:
        """The job of this task."""
        return self._resolvers[0].task_type if self._task_type is None else self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The number of this task in its job."""
        return self._resolvers[0].task_id if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol between tasks."""
        return self._resolvers[0].rpc_layer if self._rpc_layer is None else self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer


def _joined(job: str, parts: list[list[str] | dict[int, str]]) -> list[str] | dict[int, str]:
    """Joins the tasks that several clusters have of one job."""
    lists = [part for part in parts if isinstance(part, list)]
    if len(lists) == len(parts):
        return [address for part in lists for address in part]
    tasks: dict[int, str] = {}
    for part in parts:
        for number, address in part.items() if isinstance(part, dict) else enumerate(part):
            if number in tasks:
                raise KeyError(f"Two resolvers have a task {number} of job '{job}': '{tasks[number]}' and '{address}'.")
            tasks[number] = address
    return tasks
