"""Conversions between bytes and text, for `tf.compat.as_bytes` and similar functions."""

from __future__ import annotations

import os
from typing import Any

BytesOrText = bytes | bytearray | str


def as_bytes(value: BytesOrText, encoding: str = "utf-8") -> bytes:
    """`value` as bytes.

    >>> as_bytes("flow")
    b'flow'
    """
    if isinstance(value, str):
        return value.encode(encoding)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise TypeError(f"Expected bytes or text, received {value!r} of type {type(value).__name__}.")


def as_text(value: BytesOrText, encoding: str = "utf-8") -> str:
    """`value` as text.

    >>> as_text(b"flow")
    'flow'
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (bytes, bytearray)):
        return value.decode(encoding)
    raise TypeError(f"Expected bytes or text, received {value!r} of type {type(value).__name__}.")


def as_str_any(value: Any, encoding: str = "utf-8") -> str:
    """`str(value)`, except that bytes are decoded.

    >>> as_str_any(b"flow"), as_str_any(3)
    ('flow', '3')
    """
    return as_text(value, encoding) if isinstance(value, (bytes, bytearray)) else str(value)


def path_to_str(path: Any) -> Any:
    """A path object as text; anything else as it is.

    >>> import pathlib
    >>> path_to_str(pathlib.PurePosixPath("a/b"))
    'a/b'
    """
    return as_str_any(os.fspath(path)) if hasattr(path, "__fspath__") else path
