"""ClusterSpec and replica_device_setter are TensorFlow's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from golden_programs import check, parameters

import penstock.v1 as tf
from penstock.compat import alias
from penstock.train.device_setter import GreedyLoadBalancingStrategy, byte_size_load_fn

LATER: dict[str, str] = {}


@pytest.fixture(autouse=True)
def tensorflow() -> Iterator[None]:
    """The alias `tensorflow`, for programs that import TensorFlow's internal modules."""
    alias.install()
    yield
    alias.uninstall()


@pytest.mark.parametrize(
    "row", [*parameters("semantics/cluster_spec.json", LATER), *parameters("semantics/replica_device_setter.json", {})]
)
def test_as_tensorflow(row: dict[str, Any]) -> None:
    check(row, tf)


@pytest.mark.parametrize("use_resource", [False, True])
def test_greedy_by_bytes(use_resource: bool) -> None:
    strategy = GreedyLoadBalancingStrategy(2, byte_size_load_fn)
    with tf.Graph().as_default(), tf.device(tf.train.replica_device_setter(ps_tasks=2, ps_strategy=strategy)):
        sizes = ([100], [10], [10], [200])
        made = [tf.get_variable(f"v{i}", shape, use_resource=use_resource) for i, shape in enumerate(sizes)]
    assert [v.device for v in made] == [f"/job:ps/task:{i}" for i in (0, 1, 1, 1)]
