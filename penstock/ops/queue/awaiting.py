"""Waiting with a time limit for items of a queue or an accumulator, which stay there."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph.opdef import op
from penstock.kernel.waiting import from_handle


@op("AwaitSize", "resource, int32 ->", host=True, stateful=True, blocking=True, can_suspend=True, no_gradient=True)
def await_size(handle: Any, count: np.ndarray, *, deadline_secs: float, why: str, ctx: Any) -> None:
    from_handle(handle).await_size(int(count), deadline_secs, why, ctx)
