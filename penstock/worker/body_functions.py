"""Has host ops that call functions get them from `bodies`, which is above the instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.graph.function import Function
from penstock.worker.owner import make_functions_by


def _callable_body(
    context: Any, device: str, function: Function, captured: Sequence[Any]
) -> Callable[[Sequence[Any]], list[Any]]:
    from penstock.worker.bodies import callable_body  # start-up

    return callable_body(context, device, function, captured)


make_functions_by(_callable_body)
