"""The options of `penstock launch` that only Kubernetes has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pods:
    """Describes the pods that tasks run in."""

    image: str
    script: str | None = None  # its path in the image; None: the script is not in the image
    namespace: str | None = None  # None: that of the current context
    max_restarts: int = 3
