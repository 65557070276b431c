"""Light work runs in the thread that asks for it, by a client of XLA's that has no other threads.

XLA divides the operations of a program among all of its threads, also small ones. To wake threads and to wait for them
takes longer than the gradient of a small network, most of all where other tasks want the cores.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from jax._src import distributed
from jax._src.lib import xla_client  # type: ignore[attr-defined]

from penstock.cores import every_core
from penstock.passes.ir import Node
from penstock.segments.kinds import functions_of

MOST_BYTES = 1 << 20  # of what goes in: on more, other threads are worth waking


def threads_of_xla() -> int:
    """Returns how many threads XLA has for a program on the CPU."""
    return int(os.environ.get("NPROC") or len(every_core()))


def may_be_light(nodes: Iterable[Node]) -> bool:
    """Tells if work is light where little goes in: convolutions and loops do much with that."""
    return not any("Conv" in node.op.name or functions_of(node) for node in nodes)


def is_light(inputs: Iterable[Any]) -> bool:
    """Tells if these are few numbers, in the host's memory."""
    arrays = list(inputs)
    return all(array.__class__ is np.ndarray for array in arrays) and sum(a.nbytes for a in arrays) <= MOST_BYTES


@functools.cache
def one_thread() -> Any:
    """Returns a device of jax's whose programs run in the thread that calls them; None if that is so on the CPU anyway.

    >>> jax.jit(jnp.negative, in_shardings=jax.sharding.SingleDeviceSharding(one_thread()))
    """
    if threads_of_xla() == 1 or distributed.global_state.client is not None:
        return None
    before = os.environ.get("NPROC")
    os.environ["NPROC"] = "1"  # a client reads it when it starts its threads
    try:
        client: Any = xla_client.make_cpu_client(asynchronous=False)
    finally:
        if before is None:
            del os.environ["NPROC"]
        else:
            os.environ["NPROC"] = before
    return client.local_devices()[0]
