"""TF_CONFIG: an environment variable with JSON that tells a process its cluster and its place there."""

from __future__ import annotations

import json
import os
from typing import Any

from penstock.distribute.resolvers import ClusterResolver, master_url
from penstock.master.cluster import ClusterSpec, require_tasks

ENVIRONMENT_VARIABLE = "TF_CONFIG"
_EXAMPLE = '{"cluster": {"ps": ["host0:2222"], "worker": ["host1:2222"]}, "task": {"type": "worker", "index": 0}}'
_SHOWN = 300  # characters of a value that a message shows


class TFConfigClusterResolver(ClusterResolver):
    """Reads the cluster and this task from TF_CONFIG, anew each time. The arguments take precedence over it.

    >>> os.environ["TF_CONFIG"] = json.dumps(
    ...     {"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 1}}
    ... )
    >>> tf.distribute.cluster_resolver.TFConfigClusterResolver().master()
    'host1:2222'
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | str | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        self.task_type = task_type
        self.task_id = task_id
        self.rpc_layer = rpc_layer
        self._environment = environment

    @property
    def environment(self) -> str | None:
        """The environment of the constructor. That of TF_CONFIG is not read, as in TensorFlow."""
        return self._environment

    @property
    def task_type(self) -> str | None:
        """The job of this task, or None if TF_CONFIG does not say it."""
        return _text(_task(), "type") if self._task_type is None else str(self._task_type)

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The number of this task in its job, or None if TF_CONFIG does not say it."""
        if self._given_id is not None:
            return _number(self._given_id, "task_id")
        return _number(_task().get("index"), f"'index' of 'task' in {ENVIRONMENT_VARIABLE}")

    @task_id.setter
    def task_id(self, task_id: int | str | None) -> None:
        self._given_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol between tasks, or None if TF_CONFIG does not say it."""
        return _text(_config(), "rpc_layer") if self._rpc_layer is None else self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """Returns the cluster of TF_CONFIG. It has no jobs if TF_CONFIG is not set or names none."""
        jobs = _config().get("cluster", {})
        try:
            cluster = ClusterSpec(jobs)
        except (TypeError, ValueError) as error:
            told = f"needs jobs with addresses of their tasks as 'cluster' ({error})"
            raise type(error)(_told(told, jobs)) from error
        require_tasks(cluster, f"{ENVIRONMENT_VARIABLE}: ")
        return cluster

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns the target for a task, by default this one. It is '' where the cluster has one task or none."""
        master = _text(_config(), "session_master")
        if master is not None:
            return master
        cluster = self.cluster_spec()
        if not cluster or [cluster.task_indices(job) for job in cluster.jobs] == [[0]]:
            return ""
        task_type = self.task_type if task_type is None else task_type
        task_id = self.task_id if task_id is None else task_id
        if task_type is None or task_id is None:
            raise ValueError(_told("does not say in 'task' which task this process is", _task()))
        if task_type not in cluster.jobs or task_id not in cluster.task_indices(task_type):
            told = f"has no task {task_id} of job '{task_type}' in 'cluster'"
            raise ValueError(_told(told, cluster.as_dict()))
        return master_url(cluster.task_address(task_type, task_id), self.rpc_layer if rpc_layer is None else rpc_layer)


def _config() -> dict[str, Any]:
    text = os.environ.get(ENVIRONMENT_VARIABLE, "{}")
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(_told(f"is not JSON ({error.msg})", text), text, error.pos) from error
    if not isinstance(config, dict):
        raise TypeError(_told("must be an object", config))
    return config


def _task() -> dict[str, Any]:
    task = _config().get("task", {})
    if not isinstance(task, dict):
        raise TypeError(_told("needs an object as 'task'", task))
    return task


def _text(values: dict[str, Any], key: str) -> str | None:
    """Returns the string under a key, or None if there is none."""
    value = values.get(key)
    if value is not None and not isinstance(value, str):
        raise TypeError(_told(f"needs a string as '{key}'", value))
    return value


def _number(value: Any, what: str) -> int | None:
    """Returns the number of a task, which launchers may write as digits in quotes, or None if there is none."""
    if value is None:
        return None
    if not isinstance(value, (int, str)):
        raise TypeError(f"{what} must be an integer, received {value!r}.")
    if not str(value).isdecimal():
        raise ValueError(f"{what} must be an integer from 0 on, received {value!r}.")
    return int(value)


def _told(what: str, received: Any) -> str:
    shown = repr(received)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return f"{ENVIRONMENT_VARIABLE} {what}, received {shown}. Write it as {_EXAMPLE}, or leave it unset."
