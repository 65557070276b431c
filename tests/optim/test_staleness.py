"""Bounded staleness and softsync: NumPy's values and records, waits, switches, restarts and errors."""

from __future__ import annotations

import collections
import contextlib
import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cluster.staleness_reference import RATE, Bounded, Softsync
from leaks import leak_check
from loopback import free_addresses
from stale_workers import DEADLINE, Worker, bounded, gated_workers, histogram, names, until
from typer.testing import CliRunner

import penstock.v1 as tf
from penstock.launch.cli import app
from penstock.ops.queue.clock_resources import Clock, GradientGroups
from penstock.worker.cancellation import Cancellation
from penstock.worker.step import Step

opt = tf.contrib.opt


@pytest.fixture(scope="module")
def targets() -> Iterator[list[str]]:
    """Two parameter servers and three workers in this process: the targets of the workers."""
    first, second, *workers = free_addresses(5)
    spec = {"ps": [first, second], "worker": workers}
    with leak_check(), contextlib.ExitStack() as stack:
        found = []
        for job, task in (("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1), ("worker", 2)):
            server = tf.train.Server(spec, job_name=job, task_index=task)
            stack.callback(server.stop)
            found.append(server.target)
        yield found[2:]


@pytest.fixture(autouse=True)
def own_graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


# Against NumPy


def _play(workers: list[Worker], reference: Any, events: int) -> None:
    """Makes random events that can happen, and compares all values after each."""
    dice = random.Random(7)
    for _ in range(events):
        reads = [(w, "read") for w in workers if reference.can_read(w.task)]
        worker, event = dice.choice([*reads, *((w, "push") for w in workers if reference.can_push(w.task))])
        if event == "read":
            worker.begin()
            reference.read(worker.task)
            continue
        worker.push()
        for task in reference.push(worker.task):
            workers[task].returned()
        if isinstance(reference, Bounded):  # a worker may wait, but its gradient must be applied
            clocks = [one.clock for one in reference.workers]
            until(lambda: worker.run(worker.clocks)[0].tolist() == clocks)  # noqa: B023
        found = worker.run(worker.values)
        for name, value in reference.values.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("staleness", [0, 1, 3, None, math.inf])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_bounded_staleness_against_numpy(targets: list[str], count: int, staleness: Any) -> None:
    reference = Bounded(count, math.inf if staleness is None else staleness)
    with gated_workers(targets, count, bounded(staleness, count), use_resource=count == 2) as workers:
        _play(workers, reference, 30)
        updates, clocks = workers[0].run(workers[0].record)
        assert histogram(updates) == collections.Counter(missed for missed, _ in reference.record)
        assert histogram(clocks) == collections.Counter(ahead for _, ahead in reference.record)
        assert workers[0].run(workers[0].clocks)[0].tolist() == [one.clock for one in reference.workers]


@pytest.mark.parametrize("count, settings, group", [(1, {"n": 1}, 1), (2, {"n": 1}, 2), (3, {"n": 3}, 1), (3, {}, 2)])
def test_softsync_against_numpy(targets: list[str], count: int, settings: dict[str, int], group: int) -> None:
    reference = Softsync(count, group, momentum=0.9)

    def make(name: str, task: int) -> Any:
        base = tf.train.MomentumOptimizer(RATE, 0.9)
        given = settings or {"replicas_to_aggregate": group}
        return opt.SoftsyncOptimizer(base, total_num_replicas=count, name=name, **given)

    with gated_workers(targets, count, make, use_resource=count == 2) as workers:
        _play(workers, reference, 40)
        assert histogram(workers[0].run(workers[0].record)) == collections.Counter(reference.record)
        if count == 3:
            assert max(reference.record) > 1  # so that something was divided


# Waiting


def test_a_slow_worker_holds_the_others_back(targets: list[str]) -> None:
    with gated_workers(targets, 3, bounded(0, 3)) as (slow, *fast):
        for clock in range(3):
            for worker in fast:
                worker.begin()
                worker.push()
            slow.begin()
            # All that the fast ones can do is wait: neither clock nor variables have moved.
            assert slow.run(slow.clocks)[0].tolist() == [clock] * 3 and slow.run(slow.step) == 3 * clock
            assert all(worker.thread.is_alive() for worker in fast)
            slow.push()
            for worker in (slow, *fast):
                worker.returned()
        updates, clocks = slow.run(slow.record)
        assert histogram(updates) == {0: 9} and histogram(clocks) == {0: 9}


def _race(workers: list[Worker], pauses: list[float], steps: int, order: list[int]) -> list[threading.Thread]:
    """Lets each worker run in a thread, with random pauses; notes the order in which steps end."""

    def run(worker: Worker) -> None:
        dice = random.Random(worker.task)
        for _ in range(steps):
            worker.run(worker.open)
            worker.run(worker.train)
            order.append(worker.task)
            time.sleep(dice.random() * pauses[worker.task])
        if isinstance(worker.rule, opt.BoundedStalenessOptimizer):
            worker.run(worker.leave)

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    return threads


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive(), "a worker still waits"


@pytest.mark.parametrize("staleness", [0, 2])
def test_the_record_never_exceeds_the_bound_under_random_delays(targets: list[str], staleness: int) -> None:
    order: list[int] = []
    with gated_workers(targets, 3, bounded(staleness, 3)) as workers:
        _join(_race(workers, [0.02, 0.002, 0.0], 20, order))
        updates, clocks = (histogram(rows) for rows in workers[0].run(workers[0].record))
        assert sum(clocks.values()) == sum(updates.values()) == 60 and max(clocks) <= staleness
        # From its read to its update each of two others may push what it was behind, and run ahead.
        assert max(updates) <= 2 * (2 * staleness + 1)
        assert workers[0].run(workers[0].step) == 60
    done = collections.Counter[int]()
    for task in order:
        done[task] += 1
        assert max(done.values()) - min(done[i] for i in range(3)) <= staleness + 1


def test_softsync_counts_every_gradient_once_under_random_delays(targets: list[str]) -> None:
    def make(name: str, task: int) -> Any:
        return opt.SoftsyncOptimizer(tf.train.GradientDescentOptimizer(RATE), 2, 3, name=name)

    with gated_workers(targets, 3, make) as workers:
        _join(_race(workers, [0.02, 0.002, 0.0], 20, []))
        record = histogram(workers[0].run(workers[0].record))
        assert sum(record.values()) == 60 and min(record) >= 0 and workers[0].run(workers[0].step) == 30


# Switching


def test_switching_while_all_run(targets: list[str]) -> None:
    with gated_workers(targets, 3, bounded(0, 3)) as workers:
        chief = workers[0]
        over = threading.Event()

        def run(worker: Worker) -> None:
            dice = random.Random(worker.task)
            while not over.is_set():
                worker.run(worker.open)
                worker.run(worker.train)
                time.sleep(dice.random() * 0.002 * worker.task)
            worker.run(worker.leave)

        threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        last = 0
        for bound in (-1, 2, 0, -1, 1):
            at = int(chief.run(chief.switch, {chief.new_bound: bound}))
            assert at >= last
            last = at
            until(lambda: chief.run(chief.clocks)[0].min() > last)  # noqa: B023
            assert chief.run(chief.clocks)[1] == bound
        before = histogram(chief.run(chief.record)[1])
        read = chief.run(chief.clocks)[0].max()
        until(lambda: chief.run(chief.clocks)[0].min() > read + 10)
        after = histogram(chief.run(chief.record)[1])
        over.set()
        _join(threads)
        # Since all workers are past the last switch, none was more than one clock ahead.
        assert sum(after.values()) >= sum(before.values()) + 20
        assert all(after[ahead] == before[ahead] for ahead in after if ahead > 1)


def test_a_switch_is_in_force_at_one_clock_for_all(targets: list[str]) -> None:
    """Worker 0 is ahead when the training becomes synchronous: worker 1 goes on at its clock, and both wait there."""
    with gated_workers(targets, 2, bounded(None, 2)) as (fast, slow):
        for _ in range(4):
            fast.whole_step()
        fast.begin()
        slow.begin()
        assert fast.run(fast.switch, {fast.new_bound: 0}) == 5
        fast.push()
        until(lambda: fast.run(fast.clocks)[0].tolist() == [5, 0])
        assert fast.thread.is_alive()
        slow.push()
        for worker in (slow, fast):
            worker.returned()
        assert fast.run(fast.clocks)[0].tolist() == [5, 5]
        for worker in (slow, fast):
            worker.begin()
        fast.push()
        slow.push()
        for worker in (slow, fast):
            worker.returned()
        assert histogram(fast.run(fast.record)[1])[0] >= 2  # those of clock 5


def test_becoming_asynchronous_lets_those_go_who_wait_for_a_dead_worker(targets: list[str]) -> None:
    with gated_workers(targets, 3, bounded(0, 3)) as (first, second, _):
        for worker in (first, second):
            worker.begin()
            worker.push()
        assert first.run(first.switch, {first.new_bound: -1}) == 0
        for worker in (first, second):
            worker.returned()
        first.whole_step()
        assert first.run(first.clocks)[0].tolist() == [2, 1, 0]
        assert first.run(first.switch, {first.new_bound: 1}) == 3  # worker 0 has begun clock 2


# Workers that come, go, and fail


def test_a_worker_that_comes_back_goes_on(targets: list[str]) -> None:
    with gated_workers(targets, 2, bounded(1, 2)) as (stays, dies):
        dies.begin()
        stays.whole_step()
        stays.begin()
        stays.push()  # clock 2 is too far ahead
        until(lambda: stays.run(stays.clocks)[0].tolist() == [2, 0])
        dies.session.close()  # as if it were killed in a step
        dies.thread.join(DEADLINE)
        assert stays.thread.is_alive()
        dies.session = tf.Session(dies.target, graph=dies.graph)
        dies.run(dies.join)
        assert stays.run(stays.clocks)[0].tolist() == [2, 2]
        stays.returned()
        dies.whole_step()
        stays.whole_step()
        assert stays.run(stays.clocks)[0].tolist() == [3, 3]


def test_nobody_waits_for_workers_that_have_left(targets: list[str]) -> None:
    with gated_workers(targets, 2, bounded(0, 2)) as (stays, leaves):
        stays.begin()
        stays.push()
        leaves.run(leaves.leave)
        stays.returned()
        stays.whole_step()
        leaves.run(leaves.join)  # comes back
        assert stays.run(stays.clocks)[0].tolist() == [2, 2]
        for worker in (stays, leaves):
            worker.run(worker.leave)  # all have left: another job starts anew
        assert stays.run(stays.clocks)[0].tolist() == [0, 0]


def test_a_step_of_before_is_refused_once_its_worker_has_joined_anew() -> None:
    """A worker whose connection was lost may leave a step behind that would still apply its gradient."""
    clock = Clock("clock", 2, 1)
    before, other, joining = (Step(Cancellation()) for _ in range(3))
    clock.arrive(0, 1.0, before)
    clock.join(0, 1.0, joining)
    for late in (clock.arrive, clock.advance):
        with pytest.raises(tf.errors.AbortedError, match="worker 0 has joined anew"):
            late(0, 1.0, before)
    clock.arrive(0, 1.0, other)
    assert clock.advance(0, 1.0, other) == 1 and clock.record.clocks == {0: 1}
    clock.close()


def test_a_step_that_waits_ends_when_its_worker_joins_anew() -> None:
    clock, errors = Clock("clock", 2, 0), []

    def wait() -> None:
        try:
            clock.arrive(0, DEADLINE, Step(Cancellation()))
        except tf.errors.AbortedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    until(lambda: clock.clocks()[0] == (0, True))
    assert clock.join(0, 1.0, Step(Cancellation())) == 0
    _join([thread])
    assert len(errors) == 1
    clock.close()


def test_groups_forget_gradients_that_were_lost() -> None:
    groups = GradientGroups("groups", 3)
    assert [groups.add(), groups.add()] == [False, False]
    groups.require(5)  # all are there, and some more that are not counted yet
    assert groups.add()
    assert [groups.add(), groups.add()] == [False, False]
    groups.require(0)
    assert [groups.add(), groups.add(), groups.add()] == [False, False, True]


def test_a_worker_that_never_reports_is_named(targets: list[str]) -> None:
    with gated_workers(targets, 3, bounded(0, 3, deadline=0.3)) as (first, second, _):
        for worker in (first, second):
            worker.begin()
            worker.push()
        for worker in (first, second):
            with pytest.raises(tf.errors.DeadlineExceededError, match=r"worker 2 \(has not reported\)"):
                worker.returned()
        assert first.run(first.step) == 0  # nothing was applied
    with gated_workers(targets, 2, bounded(1, 2, deadline=0.3)) as (first, late):
        late.run(late.join)
        first.whole_step()
        first.begin()
        first.push()
        with pytest.raises(tf.errors.DeadlineExceededError, match=r"begin clock 2.*worker 1 \(at clock 0\)"):
            first.returned()


def test_after_a_deadline_a_worker_joins_again() -> None:
    clock = Clock("clock", 2, 0)
    first, retried, other, joining = (Step(Cancellation()) for _ in range(4))
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"apply its gradient of clock 0: for 0.01 s .* worker 1"):
        clock.arrive(0, 0.01, first)
    clock.arrive(1, 1.0, other)
    clock.arrive(0, 1.0, retried)  # the gradient was not applied, so it may come again
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"begin clock 1: .* worker 1 \(at clock 0\)"):
        clock.advance(0, 0.01, retried)
    with pytest.raises(tf.errors.FailedPreconditionError, match="worker 0 may not begin clock 1"):
        clock.arrive(0, 1.0, first)
    assert clock.advance(1, 1.0, other) == 1 and clock.join(0, 1.0, joining) == 1
    clock.close()


# In training loops


def _train(target: str, task: int, name: str, make: Callable[[Any], Any], supervised: bool, steps: int) -> int:
    """A whole program of a worker: trains until the global step is `steps`. Returns how often it stepped."""
    with (
        tf.Graph().as_default(),
        tf.device(tf.train.replica_device_setter(2, worker_device=f"/job:worker/task:{task}")),
    ):
        with tf.variable_scope(name):
            step = tf.train.get_or_create_global_step()
            w = tf.get_variable("w", initializer=np.float32([1.0, 2.0]))
            table = tf.get_variable("table", initializer=np.ones([4, 2], np.float32))
        rule = make(tf.train.AdamOptimizer(0.01))
        train = rule.minimize(tf.reduce_sum(w * w) + tf.reduce_sum(tf.gather(table, [1, 3])), global_step=step)
        count = 0
        if supervised:
            init = rule.get_init_op()
            supervisor = tf.train.Supervisor(is_chief=task == 0, global_step=step, recovery_wait_secs=0.05)
            with supervisor.managed_session(target) as session:
                session.run(init)
                while session.run(step) < steps:
                    session.run(train)
                    count += 1
            return count
        hooks = [rule.make_session_run_hook(), tf.train.StopAtStepHook(last_step=steps)]
        with tf.train.MonitoredTrainingSession(target, task == 0, hooks=hooks, save_summaries_steps=None) as session:
            while not session.should_stop():
                session.run(train)
                count += 1
    return count


@pytest.mark.parametrize("supervised", [False, True], ids=["monitored", "supervisor"])
@pytest.mark.parametrize("kind", ["bounded", "softsync"])
def test_whole_programs(targets: list[str], kind: str, supervised: bool) -> None:
    name, counts = f"loop{next(names)}", {}

    def run(task: int) -> None:
        def make(base: Any) -> Any:
            if kind == "bounded":
                return opt.BoundedStalenessOptimizer(base, 1, 3, task, deadline_secs=DEADLINE, name=name)
            return opt.SoftsyncOptimizer(base, 2, 3, name=name)

        counts[task] = _train(targets[task], task, name, make, supervised, 20)

    threads = [threading.Thread(target=run, args=(task,), daemon=True) for task in range(3)]
    for thread in threads:
        thread.start()
    _join(threads)
    assert sum(counts.values()) >= (20 if kind == "bounded" else 40)


def test_a_wrong_number_of_workers(targets: list[str]) -> None:
    rule = opt.BoundedStalenessOptimizer(tf.train.GradientDescentOptimizer(0.1), 0, 4, 0, name="wrong")
    soft = opt.SoftsyncOptimizer(tf.train.GradientDescentOptimizer(0.1), 2, 4, name="wrong_soft")
    for each in (rule, soft):
        with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
            step = tf.train.get_or_create_global_step()
            each.minimize(tf.reduce_sum(tf.get_variable(f"w{next(names)}", [2])), global_step=step)
            with pytest.raises(ValueError, match="total_num_replicas is 4, but the cluster has 3 tasks that train"):
                tf.train.MonitoredTrainingSession(targets[0], hooks=[each.make_session_run_hook()])


# Status


def test_status_shows_the_record(targets: list[str]) -> None:
    address = targets[0].removeprefix("grpc://")
    with gated_workers(targets, 2, bounded(1, 2)) as (first, second):
        for worker in (first, second, first):
            worker.whole_step()
        done = CliRunner().invoke(app, ["status", address, "--json", "--interval", "0.1"], obj=[])
        assert done.exit_code == 0, done.output
        name = f"{first.rule.get_name()}/clock"
        resources = {r["name"]: r for t in json.loads(done.stdout)["tasks"] for r in t["resources"]}
        assert resources[name]["kind"] == "StalenessClock"
        assert resources[name]["clocks_ahead"] == [{"clocks": 0, "count": 2}, {"clocks": 1, "count": 1}]
        assert resources[name]["staleness"] == [{"updates": 0, "count": 1}, {"updates": 1, "count": 2}]
        text = CliRunner().invoke(app, ["status", address, "--interval", "0.1"], obj=[], env={"COLUMNS": "200"}).stdout
        assert f"StalenessClock '{name}' on ps:0" in text and "3 in all, mean 0.67, at most 1" in text


# Errors


def test_errors_name_the_argument() -> None:
    base = tf.train.GradientDescentOptimizer(0.1)
    step, w = tf.train.get_or_create_global_step(), tf.get_variable("w", [2])
    one = tf.constant([1.0, 1.0])

    def clocked(**changed: Any) -> Any:
        given = {"opt": base, "staleness": 1, "total_num_replicas": 2, "task_index": 0, **changed}
        return opt.BoundedStalenessOptimizer(**given)

    def soft(**changed: Any) -> Any:
        return opt.SoftsyncOptimizer(**{"opt": base, "total_num_replicas": 2, "n": 1, **changed})

    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ValueError, "staleness must be .* received -1", lambda: clocked(staleness=-1)),
        (ValueError, "staleness must be .* received 1.5", lambda: clocked(staleness=1.5)),
        (ValueError, "staleness", lambda: clocked(staleness=float("nan"))),
        (ValueError, "staleness", lambda: clocked(staleness=True)),
        (ValueError, "total_num_replicas must be .* received 0", lambda: clocked(total_num_replicas=0)),
        (ValueError, "total_num_replicas", lambda: clocked(total_num_replicas=2.0)),
        (ValueError, "task_index must be from 0 .* = 1, received 2", lambda: clocked(task_index=2)),
        (ValueError, "task_index", lambda: clocked(task_index=-1)),
        (ValueError, "task_index", lambda: clocked(task_index=None)),
        (ValueError, "deadline_secs must be positive", lambda: clocked(deadline_secs=0)),
        (TypeError, "opt must be", lambda: clocked(opt=None)),
        (ValueError, "grads_and_vars", lambda: clocked().apply_gradients([(None, w)])),
        (ValueError, "get_init_op.* after apply_gradients", lambda: clocked().get_init_op()),
        (ValueError, "set_staleness.* after apply_gradients", lambda: clocked().set_staleness(1)),
        (ValueError, "after apply_gradients", lambda: clocked().make_session_run_hook().begin()),
        (ValueError, "One of replicas_to_aggregate and n", lambda: soft(replicas_to_aggregate=1)),
        (ValueError, "One of replicas_to_aggregate and n", lambda: soft(n=None)),
        (ValueError, "n must be .* received 0", lambda: soft(n=0)),
        (ValueError, "n must be at most total_num_replicas = 2", lambda: soft(n=3)),
        (ValueError, "replicas_to_aggregate must", lambda: soft(n=None, replicas_to_aggregate=-1)),
        (ValueError, "replicas_to_aggregate must be at", lambda: soft(n=None, replicas_to_aggregate=3)),
        (ValueError, "total_num_replicas is required", lambda: soft(total_num_replicas=None)),
        (ValueError, "total_num_replicas", lambda: soft(total_num_replicas=0)),
        (ValueError, "global_step is required", lambda: soft().apply_gradients([(one, w)])),
        (ValueError, "grads_and_vars", lambda: soft().apply_gradients([], step)),
        (ValueError, "after apply_gradients", lambda: soft().get_init_op()),
        (ValueError, "after apply_gradients", lambda: soft().staleness_record()),
    ]
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            call()


def test_workers_that_disagree_are_told(targets: list[str]) -> None:
    with gated_workers(targets, 2, bounded(1, 2)) as (first, _), tf.Graph().as_default(), tf.device("/job:ps/task:0"):
        first.whole_step()
        w, name = tf.get_variable("w", [2]), first.rule.get_name()
        base = tf.train.GradientDescentOptimizer(0.1)
        for staleness, count in ((2, 2), (1, 3)):
            other = opt.BoundedStalenessOptimizer(base, staleness, count, 1, name=name)
            other.apply_gradients([(tf.ones([2]), w)])
            join = other.get_init_op()
            with (
                tf.Session(first.target) as session,
                pytest.raises(tf.errors.InvalidArgumentError, match="exists already"),
            ):
                session.run(join)
