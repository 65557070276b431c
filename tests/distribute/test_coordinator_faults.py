"""A coordinator whose workers are killed, frozen or cut off: each closure counts once."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from cluster.processes import DEADLINE, Cluster
from distribute.counting import Counters, Gated, resolver_for, restart

import penstock as tf
from penstock.distribute.coordinator.queue import DEPTH
from penstock.distribute.synchronous import GradientExchange
from penstock.eager.cluster import disconnect

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def strategy(cluster: Cluster) -> Any:
    return tf.distribute.ParameterServerStrategy(resolver_for(cluster.spec))


@pytest.fixture
def coordinator(strategy: Any) -> Any:
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def test_worker_killed_between_functions(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    counters = Counters(strategy)
    for _ in range(5):
        coordinator.schedule(counters.add)
    coordinator.join()
    restart(cluster, "worker0")
    for _ in range(5):
        coordinator.schedule(counters.add)
    coordinator.join()
    assert counters.values() == [10, 10]


@pytest.mark.long
def test_workers_whose_loss_was_noticed_while_they_had_nothing_to_run(
    cluster: Cluster, strategy: Any, coordinator: Any
) -> None:
    counters = Counters(strategy)
    coordinator.schedule(counters.add)
    coordinator.join()
    with coordinator._changed:
        assert coordinator._changed.wait_for(lambda: all(coordinator._queue.present), DEADLINE)
    for number, worker in enumerate(coordinator._workers):
        noticed = threading.Event()
        with worker._task._link.watched(noticed.set):
            cluster.kill(f"worker{number}")
            assert noticed.wait(DEADLINE)
    cluster.start("worker0", "worker1")
    coordinator.schedule(counters.add)
    coordinator.join()
    assert counters.values() == [2, 2]


def cut(cluster: Cluster, coordinator: Any, number: int) -> None:
    task = coordinator._workers[number]._task
    if task is not None and task.is_connected:
        task._link.channel.close(tell_peer=False)


def pause(cluster: Cluster, coordinator: Any, number: int) -> None:
    cluster.freeze(f"worker{number}")
    cluster.thaw(f"worker{number}")


FAULTS: list[Callable[[Cluster, Any, int], None]] = [
    lambda cluster, coordinator, number: restart(cluster, f"worker{number}"),
    cut,
    pause,
]


@pytest.mark.parametrize("seed", range(int(os.environ.get("COORDINATOR_CHAOS", "1"))))
def test_any_mix_of_faults_counts_each_closure_once(
    cluster: Cluster, strategy: Any, coordinator: Any, seed: int
) -> None:
    chance = random.Random(seed)
    counters = Counters(strategy)
    scheduled = 0
    for _ in range(4):
        results = [coordinator.schedule(counters.add) for _ in range(150)]
        scheduled += len(results)
        results[chance.randrange(100)].fetch()  # some have run, some run, some wait
        for number in chance.choice(([0], [1], [0, 1])):
            chance.choices(FAULTS, [2, 1, 1])[0](cluster, coordinator, number)
    coordinator.join()
    assert counters.values() == [scheduled, scheduled]


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.long), 2])
def test_worker_killed_in_a_function(cluster: Cluster, strategy: Any, coordinator: Any, times: int) -> None:
    gated = Gated(strategy)
    coordinator.schedule(gated.step)
    for _ in range(times):
        gated.arrive()  # one worker is in the function: kill both, since it is not known which
        restart(cluster, "worker0")
        restart(cluster, "worker1")
    gated.arrive()
    for _ in range(times + 2):  # for runs that are lost, too, as long as the parameter server has not noticed
        gated.open()
    coordinator.join()
    assert gated.values() == [1, 1]


def running_one(coordinator: Any) -> int:
    """The worker that has the function, which arrived at a gate."""
    return 0 if coordinator._queue.running[0] else 1


@pytest.mark.usefixtures("silent_tasks_are_lost")
def test_a_worker_frozen_in_a_function_writes_nothing_when_it_comes_back(
    cluster: Cluster, strategy: Any, coordinator: Any
) -> None:
    gated, counters = Gated(strategy), Counters(strategy)
    coordinator.schedule(gated.step)
    gated.arrive()
    frozen = f"worker{running_one(coordinator)}"
    cluster.freeze(frozen)
    gated.arrive()  # the other worker, after the first counts as lost
    for _ in range(2):  # the parameter server may not have noticed yet that the first one is lost
        gated.open()
    coordinator.join()
    cluster.thaw(frozen)
    for _ in range(50):
        coordinator.schedule(counters.add)
    coordinator.join()
    assert gated.values() == [1, 1]
    assert counters.values() == [50, 50]


def test_a_connection_that_is_cut_while_both_sides_live(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    gated, counters = Gated(strategy), Counters(strategy)
    coordinator.schedule(gated.step)
    gated.arrive()
    cut = running_one(coordinator)
    coordinator._workers[cut]._task._link.channel.close(tell_peer=False)
    gated.arrive()
    for _ in range(2):  # the worker that was cut off may not have ended its run yet
        gated.open()
    coordinator.join()
    assert gated.values() == [1, 1]
    for _ in range(50):
        coordinator.schedule(counters.add)
    coordinator.join()
    assert counters.values() == [50, 50]


@pytest.mark.long
def test_a_slow_worker_is_not_waited_for_and_not_lost(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    """A worker that pauses for less than the time after which it counts as lost: the other one does its share."""
    counters = Counters(strategy)
    coordinator.schedule(counters.add)
    coordinator.join()
    results = [coordinator.schedule(counters.add) for _ in range(300)]
    cluster.freeze("worker0")
    results[-DEPTH * 2].fetch()  # all but what the frozen one has
    cluster.thaw("worker0")
    coordinator.join()
    assert counters.values() == [301, 301]


def test_a_worker_killed_in_synchronous_training(cluster: Cluster) -> None:
    strategy = tf.distribute.ParameterServerStrategy(resolver_for(cluster.spec), synchronous=True)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight, steps = tf.Variable(0.0), tf.Variable(0)
    exchange = GradientExchange(strategy, [weight], lambda means: weight.assign_sub(means[0]))

    @tf.function
    def step() -> Any:
        exchange.add([tf.constant(1.0)])
        return steps.assign_add(1).read_value()

    results = [coordinator.schedule(step) for _ in range(60)]
    results[20].fetch()
    restart(cluster, "worker0")
    coordinator.join()
    assert int(steps.numpy()) == 60
    assert float(weight.numpy()) == -exchange.updates  # the mean of gradients that are all 1
    assert 30 <= exchange.updates <= 60


@pytest.mark.parametrize("backup_workers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_gradient_that_was_taken_before_its_worker_died_is_not_waited_for(
    cluster: Cluster, backup_workers: int
) -> None:
    """The function runs again, in the same round or (with a backup worker) in a later one, and adds nothing."""
    strategy = tf.distribute.ParameterServerStrategy(
        resolver_for(cluster.spec), synchronous=True, backup_workers=backup_workers
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = [tf.Variable(0.0), tf.Variable(0.0)]
    exchange = GradientExchange(
        strategy, weights, lambda means: [w.assign_sub(g) for w, g in zip(weights, means, strict=True)]
    )
    with tf.device("/job:ps/task:0"):
        arrived, gate = tf.queue.FIFOQueue(10, tf.int32), tf.queue.FIFOQueue(10, tf.int32)

    @tf.function
    def step() -> None:
        exchange.add([tf.constant(1.0), tf.constant(2.0)])

    @tf.function
    def held() -> None:
        exchange.add([tf.constant(1.0), tf.constant(2.0)])
        counts = [accumulator.num_accumulated() for accumulator in exchange._accumulators]
        with tf.control_dependencies([arrived.enqueue(tf.add_n(counts))]):  # else it may wait at the gate first
            gate.dequeue()

    with coordinator._changed:
        assert coordinator._changed.wait_for(lambda: all(coordinator._queue.present), DEADLINE)
    coordinator.schedule(held)
    assert int(arrived.dequeue()) == 2  # both servers have taken its gradients
    victim = running_one(coordinator)
    coordinator.schedule(step).fetch()
    restart(cluster, f"worker{victim}")
    arrived.dequeue()
    for _ in range(2):  # the parameter server may not have noticed yet that the victim is lost
        gate.enqueue(1)
    with coordinator._waiting(), coordinator._changed:
        assert coordinator._changed.wait_for(coordinator._is_over, DEADLINE)
    assert (exchange.updates, [float(w.numpy()) for w in weights]) == (1, [-1.0, -2.0])


@pytest.mark.long
def test_idle_workers_run_the_functions_of_one_that_does_not_come_back(
    cluster: Cluster, strategy: Any, coordinator: Any
) -> None:
    counters = Counters(strategy)
    with tf.device("/job:ps/task:0"):
        arrived, gate = tf.queue.FIFOQueue(10, tf.int32), tf.queue.FIFOQueue(10, tf.int32)

    @tf.function
    def step() -> None:
        arrived.enqueue(1)
        gate.dequeue()
        counters.first.assign_add(1)

    with coordinator._changed:
        assert coordinator._changed.wait_for(lambda: all(coordinator._queue.present), DEADLINE)
    coordinator.schedule(step)
    arrived.dequeue()
    cluster.kill("worker0" if coordinator._queue.running[0] else "worker1")
    arrived.dequeue()
    for _ in range(2):  # the parameter server may not have noticed yet that the other one is lost
        gate.enqueue(1)
    coordinator.join()
    assert counters.values()[0] == 1


@pytest.mark.long
def test_worker_killed_while_it_makes_its_dataset(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    counters = Counters(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.range(1000).repeat()))

    @tf.function
    def step(iterator: Any) -> Any:
        counters.first.assign_add(1)
        return next(iterator)

    restart(cluster, "worker1")
    results = [coordinator.schedule(step, args=(iterator,)) for _ in range(100)]
    restart(cluster, "worker0")
    coordinator.join()
    assert counters.values()[0] == 100
    assert all(0 <= int(r.fetch()) < 1000 for r in results)


@pytest.mark.long
def test_an_error_of_the_program_while_a_worker_is_lost(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    counters = Counters(strategy)

    @tf.function
    def bad(x: Any) -> Any:
        tf.debugging.assert_greater(x, 0)
        return x

    coordinator.schedule(counters.add)
    coordinator.join()
    cluster.kill("worker0")
    failed = coordinator.schedule(bad, args=(tf.constant(-1),))
    with pytest.raises(tf.errors.InvalidArgumentError):
        coordinator.join()
    with pytest.raises(tf.errors.InvalidArgumentError):
        failed.fetch()
    cluster.start("worker0")
    coordinator.schedule(counters.add)
    coordinator.join()
    assert counters.values() == [2, 2]


@pytest.mark.long
def test_results_stay_after_their_worker_has_died(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    counters = Counters(strategy)
    results = [coordinator.schedule(counters.add) for _ in range(4)]
    coordinator.join()
    cluster.kill("worker0")
    cluster.kill("worker1")
    assert sorted(int(r.fetch()) for r in results) == [1, 2, 3, 4]


@pytest.mark.long
@pytest.mark.usefixtures("silent_tasks_are_lost")
def test_a_frozen_worker_counts_as_lost(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    counters = Counters(strategy)
    for _ in range(10):
        coordinator.schedule(counters.add)
    coordinator.join()
    cluster.freeze("worker0")
    for _ in range(50):
        coordinator.schedule(counters.add)
    coordinator.join()
    assert counters.values() == [60, 60]
    cluster.thaw("worker0")
    for _ in range(50):
        coordinator.schedule(counters.add)
    coordinator.join()
    assert counters.values() == [110, 110]


@pytest.mark.long
def test_a_coordinator_that_closes_does_not_wait_for_a_lost_worker(
    cluster: Cluster, strategy: Any, coordinator: Any
) -> None:
    counters = Counters(strategy)
    coordinator.schedule(counters.add)
    coordinator.join()
    cluster.kill("worker0")
    cluster.kill("worker1")
    disconnect()
    assert not any(thread.is_alive() for thread in coordinator._threads)


@pytest.mark.long
def test_a_table_is_made_again_after_its_worker_was_lost(cluster: Cluster, strategy: Any, coordinator: Any) -> None:
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant(["a", "b"]), tf.constant([1, 2]))
    table = tf.lookup.StaticHashTable(initializer, default_value=-1)

    @tf.function
    def look_up(keys: Any) -> Any:
        return table.lookup(keys)

    for _ in range(2):
        results = [coordinator.schedule(look_up, args=(tf.constant(["b", "x"]),)) for _ in range(20)]
        assert [r.fetch().tolist() for r in results] == [[2, -1]] * 20
        restart(cluster, "worker0")
        restart(cluster, "worker1")
