"""The list of op types agrees with the declarations."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_the_list_of_ops_is_current() -> None:
    spec = importlib.util.spec_from_file_location("generate_ops", DOCS / "generate_ops.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (DOCS / "ops.md").read_text(encoding="utf-8")
    assert module.text() == written, "run `python docs/generate_ops.py` to write docs/ops.md anew"
