"""The ops that lease shards of data to sessions (`shard_resources.py`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.kernel import shapes
from penstock.kernel.waiting import as_handle, from_handle
from penstock.ops.queue.leases import Leases
from penstock.ops.queue.shard_resources import Holder, Shards


@op("Shards", "-> handle: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def shards(
    *,
    num_shards: int,
    epochs: int = 1,
    seed: int = -1,
    lease_secs: float = math.inf,
    container: str = "",
    shared_name: str = "",
    resource: Any,
) -> np.ndarray:
    """The shards of a name, made by the first node that asks; -1 stands for epochs without end, and for no seed."""
    if num_shards < 1 or not lease_secs > 0:
        raise InvalidArgumentError(
            f"num_shards must be at least 1 and lease_secs above 0, received {num_shards} and {lease_secs}."
        )
    settings = num_shards, None if epochs < 0 else epochs, None if seed < 0 else seed, lease_secs
    found = resource(lambda name: Shards(name, Leases(*settings)))
    if type(found) is not Shards or found.leases.settings != settings:
        held = _described(*found.leases.settings) if type(found) is Shards else "something else"
        raise InvalidArgumentError(
            f"{found} exists already and has {held}, received {_described(*settings)}. All workers must give the same, "
            "and other shards need another name."
        )
    return as_handle(found)


def _described(num_shards: int, epochs: int | None, seed: int | None, lease_secs: float) -> str:
    return f"{num_shards} shards, epochs {epochs}, seed {seed}, lease_secs {lease_secs:g}"


@op("ShardsHolder", "-> holder: resource", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def shards_holder(*, shared_name: str, resource: Any) -> np.ndarray:
    """The holder of the shard that a session has under this name; it has one at a time."""
    return as_handle(resource(lambda device: Holder(), of_session=f"shards {shared_name}"))


def _scalars(op: Operation) -> list[TensorShape]:
    return [TensorShape.of(())] * 3


@op(
    "ShardsTake",
    "resource, resource, resource -> lease: int64, shard: int64, epoch: int64",
    host=True,
    stateful=True,
    blocking=True,
    can_suspend=True,
    no_gradient=True,
    shape=_scalars,
)
def shards_take(handle: Any, counts: Any, holder: Any, *, deadline_secs: float, ctx: Any) -> Any:
    """Leases the next shard to the holder. One that the holder has not reported goes back."""
    lease = from_handle(handle).take(counts, from_handle(holder), deadline_secs, ctx)
    return tuple(np.array(n, np.int64) for n in (lease.number, lease.shard, lease.epoch))


@op("ShardsFinish", "resource, resource, resource, int64 ->", host=True, stateful=True, no_gradient=True)
def shards_finish(handle: Any, counts: Any, holder: Any, lease: np.ndarray) -> None:
    """Notes that the shard of a lease is done."""
    from_handle(handle).finish(counts, from_handle(holder), int(lease))


@op("ShardsRenew", "resource, resource ->", host=True, stateful=True, no_gradient=True)
def shards_renew(handle: Any, holder: Any) -> None:
    """Has the time of the holder's lease begin again."""
    from_handle(handle).renew(from_handle(holder))


@op(
    "ShardsProgress",
    "resource, resource -> epoch: int64, done: int64, leased: int64",
    host=True,
    stateful=True,
    no_gradient=True,
    shape=_scalars,
)
def shards_progress(handle: Any, counts: Any) -> Any:
    """The epoch, how many of its shards are done, and how many are leased."""
    return tuple(np.array(n, np.int64) for n in from_handle(handle).progress(counts))
