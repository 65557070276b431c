"""Errors for names that penstock does not have; they suggest names that exist."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from penstock.face.gaps import gap


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The public names in `known` that look most like `name`, best first.

    >>> nearest("placehoder", ["placeholder", "Session", "place"])
    ['placeholder', 'place']
    """
    # Case is the commonest slip (`tf.Constant`), so it is ignored; the first spelling of a name wins.
    spelling: dict[str, str] = {}
    for candidate in known:
        if not candidate.startswith("_"):
            spelling.setdefault(candidate.lower(), candidate)
    return [spelling[match] for match in difflib.get_close_matches(name.lower(), spelling, count)]


def missing_name(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """The error for `module.name`, which penstock does not have; `known` are the names that exist there.

    >>> missing_name("penstock.v1", "placehoder", ["placeholder"])
    AttributeError("'penstock.v1.placehoder' does not exist in penstock. The nearest name there is 'placeholder'.")
    """
    told = gap(f"{module}.{name}")
    close = [] if told else nearest(name, known)
    match close:
        case [] if told:
            remedy = told
        case []:
            remedy = f"No name in '{module}' is like it: dir({module}) lists them."
        case [one]:
            remedy = f"The nearest name there is '{one}'."
        case _:
            remedy = f"The nearest names there are {', '.join(repr(each) for each in close)}."
    # With `name` set Python adds no suggestion of its own to the traceback.
    return AttributeError(f"'{module}.{name}' does not exist in penstock. {remedy}", name=name)


def guard(module_name: str, more: str | None = None) -> Callable[[str], Any]:
    """A module `__getattr__` (PEP 562): imports submodules when they are first used, else raises `missing_name`.

    `more` is a module with further names, imported when one is needed. A face ends with this line:

        __getattr__ = guard(__name__)
    """

    def __getattr__(name: str) -> Any:
        module = sys.modules[module_name]
        submodules = _submodules(module)
        if name in submodules:
            return importlib.import_module(f"{module_name}.{name}")
        further = vars(importlib.import_module(more)) if more and not name.startswith("__") else {}
        if name in further:
            setattr(module, name, further[name])  # so that later lookups find it directly
            return further[name]
        raise missing_name(module_name, name, [*vars(module), *further, *submodules])

    return __getattr__


def listing(module_name: str, more: str | None = None) -> Callable[[], list[str]]:
    """A module `__dir__` that also lists the names that `guard` would import."""

    def __dir__() -> list[str]:
        module = sys.modules[module_name]
        further = vars(importlib.import_module(more)) if more else {}
        return sorted({*vars(module), *further, *_submodules(module)})

    return __dir__


def _submodules(module: ModuleType) -> list[str]:
    return [found.name for found in pkgutil.iter_modules(vars(module).get("__path__", ()))]
