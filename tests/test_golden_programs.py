"""Small programs (variables, control flow, gradients, feeds, fetches, seeds) have the same results as in TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from golden_programs import check, difference, load, parameters, run_program, view

import penstock.v1 as tf
from penstock.compat import alias

ROWS = {row["id"]: row for row in load("ops/programs.json")["cases"]}
# These have their own comparisons below.
APART = ("seeded_random_uniform", "initializers_scale", "constant_folding_static_values", "random_seed_table")


@pytest.fixture
def tensorflow() -> Iterator[None]:
    """The alias `tensorflow`, for programs that import TensorFlow's internal modules."""
    alias.install()
    yield
    alias.uninstall()


@pytest.mark.parametrize("row", [p for p in parameters("ops/programs.json", {}) if p.id not in APART])
def test_programs(row: dict[str, Any]) -> None:
    check(row, tf)


@pytest.mark.usefixtures("tensorflow")
def test_seeds() -> None:
    check(ROWS["random_seed_table"], tf)


def test_seeded_numbers_go_on_in_a_session_and_start_again_in_the_next() -> None:
    row = ROWS["seeded_random_uniform"]
    assert difference(view(run_program(row, tf)), row["result"], rtol=1e-5) is None


def test_initializers_have_the_same_scale() -> None:
    actual, expected = run_program(ROWS["initializers_scale"], tf), ROWS["initializers_scale"]["result"]
    for name, wanted in expected.items():
        # Only uniform numbers have bounds that a sample approaches.
        keys = ("std",) if "normal" in name else ("std", "min", "max")
        assert difference({k: actual[name][k] for k in keys}, {k: wanted[k] for k in keys}, name, rtol=0.03) is None


def test_what_tensorflow_knows_without_running_is_known() -> None:
    """More is known here, since every op that can run on NumPy arrays is folded."""
    row = ROWS["constant_folding_static_values"]
    actual = view(run_program(row, tf))
    known = [i for i, value in enumerate(row["result"]) if value is not None]
    assert difference([actual[i] for i in known], [row["result"][i] for i in known]) is None
