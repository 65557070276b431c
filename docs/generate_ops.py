"""Writes docs/ops.md, the list of all op types, from their declarations: `python docs/generate_ops.py`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock.eager.python_function  # declares an op type that only V2 programs use
import penstock.v1
from penstock.graph.dtype import DType
from penstock.graph.opdef import MISSING, ArgDef, OpDef, all_ops, registered
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.engine.vjp import differentiable

TARGET = Path(__file__).parent / "ops.md"

INTRODUCTION = """# Op types

Written by `python docs/generate_ops.py` from the declarations in `penstock/ops`; a test checks that it is current.
There are {count} op types. `tf.raw_ops.X` calls any of them by keyword.

- **inputs**, **outputs**: `T` is a type attribute, `&T` a reference to a variable, `N*T` a list of N tensors,
  `list(T)` a list of mixed types. **attributes** are those that the inputs do not decide, with their defaults.
- **gradient**: *rule* is a function beside the declaration, *vjp* is jax's derivative of the kernel, *none* means that
  nothing flows back, *refused* is an error, as in TensorFlow.
- **runs**: *compiled* into XLA programs, on the *host* in Python, or as part of the *engine*. *+numpy* also folds while
  compiling; *state*: changes or reads state; *random*: draws random numbers.
- **public names**: functions of the 1.x API that make such nodes themselves.
"""


def text() -> str:
    """The whole page."""
    names = public_names()  # first, as this imports all of the API
    ops = sorted((op for op in all_ops() if is_public(op)), key=lambda op: op.name)
    families: dict[str, list[OpDef]] = {}
    for op in ops:
        families.setdefault(op.kernel.__module__, []).append(op)
    parts = [INTRODUCTION.format(count=len(ops))]
    for module, members in sorted(families.items()):
        path = module.replace(".", "/") + ".py"
        summary = (inspect.getdoc(importlib.import_module(module)) or "").splitlines()[0]
        parts.append(f"## `{path}`\n\n{summary}\n")
        columns = "op type", "inputs", "outputs", "attributes", "gradient", "runs", "public names"
        parts.append(f"| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|")
        parts.append("\n".join(row(op, names.get(op.name, [])) for op in members) + "\n")
    return "\n".join(parts)


def is_public(op: OpDef) -> bool:
    """Whether the library declares it, not a test."""
    return op.kernel.__module__.startswith("penstock.") and not op.name.startswith("_")


def row(op: OpDef, names: list[str]) -> str:
    """One op type as a line of the table."""
    inferred = {a for arg in op.inputs for a in (arg.type_attr, arg.type_list_attr, arg.number_attr)}
    attrs = [a for a in op.attrs.values() if a.name not in inferred]
    cells = [
        f"`{op.name}`",
        ", ".join(f"{arg.name}: {kind(arg)}" for arg in op.inputs),
        ", ".join(f"{arg.name}: {kind(arg)}" for arg in op.outputs),
        ", ".join(a.name if a.default is MISSING else f"{a.name}={shown(a.default)}" for a in attrs),
        gradient(op),
        runs(op),
        ", ".join(names),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |"


def kind(arg: ArgDef) -> str:
    """The type of an input or output as the declaration writes it."""
    if arg.type_list_attr:
        return f"list({arg.type_list_attr})"
    base = arg.type.name if arg.type else arg.type_attr
    return ("&" if arg.is_ref else "") + (f"{arg.number_attr}*" if arg.number_attr else "") + base


def shown(value: Any) -> str:
    """A default."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(shown(v) for v in value) + "]"
    if isinstance(value, DType):
        return value.name
    return str(value) if not isinstance(value, str) else f"'{value}'"


def gradient(op: OpDef) -> str:
    """How `tf.gradients` goes through a node."""
    if op.grad is refuse_gradient:
        return "refused"
    if op.grad is not None:
        return "rule"
    if op.no_gradient or op.random or op.writes or not op.inputs:
        return "none"
    possible = [t for arg in op.inputs for t in types_of(op, arg)]
    if possible and not any(differentiable(t) for t in possible):
        return "none"
    return "refused" if op.host or op.control_flow else "vjp"


def types_of(op: OpDef, arg: ArgDef) -> list[DType]:
    """The types that an input may have; empty if any."""
    if arg.type is not None:
        return [arg.type]
    return list(op.attrs[arg.type_attr or arg.type_list_attr].allowed)


def runs(op: OpDef) -> str:
    """Where and how a node runs."""
    place = "host" if op.host else "engine" if op.control_flow else "compiled"
    labels = {"numpy": op.numpy, "random": op.random, "state": op.stateful and not op.random}
    return " +".join([place, *(label for label, holds in labels.items() if holds)])


def public_names() -> dict[str, list[str]]:
    """For each op type the names under `tf` that are it, or whose code names its declaration."""
    found: dict[str, set[str]] = {}
    for prefix, module in faces():
        for name, value in vars(module).items():
            if not name.startswith("_"):
                for op in named_in(value):
                    found.setdefault(op.name, set()).add(f"{prefix}.{name}")
    return {op: sorted(shortest(names)) for op, names in found.items()}


def shortest(names: set[str]) -> set[str]:
    """One name for each function: the one with the fewest dots."""
    best: dict[str, str] = {}
    for name in sorted(names, key=lambda n: (n.count("."), n)):
        best.setdefault(name.rpartition(".")[2], name)
    return set(best.values())


def faces() -> Iterator[tuple[str, types.ModuleType]]:
    """The modules of the 1.x API."""
    yield "tf", penstock.v1
    for module in pkgutil.walk_packages(penstock.v1.__path__, "penstock.v1."):
        if module.name != "penstock.v1.raw_ops":
            # The names of `more` are those of `tf` itself.
            prefix = module.name.removesuffix(".more").replace("penstock.v1", "tf")
            yield prefix, importlib.import_module(module.name)


def named_in(value: Any) -> list[OpDef]:
    """The declarations that a public value is, or that its code names; private functions that it calls count."""
    if isinstance(value, OpDef):
        return [value]
    waiting = list(functions_of(value))
    seen = set(waiting)
    found = []
    while waiting:
        function = waiting.pop()
        # Which code has the constants of a comprehension, and of annotations, depends on the version of Python.
        every = list(codes(function.__code__))
        by_name = any({"op_of", "registered"} & set(code.co_names) for code in every)
        for code in every:
            texts = [c for c in code.co_consts if isinstance(c, str) and c not in function.__globals__]
            found += [op for text in texts if by_name and (op := registered_now(text))]
            for name in code.co_names:
                used = function.__globals__.get(name)
                if isinstance(used, OpDef):
                    found.append(used)
                elif isinstance(used, types.ModuleType):
                    found += [v for n in code.co_names if isinstance(v := vars(used).get(n), OpDef)]
                elif name.startswith("_"):
                    more = [f for f in functions_of(used) if f not in seen]
                    seen.update(more)
                    waiting += more
    return found


def functions_of(value: Any) -> list[types.FunctionType]:
    """A function, or the methods of a class."""
    if isinstance(value, types.FunctionType):
        return [value] if str(value.__module__).startswith("penstock.") else []
    if not isinstance(value, type) or not str(value.__module__).startswith("penstock."):
        return []
    members = (inspect.unwrap(getattr(m, "fget", None) or getattr(m, "__func__", m)) for m in vars(value).values())
    return [m for m in members if isinstance(m, types.FunctionType)]


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from codes(inner)


def registered_now(name: str) -> OpDef | None:
    """The op type of that name."""
    return registered(name) if name[:1].isupper() else None


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    print(f"{TARGET.name} is written.")
