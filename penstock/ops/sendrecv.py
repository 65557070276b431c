"""Send and Recv: the two ends of an edge between tasks. The partition pass makes them; users do not."""

from __future__ import annotations

from typing import Any

from penstock.graph.dtype import DType
from penstock.graph.opdef import op


@op("_Send", "T ->", host=True, stateful=True)
def send(tensor: Any, *, tensor_name: str, ctx: Any) -> None:
    """Hands a tensor to the step's rendezvous under its key."""
    ctx.rendezvous.send(tensor_name, tensor)


@op("_Recv", "-> tensor: tensor_type", host=True, stateful=True, blocking=True)
def recv(*, tensor_type: DType, tensor_name: str, ctx: Any) -> Any:
    """Waits for the tensor of that key."""
    return ctx.rendezvous.recv(tensor_name, ctx.remaining())
