"""Tells functions of the program from those of libraries, whose code runs as it is written."""

from __future__ import annotations

import functools
import inspect
import sys
from types import FunctionType
from typing import Any

_LIBRARIES = {
    *sys.stdlib_module_names,
    *("absl", "jax", "jaxlib", "keras", "malt", "matplotlib", "mock", "numpy", "pandas", "penstock", "PIL", "scipy"),
    "wrapt",
}


def function_of(f: Any) -> FunctionType | None:
    """The Python function that a call of `f` runs; None for classes and for what is not written in Python."""
    while isinstance(f, functools.partial):
        f = f.func
    if inspect.isclass(f):
        return None
    found = f if inspect.isfunction(f) else f.__func__ if inspect.ismethod(f) else type(f).__call__
    return found if isinstance(found, FunctionType) else None


def is_of_library(function: FunctionType) -> bool:
    """Tells if a library defines `function`."""
    # `__module__` may be that of a function that this one wraps.
    package: str = function.__globals__.get("__name__", "").partition(".")[0]
    return package in _LIBRARIES
