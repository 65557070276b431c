"""Datasets: descriptions of input pipelines, which are sent as data, and the runner that iterates them on the host."""

from __future__ import annotations

import importlib
import pkgutil

from penstock.graph.opdef import declare_library


def _load_all() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


declare_library(_load_all)
