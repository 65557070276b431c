"""A ServerDef says which task of which cluster a server is."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from tensorboard.compat.proto import config_pb2
from tensorboard.compat.proto.config_pb2 import ConfigProto

from penstock.graph.protos import make_messages
from penstock.master.cluster import ClusterSpec

_defs = make_messages(
    "penstock/server_def.proto",
    "penstock.server",
    {
        "ServerDef": "tensorboard.ClusterDef cluster; string job_name; int32 task_index; "
        "tensorboard.ConfigProto default_session_config; string protocol; int32 port"
    },
    imports=[config_pb2.DESCRIPTOR, *config_pb2.DESCRIPTOR.dependencies],
)
ServerDef: Any = _defs["ServerDef"]


def make_server_def(
    server_or_cluster_def: Any, job_name: str | None, task_index: int | None, protocol: str | None, config: Any
) -> Any:
    """Returns the ServerDef of a task, from a ServerDef, or from a cluster with a job name and task index."""
    kinds = (("task_index", task_index, Integral), ("protocol", protocol, str), ("config", config, ConfigProto))
    for name, value, kind in kinds:
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"The {name} of a server must be of type {kind.__name__}, received {value!r}.")
    definition = ServerDef()
    if isinstance(server_or_cluster_def, ServerDef):
        definition.MergeFrom(server_or_cluster_def)
        if job_name is not None:
            definition.job_name = job_name
        if task_index is not None:
            definition.task_index = task_index
        if not definition.job_name:
            raise ValueError("Must specify an explicit `job_name`.")
    else:
        cluster = ClusterSpec(server_or_cluster_def)
        if not cluster:
            raise ValueError(
                "The cluster has no tasks. Name some, such as {'worker': ['localhost:2222']}. If a "
                "TFConfigClusterResolver gave it, the environment variable TF_CONFIG is not set or has no 'cluster'."
            )
        definition.cluster.CopyFrom(cluster.as_cluster_def())
        if job_name is None and len(cluster.jobs) == 1:
            job_name = cluster.jobs[0]
        if job_name is None:
            raise ValueError("Must specify an explicit `job_name`.")
        if task_index is None:
            if job_name not in cluster.jobs:
                raise ValueError(f"No such job in cluster: {job_name!r}. It has {cluster!r}.")
            tasks = cluster.task_indices(job_name)
            if len(tasks) != 1:
                raise ValueError("Must specify an explicit `task_index`.")
            task_index = tasks[0]
        definition.job_name = job_name
        definition.task_index = task_index
    if protocol is not None:
        definition.protocol = protocol
    if not definition.protocol:
        definition.protocol = "grpc"
    if config is not None:
        definition.default_session_config.MergeFrom(config)
    return definition
