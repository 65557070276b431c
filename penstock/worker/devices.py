"""Devices: what TensorFlow calls /cpu:0, /cpu:1, /gpu:0, and the jax device behind each."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import random
from dataclasses import dataclass, field
from typing import Any

import jax

from penstock.graph.device import DeviceSpecV2
from penstock.worker.program_cache import kept
from penstock.worker.resources import ResourceManager


@dataclass(eq=False, slots=True)
class Device:
    """One device of a task. Several CPU devices may share one jax device: they differ in what they own."""

    name: str  # /job:localhost/replica:0/task:0/device:CPU:0
    device_type: str
    jax_device: Any
    incarnation: int = field(default_factory=lambda: random.getrandbits(63) | 1)
    resources: ResourceManager = field(default_factory=ResourceManager)

    @property
    def memory_limit(self) -> int:
        return self.memory_limit_bytes

    @property
    def memory_limit_bytes(self) -> int:
        if self.device_type == "CPU":
            return 256 << 20
        stats = self.jax_device.memory_stats() or {}
        return int(stats.get("bytes_limit", 0))


@functools.cache
def _keep_modules() -> None:
    """Has Python's collector pass over what was imported.

    Its full collections would go through all of it, jax and penstock are most of it, and take as long as thirty steps.
    """
    gc.freeze()


@functools.cache
def _keep_memory() -> None:
    """Keeps freed memory in the process.

    Every large tensor would otherwise be mapped and faulted in anew on each step: 32 MB fed and fetched took 38 ms
    that way and 5 ms this way (glibc's M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD, and M_ARENA_MAX since arenas of
    threads hold no more than 64 MB; elsewhere the call does nothing).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and os.environ.get("PENSTOCK_KEEP_MEMORY", "1") != "0":
        for parameter, value in ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20), (-8, 1)):
            mallopt(parameter, value)


def use_threads(count: int) -> None:
    """Has XLA compute with that many threads on the CPU, unless it has begun or the user has said otherwise.

    Tasks that share a machine lose more by threads that take turns than they gain by them: on two cores the gradient of
    a small network takes 1.4 ms of processor time with two threads and 0.8 ms with one.
    """
    os.environ.setdefault("NPROC", str(count))  # XLA reads it when it makes its threads
    # A step waits for what it computes: handing that to another thread and waiting for it takes longer.
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def local_devices(job: str = "localhost", task: int = 0, device_count: dict[str, int] | None = None) -> list[Device]:
    """The devices of one task: its CPUs (one, unless `device_count` says more) and the GPUs that jax sees.

    >>> [d.name for d in local_devices(device_count={"CPU": 2})]
    ['/job:localhost/replica:0/task:0/device:CPU:0', '/job:localhost/replica:0/task:0/device:CPU:1']
    """
    _keep_memory()
    _keep_modules()
    kept()
    counts = {k.upper(): v for k, v in (device_count or {}).items()}
    base = DeviceSpecV2(job=job, replica=0, task=task)

    def device(kind: str, index: int, jax_device: Any) -> Device:
        return Device(base.replace(device_type=kind, device_index=index).to_string(), kind, jax_device)

    cpus = jax.devices("cpu")
    devices = [device("CPU", i, cpus[i % len(cpus)]) for i in range(max(1, counts.get("CPU", 1)))]
    gpus = [d for d in jax.devices() if d.platform in ("gpu", "cuda", "rocm")]
    limit = counts.get("GPU", len(gpus))
    return devices + [device("GPU", i, d) for i, d in enumerate(gpus[:limit])]
