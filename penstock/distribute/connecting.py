"""`tf.config.experimental_connect_to_cluster`: eager operations on the devices of other tasks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from penstock.distribute.device_filters import ClusterDeviceFilters
from penstock.distribute.resolvers import ClusterResolver
from penstock.eager.cluster import before_leaving, connect
from penstock.graph.device import task_name
from penstock.graph.graph import executing_eagerly, get_default_graph
from penstock.master.cluster import ClusterSpec

_LOCAL_MASTERS = ("", "local")
_PREFIX = "grpc://"


def connect_to_cluster(
    cluster_spec_or_resolver: Any,
    job_name: str = "localhost",
    task_index: int = 0,
    protocol: str | None = None,
    make_master_device_default: bool = True,
    cluster_device_filters: ClusterDeviceFilters | None = None,
) -> None:
    """Makes this process a task of a cluster, whose devices operations and functions may then name.

    With a resolver whose master is one of the tasks, that task becomes the default device. The filters are checked and
    change nothing: tasks connect only to those that they exchange tensors with.

    >>> tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec({"worker": ["localhost:2222"]}))
    >>> with tf.device("/job:worker/task:0"):
    ...     x = tf.ones([2, 2])
    """
    if not executing_eagerly():
        raise ValueError("`tf.config.experimental_connect_to_cluster` can only be called in eager mode.")
    given, master = cluster_spec_or_resolver, ""
    if isinstance(given, ClusterResolver):
        master = given.master()
        if master in _LOCAL_MASTERS:
            return
        given = given.cluster_spec()
    if not isinstance(given, ClusterSpec):
        raise ValueError(
            "`cluster_spec_or_resolver` must be a `ClusterSpec` or a `ClusterResolver`, received "
            f"{cluster_spec_or_resolver!r:.200}."
        )
    if not isinstance(cluster_device_filters, (ClusterDeviceFilters, type(None))):
        raise ValueError(
            "`cluster_device_filters` must be an instance of `tf.config.experimental.ClusterDeviceFilters`, received "
            f"{cluster_device_filters!r:.200}."
        )
    default = _device_of(master, given) if master and make_master_device_default else None
    connect(given, job_name, task_index)
    if default is not None:
        scope = ExitStack()
        scope.enter_context(get_default_graph().device(default))
        before_leaving(scope.close)


def connect_to_remote_host(remote_host: Any = None, job_name: str = "worker") -> None:
    """Connects to tasks by their addresses: `tf.config.experimental_connect_to_host("localhost:2222")`."""
    if not remote_host:
        raise ValueError("experimental_connect_to_host: give the address of one task at least.")
    hosts = [remote_host] if isinstance(remote_host, str) else list(remote_host)
    connect_to_cluster(ClusterSpec({job_name: [host.removeprefix(_PREFIX) for host in hosts]}))


def _device_of(master: str, cluster: ClusterSpec) -> str:
    """The name of the task that listens at an address."""
    tasks = [(job, number) for job in cluster.jobs for number in cluster.task_indices(job)]
    found = [task for task in tasks if cluster.task_address(*task) == master.removeprefix(_PREFIX)]
    if not found:
        raise ValueError(
            f"`make_master_device_default` is set to True but cannot find master {master} in the cluster "
            f"{cluster.as_dict()}."
        )
    name = task_name(*found[0])
    if get_default_graph()._scopes.devices:
        raise ValueError(
            f"`connect_to_cluster` is called inside of a device scope, where the master {name} cannot become the "
            "default device. Call it outside of `with tf.device(...)`, or with make_master_device_default=False."
        )
    return name
