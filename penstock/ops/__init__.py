"""The op library: one room per subject, one file per family, one declaration per op.

A program imports the families that it uses; the others are loaded when a graph names one of their op types.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from penstock.graph import build, effects, graphdef  # noqa: F401  what calls of ops and graphs need (`graph/hooks.py`)
from penstock.graph.hooks import hooks
from penstock.graph.opdef import declare_library
from penstock.ops.array import indexing  # noqa: F401  whoever has ops can index tensors
from penstock.ops.math import operators  # noqa: F401  and use Python's operators on them


def _load_all() -> None:
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)


def _ragged(*call: Any) -> Any:
    from penstock.ops.ragged import dispatch  # start-up

    return dispatch.call(*call)


declare_library(_load_all)
hooks.ragged = _ragged
