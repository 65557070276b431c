"""KubernetesClusterResolver: the tasks that run in the pods of a Kubernetes cluster."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.distribute.resolvers import ClusterResolver, master_url
from penstock.master.cluster import ClusterSpec


class ExecutableLocation(enum.Enum):
    """Tells where the program runs that asks for the cluster: in one of its pods, or outside."""

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


class KubernetesClusterResolver(ClusterResolver):
    """Asks Kubernetes which pods have the labels of each job. The package `kubernetes` has to be installed.

    Each pod is a task, numbered in the order of the pods' names within a label. Its address is that of its node, at
    `tf_server_port`. Which of them this process is, it does not know: set `task_type` and `task_id`.

    >>> resolver = tf.distribute.cluster_resolver.KubernetesClusterResolver(
    ...     {"ps": ["job-name=servers"], "worker": ["job-name=trainers"]}, tf_server_port=2222
    ... )
    >>> resolver.master("ps", 0)
    'grpc://10.0.0.7:2222'
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        executable_location: ExecutableLocation = ExecutableLocation.WITHIN_CLUSTER,
    ) -> None:
        self._labels = job_to_label_mapping or {"worker": ["job-name=tensorflow"]}
        self._port = tf_server_port
        self._rpc_layer = rpc_layer
        self._client = override_client or _client(ExecutableLocation(executable_location))

    def cluster_spec(self) -> ClusterSpec:
        """Returns the pods of now. Raises RuntimeError if one of them does not run."""
        return ClusterSpec({job: [at for s in labels for at in self._pods(s)] for job, labels in self._labels.items()})

    def _pods(self, selector: str) -> list[str]:
        pods = self._client.list_pod_for_all_namespaces(label_selector=selector).items
        for pod in pods:
            if pod.status.phase != "Running":
                raise RuntimeError(
                    f"The pod '{pod.metadata.name}', which has the label '{selector}', is in the phase "
                    f"'{pod.status.phase}'. Wait until it is 'Running'."
                )
        return [f"{pod.status.host_ip}:{self._port}" for pod in sorted(pods, key=lambda pod: pod.metadata.name)]

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns the target for a task, by default this one, or '' if it is not known which this is."""
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        if task_type is None or task_id is None:
            return ""
        return master_url(self.cluster_spec().task_address(task_type, task_id), rpc_layer or self.rpc_layer)


def _client(location: ExecutableLocation) -> Any:
    try:
        from kubernetes import client, config  # optional
    except ImportError as error:
        raise ImportError(
            "KubernetesClusterResolver needs the package kubernetes: pip install kubernetes. Or give it an "
            "override_client that has the method list_pod_for_all_namespaces."
        ) from error
    if location is ExecutableLocation.WITHIN_CLUSTER:
        config.load_incluster_config()
    else:
        config.load_kube_config()
    return client.CoreV1Api()
