"""OneDeviceStrategy and MirroredStrategy: one or several devices of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from penstock.distribute.context import get_replica_context
from penstock.distribute.mirrored_variable import MirroredVariable, SyncOnReadVariable
from penstock.distribute.strategy import Strategy, StrategyExtended
from penstock.eager.config import LogicalDevice
from penstock.eager.runtime import runtime
from penstock.graph.device import DeviceSpecV2
from penstock.graph.scopes import device
from penstock.variables.enums import VariableSynchronization


def _full_name(device: str | LogicalDevice) -> str:
    own = DeviceSpecV2.from_string(runtime.device_names[0])
    name = device if isinstance(device, str) else device.name
    return own.make_merged_spec(DeviceSpecV2.from_string(name)).to_string()


class OneDeviceStrategy(Strategy):
    """Puts all variables and steps on one device.

    >>> strategy = tf.distribute.OneDeviceStrategy("/gpu:0")
    """

    def __init__(self, device: str | LogicalDevice) -> None:
        super().__init__(_Extended(self, [_full_name(device)]))


class MirroredStrategy(Strategy):
    """Runs a replica on each of several devices of this process. Each has a copy of every variable.

    The devices are the GPUs by default, or the CPU if there is none.

    >>> strategy = tf.distribute.MirroredStrategy(["/gpu:0", "/gpu:1"])
    >>> with strategy.scope():
    ...     v = tf.Variable(1.0)
    >>> strategy.reduce("SUM", strategy.run(lambda: v + 1.0), axis=None)
    """

    def __init__(self, devices: Sequence[str | LogicalDevice] | None = None, cross_device_ops: Any = None) -> None:
        if cross_device_ops is not None:
            raise NotImplementedError(
                f"Values are reduced on the default device: leave out cross_device_ops, received {cross_device_ops!r}."
            )
        if devices is None:
            names = runtime.device_names
            devices = [name for name in names if "GPU" in name] or names[:1]
        full = [_full_name(name) for name in devices]
        if not full or len(set(full)) < len(full):
            raise ValueError(f"MirroredStrategy takes different devices, one or more, received {list(devices)}.")
        super().__init__(_Extended(self, full))


class _Extended(StrategyExtended):
    def __init__(self, strategy: Strategy, devices: list[str]) -> None:
        super().__init__(strategy)
        self._devices = tuple(devices)

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return self._devices

    def _create(self, make: Callable[..., Any], near: Any, **kwargs: Any) -> Any:
        if len(self._devices) == 1:
            with device(self._devices[0]):
                return make(**kwargs)
        replica = get_replica_context()
        if replica is not None:
            # All replicas make it at the same place of the program, and it is made once.
            return replica.merge_call(lambda _: self._create_copies(make, **kwargs))
        return self._create_copies(make, **kwargs)

    def _create_copies(self, make: Callable[..., Any], **kwargs: Any) -> Any:
        copies: list[Any] = []
        for number, name in enumerate(self._devices):
            if number:
                kwargs = {
                    **kwargs,
                    "initial_value": copies[0].read_value,
                    "name": f"{copies[0].name[:-2]}/replica_{number}",
                }
            with device(name):
                copies.append(make(**kwargs))
        on_read = copies[0].synchronization is VariableSynchronization.ON_READ
        return (SyncOnReadVariable if on_read else MirroredVariable)(self._strategy, copies)

    def _copies(self, var: Any) -> Sequence[Any]:
        return var.values if isinstance(var, MirroredVariable) else [var]
