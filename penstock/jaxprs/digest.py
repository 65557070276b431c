"""Digest: a short text that two jaxprs share only if they compute the same, also in different processes."""

from __future__ import annotations

import functools
import hashlib
import pathlib
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import jax
import numpy as np
from jax.extend import core

from penstock.jaxprs.flat import CALLS


class NoDigest(Exception):
    """Raised for a jaxpr that contains something its text does not determine, such as a function."""


def digest(jaxpr: Any) -> str:
    """The digest of a closed jaxpr, its constants, jax's version, and the code of this package, which runs it.

    >>> digest(jax.make_jaxpr(lambda x: x + 1)(2.0)) == digest(jax.make_jaxpr(lambda y: y + 1)(3.0))
    True
    """
    found = hashlib.sha256(_code())
    _Reader(found).closed(jaxpr)
    return found.hexdigest()


@functools.cache
def _code() -> bytes:
    found = hashlib.sha256(f"{jax.__version__} {metadata.version('jaxlib')}".encode())
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.digest()


class _Reader:
    """Hashes a jaxpr, with its variables as numbers."""

    def __init__(self, found: Any) -> None:
        self._found = found
        self._dtype, self._dim = functools.cache(str), functools.cache(str)  # both are slow

    def closed(self, jaxpr: Any) -> None:
        for constant in jaxpr.consts:
            self._add(np.asarray(constant))
        self._open(jaxpr.jaxpr)

    def _open(self, jaxpr: Any) -> None:
        numbers: dict[Any, int] = {}

        def text_of(atom: Any) -> str:
            if isinstance(atom, core.Literal):
                value = np.asarray(atom.val)
                return f"{self._dtype(value.dtype)}{value.shape}{value.tobytes().hex()}"
            number = numbers.get(atom)
            if number is None:
                number = numbers[atom] = len(numbers)
                dims = ",".join([str(d) if d.__class__ is int else self._dim(d) for d in atom.aval.shape])
                return f"%{number}:{self._dtype(atom.aval.dtype)}[{dims}]"
            return f"%{number}"

        self._text(" ".join(map(text_of, (*jaxpr.constvars, *jaxpr.invars))))
        for equation in jaxpr.eqns:
            sources = " ".join(map(text_of, equation.invars))
            self._text(f"{equation.primitive.name} {sources} -> {' '.join(map(text_of, equation.outvars))}")
            called = CALLS.get(equation.primitive.name)  # the other params of a call do not affect its results
            for name in sorted(equation.params) if called is None else [called]:
                self._text(name)
                self._add(equation.params[name])
        self._text(" ".join(map(text_of, jaxpr.outvars)))

    def _text(self, text: str) -> None:
        self._found.update(text.encode())
        self._found.update(b"\0")

    def _add(self, value: Any) -> None:
        if isinstance(value, core.ClosedJaxpr):
            self.closed(value)
        elif isinstance(value, core.Jaxpr):
            self._open(value)
        elif isinstance(value, (np.ndarray, jax.Array)):
            array = np.asarray(value)
            self._text(f"{array.dtype}{array.shape}")
            self._found.update(array.tobytes())
        elif isinstance(value, (tuple, list)):
            self._text(f"{type(value).__name__} {len(value)}")
            for each in value:
                self._add(each)
        elif isinstance(value, Mapping):
            self._text(f"{len(value)}")
            for key in sorted(value, key=str):
                self._add(key)
                self._add(value[key])
        else:
            text = repr(value)
            if " at 0x" in text:
                raise NoDigest(f"a {type(value).__name__} among the params of a jaxpr")
            self._text(text)
