"""The coordinator, under the names that TensorFlow calls experimental."""

from penstock.distribute.coordinator.closures import PerWorkerValue as PerWorkerValues
from penstock.distribute.coordinator.closures import RemoteValue
from penstock.distribute.coordinator.coordinator import ClusterCoordinator
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
