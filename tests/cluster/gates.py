"""Gates: places where a step waits until a test lets it through."""

from __future__ import annotations

from typing import Any

import penstock.v1 as tf


def gate_queues(moment: str) -> tuple[Any, Any]:
    """Two queues: in the first a step reports that it is at a gate, in the second it waits."""
    return tuple(  # type: ignore[return-value]
        tf.FIFOQueue(100, tf.bool, shapes=[()], shared_name=f"{moment}_{what}") for what in ("arrived", "gate")
    )


def gate(moment: str) -> Any:
    """An operation that waits, on the device of the context, until the test opens the gate."""
    arrived, opened = gate_queues(moment)
    with tf.control_dependencies([arrived.enqueue(True)]):
        return opened.dequeue().op


def turns(task: int) -> Any:
    """The queue from which a worker takes its turns: True for a step, False for the end."""
    with tf.device("/job:ps/task:0"):
        return tf.FIFOQueue(100, tf.bool, shapes=[()], shared_name=f"turns{task}")
