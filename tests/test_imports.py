"""Modules of penstock do not import each other in circles, and each import inside a function says why it is there."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import grimp

import penstock

REASONS = ("# start-up", "# optional")
FOLDER = Path(penstock.__file__).parent

Imports = Mapping[str, Sequence[str]]


def knots(imports: Imports) -> list[set[str]]:
    """The sets of modules that all import each other, directly or indirectly, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in imports[module]:
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            knot = set(stack[stack.index(module) :])
            del stack[stack.index(module) :]
            if len(knot) > 1:
                found.append(knot)

    for module in imports:
        if module not in number:
            visit(module)
    return found


def circle_in(knot: set[str], imports: Imports) -> list[str]:
    """A shortest path from the first module of a knot back to it."""
    start = min(knot)
    ways = [[start]]
    for way in ways:
        for other in imports[way[-1]]:
            if other == start:
                return [*way, start]
            if other in knot and not any(other in known for known in ways):
                ways.append([*way, other])
    raise AssertionError(f"{start} is in no circle")


def imports_of_penstock() -> dict[str, list[str]]:
    """Maps each module to its imports, including those in functions and for type checkers."""
    graph = grimp.build_graph("penstock", cache_dir=None)
    return {module: sorted(graph.find_modules_directly_imported_by(module)) for module in sorted(graph.modules)}


def test_a_circle_is_found() -> None:
    imports = {"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": ["e", "b"], "e": [], "f": ["f"]}
    assert knots(imports) == [{"b", "c", "d"}]
    assert circle_in({"b", "c", "d"}, imports) == ["b", "c", "b"]


def test_no_modules_import_each_other_in_a_circle() -> None:
    imports = imports_of_penstock()
    assert {"penstock.graph.graph", "penstock.ops", "penstock.session", "penstock.v1"} <= imports.keys()
    found = [
        f"{len(knot)} modules import each other: {', '.join(sorted(knot))}\n  one circle: "
        + " -> ".join(circle_in(knot, imports))
        for knot in knots(imports)
    ]
    assert not found, "\n".join(found)


def imports_in_functions(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    outermost = [node for node in ast.walk(tree) if isinstance(node, functions)]
    found = {id(n): n for f in outermost for n in ast.walk(f) if isinstance(n, (ast.Import, ast.ImportFrom))}
    yield from found.values()


def test_imports_in_functions_say_why() -> None:
    unexplained = []
    for path in sorted(FOLDER.rglob("*.py")):
        text = path.read_text()
        lines = text.splitlines()
        for node in imports_in_functions(ast.parse(text)):
            written = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            if not any(reason in written for reason in REASONS):
                unexplained.append(f"{path.relative_to(FOLDER.parent)}:{node.lineno}: {written.strip()}")
    assert not unexplained, (
        f"{len(unexplained)} imports inside functions do not say why they are there. Move them to the top of their "
        f"files, or end them with one of {', '.join(REASONS)}:\n" + "\n".join(unexplained)
    )


ONE_FAMILY = """
from penstock.autodiff import gradients
from penstock.graph.hooks import Hooks, hooks
from penstock.graph.opdef import all_ops, later
from penstock.ops.array.creation import constant
from penstock.variables.variable import Variable

x = constant([1.0, 2.0])
y = (x + 1.0)[0]
gradients([y * Variable(2.0) + Variable(1.0, use_resource=True)], [x])
assert all(hasattr(hooks, name) for name in Hooks.__annotations__)
assert [node.name for node in x.graph.as_graph_def().node][0] == x.op.node_def.name
assert not [op.name for op in all_ops() if op.grad is later]
"""


def test_modules_above_have_filled_in_what_those_below_call() -> None:
    """In a separate process, which imports one family of ops and no public API."""
    subprocess.run([sys.executable, "-c", ONE_FAMILY], check=True, timeout=100, cwd=FOLDER.parent)
