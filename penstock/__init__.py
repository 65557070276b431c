"""penstock: TensorFlow's parameter-server training system on JAX.

`import penstock as tf` is the API of TensorFlow 2, which runs eagerly; `import penstock.v1 as tf` that of TensorFlow 1.

>>> import penstock as tf
>>> tf.constant([1.0, 2.0]) + 1.0
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

# Names that mean a folder of penstock to an import statement, and a namespace of the API to a program.
_SHARED = (
    "autodiff",
    "autograph",
    "compat",
    "data",
    "distribute",
    "keras",
    "metrics",
    "saved_model",
    "summary",
    "train",
)
# Folders with the names that TensorFlow 1 gave its namespaces: TensorFlow 2 has none, and programs ask with hasattr.
_HIDDEN = ("app", "contrib", "flags", "gfile", "layers", "logging")
# For programs of both APIs, so that they do not decide which one is used.
_FOR_BOTH = {"from_jax": "penstock.ops.control.jax_function", "from_optax": "penstock.optim.from_optax"}


class _Face(ModuleType):
    """This module: names that it does not have itself are those of `penstock.v2`, which is loaded by the first."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__internal__":
            raise AttributeError(f"module 'penstock' has no attribute '{name}'", name=name)
        if name in _HIDDEN:
            raise AttributeError(
                f"'penstock.{name}' is no name of TensorFlow 2; penstock.v1 and tf.compat.v1 have it.", name=name
            )
        if name in _FOR_BOTH:
            return getattr(importlib.import_module(_FOR_BOTH[name]), name)
        if importlib.util.find_spec(f"penstock.{name}") is not None:
            return importlib.import_module(f"penstock.{name}")
        value = getattr(importlib.import_module("penstock.v2"), name)
        self.__dict__[name] = value  # the next access takes 0.1 us instead of 40
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(importlib.import_module("penstock.v2"))})


def _namespace(name: str) -> Any:
    """A property that gives programs `tf.data` although Python sets the attribute to the folder penstock/data."""

    def keep(self: _Face, folder: ModuleType) -> None:
        self.__dict__[name] = folder

    return property(lambda self: getattr(importlib.import_module("penstock.v2"), name), keep)


def _hidden(name: str) -> Any:
    """A property without a value. `from penstock import app` finds the folder all the same."""

    def keep(self: _Face, folder: ModuleType) -> None:
        self.__dict__[name] = folder

    def absent(self: _Face) -> Any:
        raise AttributeError(name=name)  # __getattr__ is asked next

    return property(absent, keep)


for _name in _SHARED:
    setattr(_Face, _name, _namespace(_name))
for _name in _HIDDEN:
    setattr(_Face, _name, _hidden(_name))
sys.modules[__name__].__class__ = _Face
