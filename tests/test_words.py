"""The words of the glossary, and docstrings that say what a thing does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORDS = (
    "segment partition plan step task channel frame wave session incarnation slot suspend resume cancel peer region "
    "stage instruction tier pass rendezvous cut fetch feed container link"
)
FILES = (ROOT / "penstock").rglob("*.py")
PLACES = {str(path.relative_to(ROOT / "penstock")): path for path in FILES}


@pytest.mark.parametrize("word", WORDS.split())
def test_the_glossary_has_one_line_for_each_word(word: str) -> None:
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith(f"| {word} |")]) == 1


@pytest.mark.parametrize("place", sorted(PLACES))
def test_docstrings_are_sentences(place: str) -> None:
    tree = ast.parse(PLACES[place].read_text(encoding="utf-8"))
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
    assert not [text for text in texts if re.match(r"(What|Whether|Who|Which|How|Where)\b", text)]
