"""Devices of this process, and settings."""

from penstock.distribute.connecting import connect_to_cluster as experimental_connect_to_cluster
from penstock.distribute.connecting import connect_to_remote_host as experimental_connect_to_host
from penstock.eager.config import (
    LogicalDevice,
    LogicalDeviceConfiguration,
    PhysicalDevice,
    get_logical_device_configuration,
    get_soft_device_placement,
    get_visible_devices,
    list_logical_devices,
    list_physical_devices,
    set_logical_device_configuration,
    set_soft_device_placement,
    set_visible_devices,
)
from penstock.eager.function import functions_run_eagerly, run_functions_eagerly
from penstock.eager.function import functions_run_eagerly as experimental_functions_run_eagerly
from penstock.eager.function import run_functions_eagerly as experimental_run_functions_eagerly
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
