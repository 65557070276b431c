"""SyncReplicasOptimizer: the nodes, steps and waits of TensorFlow's; and replicas that leave, die and come back."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from golden_programs import load
from loopback import free_addresses

import penstock.v1 as tf

_ROWS = {row["id"]: row for row in load("sync_replicas/runs.json")["scenarios"]}
_DEADLINE = 60.0


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Checks that every thread of a test has ended when the test is over."""
    before = set(threading.enumerate())
    with tf.Graph().as_default():
        yield
    for thread in set(threading.enumerate()) - before:
        thread.join(_DEADLINE)
        assert not thread.is_alive(), thread.name


# The model of the golden runs, and one replica's part of it


@dataclass
class Model:
    step: Any
    w: Any
    e: Any
    gradient: Any
    indices: Any
    values: Any


def _model(row: dict[str, Any], place: str | None) -> Model:
    name = row["id"]
    with tf.device(place):
        step = tf.Variable(0, name=f"{name}_global_step", trainable=False, dtype=tf.int64)
        w = tf.Variable(row["w0"], name=f"{name}_w")
        e = tf.Variable([1.0, 2.0, 3.0, 4.0], name=f"{name}_e")
    fed = (tf.float32, [2]), (tf.int32, [None]), (tf.float32, [None])
    return Model(step, w, e, *(tf.placeholder(dtype, shape) for dtype, shape in fed))


_RULES = {
    "GradientDescentOptimizer(0.5)": lambda: tf.train.GradientDescentOptimizer(0.5),
    "MomentumOptimizer(0.5, 0.9)": lambda: tf.train.MomentumOptimizer(0.5, 0.9),
}


class Replica:
    """One replica: its part of a graph, and a session for it."""

    def __init__(self, row: dict[str, Any], model: Model, **settings: Any) -> None:
        self.model = model
        self.rule = tf.train.SyncReplicasOptimizer(
            _RULES[row["optimizer"]](), row["replicas_to_aggregate"], row["total_num_replicas"], **settings
        )
        pairs = [(model.gradient, model.w)]
        if row["sparse"]:
            pairs.append((tf.IndexedSlices(model.values, model.indices, tf.constant([4])), model.e))
        self.train = self.rule.apply_gradients(pairs, global_step=model.step)
        self.runner = self.rule.get_chief_queue_runner()
        self.init_tokens = self.rule.get_init_tokens_op()
        self.init = tf.global_variables_initializer()
        self.shared_state = {
            "global_step": model.step,
            "w": model.w,
            "e": model.e,
            "token_queue_size": self.rule._sync_token_queue.size(),
            "num_accumulated": [a.num_accumulated() for a, _ in self.rule._accumulator_list],
        }
        self.session: Any = None
        self.connect: Callable[[], Any] | None = None

    def call(self, gradient: Any, sparse: Any = ((), ())) -> threading.Thread:
        """Runs the train op in a thread; its `result` is what the op returned or raised."""

        def run() -> None:
            model = self.model
            feeds = {model.gradient: gradient, model.indices: sparse[0], model.values: sparse[1]}
            try:
                thread.result = self.session.run(self.train, feeds)  # type: ignore[attr-defined]
            except tf.errors.OpError as error:
                thread.result = error  # type: ignore[attr-defined]

        thread = threading.Thread(target=run, name="replica", daemon=True)
        thread.start()
        return thread

    def local_init(self, is_chief: bool) -> None:
        assert self.session.run(self.rule.ready_for_local_init_op).size == 0
        self.session.run(self.rule.chief_init_op if is_chief else self.rule.local_step_init_op)


def _state(replicas: list[Replica]) -> dict[str, Any]:
    chief = replicas[0]
    state = chief.session.run(chief.shared_state)
    state["local_step"] = [r.session.run(r.rule._local_step) for r in replicas]
    return {key: np.asarray(value).tolist() for key, value in state.items()}


def _returned(thread: threading.Thread) -> Any:
    thread.join(_DEADLINE)
    assert not thread.is_alive(), "still waits for a token"
    return thread.result  # type: ignore[attr-defined]


def _until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _settles(replicas: list[Replica], expected: dict[str, Any]) -> None:
    """Waits until the state is as expected."""
    deadline = time.monotonic() + _DEADLINE
    while True:
        state = _state(replicas)
        exact = {k: v for k, v in state.items() if k not in ("w", "e")}
        if exact == {k: v for k, v in expected.items() if k not in ("w", "e")}:
            # Once the counts are right, so are the values, except for rounding in another order of sums.
            np.testing.assert_allclose(state["w"], expected["w"], rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(state["e"], expected["e"], rtol=1e-6, atol=1e-7)
            return
        assert time.monotonic() < deadline, f"{state} instead of {expected}"
        time.sleep(0.002)


# Where replicas run: a context that yields two of them with sessions


@contextlib.contextmanager
def one_session(row: dict[str, Any]) -> Iterator[list[Replica]]:
    """Both replicas in one graph and one local session: they share queue and accumulators by their names."""
    with tf.Graph().as_default(), tf.Session() as session:
        model = _model(row, None)
        replicas = [Replica(row, model), Replica(row, model)]
        for replica in replicas:
            replica.session = session
        yield replicas


@contextlib.contextmanager
def _servers(cluster: dict[str, list[str]], *tasks: tuple[str, int]) -> Iterator[list[Any]]:
    with contextlib.ExitStack() as started:
        servers = []
        for job, task in tasks:
            servers.append(tf.train.Server(cluster, job_name=job, task_index=task))
            started.callback(servers[-1].stop)
        yield servers


def _cluster(workers: int = 2) -> dict[str, list[str]]:
    ps, *rest = free_addresses(1 + workers)
    return {"ps": [ps], "worker": rest}


@contextlib.contextmanager
def one_cluster(row: dict[str, Any]) -> Iterator[list[Replica]]:
    """A parameter server and two workers, each with its graph and session, in this process."""
    with _servers(_cluster(), ("ps", 0), ("worker", 0), ("worker", 1)) as (_, *workers):
        replicas = []
        for server in workers:
            with tf.Graph().as_default() as graph:
                replica = Replica(row, _model(row, "/job:ps/task:0"))
            replica.connect = functools.partial(tf.Session, server.target, graph=graph)
            replica.session = replica.connect()
            replicas.append(replica)
        try:
            yield replicas
        finally:
            for replica in replicas:
                replica.session.close()


places = pytest.mark.parametrize("place", [one_session, one_cluster], ids=lambda place: place.__name__)


@contextlib.contextmanager
def _started(place: Any, row: dict[str, Any]) -> Iterator[tuple[list[Replica], Any]]:
    """Two replicas, the first one the chief, ready for their first step; and the chief's coordinator."""
    with place(row) as replicas:
        chief, coord = replicas[0], tf.train.Coordinator()
        chief.session.run(chief.init)
        for replica in replicas:
            replica.local_init(is_chief=replica is chief)
        chief.session.run(chief.init_tokens)
        threads = chief.runner.create_threads(chief.session, coord=coord, daemon=True, start=True)
        try:
            yield replicas, coord
        finally:
            coord.request_stop()
            coord.join(stop_grace_period_secs=_DEADLINE)
            for replica in replicas:
                replica.session.close()
            for thread in threads:
                thread.join(_DEADLINE)


# Nodes and steps of TensorFlow


@pytest.mark.parametrize("row", _ROWS.values(), ids=list(_ROWS))
def test_nodes(row: dict[str, Any]) -> None:
    replica = Replica(row, _model(row, "/job:ps/task:0"))
    rule, queue = replica.rule, replica.rule._sync_token_queue
    node = queue.queue_ref.op
    made = {
        "local_step": rule._local_step.name,
        "local_step_device": rule._local_step.device,
        "token_queue": queue.name,
        "token_queue_device": node.device,
        "token_queue_shared_name": node.get_attr("shared_name").decode(),
        "token_queue_capacity": node.get_attr("capacity"),
        "token_queue_dtypes": [dtype.name for dtype in queue.dtypes],
        "accumulators": [
            [a.name, device, a.accumulator_ref.op.type, a.accumulator_ref.op.get_attr("shared_name").decode()]
            for a, device in rule._accumulator_list
        ],
        "train_op": replica.train.name,
        "train_op_type": replica.train.op.type,
        "chief_queue_runner_enqueue_ops": [op.name for op in replica.runner.enqueue_ops],
        "init_tokens_op": replica.init_tokens.name,
        "chief_init_op": rule.chief_init_op.name,
        "local_step_init_op": rule.local_step_init_op.name,
        "ready_for_local_init_op": rule.ready_for_local_init_op.name,
        "global_variables": [v.op.name for v in tf.global_variables()],
        "local_variables": [v.op.name for v in tf.local_variables()],
        "tokens_per_step": rule._tokens_per_step,
        "replicas_to_aggregate": rule._replicas_to_aggregate,
        "total_num_replicas": rule._total_num_replicas,
    }
    assert made == row["names"]


def test_devices_under_a_replica_device_setter() -> None:
    cluster = {"ps": ["a:1", "b:1"], "worker": ["c:1", "d:1"]}
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device="/job:worker/task:1")):
        step = tf.train.get_or_create_global_step()
        w = tf.get_variable("w", [2], use_resource=True)
        rule = tf.train.SyncReplicasOptimizer(tf.train.MomentumOptimizer(0.1, 0.9), 2, name="mnist_sync_replicas")
        train = rule.minimize(tf.reduce_sum(w), global_step=step)
        rule.get_init_tokens_op()
    graph = tf.get_default_graph()
    devices = {
        "sync_rep_local_step": "/job:worker/task:1",
        "mnist_sync_replicas/conditional_accumulator": "/job:ps/task:1",
        "mnist_sync_replicas/ResourceAccumulatorApplyGradient": "/job:ps/task:1",
        "sync_token_q": "/job:ps/task:0/device:CPU:*",
        "sync_token_q_Dequeue": "/job:ps/task:0",
        "sync_token_q_EnqueueMany": "/job:ps/task:0",
        "mnist_sync_replicas/group_deps": "/job:worker/task:1",
    }
    assert {name: graph.get_operation_by_name(name).device for name in devices} == devices
    assert train.name == "Assign_1:0"
    assert rule.get_slot_names() == ["momentum"] and rule.get_slot(w, "momentum").op.name == "w/Momentum"
    assert [v.op.name for v in rule.variables()] == ["w/Momentum"]


@places
@pytest.mark.parametrize("row", _ROWS.values(), ids=list(_ROWS))
def test_steps(row: dict[str, Any], place: Any) -> None:
    coord = tf.train.Coordinator()
    seen = row["observations"]
    with place(row) as replicas:
        chief = replicas[0]
        chief.session.run(chief.init)
        for replica in replicas:
            replica.local_init(is_chief=replica is chief)
        _settles(replicas, seen["after_init"])
        chief.session.run(chief.init_tokens)
        _settles(replicas, seen["after_init_tokens"])
        threads = chief.runner.create_threads(chief.session, coord=coord, daemon=True, start=True)
        _settles(replicas, seen["after_queue_runner_start"])
        pending: dict[int, threading.Thread] = {}
        for call in row["calls"]:
            number = call["call"]
            pending[number] = replicas[call["worker"]].call(call["gradient"], call.get("sparse", ((), ())))
            expected = {c["call"]: c["returned"] for c in call.get("unblocked_calls", ())}
            if not call["blocked"]:
                expected[number] = call["train_op_returned"]
            for returned, token in expected.items():
                assert _returned(pending.pop(returned)) == token
            _settles(replicas, call["state"])
            assert all(thread.is_alive() for thread in pending.values())
        assert list(pending) == row["end"]["still_blocked"]
        coord.request_stop()
        coord.join(stop_grace_period_secs=_DEADLINE)  # closes the queue
        for thread in pending.values():
            assert not isinstance(_returned(thread), Exception)  # a last token
        ends = [_returned(chief.call([0.1, 0.1])) for _ in range(4 * row["names"]["tokens_per_step"] + 1)]
        assert isinstance(ends[-1], tf.errors.OutOfRangeError)
        for replica in replicas:
            replica.session.close()
        for thread in threads:
            thread.join(_DEADLINE)


# Errors


def _applied(**settings: Any) -> Any:
    step, w = tf.Variable(0, trainable=False), tf.Variable([1.0])
    rule = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), **settings)
    rule.apply_gradients([(tf.constant([1.0]), w)], step)
    return rule


def _fresh() -> Any:
    return tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 2)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: _fresh().get_chief_queue_runner(), "after apply_gradients"),
        (lambda: _fresh().get_init_tokens_op(), "after apply_gradients"),
        (lambda: _fresh().make_session_run_hook(True).begin(), "before using the hook"),
        (lambda: _fresh().make_session_run_hook(False).begin(), "before using the hook"),
        (lambda: _fresh().apply_gradients([], tf.Variable(0)), "at least one variable"),
        (lambda: _fresh().apply_gradients([(tf.constant([1.0]), tf.Variable([1.0]))]), "Global step is required"),
        (lambda: _fresh().minimize(tf.reduce_sum(tf.Variable([1.0]))), "Global step is required"),
        (lambda: _fresh().apply_gradients([(3.0, tf.Variable([1.0]))], tf.Variable(0)), "Unknown grad type"),
        (lambda: _fresh().apply_gradients([(None, tf.Variable([1.0]))], tf.Variable(0)), "No gradients provided"),
        (
            lambda: _fresh().apply_gradients([(tf.constant([1.0, 2.0]), tf.Variable([1.0]))], tf.Variable(0)),
            "incompatible|compatible",
        ),
        (
            lambda: _applied(replicas_to_aggregate=4, total_num_replicas=2).get_init_tokens_op(1),
            r"1 \(given\) vs 2 \(needed\)",
        ),
        (lambda: _applied(replicas_to_aggregate=2).get_init_tokens_op(-2), "Too few tokens"),
        (lambda: tf.train.SyncReplicasOptimizer(None, 1, name=""), "Must specify the optimizer name"),
    ],
)
def test_errors(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    "aggregate, total, tokens, name",
    [(2, 2, 0, "no_init_tokens"), (1, 4, -2, "no_init_tokens"), (4, 2, 2, "sync_token_q_EnqueueMany_1")],
)
def test_number_of_init_tokens(aggregate: int, total: int, tokens: int, name: str) -> None:
    rule = _applied(replicas_to_aggregate=aggregate, total_num_replicas=total)
    assert rule.get_init_tokens_op(tokens).name == name


# Replicas that come and go


@places
@pytest.mark.parametrize("row", [_ROWS[name] for name in ("eq2of2", "lt1of2", "gt4of2")], ids=lambda row: row["id"])
def test_a_replica_that_leaves_gives_its_token_back(row: dict[str, Any], place: Any) -> None:
    with place(row) as replicas:
        chief, other = replicas
        hooks = [replica.rule.make_session_run_hook(is_chief=replica is chief) for replica in replicas]
        for replica, hook in zip(replicas, hooks, strict=True):
            with replica.train.graph.as_default():
                hook.begin()
        chief.session.run(chief.init)
        coords = [tf.train.Coordinator() for _ in replicas]
        for replica, hook, coord in zip(replicas, hooks, coords, strict=True):
            hook.after_create_session(replica.session, coord)
        for replica in replicas * 2:
            assert not isinstance(_returned(replica.call([0.1, 0.1])), Exception)
        hooks[1].end(other.session)
        before = _state(replicas)["global_step"]
        for _ in range(16):  # four for each of three steps; two tokens may be of a step that was over before
            assert not isinstance(_returned(chief.call([0.1, 0.1])), Exception)
        assert _state(replicas)["global_step"] >= before + 3
        # It comes back, as another session of the same task would.
        hooks[1].after_create_session(other.session, coords[1])
        assert not isinstance(_returned(other.call([0.1, 0.1])), Exception)
        # The chief leaves: replicas that have used up the remaining tokens get an error.
        hooks[0].end(chief.session)
        ends = [_returned(other.call([0.1, 0.1])) for _ in range(2 * row["names"]["tokens_per_step"] + 1)]
        assert isinstance(ends[-1], tf.errors.OutOfRangeError)
        hooks[1].end(other.session)  # no replica is left to take its token
        for coord in coords:
            coord.request_stop()
            coord.join(stop_grace_period_secs=_DEADLINE)
        for replica in replicas:
            replica.session.close()


def _die(replica: Replica) -> None:
    """Simulates the death of a process: its session is gone at once, and another one starts."""
    replica.session.close()
    assert replica.connect is not None
    replica.session = replica.connect()


def _run(replicas: list[Replica], steps: int) -> None:
    """Runs the replicas in parallel for a number of steps, and leaves them waiting."""
    last = _state(replicas)["global_step"] + steps
    calls = [replica.call([0.1, 0.1]) for replica in replicas]
    while _state(replicas)["global_step"] < last:
        _until(lambda: not all(call.is_alive() for call in calls))
        for i, call in enumerate(calls):
            if not call.is_alive():
                assert not isinstance(_returned(call), Exception), _returned(call)
                calls[i] = replicas[i].call([0.1, 0.1])


_CRASHES = {"while_it_computes": 0, "while_it_waits": 1}


@pytest.mark.parametrize("in_flight", _CRASHES.values(), ids=list(_CRASHES))
def test_a_replica_that_dies_comes_back(in_flight: int) -> None:
    with _started(one_cluster, _ROWS["eq2of2"]) as (replicas, _):
        other = replicas[1]
        for replica in replicas * 2:
            assert not isinstance(_returned(replica.call([0.1, 0.1])), Exception)
        # Each holds a token of step 1, the only one that it can get.
        _until(lambda: _state(replicas)["local_step"] == [1, 1])
        died = [other.call([0.1, 0.1]) for _ in range(in_flight)]
        _until(lambda: _state(replicas)["num_accumulated"] == [in_flight])
        _die(other)
        for call in died:
            assert isinstance(_returned(call), tf.errors.CancelledError)
        other.local_init(is_chief=False)
        _run(replicas, 5)


def test_a_chief_that_dies_comes_back() -> None:
    with _started(one_cluster, _ROWS["eq2of2"]) as (replicas, coord):
        chief, other = replicas
        _run(replicas, 3)
        # A chief that has lost another task does not close the queue, since it comes back. A chief that dies cannot.
        coord.lost = True
        coord.request_stop()
        coord.join(stop_grace_period_secs=_DEADLINE)
        _die(chief)
        waiting = other.call([0.1, 0.1])
        chief.local_init(is_chief=True)
        chief.session.run(chief.init_tokens)
        coord.clear_stop()
        threads = chief.runner.create_threads(chief.session, coord=coord, daemon=True, start=True)
        assert not isinstance(_returned(waiting), Exception)
        _run(replicas, 5)
        coord.request_stop()
        coord.join(stop_grace_period_secs=_DEADLINE)
        chief.session.close()
        for thread in threads:
            thread.join(_DEADLINE)


def test_a_chief_that_waits_for_a_token_is_woken_when_its_updates_lose_a_task() -> None:
    """The tokens may be on a healthy server, so the step that waits for one gets no error by itself."""
    woken: list[bool] = []
    with (
        pytest.raises(tf.errors.UnavailableError, match="gone"),  # the coordinator raises it at the end
        _started(one_cluster, _ROWS["eq2of2"]) as (replicas, coord),
    ):
        for replica in replicas * 2:
            assert not isinstance(_returned(replica.call([0.1, 0.1])), Exception)
        waiting = replicas[0].call([0.1, 0.1])
        _until(lambda: _state(replicas)["num_accumulated"] == [1])
        with coord.stop_on_exception():
            raise tf.errors.UnavailableError(None, None, "gone")
        waiting.join(_DEADLINE)
        woken.append(not waiting.is_alive())
    assert woken == [True]
    assert isinstance(_returned(waiting), tf.errors.CancelledError)


class _Report(tf.train.SessionRunHook):
    """Signals that the session exists; counts the steps of its replica."""

    def __init__(self) -> None:
        self.created = threading.Event()
        self.steps = 0

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.created.set()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.steps += 1


@pytest.mark.parametrize("aggregate", [1, 3, 5])
@pytest.mark.parametrize("rows", [[40, 4, 9], [0, 12, 30], [6, 30, 3]], ids=str)
def test_data_that_end(aggregate: int, rows: list[int]) -> None:
    """Monitored replicas with data of different lengths; the job is over when the chief's have ended."""
    cluster = _cluster(3)
    errors: list[BaseException] = []
    reports = [_Report() for _ in rows]
    steps: list[int] = []

    def replica(task: int, server: Any) -> None:
        try:
            setter = tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{task}")
            with tf.Graph().as_default(), tf.device(setter):
                step = tf.train.get_or_create_global_step()
                w = tf.get_variable("w", [2], initializer=tf.zeros_initializer())
                data = tf.data.Dataset.range(rows[task]).make_one_shot_iterator().get_next()
                rule = tf.train.SyncReplicasOptimizer(tf.train.AdamOptimizer(0.1), aggregate, len(rows))
                train = rule.minimize(tf.reduce_sum(w * tf.cast(data, tf.float32)), global_step=step)
                # Not one token more than it takes.
                spare = max(0, aggregate - len(rows))
                hooks = [rule.make_session_run_hook(task == 0, num_tokens=spare), reports[task]]
                with tf.train.MonitoredTrainingSession(
                    server.target, is_chief=task == 0, hooks=hooks, stop_grace_period_secs=_DEADLINE
                ) as session:
                    while not session.should_stop():
                        session.run(train)
                        if task == 0:
                            steps.append(session.run_step_fn(lambda step_context: step_context.session.run(step)))
        except BaseException as error:
            errors.append(error)

    tasks = [("ps", 0), *(("worker", task) for task in range(len(rows)))]
    with _servers(cluster, *tasks) as (_, *workers):
        threads = [threading.Thread(target=replica, args=(i, server)) for i, server in enumerate(workers)]
        for thread in threads:
            thread.start()
            # A worker that finds no model waits for half a minute, so each begins after the chief.
            assert reports[0].created.wait(_DEADLINE)
        for thread in threads:
            thread.join(_DEADLINE)
            assert not thread.is_alive(), "still waits for a token"
    assert not errors, errors
    assert reports[0].steps == rows[0]
    assert all(report.steps <= count for report, count in zip(reports, rows, strict=True))
    assert steps == sorted(steps)


class _Lose(tf.train.SessionRunHook):
    """Raises the loss of a task after the third step."""

    steps = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.steps += 1
        if self.steps == 3:
            raise tf.errors.UnavailableError(None, None, "Task /job:ps/task:1 has gone.")


def test_a_chief_that_recovers_leaves_the_queue_open() -> None:
    cluster = _cluster(1)
    with _servers(cluster, ("ps", 0), ("worker", 0)) as (_, server):
        with tf.device(tf.train.replica_device_setter(cluster=cluster)):
            step, w = tf.train.get_or_create_global_step(), tf.get_variable("w", [2])
            rule = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 1)
            train = rule.minimize(tf.reduce_sum(w), global_step=step)
        with tf.device("/job:ps/task:0"):
            closed = rule._sync_token_queue.is_closed()
        hooks, seen = [rule.make_session_run_hook(True), _Lose()], []
        with tf.train.MonitoredTrainingSession(server.target, hooks=hooks) as session:
            for _ in range(8):
                seen.append(session.run([closed, train])[0])
            assert not any(seen) and hooks[1].steps == 9
        with tf.Session(server.target) as session:
            assert session.run(closed)
        # The next job gets an error: the queue is closed.
        with pytest.raises(tf.errors.FailedPreconditionError, match="has ended"):
            tf.train.MonitoredTrainingSession(server.target, hooks=[rule.make_session_run_hook(True)])


def test_a_supervisor_that_stops_closes_the_queue() -> None:
    step, w = tf.train.get_or_create_global_step(), tf.get_variable("w", [2], initializer=tf.zeros_initializer())
    average = tf.train.ExponentialMovingAverage(0.5)
    rule = tf.train.SyncReplicasOptimizer(
        tf.train.GradientDescentOptimizer(1.0), 1, variable_averages=average, variables_to_average=[w]
    )
    train = rule.minimize(tf.reduce_sum(w), global_step=step)
    init_tokens, closed = rule.get_init_tokens_op(), rule._sync_token_queue.is_closed()
    mean = average.average(w)
    supervisor = tf.train.Supervisor(
        local_init_op=rule.chief_init_op,
        ready_for_local_init_op=rule.ready_for_local_init_op,
        summary_op=None,
        saver=None,
    )
    session = supervisor.prepare_or_wait_for_session()
    session.run(init_tokens)
    supervisor.start_queue_runners(session, [rule.get_chief_queue_runner()])
    for _ in range(4):
        session.run(train)
    _until(lambda: session.run(mean)[0] < -0.5)  # averages come after the tokens
    before = time.monotonic()
    supervisor.stop()
    assert time.monotonic() - before < _DEADLINE  # half of the time that it would wait for gradients that never come
    assert session.run(closed)
    with pytest.raises(tf.errors.OutOfRangeError):
        for _ in range(3):
            session.run(train)
    session.close()


def test_a_supervised_replica_that_stops_gives_its_token_back() -> None:
    cluster = _cluster()
    errors: list[BaseException] = []

    def replica(task: int, server: Any, steps: int) -> None:
        setter = tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{task}")
        try:
            with tf.Graph().as_default(), tf.device(setter):
                step, w = tf.train.get_or_create_global_step(), tf.get_variable("w", [2])
                rule = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 2)
                train = rule.minimize(tf.reduce_sum(w), global_step=step)
                supervisor = tf.train.Supervisor(
                    is_chief=task == 0,
                    local_init_op=rule.local_step_init_op if task else rule.chief_init_op,
                    ready_for_local_init_op=rule.ready_for_local_init_op,
                    summary_op=None,
                    recovery_wait_secs=0.05,
                )
                with supervisor.managed_session(server.target) as session:
                    if task == 0:
                        supervisor.start_queue_runners(session, [rule.get_chief_queue_runner()])
                    for _ in range(steps):
                        session.run(train)
        except BaseException as error:
            errors.append(error)

    with _servers(cluster, ("ps", 0), ("worker", 0), ("worker", 1)) as (_, *workers):
        threads = [
            threading.Thread(target=replica, args=(task, server, steps))
            for task, (server, steps) in enumerate(zip(workers, (20, 3), strict=True))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_DEADLINE)
            assert not thread.is_alive(), "still waits for a token"
    assert not errors, errors


_CHIEF = """
import sys
import penstock.v1 as tf
cluster = {"ps": [sys.argv[1]], "worker": sys.argv[2:]}
server = tf.train.Server(cluster, job_name="worker", task_index=0)
with tf.device(tf.train.replica_device_setter(cluster=cluster)):
    step, w = tf.train.get_or_create_global_step(), tf.get_variable("w", [2])
    rule = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 2)
    rule.minimize(tf.reduce_sum(w), global_step=step)
    init_tokens, init = rule.get_init_tokens_op(), tf.global_variables_initializer()
session = tf.Session(server.target)
session.run(init)
session.run(rule.chief_init_op)
session.run(init_tokens)
rule.get_chief_queue_runner().create_threads(session, coord=tf.train.Coordinator(), start=True)
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_chief_that_just_exits_closes_the_queue() -> None:
    cluster = _cluster()
    command = [sys.executable, "-c", _CHIEF, *cluster["ps"], *cluster["worker"]]
    with (
        _servers(cluster, ("ps", 0), ("worker", 1)) as (_, server),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as chief,
    ):
        with tf.device("/job:ps/task:0"):
            queue = tf.FIFOQueue(-1, tf.int64, shapes=(), name="sync_token_q", shared_name="sync_token_q")
            taken = queue.dequeue()
        ready = chief.stdout.readline() if chief.stdout else ""
        assert ready == "ready\n"
        with tf.Session(server.target) as session:
            options = tf.RunOptions(timeout_in_ms=int(_DEADLINE * 1000))
            assert [session.run(taken, options=options) for _ in range(2)] == [0, 0]
            chief.communicate("exit\n", timeout=_DEADLINE)
            assert [session.run(taken, options=options) for _ in range(2)] == [0, 0]  # the last ones
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(taken, options=options)


def test_a_chief_that_loses_its_cluster_at_the_very_end_can_be_started_again() -> None:
    class Saves(tf.train.SessionRunHook):
        """A hook whose `end` fails once."""

        def __init__(self, lost: bool) -> None:
            self._lost = lost

        def end(self, session: Any) -> None:
            if self._lost:
                raise tf.errors.UnavailableError(None, None, "gone")

    def train(lost: bool) -> None:
        with tf.Graph().as_default():
            step, w = tf.train.get_or_create_global_step(), tf.Variable(1.0)
            rule = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(0.1), 1)
            update = rule.apply_gradients([(tf.constant(1.0), w)], global_step=step)
            hooks = [Saves(lost), rule.make_session_run_hook(True)]
            with tf.train.MonitoredTrainingSession(server.target, hooks=hooks) as session:
                session.run(update)

    with tf.train.Server.create_local_server() as server:
        with pytest.raises(tf.errors.UnavailableError, match="gone"):
            train(lost=True)
        train(lost=False)  # the queue of tokens is open
        with pytest.raises(tf.errors.FailedPreconditionError, match="an earlier job on these parameter servers"):
            train(lost=False)
