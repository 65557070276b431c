"""The coordinator: functions for the workers of a cluster."""

from penstock.distribute.coordinator.closures import PerWorkerValue, RemoteValue
from penstock.distribute.coordinator.coordinator import ClusterCoordinator
from penstock.distribute.coordinator.workers import experimental_get_current_worker_index
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
