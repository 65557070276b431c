"""Public signatures name what they take, and files are short enough to read."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import penstock
import penstock.v1

BELOW = {"penstock.graph.operation", "penstock.graph.tensor_proto"}  # the names are made of what these define
LONGEST = 450  # lines
NAMED = {
    "dtype": "DTypeLike",
    "shape": "ShapeLike",
    "feed_dict": "FeedDict",
    "input_tensor": "TensorLike",
    "labels": "TensorLike",
    "logits": "TensorLike",
    "x": "TensorLike",
}


def public_functions() -> Iterator[Callable[..., Any]]:
    """The functions of the face, and the methods of its classes that programs call."""
    faces = [m.name for m in pkgutil.walk_packages(penstock.v1.__path__, "penstock.v1.")]
    for face in map(importlib.import_module, ["penstock.v1", *faces]):
        for thing in vars(face).values():
            things = [thing]
            if inspect.isclass(thing):
                members = [
                    m for c in thing.__mro__ for m in vars(c).items() if str(c.__module__).startswith("penstock.")
                ]
                things = [m for name, m in members if not name.startswith("_") or name in ("__init__", "__call__")]
            for found in things:
                function = inspect.unwrap(found) if callable(found) else found
                if inspect.isfunction(function) and function.__module__.startswith("penstock."):
                    yield function


def test_public_signatures_name_what_they_take() -> None:
    unnamed = {
        f"{function.__module__}.{function.__qualname__}: {parameter.name} is {NAMED[parameter.name]}, not Any"
        for function in public_functions()
        if function.__module__ not in BELOW
        for parameter in inspect.signature(function).parameters.values()
        if parameter.annotation == "Any" and parameter.name in NAMED
    }
    assert not unnamed, "\n".join(sorted(unnamed))


def test_files_are_short() -> None:
    folder = Path(penstock.__file__).parent
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py")}
    too_long = [f"{path.relative_to(folder.parent)}: {n}" for path, n in lines.items() if n >= LONGEST]
    assert not too_long, f"files of {LONGEST} lines or more hide two subjects; split them:\n" + "\n".join(too_long)
