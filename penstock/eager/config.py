"""tf.config: the devices of this process, and settings of eager execution. Devices are chosen before they are used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.cores import cores
from penstock.eager.function import functions_run_eagerly, run_functions_eagerly
from penstock.eager.runtime import runtime
from penstock.graph.device import DeviceSpecV2
from penstock.worker.devices import local_devices, tensor_float_32, use_tensor_float_32

__all__ = ["functions_run_eagerly", "run_functions_eagerly"]


class PhysicalDevice(NamedTuple):
    """A device of the machine: `tf.config.list_physical_devices("GPU")[0]`."""

    name: str
    device_type: str


class LogicalDevice(NamedTuple):
    """A device that programs name: `with tf.device("/device:GPU:0"):`."""

    name: str
    device_type: str


class LogicalDeviceConfiguration(NamedTuple):
    """One logical device of a physical one; a CPU may be split into several."""

    memory_limit: int | None = None
    experimental_priority: int | None = None
    experimental_device_ordinal: int | None = None


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """The devices of this machine.

    >>> tf.config.list_physical_devices("CPU")
    [PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')]
    """
    kinds = [device.device_type for device in local_devices()]
    found = [PhysicalDevice(f"/physical_device:{k}:{i}", k) for k in ("CPU", "GPU") for i in range(kinds.count(k))]
    return [device for device in found if device_type in (None, device.device_type)]


def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]:
    """The devices that programs can name, of all tasks of the cluster. This starts them: their configuration is fixed.

    >>> tf.config.list_logical_devices("CPU")
    [LogicalDevice(name='/device:CPU:0', device_type='CPU')]
    """
    found = []
    for name in runtime.cluster_device_names:
        spec = DeviceSpecV2.from_string(name)
        local = spec.job in (None, "localhost")
        shown = f"/device:{spec.device_type}:{spec.device_index}" if local else name
        found.append(LogicalDevice(shown, str(spec.device_type)))
    return [device for device in found if device_type in (None, device.device_type)]


def _check(devices: Sequence[Any]) -> None:
    for device in devices:
        if device not in list_physical_devices():
            raise ValueError(
                f"Unrecognized device: {device!r}. tf.config.list_physical_devices() has those that exist."
            )


def _before_start(what: str) -> None:
    if runtime.started:
        raise RuntimeError(f"{what} cannot be modified after the devices have been initialized: do it first of all.")


def get_visible_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """The devices of the machine that this process uses."""
    return [
        device
        for device in list_physical_devices(device_type)
        if int(device.name.rpartition(":")[2]) < runtime.device_count.get(device.device_type, 1 << 30)
        or device.device_type == "CPU"
    ]


def set_visible_devices(devices: Any, device_type: str | None = None) -> None:
    """Chooses the devices that this process uses: `tf.config.set_visible_devices([], "GPU")` uses no GPU."""
    chosen = list(devices) if isinstance(devices, (list, tuple)) and not hasattr(devices, "_fields") else [devices]
    _check(chosen)
    if device_type is not None and any(d.device_type != device_type for d in chosen):
        raise ValueError(f"set_visible_devices: all devices must be of type {device_type}, received {chosen}.")
    if chosen == get_visible_devices(device_type):
        return
    _before_start("Visible devices")
    gpus = [d for d in chosen if d.device_type == "GPU"]
    if device_type in (None, "CPU") and not any(d.device_type == "CPU" for d in chosen):
        raise ValueError("set_visible_devices: the CPU cannot be hidden, operations of the host run on it.")
    if gpus != list_physical_devices("GPU")[: len(gpus)]:
        raise ValueError(
            f"set_visible_devices: received {gpus}; penstock takes the first GPUs. Set CUDA_VISIBLE_DEVICES to take "
            "others."
        )
    if device_type in (None, "GPU"):
        runtime.device_count["GPU"] = len(gpus)


def get_logical_device_configuration(device: Any) -> list[LogicalDeviceConfiguration] | None:
    """The logical devices that a device was split into, or None."""
    _check([device])
    count = runtime.device_count.get("CPU") if device.device_type == "CPU" else None
    return None if count is None else [LogicalDeviceConfiguration()] * count


def set_logical_device_configuration(device: Any, logical_devices: Sequence[Any]) -> None:
    """Splits the CPU into several devices, to try out programs for several.

    >>> tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    """
    _check([device])
    if logical_devices == get_logical_device_configuration(device):
        return
    _before_start("Virtual devices")
    if any(each.memory_limit is not None for each in logical_devices):
        raise ValueError(
            "set_logical_device_configuration: memory limits of devices are not supported; leave them out."
        )
    if device.device_type != "CPU" and len(logical_devices) != 1:
        raise ValueError("set_logical_device_configuration: only the CPU can be split.")
    if device.device_type == "CPU":
        runtime.device_count["CPU"] = len(logical_devices)


def get_soft_device_placement() -> bool:
    """Tells if an operation whose device does not exist runs on another one. It does, until it is turned off."""
    return runtime.soft_placement


def set_soft_device_placement(enabled: bool) -> None:
    """Sets if an operation whose device does not exist runs on another one."""
    if enabled != runtime.soft_placement:
        _before_start("Soft placement")
        runtime.soft_placement = enabled


# Threads


class _Threads:
    inter_op = 0
    intra_op = 0


def get_intra_op_parallelism_threads() -> int:
    """The number of threads of one operation; 0: as many as the machine has cores."""
    return _Threads.intra_op


def set_intra_op_parallelism_threads(num_threads: int) -> None:
    """Sets the number of threads of one operation."""
    if num_threads != _Threads.intra_op:
        _before_start("Intra op parallelism")
        os.environ["NPROC"] = str(num_threads or cores())  # XLA reads it when it starts its threads
        _Threads.intra_op = num_threads


def get_inter_op_parallelism_threads() -> int:
    """The number of operations that run at once; 0: as the system sees fit."""
    return _Threads.inter_op


def set_inter_op_parallelism_threads(num_threads: int) -> None:
    """Keeps the number of operations that may run at once. Compiled code runs in the threads of one operation."""
    if num_threads != _Threads.inter_op:
        _before_start("Inter op parallelism")
        _Threads.inter_op = num_threads


# Settings of XLA and of GPUs


def get_jit() -> str:
    """Returns "": functions are compiled by XLA whatever this says."""
    return ""


def get_memory_growth(device: Any) -> bool:
    """Tells if the memory of a GPU is taken as it is needed."""
    _check([device])
    return os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true") == "false"


def set_memory_growth(device: Any, enable: bool) -> None:
    """Sets if the memory of GPUs is taken as it is needed, or at once."""
    _check([device])
    if device.device_type != "GPU":
        raise ValueError("Cannot set memory growth on non-GPU devices.")
    if enable != get_memory_growth(device):
        _before_start("Memory growth")
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false" if enable else "true"


def get_device_details(device: Any) -> dict[str, Any]:
    """Facts about a GPU; nothing for other devices."""
    _check([device])
    found = [d for d in local_devices() if d.device_type == device.device_type]
    described = found[int(device.name.rpartition(":")[2])].jax_device
    return {"device_name": described.device_kind} if device.device_type == "GPU" else {}


def tensor_float_32_execution_enabled() -> bool:
    """Tells if GPUs multiply float32 matrices with 10 bits after the point instead of 23 where that is faster."""
    return tensor_float_32()


def enable_tensor_float_32_execution(enabled: bool) -> None:
    """Sets if GPUs may multiply float32 matrices in TensorFloat-32."""
    use_tensor_float_32(enabled)


def get_synchronous_execution() -> bool:
    """True: an operation has run when its call returns."""
    return True


def get_build_info() -> dict[str, Any]:
    """The devices that jax was installed for: `tf.sysconfig.get_build_info()["is_cuda_build"]`."""
    platforms = {getattr(device.jax_device, "platform", "") for device in local_devices()}
    return {
        "is_cuda_build": not platforms.isdisjoint(("cuda", "gpu")),
        "is_rocm_build": "rocm" in platforms,
        "is_tensorrt_build": False,
    }
