"""`tf` for tests of single parts: the public names of the modules that exist, without the face over them."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType, SimpleNamespace
from typing import Any

import penstock.ops
import penstock.variables
from penstock.graph.opdef import OpDef

_MODULES = (
    "penstock.graph.dtype", "penstock.graph.device", "penstock.graph.shape", "penstock.graph.tensor",
    "penstock.graph.convert", "penstock.graph.scopes", "penstock.graph.graph", "penstock.graph.keys",
)  # fmt: skip
_TRAIN = ("create_global_step", "get_global_step", "get_or_create_global_step", "assert_global_step", "global_step")


def _names(module: ModuleType) -> dict[str, Any]:
    """What a module defines itself, functions before op declarations of the same name."""
    return {
        name: value for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
        and (isinstance(value, OpDef) or getattr(value, "__module__", module.__name__) == module.__name__)
    }  # fmt: skip


def make() -> SimpleNamespace:
    """A namespace with the public names of graph, ops, variables and session."""
    names: dict[str, Any] = {}
    for package in (penstock.ops, penstock.variables):
        for info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            if info.name not in ("shapes", "types", "scatter", "state", "math_grad", "store"):
                names.update(_names(module))
    for path in _MODULES:
        names.update(_names(importlib.import_module(path)))
    from penstock import autodiff, errors, session
    from penstock.ops import array
    from penstock.ops.control import tuple_
    from penstock.ops.slicing import slice as slice_
    from penstock.variables import initializers

    names.update(_names(session), **_names(autodiff), errors=errors)
    names.update(zeros=array.zeros, ones=array.ones, tuple=tuple_, slice=slice_)
    names["train"] = SimpleNamespace(**{n: names[n] for n in _TRAIN})
    names["nn"] = SimpleNamespace(**{n: v for n, v in names.items() if n.islower()})
    names["initializers"] = SimpleNamespace(
        **{n.removesuffix("_initializer"): v for n, v in vars(initializers).items() if n.islower() and callable(v)}
    )
    return SimpleNamespace(**names)
