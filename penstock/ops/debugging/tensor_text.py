"""The format in which Print and Assert write tensors."""

from __future__ import annotations

from typing import Any

import numpy as np


def _element(value: Any) -> str:
    """One number or string; a number has as few digits as tell it from its neighbours."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, (np.bool_, bool)):
        return str(int(value))
    if isinstance(value, (np.complexfloating, complex)):
        return "?"
    if isinstance(value, np.integer):
        return str(int(value))
    if isinstance(value, np.float64):
        digits, more = 15, 17
        exact: Any = value
    else:
        digits, more = 6, 9
        value = exact = np.float32(value)
    if np.isnan(value):
        return "nan"
    short = f"{value:.{digits}g}"
    with np.errstate(over="ignore"):
        same = type(exact)(short) == exact
    return short if same else f"{value:.{more}g}"


def _plain(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.view(array.dtype[0]) if array.dtype.names else array


def summary(value: Any, limit: int) -> str:
    """The first `limit` elements (all if negative) with brackets around inner rows, as Print and Assert show them.

    >>> summary(np.array([[1, 2], [3, 4]]), 3)
    '[1 2][3...]...'
    """
    array = _plain(value)
    whole = array.size
    limit = whole if limit < 0 else min(limit, whole)
    flat = array.reshape(-1)
    if array.ndim == 0:
        return _element(flat[0]) if limit else "..."
    parts: list[str] = []
    shown = 0

    def write(dim: int) -> None:
        nonlocal shown
        if shown >= limit:
            return
        if dim == array.ndim - 1:
            for i in range(array.shape[dim]):
                if shown >= limit:
                    if dim:
                        parts.append("...")
                    return
                parts.append((" " if i else "") + _element(flat[shown]))
                shown += 1
            return
        for _ in range(array.shape[dim]):
            opened = shown < limit
            parts.extend("[" * opened)
            write(dim + 1)
            parts.extend("]" * opened)

    write(0)
    return "".join(parts) + ("..." if whole > limit else "")
