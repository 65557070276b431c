"""The names of the engines, apart from them: the command line starts without importing any."""

from __future__ import annotations

from enum import StrEnum


class On(StrEnum):
    """The place where tasks run: `penstock launch --on slurm`."""

    LOCAL = "local"
    RAY = "ray"
    SLURM = "slurm"
    KUBERNETES = "kubernetes"
