"""The task that runs a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.graph.device import DeviceSpecV2
from penstock.graph.opdef import op
from penstock.kernel import shapes


@op("CurrentTask", "-> index: int64", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def current_task(*, resource: Callable[..., Any]) -> np.ndarray:
    """The number of the task that runs the node."""
    return np.array(resource(lambda device: DeviceSpecV2.from_string(device).task, of_session="task"), np.int64)
