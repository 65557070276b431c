"""Stored programs: padded programs as jax lowers them, on disk beside compiled code.

Tracing and lowering one takes a second start longer than to read what the first has compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from penstock.jaxprs.digest import NoDigest, digest
from penstock.worker.program_cache import ProgramCache, kept

Bounds = tuple[int, ...]


class StoredPrograms:
    """The programs that were made of one jaxpr, for any bounds. Only code for CPUs is stored.

    >>> call = StoredPrograms(jaxpr, "cpu").function((64,), made, forms)
    """

    def __init__(self, jaxpr: Any, platform: str) -> None:
        self._jaxpr = jaxpr
        self._platform = platform

    @functools.cached_property
    def _place(self) -> tuple[ProgramCache, str] | None:
        """The cache, and how the names of the programs begin."""
        cache = kept()
        if cache is None or self._platform != "cpu":
            return None
        try:
            return cache, f"padded-{digest(self._jaxpr)}-"
        except NoDigest:
            return None

    def bounds(self) -> list[Bounds]:
        """The bounds of the programs that are there."""
        if self._place is None:
            return []
        cache, start = self._place
        return [tuple(map(int, name[len(start) :].split("x"))) for name in cache.names(start)]

    def function(self, bounds: Bounds, made: Callable[..., Any], forms: Sequence[Any]) -> Callable[..., Any]:
        """`made`, a function of arrays of these forms, or what was stored of it."""
        if self._place is None:
            return made
        cache, start = self._place
        name = start + "x".join(map(str, bounds))
        stored = cache.get(name)
        if stored is not None:
            return jax.export.deserialize(bytearray(stored)).call
        try:
            exported = jax.export.export(jax.jit(made), platforms=[self._platform])(*forms)
            cache.put(name, bytes(exported.serialize()))
        except (ValueError, NotImplementedError):  # it has a part that jax does not store
            return made
        return exported.call
