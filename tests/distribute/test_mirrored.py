"""Strategies of one process: MirroredStrategy over two CPUs, OneDeviceStrategy. The values are TensorFlow's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock as tf
from penstock.eager.runtime import runtime
from penstock.errors import OutOfRangeError
from penstock.master.master import Master
from penstock.worker.devices import local_devices
from penstock.worker.worker import Worker

NONE, SUM, MEAN = tf.VariableAggregation.NONE, tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN
FIRST, ON_READ = tf.VariableAggregation.ONLY_FIRST_REPLICA, tf.VariableSynchronization.ON_READ


@pytest.fixture(scope="module", autouse=True)
def _two_cpus() -> Iterator[None]:
    runtime.move(Master([Worker(local_devices(device_count={"CPU": 2}))], soft_placement=True))
    yield
    runtime.move(None)


@pytest.fixture
def strategy() -> Iterator[Any]:
    yield tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert not [t for t in threading.enumerate() if t.name.startswith("penstock-replica")]


@pytest.fixture(params=[False, True], ids=["eager", "function"])
def run(request: pytest.FixtureRequest, strategy: Any) -> Callable[..., Any]:
    """`strategy.run`, called as it is or in a tf.function."""

    def run(fn: Callable[..., Any], args: Any = ()) -> Any:
        if request.param:
            return tf.function(lambda *a: strategy.run(fn, args=a))(*args)
        return strategy.run(fn, args=args)

    return run


def context() -> Any:
    return tf.distribute.get_replica_context()


def number() -> Any:
    """1.0 in the first replica, 2.0 in the second."""
    return tf.constant(context().replica_id_in_sync_group + 1.0)


def arrays(value: Any) -> Any:
    return [np.asarray(v).tolist() for v in value]


def test_each_replica_runs_on_its_device(strategy: Any) -> None:
    assert strategy.num_replicas_in_sync == 2
    found = strategy.run(lambda: (number() + 1.0).device)
    assert [name[-5:] for name in found.values] == ["CPU:0", "CPU:1"]


def test_structures_of_results_and_arguments(run: Callable[..., Any], strategy: Any) -> None:
    per = strategy.experimental_distribute_values_from_function(lambda c: c.replica_id_in_sync_group * 10.0)
    found = run(lambda x, y: {"s": (x["k"] + y, None)}, args=({"k": per}, 1.0))
    assert arrays(found["s"][0].values) == [1.0, 11.0]
    assert found["s"][1] is None


def test_a_variable_has_a_copy_on_each_device(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(1.0, name="v")
    assert isinstance(v, tf.Variable) and v.name == "v:0"
    assert [(c.name, c.device[-5:]) for c in v.values] == [("v:0", "CPU:0"), ("v/replica_1:0", "CPU:1")]
    assert strategy.extended.variable_created_in_scope(v)
    assert strategy.extended.value_container(v.values[1]) is v


WRITES = [
    # aggregation, copies after assign(1 and 2), after assign_add(1 and 2), value outside of the replicas
    (NONE, [1.0, 2.0], [2.0, 4.0], 2.0),
    (SUM, [3.0, 3.0], [6.0, 6.0], 6.0),
    (MEAN, [1.5, 1.5], [3.0, 3.0], 3.0),
    (FIRST, [1.0, 1.0], [2.0, 2.0], 2.0),
]


@pytest.mark.parametrize(("aggregation", "assigned", "added", "whole"), WRITES)
def test_writes_of_replicas(
    run: Callable[..., Any], strategy: Any, aggregation: Any, assigned: list[float], added: list[float], whole: float
) -> None:
    with strategy.scope():
        v = tf.Variable(1.0, aggregation=aggregation)

    def write(method: str) -> Any:
        getattr(v, method)(number())
        return v.read_value()

    assert arrays(run(lambda: write("assign")).values) == assigned == arrays(v.values)
    assert arrays(run(lambda: write("assign_add")).values) == added == arrays(v.values)
    assert v.numpy() == whole
    assert v.assign(4.0).numpy() == 4.0
    assert v.assign_add(4.0) is v
    assert arrays(v.values) == [8.0, 8.0]


@pytest.mark.parametrize(("aggregation", "whole", "copies"), [(SUM, 3.0, [2.0, 2.0]), (MEAN, 1.5, [4.0, 4.0])])
def test_variables_that_are_aggregated_when_read(
    run: Callable[..., Any], strategy: Any, aggregation: Any, whole: float, copies: list[float]
) -> None:
    with strategy.scope():
        v = tf.Variable(0.0, synchronization=ON_READ, aggregation=aggregation)
    assert not v.trainable

    def write() -> Any:
        v.assign_add(number())
        return v.read_value()

    assert arrays(run(write).values) == [1.0, 2.0]
    assert v.numpy() == whole
    assert v.assign(4.0).numpy() == 4.0
    assert arrays(v.values) == copies
    if aggregation is SUM:
        with pytest.raises(ValueError, match="but not added to"):
            v.assign_add(1.0)


def test_reading_copies_that_differ_without_an_aggregation_is_refused(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(0.0, synchronization=ON_READ)
    with pytest.raises(ValueError, match="no ReduceOp for the aggregation"):
        v.numpy()


def test_scatters_of_replicas_are_summed(run: Callable[..., Any], strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(tf.zeros((3, 1)), aggregation=SUM)

    def write() -> None:
        row = context().replica_id_in_sync_group
        v.scatter_add(tf.IndexedSlices(tf.constant([[5.0], [7.0]]), tf.constant([row, 2])))

    run(write)
    assert arrays(v.values) == [[[5.0], [5.0], [14.0]]] * 2


def test_all_reduce_and_its_gradient(run: Callable[..., Any]) -> None:
    def replica() -> Any:
        x = tf.constant([1.0, 2.0]) * number()
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = context().all_reduce("SUM", x)
            z = tf.reduce_sum(y * y)
        return y, tape.gradient(z, x), context().all_reduce(tf.distribute.ReduceOp.MEAN, {"a": number()})

    total, gradient, mean = run(replica)
    assert arrays(total.values) == [[3.0, 6.0]] * 2
    assert arrays(gradient.values) == [[12.0, 24.0]] * 2
    assert arrays(mean["a"].values) == [1.5, 1.5]


def test_all_reduce_of_indexed_slices_stays_sparse(run: Callable[..., Any], strategy: Any) -> None:
    def replica() -> Any:
        row = context().replica_id_in_sync_group
        own = tf.IndexedSlices(tf.ones((1, 1)) * number(), tf.constant([row]), tf.constant([3, 1]))
        total = context().all_reduce("MEAN", own)
        return tf.convert_to_tensor(total)

    for found in strategy.experimental_local_results(run(replica)):
        assert found.numpy().tolist() == [[0.5], [1.0], [0.0]]


def test_all_gather_and_its_gradient(run: Callable[..., Any]) -> None:
    def replica() -> Any:
        rows = context().replica_id_in_sync_group + 1
        x = tf.ones((rows, 2)) * number()
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = context().all_gather(x, 0)
            z = tf.reduce_sum(y * [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        return y, tape.gradient(z, x)

    joined, gradient = run(replica)
    assert arrays(joined.values) == [[[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]] * 2
    assert arrays(gradient.values) == [[[2.0, 4.0]], [[6.0, 8.0], [10.0, 12.0]]]


def test_a_function_in_replicas(run: Callable[..., Any], strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(3.0)
    inner = tf.function(lambda x: x * v)
    v.values[1].assign(5.0)
    assert arrays(run(lambda: inner(number())).values) == [3.0, 10.0]


def test_merge_call(run: Callable[..., Any]) -> None:
    def merge(strategy: Any, x: Any, k: float) -> Any:
        assert tf.distribute.in_cross_replica_context()
        return strategy.reduce("SUM", x, axis=None) + k

    found = run(lambda: context().merge_call(merge, args=(number(),), kwargs={"k": 10.0}))
    assert found.numpy() == 13.0


def test_control_flow_of_a_merge_is_converted(run: Callable[..., Any], strategy: Any) -> None:
    def merge(strategy: Any, x: Any) -> Any:
        total = strategy.reduce("SUM", x, axis=None)
        if total > 2.0:
            total = total * 10.0
        return total

    assert run(lambda: context().merge_call(merge, args=(number(),))).numpy() == 30.0


def test_gradients_of_a_mirrored_variable(run: Callable[..., Any], strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(3.0, aggregation=SUM)

    def replica() -> Any:
        with tf.GradientTape() as tape:
            loss = v * v * number()
        gradient = tape.gradient(loss, v)
        v.assign_sub(0.1 * gradient)
        return gradient

    assert arrays(run(replica).values) == [6.0, 12.0]
    np.testing.assert_allclose(arrays(v.values), [1.2, 1.2], rtol=1e-6)


def test_a_variable_that_replicas_make(run: Callable[..., Any]) -> None:
    box: dict[str, Any] = {}

    def replica() -> Any:
        if "v" not in box:
            box["v"] = tf.Variable(5.0)
        return box["v"].read_value()

    assert arrays(run(replica).values) == [5.0, 5.0]
    assert [c.device[-5:] for c in box["v"].values] == ["CPU:0", "CPU:1"]


def test_reduce_and_gather(strategy: Any) -> None:
    per = strategy.run(lambda: number() + [0.0, 1.0, 2.0])
    assert strategy.reduce("SUM", per, axis=None).numpy().tolist() == [3.0, 5.0, 7.0]
    assert strategy.reduce("MEAN", per, axis=None).numpy().tolist() == [1.5, 2.5, 3.5]
    assert strategy.reduce("SUM", per, axis=0).numpy() == 15.0
    assert strategy.reduce("mean", per, axis=0).numpy() == 2.5
    assert strategy.gather(per, axis=0).numpy().tolist() == [1.0, 2.0, 3.0, 2.0, 3.0, 4.0]
    assert strategy.reduce("MEAN", tf.constant(1.0), axis=None).numpy() == 1.0
    with pytest.raises(ValueError, match="one value and not one per replica"):
        strategy.reduce("SUM", tf.constant(1.0), axis=None)


def test_update_changes_each_copy(strategy: Any) -> None:
    with strategy.scope():
        v = tf.Variable(1.0)
        per = strategy.experimental_distribute_values_from_function(lambda c: c.replica_id_in_sync_group + 1.0)
        strategy.extended.update(v, lambda copy, d: copy.assign_add(d), args=(per,))
    assert arrays(v.values) == [2.0, 3.0]


def test_an_error_of_one_replica_ends_the_others(run: Callable[..., Any]) -> None:
    def replica() -> Any:
        if context().replica_id_in_sync_group == 1:
            raise ValueError("the second")
        return context().all_reduce("SUM", tf.constant(1.0))

    with pytest.raises(ValueError, match="the second"):
        run(replica)


def test_replicas_that_do_not_meet(run: Callable[..., Any]) -> None:
    def replica() -> Any:
        if context().replica_id_in_sync_group == 0:
            return context().all_reduce("SUM", tf.constant(1.0))
        return tf.constant(1.0)

    with pytest.raises(RuntimeError, match="others have ended"):
        run(replica)


def test_a_merge_inside_of_a_function_of_a_replica_is_refused(strategy: Any) -> None:
    with pytest.raises(RuntimeError, match=r"Put the tf.function around strategy.run"):
        strategy.run(tf.function(lambda: context().all_reduce("SUM", tf.constant(1.0))))


def test_control_flow_of_replicas_is_converted(run: Callable[..., Any]) -> None:
    def replica(x: Any) -> Any:
        if number() > x:
            return tf.constant(10.0)
        return -x

    assert arrays(run(replica, args=(tf.constant(1.5),)).values) == [-1.5, 10.0]


def test_a_dataset_is_shared_out(strategy: Any) -> None:
    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.range(10).batch(4))
    assert [arrays(b.values) for b in batches] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], [9]]]


def test_a_dataset_of_a_function_gives_an_element_to_each_replica(strategy: Any) -> None:
    def make(given: Any) -> Any:
        assert (given.num_input_pipelines, given.input_pipeline_id, given.num_replicas_in_sync) == (1, 0, 2)
        return tf.data.Dataset.range(5).batch(given.get_per_replica_batch_size(4))

    steps = strategy.distribute_datasets_from_function(make)
    assert [arrays(step.values) for step in steps] == [[[0, 1], [2, 3]], [[4], []]]


def test_an_iterator_is_advanced_by_each_call_of_a_function(strategy: Any) -> None:
    def make(given: Any) -> Any:
        return tf.data.Dataset.range(8).batch(given.get_per_replica_batch_size(4))

    whole = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4))
    for dataset in (whole, strategy.distribute_datasets_from_function(make)):
        iterator = iter(dataset)

        @tf.function
        def step(iterator: Any) -> Any:
            return strategy.run(lambda x: x * 10, args=(next(iterator),))

        assert arrays(step(iterator).values) == [[0, 10], [20, 30]]
        assert arrays(step(iterator).values) == [[40, 50], [60, 70]]
        with pytest.raises(OutOfRangeError):
            step(iterator)
        with pytest.raises(OutOfRangeError):
            iterator.get_next()


def test_one_device() -> None:
    strategy = tf.distribute.OneDeviceStrategy("CPU:1")
    with strategy.scope():
        v = tf.Variable(2.0)
    assert v.device.endswith("CPU:1") and strategy.num_replicas_in_sync == 1
    assert strategy.run(lambda x: (x * v, (v + 1.0).device[-5:]), args=(3.0,))[1] == "CPU:1"
    assert strategy.reduce("SUM", strategy.run(lambda: v + 0.0), axis=None).numpy() == 2.0
    assert strategy.run(lambda: context().all_reduce("SUM", tf.constant(2.0))).numpy() == 2.0


def test_devices_must_differ() -> None:
    with pytest.raises(ValueError, match="different devices"):
        tf.distribute.MirroredStrategy(["CPU:0", "/cpu:0"])


def test_the_default_strategy() -> None:
    strategy = tf.distribute.get_strategy()
    assert not tf.distribute.has_strategy() and strategy.num_replicas_in_sync == 1
    assert strategy.run(lambda x: x + 1.0, args=(tf.constant(1.0),)).numpy() == 2.0
    assert strategy.reduce("SUM", tf.constant(1.0), axis=None).numpy() == 1.0


def test_a_strategy_without_a_scope(strategy: Any) -> None:
    tf.distribute.experimental_set_strategy(strategy)
    try:
        assert tf.distribute.get_strategy() is strategy and tf.distribute.in_cross_replica_context()
        assert len(tf.Variable(1.0).values) == 2
        with strategy.scope():
            pass
    finally:
        tf.distribute.experimental_set_strategy(None)
    assert not tf.distribute.has_strategy()
    with strategy.scope(), pytest.raises(RuntimeError, match=r"inside a `tf.distribute.Strategy` scope"):
        tf.distribute.experimental_set_strategy(None)


def test_scopes_belong_to_a_thread(strategy: Any) -> None:
    made = []
    with strategy.scope():
        thread = threading.Thread(target=lambda: made.append((tf.distribute.has_strategy(), tf.Variable(1.0))))
        thread.start()
        thread.join(60)
    ((inside, variable),) = made
    assert not inside and not hasattr(variable, "values")
