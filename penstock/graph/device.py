"""Device names such as `/job:ps/task:1/device:CPU:0`, whole or in part.

>>> DeviceSpec.from_string("/job:ps/cpu:0").to_string()
'/job:ps/device:CPU:0'
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeGuard


class _Fields(NamedTuple):
    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None


# Types with a short form, `/cpu:0` in any case; every other type is written `/device:TYPE:0`.
_SHORT_TYPES = frozenset(("CPU", "GPU", "TPU", "EPU", "CUSTOM"))


def _type_name(device_type: Any) -> str | None:
    if device_type is None:
        return None
    name = str(device_type)
    return name.upper() if name in ("cpu", "gpu") else name


def _index(value: str, text: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"Device '{text}': expected an integer, received '{value}'.") from None


@lru_cache(maxsize=4096)
def _parse(text: str) -> _Fields:
    """Read a device name. Where a field comes twice the later one wins, except the device itself."""
    found: dict[str, Any] = {}
    for part in text.split("/"):
        if not part:
            continue
        key, *values = part.split(":")
        if key in ("job", "replica", "task") and len(values) == 1:
            found[key] = values[0] if key == "job" else _index(values[0], text)
            continue
        if key == "device" and len(values) == 2:
            device_type, index = values
        elif key.upper() in _SHORT_TYPES and len(values) <= 1:
            device_type, index = key.upper(), values[0] if values else "*"
        else:
            raise ValueError(
                f"Device '{text}': unknown attribute '{key}' in '{part}'; "
                "write it as '/job:NAME/replica:N/task:N/device:TYPE:N' or a part of that."
            )
        if "device_type" in found:
            raise ValueError(f"Device '{text}': it names more than one device; keep one of them.")
        found["device_type"] = _type_name(device_type)
        found["device_index"] = None if index == "*" else _index(index, text)
    return _Fields(**found)


@lru_cache(maxsize=4096)
def _format(fields: _Fields) -> str:
    job, replica, task, device_type, device_index = fields
    text = "" if job is None else f"/job:{job}"
    if replica is not None:
        text += f"/replica:{replica}"
    if task is not None:
        text += f"/task:{task}"
    if device_type is not None:
        text += f"/device:{device_type}:{'*' if device_index is None else device_index}"
    return text


def _merge(base: _Fields, over: _Fields) -> _Fields:
    """`base` with every field that `over` has; index and type are separate fields, as in TensorFlow."""
    return _Fields._make(b if o is None else o for b, o in zip(base, over, strict=True))


class DeviceSpecV2:
    """A device, whole or in part, that cannot be changed; `replace` and `make_merged_spec` make others.

    >>> DeviceSpecV2(job="ps", task=0).replace(task=3).to_string()
    '/job:ps/task:3'
    """

    __slots__ = ("_fields",)
    _fields: _Fields

    def __init__(
        self, job: Any = None, replica: Any = None, task: Any = None, device_type: Any = None, device_index: Any = None
    ) -> None:
        self._fields = _Fields(
            None if job is None else str(job),
            None if replica is None else int(replica),
            None if task is None else int(task),
            _type_name(device_type),
            None if device_index is None else int(device_index),
        )

    @classmethod
    def _of(cls, fields: _Fields) -> Self:
        self = cls.__new__(cls)
        self._fields = fields
        return self

    @classmethod
    def from_string(cls, spec: str | None) -> Self:
        """Read a device name: `DeviceSpec.from_string("/job:worker/task:0/gpu:1")`."""
        return cls._of(_parse(spec or ""))

    def parse_from_string(self, spec: str | None) -> Self:
        """Reads a new spec from a name; keeps nothing of this one."""
        return self.from_string(spec)

    def to_string(self) -> str:
        """The name: `DeviceSpec(job="ps", device_type="CPU").to_string() == "/job:ps/device:CPU:*"`."""
        return _format(self._fields)

    def replace(self, **fields: Any) -> Self:
        """A copy with the given fields changed: `spec.replace(task=3)`."""
        return type(self)(**{**self._fields._asdict(), **fields})

    def make_merged_spec(self, dev: DeviceSpecV2) -> Self:
        """A copy in which the fields that `dev` has take precedence."""
        return self._of(_merge(self._fields, dev._fields))

    @property
    def job(self) -> str | None:
        """Name of the job, such as "ps"."""
        return self._fields.job

    @property
    def replica(self) -> int | None:
        """Index of the replica."""
        return self._fields.replica

    @property
    def task(self) -> int | None:
        """Index of the task in its job."""
        return self._fields.task

    @property
    def device_type(self) -> str | None:
        """Type of the device, such as "CPU"."""
        return self._fields.device_type

    @property
    def device_index(self) -> int | None:
        """Index among the devices of that type."""
        return self._fields.device_index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and isinstance(self, type(other)) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)

    def __repr__(self) -> str:
        return f"<DeviceSpec({', '.join(f'{name}={value}' for name, value in self._fields._asdict().items())})>"


def _settable(name: str, convert: Callable[[Any], Any]) -> Any:
    def read(self: DeviceSpec) -> Any:
        return getattr(self._fields, name)

    def write(self: DeviceSpec, value: Any) -> None:
        self._fields = self._fields._replace(**{name: None if value is None else convert(value)})

    return property(read, write, doc=getattr(DeviceSpecV2, name).__doc__)


class DeviceSpec(DeviceSpecV2):
    """The device spec of the v1 API: its attributes can be set, and `merge_from` changes it.

    >>> spec = DeviceSpec(job="ps")
    >>> spec.task = 1
    >>> spec.to_string()
    '/job:ps/task:1'
    """

    __slots__ = ()
    __hash__ = DeviceSpecV2.__hash__  # by value, like TensorFlow's: do not change a spec that is used as a key

    job: ClassVar[Any] = _settable("job", str)
    replica: ClassVar[Any] = _settable("replica", int)
    task: ClassVar[Any] = _settable("task", int)
    device_type: ClassVar[Any] = _settable("device_type", _type_name)
    device_index: ClassVar[Any] = _settable("device_index", int)

    def parse_from_string(self, spec: str | None) -> Self:
        """Sets all fields from the name, and returns self."""
        self._fields = _parse(spec or "")
        return self

    def merge_from(self, dev: DeviceSpecV2) -> None:
        """Take over every field that `dev` has."""
        self._fields = _merge(self._fields, dev._fields)


class _HasDevice(Protocol):
    """A NodeDef or an Operation."""

    @property
    def device(self) -> str: ...


def is_device_spec(obj: object) -> TypeGuard[DeviceSpecV2]:
    """Tells if `obj` is a DeviceSpec of either kind: `is_device_spec("/cpu:0")` is False."""
    return isinstance(obj, DeviceSpecV2)


def check_valid(spec: str) -> None:
    """Raise ValueError unless `spec` is a device name: `check_valid("/job:ps")`."""
    _parse(spec)


def canonical_name(device: DeviceSpecV2 | str | None) -> str:
    """The full spelling of a device name or spec, "" for None: `canonical_name("/cpu:0") == "/device:CPU:0"`."""
    if device is None:
        return ""
    return device.to_string() if is_device_spec(device) else _format(_parse(str(device)))


def merge_names(base: str, over: str) -> str:
    """`base` with every field that `over` has, as canonical names: `merge_names("/job:ps", "/cpu:0")`.

    >>> merge_names("/job:ps/task:1", "/task:2")
    '/job:ps/task:2'
    """
    return _merged_name(_parse(base), over)


@lru_cache(maxsize=4096)
def _merged_name(base: _Fields, over: str) -> str:
    return _format(_merge(base, _parse(over)))


@lru_cache(maxsize=4096)
def _merger(base: _Fields) -> Callable[[_HasDevice], str]:
    def device_function(node: _HasDevice) -> str:
        return _merged_name(base, node.device or "")

    return device_function


def merge_device(spec: DeviceSpecV2 | str | None) -> Callable[[_HasDevice], str]:
    """Returns a device function: node -> canonical name. The node's own fields take precedence over those of `spec`.

    >>> from types import SimpleNamespace
    >>> merge_device("/job:ps/task:1")(SimpleNamespace(device="/task:2/cpu:0"))
    '/job:ps/task:2/device:CPU:0'
    """
    return _merger(spec._fields if is_device_spec(spec) else _parse(spec or ""))


def task_name(job: str, number: int) -> str:
    """The full name of a task.

    >>> task_name("ps", 0)
    '/job:ps/replica:0/task:0'
    """
    return DeviceSpecV2(job=job, replica=0, task=number).to_string()
