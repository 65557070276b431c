"""Tensors that stay in a session between two steps, and the handles by which steps name them."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np

from penstock.errors import InternalError, InvalidArgumentError
from penstock.graph.device import DeviceSpec
from penstock.graph.dtype import DType, as_dtype
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with, device
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import Array
from penstock.ops.array.creation import placeholder


class SessionTensors:
    """The values that one session keeps in one task.

    A handle is `NODE;NUMBER;DEVICE`. The client adds the name of the node in front; it is ignored here.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._numbers = itertools.count()
        self._values: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()

    def add(self, value: np.ndarray) -> str:
        """Keeps `value` and returns its handle."""
        with self._lock:
            key = f"{next(self._numbers)};{self._device}"
            self._values[key] = value
        return f";{key}"

    def get(self, handle: str) -> np.ndarray:
        """The value of `handle`."""
        with self._lock:
            value = self._values.get(_key(handle))
        if value is None:
            raise _unknown(handle)
        return value

    def delete(self, handle: str) -> None:
        """Forgets the value of `handle`."""
        with self._lock:
            if self._values.pop(_key(handle), None) is None:
                raise _unknown(handle)


def _key(handle: str) -> str:
    return handle.partition(";")[2]


def _unknown(handle: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"The tensor with handle '{handle}' is not in the session store.")


def _text(handle: Any) -> str:
    return str(np.asarray(handle, object).item().decode("utf-8", "replace"))


@op("GetSessionHandle", "T -> handle: string", host=True, stateful=True, no_gradient=True, shape=shapes.scalar)
def get_session_handle_op(value: Array, *, resource: Any) -> Any:
    # A copy, since an array that is fetched, fed or in a variable may be changed after this step.
    return np.asarray(resource(SessionTensors, of_session="tensors").add(np.array(value)).encode(), object)


@op("GetSessionTensor", "string -> value: dtype", host=True, stateful=True, no_gradient=True, shape=shapes.unknown)
def get_session_tensor_op(handle: Array, *, dtype: DType, resource: Any) -> Any:
    name = _text(handle)
    value = resource(SessionTensors, of_session="tensors").get(name)
    if as_dtype(value.dtype) != dtype:
        raise InternalError(f"The tensor with handle '{name}' is of {value.dtype}, not of {dtype.name}.")
    return value


@op("DeleteSessionTensor", "string ->", host=True, stateful=True, no_gradient=True)
def delete_session_tensor_op(handle: Array, *, resource: Any) -> None:
    resource(SessionTensors, of_session="tensors").delete(_text(handle))


def get_session_handle(data: TensorLike, name: str | None = None) -> Tensor:
    """A tensor that keeps the value of `data` in the session when it runs; its own value is a TensorHandle.

    >>> handle = sess.run(tf.get_session_handle(a * b)); handle.eval()
    """
    if not isinstance(data, Tensor):
        raise TypeError(f"get_session_handle takes a Tensor, received {data!r}.")
    with colocate_with(data):
        handle: Tensor = get_session_handle_op(data, name=name)
        return handle


def get_session_tensor(handle: str | bytes, dtype: DTypeLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """A placeholder for a handle, and the tensor that is kept under the fed handle.

    >>> holder, value = tf.get_session_tensor(handle.handle, tf.float32)
    >>> sess.run(value * 10, {holder: handle.handle})
    """
    with device(_device_of(handle)):
        holder = placeholder(as_dtype("string"))
        return holder, get_session_tensor_op(holder, dtype=dtype, name=name)


def delete_session_tensor(handle: str | bytes, name: str | None = None) -> tuple[Tensor, Operation]:
    """A placeholder for a handle, and the operation that frees the tensor under the fed handle.

    >>> holder, delete = tf.delete_session_tensor(handle.handle); sess.run(delete, {holder: handle.handle})
    """
    with device(_device_of(handle)):
        holder = placeholder(as_dtype("string"))
        return holder, delete_session_tensor_op(holder, name=name)


def _device_of(handle: str | bytes) -> str:
    text = handle.decode() if isinstance(handle, bytes) else str(handle)
    return DeviceSpec.from_string(text.split(";")[-1]).to_string()
