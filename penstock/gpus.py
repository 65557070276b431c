"""The GPUs of this machine, found without CUDA or JAX, which would take their memory."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"
_QUERY = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
_QUERY_SECONDS = 30.0


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """The GPUs that a process sees: those in CUDA_VISIBLE_DEVICES, else those that NVIDIA's driver lists.

    Raises RuntimeError if the driver is there and cannot be asked.

    >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "2,3"})
    ['2', '3']
    """
    if VISIBLE in environment:
        named = [each.strip() for each in environment[VISIBLE].split(",")]
        return named[: next((i for i, each in enumerate(named) if each in ("", "-1")), len(named))]  # as CUDA does
    try:
        listed = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_SECONDS, env=dict(environment))
    except FileNotFoundError:
        return []
    except (OSError, subprocess.TimeoutExpired) as error:
        told = f"The GPUs of this machine cannot be listed: {error}. Set {VISIBLE}, empty for none."
        raise RuntimeError(told) from error
    # It fails where there is a driver and no GPU.
    return [line.strip() for line in listed.stdout.splitlines() if line.strip()] if listed.returncode == 0 else []
