"""Lists the devices of this process, for programs that ask before they make a session."""

from __future__ import annotations

from typing import Any

from penstock.worker.devices import Device, local_devices


def list_local_devices(session_config: Any = None) -> list[Device]:
    """Returns the devices of this process, each with `name`, `device_type`, `memory_limit` and `incarnation`.

    >>> [d.name for d in device_lib.list_local_devices() if d.device_type == "GPU"]
    """
    return local_devices(device_count=dict(session_config.device_count) if session_config is not None else None)
