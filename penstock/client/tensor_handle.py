"""A session can keep tensors between steps. The client names them by handles."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from penstock.graph.dtype import DType
from penstock.graph.operation import Tensor

_FREED_TOGETHER = 10  # tensors, since freeing takes a step


class TensorHandle:
    """Names a tensor that a session keeps; running `tf.get_session_handle(x)` gives one.

    When nothing refers to the handle any more, the session frees the tensor.

    >>> handle = sess.run(tf.get_session_handle(c)); handle.eval()
    """

    def __init__(self, handle: str, dtype: DType, kept: KeptTensors) -> None:
        self._handle = handle
        self._dtype = dtype
        self._kept = kept
        self._is_ours = True  # to free

    def __del__(self) -> None:
        if self._is_ours:
            self._kept.dead.append(self._handle)

    def __str__(self) -> str:
        return self._handle

    @property
    def handle(self) -> str:
        """The text by which `tf.get_session_tensor` finds the tensor."""
        return self._handle

    def eval(self) -> Any:
        """Returns the value of the tensor."""
        self._check()
        return self._kept.read(self._handle, self._dtype)

    def delete(self) -> None:
        """Frees the tensor now."""
        self._check()
        self._is_ours = False
        self._kept.delete(self._handle)

    def get_raw_handle(self) -> str:
        """Returns the text of the handle. From now on the caller has to free the tensor."""
        self._is_ours = False
        return self._handle

    def _check(self) -> None:
        if not self._is_ours:
            raise TypeError(f"The tensor of handle '{self._handle}' may have been deleted already.")


class KeptTensors:
    """Reads and frees the tensors that one session keeps, by nodes that it adds to the graph."""

    def __init__(self, session: Any) -> None:
        self.dead: list[str] = []  # handles that nobody refers to any more
        self._session = session
        self._nodes: dict[Any, tuple[Tensor, Any]] = {}
        self._lock = threading.Lock()

    def handle(self, handle: str, dtype: DType) -> TensorHandle:
        """Makes a handle. If many others are unused by now, their tensors are freed, unless the graph is finalized."""
        if len(self.dead) >= _FREED_TOGETHER and not self._session.graph.finalized:
            while self.dead:
                self.delete(self.dead.pop())
        return TensorHandle(handle, dtype, self)

    def read(self, handle: str, dtype: DType) -> Any:
        """Returns the value of a tensor."""
        from penstock.ops.state.session_tensors import get_session_tensor  # start-up

        holder, value = self._node(handle, dtype, lambda: get_session_tensor(handle, dtype))
        return self._session.run(value, {holder: handle})

    def delete(self, handle: str) -> None:
        """Frees a tensor."""
        from penstock.ops.state.session_tensors import delete_session_tensor  # start-up

        holder, delete = self._node(handle, None, lambda: delete_session_tensor(handle))
        self._session.run(delete, {holder: handle})

    def _node(self, handle: str, dtype: DType | None, make: Callable[[], tuple[Tensor, Any]]) -> tuple[Tensor, Any]:
        key = (handle.rpartition(";")[2], dtype)
        with self._lock:
            if key not in self._nodes:
                with self._session.graph.as_default():
                    self._nodes[key] = make()
            return self._nodes[key]
