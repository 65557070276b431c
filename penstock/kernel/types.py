"""Sets of types that ops take, and the environment of a kernel: `xp`, the array module, and `platform`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from penstock.blas import one_thread
from penstock.graph import dtype as dt
from penstock.graph.opdef import Types
from penstock.jaxprs.symbols import is_symbol

# TensorFlow's int64 and float64 exist in XLA only with this flag.
jax.config.update("jax_enable_x64", True)

Array = Any  # a jax.Array, a tracer, or a NumPy array while constants fold

FLOATS = Types(dt.bfloat16, dt.float16, dt.float32, dt.float64)
COMPLEX = Types(dt.complex64, dt.complex128)
INTS = Types(dt.int8, dt.int16, dt.int32, dt.int64, dt.uint8, dt.uint16, dt.uint32, dt.uint64)
SIGNED = Types(*FLOATS, dt.int8, dt.int16, dt.int32, dt.int64)
REALS = Types(*FLOATS, *INTS)
NUMBERS = Types(*REALS, *COMPLEX)
QUANTIZED = Types(dt.qint8, dt.quint8, dt.qint16, dt.quint16, dt.qint32)
FLOATS_COMPLEX = Types(*FLOATS, *COMPLEX)
INDEX = Types(dt.int32, dt.int64)
INDEX32 = Types(dt.int32, dt.int64, default=dt.int32)
INDEX64 = Types(dt.int32, dt.int64, default=dt.int64)
INDEX16 = Types(dt.int16, dt.int32, dt.int64)

_FOLDED = 4096  # larger arrays are computed by the compiled code rather than kept in it as constants


def xp(*arrays: Any) -> Any:
    """NumPy if all inputs are NumPy arrays (so that constants fold and strings work), else jax.numpy."""
    return np if all(isinstance(a, (np.ndarray, np.generic)) for a in arrays) else jnp


def array_module(size: Any, *arrays: Array) -> Any:
    """`xp`, but jax.numpy for large results, so that they do not become constants in the compiled code."""
    if is_symbol(size):
        return jnp
    module = xp(*arrays)
    return module if size <= _FOLDED or _surroundings.interpreted or any(a.dtype.kind == "O" for a in arrays) else jnp


class _Surroundings(threading.local):
    platform = "cpu"
    interpreted = False


_surroundings = _Surroundings()


class interpreting:
    """A context in which kernels run on NumPy arrays and nothing is traced, so NumPy makes large results, too.

    >>> with interpreting():
    ...     result = kernel(array)
    """

    __slots__ = ("_before", "_errors")

    def __enter__(self) -> None:
        self._before, _surroundings.interpreted = _surroundings.interpreted, True
        self._errors = np.errstate(all="ignore")  # infinities and wrap-around are values, as in compiled code
        self._errors.__enter__()
        one_thread.__enter__()

    def __exit__(self, *error: Any) -> None:
        one_thread.__exit__()
        self._errors.__exit__(*error)
        _surroundings.interpreted = self._before


def platform() -> str:
    """`"cpu"` or `"gpu"`: the kind of device that the code being traced is for."""
    return _surroundings.platform


@contextmanager
def on_platform(name: str) -> Iterator[None]:
    """A context for tracing a segment for a device of kind `name`.

    >>> with on_platform("gpu"):
    ...     jax.jit(segment).lower(*specs)
    """
    before, _surroundings.platform = _surroundings.platform, name
    try:
        yield
    finally:
        _surroundings.platform = before
