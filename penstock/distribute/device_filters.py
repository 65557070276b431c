"""Device filters: which devices of its cluster each task may use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.graph.device import DeviceSpecV2
from penstock.graph.protos import make_messages

_messages = make_messages(
    "penstock/device_filters.proto",
    "penstock.distribute",
    {
        "TaskDeviceFilters": "repeated string device_filters",
        "JobDeviceFilters": "string name; map<int32,TaskDeviceFilters> tasks",
        "ClusterDeviceFilters": "repeated JobDeviceFilters jobs",
    },
)


class ClusterDeviceFilters:
    """Says which devices of a cluster tasks may use beside their own. A task without filters may use all.

    >>> filters = tf.config.experimental.ClusterDeviceFilters()
    >>> filters.set_device_filters("worker", 0, ["/job:ps"])
    """

    def __init__(self) -> None:
        self._filters: dict[str, dict[int, list[str]]] = {}

    def set_device_filters(self, job_name: str, task_index: int, device_filters: Iterable[str]) -> None:
        """Sets the filters of a task. They are device names, which may leave out parts: '/job:ps', '/job:ps/task:1'."""
        if not isinstance(job_name, str):
            raise TypeError(f"job_name must be a string, received {job_name!r}.")
        if isinstance(task_index, bool) or not isinstance(task_index, int):
            raise TypeError(f"task_index must be an integer, received {task_index!r}.")
        if task_index < 0:
            raise ValueError(f"task_index must not be negative, received {task_index}.")
        # A string is iterable too, over its letters.
        if isinstance(device_filters, str) or not isinstance(device_filters, Iterable):
            raise TypeError(f"device_filters must be a list of device names, received {device_filters!r}.")
        filters = list(device_filters)
        for each in filters:
            if not isinstance(each, str):
                raise TypeError(f"device_filters must be device names such as '/job:ps', received {each!r}.")
            DeviceSpecV2.from_string(each)  # raises ValueError
        self._filters.setdefault(job_name, {})[task_index] = filters

    def _as_cluster_device_filters(self) -> Any:
        """Returns the filters as a ClusterDeviceFilters message, jobs sorted."""
        message = _messages["ClusterDeviceFilters"]()
        for name, tasks in sorted(self._filters.items()):
            job = message.jobs.add(name=name)
            for number, filters in sorted(tasks.items()):
                if filters:
                    job.tasks[number].device_filters.extend(filters)
        return message
