"""Makes `import tensorflow`, and every part of it that programs use, resolve to penstock.

`tensorflow.X` is `penstock.v1.X` or `penstock.v2.X`, as `install` is told; `tensorflow.compat.v1.X` is always
`penstock.v1.X`, and `tensorflow.compat.v2.X` is `penstock.v2.X` in a program of TensorFlow 2. TensorFlow's internal
modules, which programs import although they should not, are listed in `penstock.compat.internals`. An alias is a real
module in `sys.modules` under its TensorFlow name; it owns no names and looks each up in its penstock modules.

>>> install()
>>> from tensorflow.python.platform import gfile
>>> gfile.__name__
'tensorflow.python.platform.gfile'
>>> uninstall()
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from penstock.compat.internals import FOLDERS, MODULES
from penstock.face.gaps import gap
from penstock.face.missing import missing_name, nearest

ROOT = "tensorflow"
FACES = {1: "penstock.v1", 2: "penstock.v2"}


# Dunder names belong to each module itself, except these.
_SHARED_DUNDERS = frozenset({"__all__", "__version__", "__git_version__", "__compiler_version__"})


class AliasModule(ModuleType):
    """A module under a TensorFlow name. It looks names up in `sources`, which are penstock modules, in this order."""

    def __init__(self, name: str, sources: Sequence[str]) -> None:
        provided = ", ".join(sources) or "a package of aliases"
        super().__init__(name, f"{name} as penstock provides it: {provided}.")
        self._sources = tuple(sources)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _SHARED_DUNDERS:
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'", name=name)
        for source in filter(None, map(_find, self._sources)):
            try:
                return getattr(source, name)
            except AttributeError:
                continue
        if name == "__all__":
            return [each for each in dir(self) if not each.startswith("_")]
        # TensorFlow imports all of itself, so programs reach `tf.contrib.layers` without importing it.
        child = f"{self.__name__}.{name}"
        if sources_of(child) is not None:
            return importlib.import_module(child)
        raise missing_name(self.__name__, name, dir(self))

    def __dir__(self) -> list[str]:
        names = {name for name in vars(self) if name != "_sources"}
        for source in filter(None, map(_find, self._sources)):
            names.update(dir(source))
        prefix = f"{self.__name__}."
        names.update(each.removeprefix(prefix).split(".")[0] for each in _known_modules() if each.startswith(prefix))
        return sorted(names)


class AliasFinder(MetaPathFinder, Loader):
    """Finds and makes the alias modules for all of `tensorflow`; never uses the real package."""

    api = 1  # the API that `tensorflow` itself has

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of `fullname` if it is under `tensorflow`; ImportError if penstock has nothing for it."""
        if fullname != ROOT and not fullname.startswith(f"{ROOT}."):
            return None
        if sources_of(fullname) is None:
            raise _no_module(fullname)
        # All are packages, so that a failed `from module import name` comes here too, and gets the error above.
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A module that looks its names up in penstock."""
        return AliasModule(spec.name, sources_of(spec.name) or ())

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the code is in the penstock modules."""


_finder = AliasFinder()


def install(api: int = 1) -> None:
    """Makes `import tensorflow` give penstock, in this process: the API of TensorFlow 1 or 2. Twice is harmless."""
    found = sys.modules.get(ROOT)
    if found is not None and not isinstance(found, AliasModule):
        raise RuntimeError(
            f"Cannot alias 'tensorflow' to penstock: TensorFlow itself is already imported, from "
            f"'{getattr(found, '__file__', 'an unknown place')}'. Call penstock.compat.alias.install() before anything "
            f"imports tensorflow, or start the program with `penstock run`."
        )
    _finder.api = api
    if _finder not in sys.meta_path:
        # The first finder wins: otherwise an installed TensorFlow would be found.
        sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Undo `install` and forget the modules it made."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    for name in [name for name, module in sys.modules.items() if isinstance(module, AliasModule)]:
        del sys.modules[name]


def sources_of(fullname: str) -> tuple[str, ...] | None:
    """The penstock modules for a TensorFlow module, none for a bare package; None if penstock has no such module.

    >>> sources_of("tensorflow.compat.v1.gfile")
    ('penstock.v1.gfile',)
    >>> sources_of("tensorflow.python")
    ()
    """
    path = fullname.removeprefix(ROOT).removeprefix(".")
    face = FACES[_finder.api]
    for version in (1, 2)[: _finder.api]:  # TensorFlow 2 in a program of TensorFlow 1 would change what its ops do
        if path == f"compat.v{version}" or path.startswith(f"compat.v{version}."):
            path = path.removeprefix(f"compat.v{version}").removeprefix(".")
            face = FACES[version]
    if not path:
        return (face,)
    folder, _, name = path.rpartition(".")
    in_folder = (f"{FOLDERS[folder]}.{name}",) if folder in FOLDERS else ()
    for candidates in (MODULES.get(path, ()), in_folder, (f"{face}.{path}",)):
        if any(_find(each) is not None for each in candidates):
            return candidates
    holds_modules = any(each.startswith(f"{path}.") for each in (*MODULES, *(f"{folder}." for folder in FOLDERS)))
    return () if holds_modules else None


def _find(path: str) -> ModuleType | None:
    """The module at `path`, either a file or a module that is an attribute of another; None if there is none."""
    if path in sys.modules:
        return sys.modules[path]
    try:
        spec = importlib.util.find_spec(path)
    except ModuleNotFoundError:
        spec = None
    if spec is not None:
        # Outside the `try`, so that an error in a module that exists is not hidden.
        return importlib.import_module(path)
    parent, _, name = path.rpartition(".")
    found = getattr(_find(parent), name, None) if parent else None
    return found if isinstance(found, ModuleType) else None


def _known_modules() -> Iterator[str]:
    """TensorFlow's names of all modules that penstock has."""
    yield from (f"{ROOT}.{path}" for path, sources in MODULES.items() if any(_find(each) for each in sources))
    for folder, ours in FOLDERS.items():
        package = importlib.import_module(ours)
        yield from (f"{ROOT}.{folder}.{info.name}" for info in pkgutil.iter_modules(package.__path__))
    name = FACES[_finder.api]
    for info in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
        yield f"{ROOT}.{info.name.removeprefix(name + '.')}"
    yield f"{ROOT}.compat.v1"


def _no_module(fullname: str) -> ImportError:
    parent, _, name = fullname.rpartition(".")
    # `from module import name` comes here too: the name may be an attribute of the module, not a module.
    in_parent = dir(sys.modules[parent]) if parent in sys.modules else []
    if told := gap(fullname):
        remedy = told
    elif name in in_parent:
        remedy = f"It is a name, not a module: write `from {parent} import {name}`."
    else:
        known = list(_known_modules())
        # The same module in another folder is a better guess than a module with a similar path.
        elsewhere = [each for each in known if each.endswith(f".{name}")]
        close = [*(f"{parent}.{each}" for each in nearest(name, in_parent)), *elsewhere, *nearest(fullname, known)]
        found = ", ".join(f"'{each}'" for each in list(dict.fromkeys(close))[:3])
        remedy = f"The nearest that exists: {found}." if found else "Nothing in penstock is like it."
    # The error names another module than requested. Else Python drops it after `from module import name`.
    return ModuleNotFoundError(f"penstock has no module '{fullname}'. {remedy}", name=f"penstock alias of {fullname}")
