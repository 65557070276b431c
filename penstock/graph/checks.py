"""Run-time checks inside compiled code. A kernel states a condition; the worker raises an error if it does not hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.errors import InvalidArgumentError


class NotTraceable(Exception):
    """Raised while tracing by an op that cannot be compiled with the inputs it has.

    The worker then cuts the segment there: a control-flow node runs on the host, any other node gets the values of
    its inputs.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.node: Any = None  # the outermost node that caused this


class _State(threading.local):
    recorder: Any = None
    ignored = False


_state = _State()


def require(ok: Any, message: str, detail: Any = 0) -> None:
    """Demands that `ok` (a bool array of any shape) holds everywhere; `{}` in the message stands for `detail`.

    On arrays it raises InvalidArgumentError at once. While a segment is traced it becomes one more output of the
    compiled code, which the worker checks after the call. If a check fails, variables that the segment writes keep
    their values.

    >>> require(index < size, "index {} is out of range", index)
    """
    if _state.ignored:
        return
    if isinstance(ok, (bool, np.bool_, np.ndarray)):
        if not np.all(ok):
            raise InvalidArgumentError(message.format(detail))
        return
    if _state.recorder is not None:
        _state.recorder.record(ok, message, detail)


def require_once(key: Any, check: Callable[[], None]) -> None:
    """Makes a check unless one with this key was made while the same segment or body is traced."""
    made = getattr(_state.recorder, "made", None)
    if made is None or key not in made:
        check()
    if made is not None:
        made.add(key)


_UNSIGNED = {np.dtype(f"i{size}"): np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


def are_in_range(indices: np.ndarray, limit: int) -> bool:
    """Tells if 0 <= indices < limit for all of them."""
    # A negative number is a large one without a sign, so that one look at all of them does.
    unsigned = indices.view(_UNSIGNED.get(indices.dtype) or indices.dtype)
    return not indices.size or bool(np.maximum.reduce(unsigned, None) < limit)


def require_in_range(indices: Any, limit: int, what: str = "indices", message: str = "") -> None:
    """Demands 0 <= indices < limit; the error shows an index that is out of range."""
    if isinstance(indices, np.ndarray) and isinstance(limit, (int, np.integer)):  # not a symbol
        if not are_in_range(indices, limit):
            where = np.argwhere((indices < 0) | (indices >= limit))[0].tolist()
            if message:
                raise InvalidArgumentError(message.format(indices[tuple(where)]))
            raise InvalidArgumentError(f"{what}{where} = {indices[tuple(where)]} is not in [0, {limit})")
        return
    if _state.ignored or _state.recorder is None or indices.size == 0:
        return
    # One reduction: the largest index that is out of range, or the smallest number where all are in range.
    none = -(2**63)
    wide = jnp.asarray(indices).astype(jnp.int64)
    worst = jnp.max(jnp.where((wide < 0) | (wide >= limit), wide, none))
    require(worst == none, message or what + " value {} is not in [0, " + str(limit) + ")", worst)


def rows_to_write(indices: Any, size: int) -> Any:
    """Returns `indices`, or `size` (which is no row) for each index if a check has failed, so that nothing is written.

    A kernel that changes rows of a variable calls this. The whole variable then need not be copied in case a
    check fails.
    """
    return indices if _state.recorder is None else _state.recorder.rows_to_write(indices, size)


@contextmanager
def recording_checks(recorder: Any) -> Iterator[None]:
    """A context for tracing a segment: passes every check to `recorder.record(ok, message, detail)`."""
    before, _state.recorder = _state.recorder, recorder
    try:
        yield
    finally:
        _state.recorder = before


@contextmanager
def ignoring_checks() -> Iterator[None]:
    """A context for shape inference, which needs no checks."""
    before, _state.ignored = _state.ignored, True
    try:
        yield
    finally:
        _state.ignored = before
