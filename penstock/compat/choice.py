"""Decides which API a program that imports `tensorflow` was written for: that of TensorFlow 1, or of TensorFlow 2.

A program that uses a name which only TensorFlow 1 has, such as `tf.placeholder`, is one for TensorFlow 1: with
TensorFlow 2 it would not run. So is one whose only TensorFlow is `tensorflow.compat.v1`. Any other is for TensorFlow 2.
The script is read, and the modules beside it that it imports; nothing is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from penstock.compat.only_in_1 import ONLY_IN_1

_ROOT = "tensorflow"
_MOST_FILES = 1000  # of a program that are read


def api_of(script: Path, root: Path | None = None) -> int:
    """1 or 2, for the program that starts with `script`; its modules are under `root`, which is beside the script.

    >>> api_of(Path("train.py"))
    2
    """
    asked_for_v1 = other = False
    for tree in _program(script, script.parent if root is None else root):
        for path in _uses(tree):
            if any(".".join(path[:length]) in ONLY_IN_1 for length in range(1, len(path) + 1)):
                return 1
            asked_for_v1 |= path[:2] == ("compat", "v1")
            other |= path[:2] != ("compat", "v1") and path != () and path[0] != "python"
    return 1 if asked_for_v1 and not other else 2


def _program(script: Path, root: Path) -> Iterator[ast.Module]:
    """The syntax trees of a script and of the modules under `root` that it imports. Other files are left out."""
    pending, seen = [script], {script}
    while pending and len(seen) <= _MOST_FILES:
        path = pending.pop()
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue  # running the program says what is wrong
        yield tree
        for found in _files(tree, path, root):
            if found not in seen:
                seen.add(found)
                pending.append(found)


def _files(tree: ast.Module, path: Path, root: Path) -> Iterator[Path]:
    """The files under `root` that the imports of a module name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            places = [root.joinpath(*alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = path.parents[node.level - 1] if 0 < node.level <= len(path.parents) else root
            base = start.joinpath(*(node.module or "").split(".")) if node.module else start
            places = [base, *(base / alias.name for alias in node.names)]
        else:
            continue
        for place in places:
            for file in (place.with_suffix(".py"), place / "__init__.py"):
                if file.is_file():
                    yield file


def _uses(tree: ast.Module) -> Iterator[tuple[str, ...]]:
    """The names of TensorFlow that a module uses, as paths: `tf.train.Saver` is ("train", "Saver")."""
    bound: dict[str, set[tuple[str, ...]]] = {}  # what a name of the module may stand for
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first, *rest = alias.name.split(".")
                if first == _ROOT:
                    yield tuple(rest)
                    bound.setdefault(alias.asname or _ROOT, set()).add(tuple(rest) if alias.asname else ())
        elif isinstance(node, ast.ImportFrom):
            first, *rest = (node.module or "").split(".")
            for alias in node.names:
                if first == _ROOT and not node.level:
                    path = (*rest, alias.name)
                    yield path
                elif alias.name in (_ROOT, "tf"):  # another module of the program has imported it
                    path = ()
                else:
                    continue
                bound.setdefault(alias.asname or alias.name, set()).add(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names = _chain(node)
            for path in bound.get(names[0], ()) if names else ():
                yield (*path, *names[1:])


def _chain(node: ast.expr) -> tuple[str, ...]:
    """The names of `a.b.c`; nothing for any other expression."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        before = _chain(node.value)
        return (*before, node.attr) if before else ()
    return ()
