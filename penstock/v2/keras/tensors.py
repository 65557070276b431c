"""Has the functions of the API take KerasTensors, once Keras is used: they become parts of models."""

import importlib
import sys
from types import FunctionType, ModuleType

from penstock.graph.opdef import OpDef
from penstock.keras.native import taking_keras_tensors

_MODULES = ("", "bitwise", "image", "linalg", "math", "nn", "signal", "strings")
# These take no tensors, or take functions.
_LEFT_OUT = ("function", "device", "name_scope", "init_scope", "control_dependencies", "from_jax")


def install() -> None:
    """Replaces the functions of the namespaces that have ops."""
    for name in _MODULES:
        module = importlib.import_module("penstock.v2" + (f".{name}" if name else ""))
        _wrap(module, f"{name}." if name else "")


def _wrap(module: ModuleType, prefix: str) -> None:
    for name, value in list(vars(module).items()):
        is_op = isinstance(value, OpDef) or (
            isinstance(value, FunctionType) and value.__module__.startswith("penstock.ops.")
        )
        if is_op and not name.startswith("_") and name not in _LEFT_OUT:
            setattr(module, name, taking_keras_tensors(prefix + name, value))
            if not prefix:
                vars(sys.modules["penstock"]).pop(name, None)  # a program may have used the one before
