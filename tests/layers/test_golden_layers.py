"""tf.layers, tf.metrics and tf.distributions against TensorFlow's results for the same programs."""

from __future__ import annotations

from typing import Any

import pytest
from golden_programs import check, load
from tolerances import LOG_GAMMA

import penstock.v1 as tf

# Distributions whose densities and entropies contain logarithms of gamma.
OF_LOG_GAMMA = ("gamma", "beta", "student_t", "dirichlet", "dirichlet_multinomial")


def rows(name: str) -> list[Any]:
    data = load(f"layers/{name}.json")
    return [
        pytest.param({**row, "program": data["prelude"] + row["program"]}, id=f"{name}-{row['id']}")
        for row in data["cases"]
    ]


@pytest.mark.parametrize("row", [*rows("layers"), *rows("metrics"), *rows("distributions")])
def test_program(row: dict[str, Any]) -> None:
    check(row, tf, atol=LOG_GAMMA if row["id"] in OF_LOG_GAMMA else 1e-6)
