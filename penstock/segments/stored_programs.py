"""Padded programs are stored on disk as jax lowers them, beside compiled code.

Without them a second start would spend more time on tracing and lowering than on reading compiled code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.extend.mlir import deserialize_portable_artifact, ir
from jax.extend.mlir.dialects import func
from jax.interpreters import mlir as lowering

from penstock.jaxprs.digest import NoDigest, digest
from penstock.segments.program_cache import ProgramCache, kept

Bounds = tuple[int, ...]


class StoredPrograms:
    """Finds and stores the programs of one jaxpr, for any bounds, as code for CPUs. It does nothing unless `is_used`.

    >>> call = StoredPrograms(jaxpr, is_used=True).function((64,), made, forms)
    """

    def __init__(self, jaxpr: Any, is_used: bool) -> None:
        self._jaxpr = jaxpr
        self._is_used = is_used
        self._new: dict[Bounds, Any] = {}  # made here, and not stored yet

    @functools.cached_property
    def _place(self) -> tuple[ProgramCache, str] | None:
        """The cache and the prefix of the programs' names; None if nothing is stored."""
        cache = kept()
        if cache is None or not self._is_used or not jax.config.values["jax_enable_compilation_cache"]:
            return None
        try:
            return cache, f"padded-{digest(self._jaxpr)}-"
        except NoDigest:
            return None

    def bounds(self) -> list[Bounds]:
        """Returns the bounds of the stored programs."""
        if self._place is None:
            return []
        cache, start = self._place
        return [tuple(map(int, name[len(start) :].split("x"))) for name in cache.names(start)]

    def function(self, bounds: Bounds, made: Callable[..., Any], forms: Sequence[Any]) -> Callable[..., Any]:
        """Returns the stored form of `made`, a function of arrays of these forms, or `made` itself."""
        if self._place is None:
            return made
        cache, start = self._place
        stored = cache.get(start + _name(bounds))
        if stored is not None:
            return _function_of(jax.export.deserialize(bytearray(stored)))
        try:
            exported = jax.export.export(jax.jit(made), platforms=["cpu"])(*forms)
        except (ValueError, NotImplementedError):  # jax cannot store a part of it
            return made
        self._new[bounds] = exported
        return _function_of(exported)

    def keep(self, bounds: Bounds) -> None:
        """Stores a function that was made here. It is called after compiling, so that the code is stored already."""
        exported = self._new.pop(bounds, None)
        if exported is not None and self._place is not None:
            cache, start = self._place
            cache.put(start + _name(bounds), bytes(exported.serialize()))


def _function_of(exported: Any) -> Callable[..., Any]:
    """Returns a stored program as a function, to be called under `jax.jit`.

    `exported.call` does the same, but loads SciPy's linear algebra first, which few programs need: that takes 0.2 s.
    """
    if b"lapack" in exported.mlir_module_serialized:
        return exported.call  # type: ignore[no-any-return]
    return lambda *leaves: _stored_call.bind(*leaves, exported=exported)


_stored_call = Primitive("stored_call")
_stored_call.multiple_results = True
_stored_call.def_abstract_eval(lambda *arguments, exported: list(exported.out_avals))


def _lower_stored_call(context: Any, *arguments: Any, exported: Any) -> Sequence[Any]:
    module = context.module_context.module
    with module.context:
        stored = deserialize_portable_artifact(exported.mlir_module_serialized)
    main: Any = ir.SymbolTable(stored.operation)["main"]
    results = main.type.results
    name = lowering.merge_mlir_modules(module, "stored", stored, dst_symtab=context.module_context.symbol_table)
    needed = [arguments[i] for i in exported.module_kept_var_idx]
    return func.CallOp(results, ir.FlatSymbolRefAttr.get(name), needed).results


lowering.register_lowering(_stored_call, _lower_stored_call)


def _name(bounds: Bounds) -> str:
    return "x".join(map(str, bounds))
