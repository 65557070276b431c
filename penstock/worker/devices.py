"""A device has a TensorFlow name, such as /cpu:0, /cpu:1 or /gpu:0, and runs on a device of jax."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax._src import xla_bridge

from penstock import logging
from penstock.graph.device import DeviceSpecV2
from penstock.segments.program_cache import kept
from penstock.worker.resources import ResourceManager


@dataclass(eq=False, slots=True)
class Device:
    """Describes one device of a task. CPU devices may share one jax device, but each owns its resources."""

    name: str  # /job:localhost/replica:0/task:0/device:CPU:0
    device_type: str
    jax_device: Any
    incarnation: int = field(default_factory=lambda: secrets.randbits(63) | 1)
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
    """Excludes imported modules from Python's garbage collection.

    A full collection would visit all objects of jax and penstock, and take as long as thirty steps.
    """
    gc.freeze()


@functools.cache
def _keep_memory() -> None:
    """Keeps freed memory in the process.

    Every large tensor would otherwise be mapped and faulted in again on each step: 32 MB fed and fetched took 38 ms
    instead of 5 ms (glibc's M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD, and M_ARENA_MAX since arenas of
    threads hold no more than 64 MB; elsewhere the call does nothing).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and os.environ.get("PENSTOCK_KEEP_MEMORY", "1") != "0":
        for parameter, value in ((-4, 0), (-1, 2**31 - 1), (-2, 64 << 20), (-8, 1)):
            mallopt(parameter, value)


def use_threads(count: int) -> None:
    """Sets how many CPU threads XLA uses, unless XLA has started or the user has set NPROC.

    Tasks that share a machine lose more by contending threads than they gain: on two cores the gradient of a small
    network takes 1.4 ms of processor time with two threads and 0.8 ms with one.
    """
    if not xla_bridge.backends_are_initialized():
        os.environ.setdefault("NPROC", str(count))  # XLA reads it when it starts its threads
    # A step waits for its results anyway, and a second thread would make that slower.
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def tensor_float_32() -> bool:
    """Tells if GPUs may multiply float32 matrices in TensorFloat-32: jax's default, and TensorFlow's."""
    return jax.config.values["jax_default_matmul_precision"] in (None, "default", "tensorfloat32")


def use_tensor_float_32(enabled: bool) -> None:
    """Sets if GPUs may multiply float32 matrices in TensorFloat-32."""
    jax.config.update("jax_default_matmul_precision", None if enabled else "highest")


def use_batch_scheduling() -> None:
    """Asks Linux for batch scheduling, so that a thread which wakes others keeps running until it waits itself.

    Otherwise a task that sends to several tasks of its host is interrupted after each: synchronous training of a small
    network with two workers takes a quarter longer. PENSTOCK_BATCH_SCHEDULING=0 turns it off.
    """
    wanted = os.environ.get("PENSTOCK_BATCH_SCHEDULING", "1") != "0" and hasattr(os, "SCHED_BATCH")
    if wanted and os.sched_getscheduler(0) == os.SCHED_OTHER:
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        except OSError as error:  # some containers do not allow it
            logging.debug("This task cannot use batch scheduling: %s", error)


def use_cores(part_of: Callable[[list[int]], Sequence[int]]) -> None:
    """Binds all threads of this process, and those that they start, to a part of the cores that it may use now.

    Only the helper of `penstock.cores` leaves them while it works.

    Linux leaves one of two parameter servers that a worker wakes waiting for the core of the other, though the worker
    waits too and its core is idle: with two cores a step over both takes a fifth longer. PENSTOCK_BIND_CORES=0 turns
    it off.
    """
    if os.environ.get("PENSTOCK_BIND_CORES", "1") == "0" or not hasattr(os, "sched_setaffinity"):
        return
    every = sorted(os.sched_getaffinity(0))
    part = part_of(every)
    if len(part) == len(every):
        return
    seen: set[str] = set()
    while threads := set(os.listdir("/proc/self/task")) - seen:  # one that was not bound yet may have started another
        seen |= threads
        for thread in threads:
            try:
                os.sched_setaffinity(int(thread), part)
            except OSError as error:  # the thread has ended, or the container does not allow it
                logging.debug("A thread could not be bound to the cores %s: %s", list(part), error)


def local_devices(job: str = "localhost", task: int = 0, device_count: dict[str, int] | None = None) -> list[Device]:
    """Returns the devices of one task: its CPUs (one, unless `device_count` says more) and the GPUs that jax sees.

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
