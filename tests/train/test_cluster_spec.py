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


def test_parameter_servers_of_one_host_get_different_cores() -> None:
    spec = tf.train.ClusterSpec({"ps": ["a:1", "a:2", "b:1", "a:3"], "worker": ["a:4", "c:1"]})
    parts = [spec.part_of_cores(address, range(8)) for address in ("a:1", "a:2", "a:3")]
    assert [list(part) for part in parts] == [[0, 1], [2, 3, 4], [5, 6, 7]]
    for alone in ("b:1", "a:4", "c:1", "elsewhere:1"):
        assert list(spec.part_of_cores(alone, range(8))) == list(range(8))
    assert [list(spec.part_of_cores(address, [3, 5])) for address in ("a:1", "a:2", "a:3")] == [[3], [5], [3]]
