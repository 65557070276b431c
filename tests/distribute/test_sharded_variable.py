"""ShardedVariable and ParameterServerStrategy beyond the golden programs: where TensorFlow's way is not the best."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from distribute.golden import clusters

import penstock as tf
from penstock.distribute.sharded_variable import ShardedVariable
from penstock.errors import InvalidArgumentError

FixedShards = tf.distribute.experimental.partitioners.FixedShardsPartitioner


@pytest.fixture(scope="module")
def resolver() -> Iterator[Any]:
    with clusters() as known:
        yield tf.distribute.cluster_resolver.SimpleClusterResolver(known.spec(2, 2), rpc_layer="grpc")


@pytest.fixture
def strategy(resolver: Any) -> Any:
    return tf.distribute.ParameterServerStrategy(resolver, FixedShards(3))


def sharded(strategy: Any, value: Any, **options: Any) -> Any:
    with strategy.scope():
        return tf.Variable(value, **options)


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize("shape", [(6, 2), (8, 2), (7, 3), (7,), ()])
def test_a_value_of_another_shape_is_refused_before_a_shard_is_written(
    strategy: Any, method: str, shape: tuple[int, ...]
) -> None:
    v = sharded(strategy, tf.zeros((7, 2)))
    with pytest.raises(ValueError, match=r"shape \(7, 2\), received shape"):
        getattr(v, method)(tf.ones(shape))
    assert not v.numpy().any()


def test_a_value_of_unknown_shape_is_checked_when_it_is_there(strategy: Any) -> None:
    v = sharded(strategy, tf.zeros((7,)))

    @tf.function
    def write(size: Any) -> None:
        x = tf.range(9.0)
        v.assign(tf.boolean_mask(x, x < size))

    write(tf.constant(7.0))
    for size in (6.0, 8.0):
        with pytest.raises(InvalidArgumentError):
            write(tf.constant(size))
    assert v.numpy().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_sparse_read_keeps_the_order_of_the_indices(strategy: Any) -> None:
    v = sharded(strategy, tf.range(7.0))
    assert v.sparse_read([6, 0, 3, 0]).numpy().tolist() == [6.0, 0.0, 3.0, 0.0]
    assert tf.function(lambda i: v.sparse_read(i))(tf.constant([6, 0, 3, 0])).numpy().tolist() == [6.0, 0.0, 3.0, 0.0]


def test_new_axes_and_ellipses_are_those_of_the_whole(strategy: Any) -> None:
    value = np.arange(14.0, dtype=np.float32).reshape(7, 2)
    v = sharded(strategy, value)
    for spec in [(None, slice(1, 3)), (..., 1), (None,), (...,), ()]:
        np.testing.assert_array_equal(v[spec].numpy(), value[spec])
    assert tf.identity(v).numpy().tolist() == value.tolist()


@pytest.mark.parametrize("rows", [3, 7, 8])
def test_slices_are_numpys(strategy: Any, rows: int) -> None:
    value = np.arange(2.0 * rows, dtype=np.float32).reshape(rows, 2)
    v = sharded(strategy, value)
    bounds = [None, -rows - 1, -2, 0, 1, rows - 1, rows + 1]
    for start in bounds:
        for stop in bounds:
            for step in (None, 2, -1, -3):
                np.testing.assert_array_equal(v[start:stop:step].numpy(), value[start:stop:step])


def test_shards_know_their_place_in_a_checkpoint(strategy: Any) -> None:
    v = sharded(strategy, tf.zeros((7, 2)), name="w")
    specs = [s._get_save_slice_info().spec for s in v.variables]
    assert specs == ["7 2 0,3:0,2", "7 2 3,2:0,2", "7 2 5,2:0,2"]


def test_shards_that_do_not_fit_together() -> None:
    three, two, other = tf.Variable(tf.zeros((3,))), tf.Variable(tf.zeros((2,))), tf.Variable(tf.zeros((2, 2)))
    assert ShardedVariable([three, two]).shape == [5]
    with pytest.raises(ValueError, match=r"5 rows in 2 shards are \[3, 2\], received \[2, 3\]"):
        ShardedVariable([two, three])
    with pytest.raises(ValueError, match="agree in type"):
        ShardedVariable([three, other])
    with pytest.raises(TypeError, match="list of variables"):
        ShardedVariable([])


def test_a_function_that_uses_several_shards_gathers_on_their_servers(strategy: Any) -> None:
    v = sharded(strategy, tf.reshape(tf.range(14.0), (7, 2)))

    @tf.function
    def look(ids: Any) -> Any:
        return tf.nn.embedding_lookup(v, ids)

    concrete = look.get_concrete_function(tf.TensorSpec([None], tf.int32))
    gathers = [op for op in concrete.graph.get_operations() if op.type == "ResourceGather"]
    groups = {group for op in gathers for group in op.colocation_groups()}
    assert len(gathers) == len(groups) == 3
    assert look(tf.constant([6, 0, 4])).numpy().tolist() == [[12.0, 13.0], [0.0, 1.0], [8.0, 9.0]]


def test_gradients_in_a_function(strategy: Any) -> None:
    v = sharded(strategy, tf.reshape(tf.range(14.0), (7, 2)))

    @tf.function
    def step(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.embedding_lookup(v, ids))
        for shard, gradient in zip(v.variables, tape.gradient(loss, v.variables), strict=True):
            shard.scatter_sub(gradient)
        return loss

    assert step(tf.constant([6, 0, 6])).numpy() == 51.0
    expected = np.arange(14.0).reshape(7, 2)
    expected[[0, 6]] -= [[1.0], [2.0]]
    np.testing.assert_array_equal(v.numpy(), expected)


def test_a_partitioner_may_ask_for_more_shards_than_rows(resolver: Any) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver, lambda shape, dtype: [9, 1])
    assert len(sharded(strategy, tf.zeros((3, 2))).variables) == 3


@pytest.mark.parametrize("initial", [tf.ones((6, 2)), lambda: tf.ones((6, 2)), lambda **parts: tf.ones((1, 2))])
@pytest.mark.parametrize("rows", [5, 7])
def test_an_initial_value_of_another_shape_is_refused(strategy: Any, initial: Any, rows: int) -> None:
    with pytest.raises(ValueError, match=rf"of shape \({rows}, 2\) is of shape \([16], 2\)"):
        sharded(strategy, initial, shape=(rows, 2), dtype=tf.float32)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"variable_partitioner": 3}, TypeError),
        ({"synchronous": True, "backup_workers": 2}, ValueError),
        ({"backup_workers": 1}, ValueError),
        ({"synchronous": True, "backup_workers": -1}, ValueError),
    ],
)
def test_arguments(resolver: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="received"):
        tf.distribute.ParameterServerStrategy(resolver, **options)


def test_settings_for_the_coordinator(resolver: Any) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver, synchronous=True, backup_workers=1)
    assert (strategy.synchronous, strategy.backup_workers) == (True, 1)
    assert strategy.cluster_resolver is resolver
    kind = "CPU" if jax.default_backend() == "cpu" else "GPU"
    assert strategy.extended.worker_devices == (f"/device:{kind}:0",)
