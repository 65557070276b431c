"""Names of `tf.config` that TensorFlow calls experimental."""

from penstock.distribute.device_filters import ClusterDeviceFilters
from penstock.eager.config import LogicalDeviceConfiguration as VirtualDeviceConfiguration
from penstock.eager.config import (
    enable_tensor_float_32_execution,
    get_device_details,
    get_memory_growth,
    get_synchronous_execution,
    get_visible_devices,
    list_logical_devices,
    list_physical_devices,
    set_memory_growth,
    set_visible_devices,
    tensor_float_32_execution_enabled,
)
from penstock.eager.config import get_logical_device_configuration as get_virtual_device_configuration
from penstock.eager.config import set_logical_device_configuration as set_virtual_device_configuration
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
