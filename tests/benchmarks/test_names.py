"""Benchmarks, which no test runs, import names of penstock that exist."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parents[2] / "benchmarks").rglob("*.py"))


def test_there_are_benchmarks() -> None:
    assert len(BENCHMARKS) > 20


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_names_from_penstock_exist(path: Path) -> None:
    imports = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and not n.level]
    for found in imports:
        if found.module is not None and found.module.split(".")[0] == "penstock":
            module = importlib.import_module(found.module)
            for alias in found.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{found.module}.{alias.name}")
