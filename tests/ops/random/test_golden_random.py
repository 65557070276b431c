"""The values of random ops are TensorFlow's, run after run."""

from __future__ import annotations

from typing import Any

import pytest
from random_golden import check, rows

import penstock.v1 as tf


@pytest.mark.parametrize("row", [*rows("graph.json"), *rows("data.json")])
def test_graph_programs(row: dict[str, Any]) -> None:
    with tf.Graph().as_default():
        check(row, tf)
