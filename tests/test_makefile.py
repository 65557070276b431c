"""The targets of the Makefile install the right packages."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(("target", "needs_tests"), [("demo", False), ("bench", False), ("test", True), ("lint", True)])
def test_only_what_a_target_needs_is_installed(tmp_path, target, needs_tests):
    command = ["make", "--dry-run", f"VENV={tmp_path / 'venv'}", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert ("-e '.[test]'" in done.stdout, "-e '.'" in done.stdout) == (needs_tests, not needs_tests)
