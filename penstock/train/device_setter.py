"""replica_device_setter: variables go to parameter servers, everything else to the worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorboard.compat.proto import cluster_pb2

from penstock.graph.device import DeviceSpecV2
from penstock.graph.dtype import as_dtype
from penstock.graph.operation import Operation
from penstock.graph.shape import as_shape
from penstock.master.cluster import ClusterSpec

# Op types whose nodes hold state that parameter servers keep.
STANDARD_PS_OPS = (
    "Variable",
    "VariableV2",
    "AutoReloadVariable",
    "MutableHashTable",
    "MutableHashTableV2",
    "MutableHashTableOfTensors",
    "MutableHashTableOfTensorsV2",
    "MutableDenseHashTable",
    "MutableDenseHashTableV2",
    "VarHandleOp",
    "BoostedTreesEnsembleResourceHandleOp",
    "BoostedTreesQuantileStreamResourceHandleOp",
    "ResourceConditionalAccumulator",
    "DecisionTreeResource",
)


class _RoundRobinStrategy:
    """Chooses the parameter servers in turn."""

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = num_tasks
        self._next = 0

    def __call__(self, op: Operation) -> int:
        task = self._next
        self._next = (self._next + 1) % self._num_tasks
        return task


class GreedyLoadBalancingStrategy:
    """Chooses the parameter server with the least load so far; a function gives the load of an op.

    >>> strategy = tf.contrib.training.GreedyLoadBalancingStrategy(2, byte_size_load_fn)
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[Operation], float]) -> None:
        self._load_fn = load_fn
        self._loads = [0.0] * num_tasks

    def __call__(self, op: Operation) -> int:
        task = self._loads.index(min(self._loads))
        self._loads[task] += self._load_fn(op)
        return task


def byte_size_load_fn(op: Operation) -> float:
    """The bytes of a variable, as its load."""
    shape = as_shape(op.get_attr("shape"))
    if not shape.is_fully_defined():
        raise ValueError(f"The size of '{op.name}' is not known: its shape is {shape}.")
    count = shape.num_elements()
    assert count is not None
    return float(count * as_dtype(op.get_attr("dtype")).size)


class _ReplicaDeviceChooser:
    """Holds the settings and state of the device function."""

    def __init__(
        self, ps_device: str, worker_device: str, merge_devices: bool, ps_ops: Sequence[str], ps_strategy: Any
    ) -> None:
        self._ps_device = ps_device
        self._worker_device = worker_device
        self._merge_devices = merge_devices
        self._ps_ops = frozenset(ps_ops)
        self._ps_strategy = ps_strategy

    def device_function(self, op: Operation) -> str:
        """The device of an op that asks for no other device."""
        if not self._merge_devices and op.device:
            return str(op.device)
        asked = DeviceSpecV2.from_string(op.device or "")
        device = DeviceSpecV2.from_string(self._worker_device or "")
        if self._ps_device and op.type in self._ps_ops:
            device = DeviceSpecV2.from_string(self._ps_device)
            if device.job and asked.job in (None, device.job):
                device = device.replace(task=self._ps_strategy(op))
        return device.make_merged_spec(asked).to_string()


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: Any = None,
    ps_ops: Sequence[str] | None = None,
    ps_strategy: Callable[[Operation], int] | None = None,
) -> Callable[[Operation], str] | None:
    """A device function for `tf.device`: variables on the parameter servers in turn, the rest on the worker.

    >>> with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device="/job:worker/task:1")):
    ...     w = tf.get_variable("w", [784, 10])
    """
    if cluster is not None:
        if isinstance(cluster, ClusterSpec):
            jobs = cluster.as_dict()
        elif isinstance(cluster, (dict, cluster_pb2.ClusterDef)):
            jobs = ClusterSpec(cluster).as_dict()
        else:
            raise TypeError(f"cluster must be a ClusterSpec, a dict or a ClusterDef, received {cluster!r}.")
        ps_job = DeviceSpecV2.from_string(ps_device).job
        if ps_job not in jobs or jobs[ps_job] is None:
            return None
        ps_tasks = len(jobs[ps_job])
    if ps_tasks == 0:
        return None
    if ps_strategy is None:
        ps_strategy = _RoundRobinStrategy(ps_tasks)
    if not callable(ps_strategy):
        raise TypeError(f"ps_strategy must be callable, received {ps_strategy!r}.")
    kinds = STANDARD_PS_OPS if ps_ops is None else ps_ops
    return _ReplicaDeviceChooser(ps_device, worker_device, merge_devices, kinds, ps_strategy).device_function
