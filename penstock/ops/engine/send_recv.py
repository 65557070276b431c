"""Send and Recv: the two ends of an edge between tasks. The partition pass makes them; users do not.

The executor runs them itself (worker/transfer.py): tensors for one task are sent together.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import InternalError
from penstock.graph.dtype import DType
from penstock.graph.opdef import op


@op("_Send", "T ->", host=True, stateful=True)
def send(tensor: Any, *, tensor_name: str, key: int, recv_task: str, repeated: bool = False) -> None:
    """Sends a tensor to the task that needs it, under the key of its Recv.

    Both are `repeated` if they may run several times in a step, as part of a body.
    """
    raise InternalError(None, tensor_name, "_Send is run by the executor.")


@op("_Recv", "-> tensor: tensor_type", host=True, stateful=True, blocking=True)
def recv(
    *,
    tensor_type: DType,
    tensor_name: str,
    key: int,
    send_task: str,
    wave: int = 1,
    ragged: bool = False,
    repeated: bool = False,
) -> Any:
    """Waits for the tensor of that key. `wave` counts how often the step crosses between tasks before it arrives.

    `ragged` means that its size may differ in each step.
    """
    raise InternalError(None, tensor_name, "_Recv is run by the executor.")
