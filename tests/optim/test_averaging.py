"""Model and elastic averaging: TensorFlow's states after each step of one or two workers, and NumPy's of three."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from cluster.averaging_reference import Reference, gradient
from golden_programs import load
from leaks import leak_check
from loopback import free_addresses

import penstock.v1 as tf

_ROWS = {row["id"]: row for row in load("contrib_optimizers/averaging.json")["runs"]}
_DEADLINE = 60.0
opt = tf.contrib.opt


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    with leak_check(), tf.Graph().as_default():
        yield


_GETTERS = {
    "model": opt.ModelAverageCustomGetter,
    "elastic": opt.ElasticAverageCustomGetter,
    "agn": opt.AGNCustomGetter,
}


def _rule(kind: str, base: Any, workers: int, task: int, getter: Any, period: int, **settings: Any) -> Any:
    if kind == "model":
        return opt.ModelAverageOptimizer(base, workers, task == 0, getter, interval_steps=period, **settings)
    name = "ElasticAverageOptimizer" if kind == "elastic" else "AGNOptimizer"
    return getattr(opt, name)(base, workers, getter, communication_period=period, **settings)


class Worker:
    """One worker: its graph, and a MonitoredTrainingSession for it."""

    def __init__(
        self, kind: str, task: int, make: Callable[[Any], Any], gradients: Any = None, use_resource: bool = False
    ) -> None:
        self.task, self.is_chief = task, task == 0
        self.graph = tf.Graph()
        place = f"/job:worker/task:{task}/cpu:0"
        setter = tf.train.replica_device_setter(ps_tasks=1, ps_device="/job:ps/cpu:0", worker_device=place)
        with self.graph.as_default(), tf.device(setter):
            self.step = tf.train.get_or_create_global_step()
            getter = _GETTERS[kind](place)
            with tf.variable_scope("", custom_getter=getter, use_resource=use_resource):
                v0 = tf.get_variable("v0", initializer=0.0)
                v1 = tf.get_variable("v1", initializer=np.float32([1.0, 3.0]))
            with tf.device(place):
                self.rule = make(getter)
                self.fed = {"v0": tf.placeholder(tf.float32, []), "v1": tf.placeholder(tf.float32, [2])}
                pairs = [(self.fed["v0"], v0), (self.fed["v1"], v1)]
                self.train = self.rule.apply_gradients(pairs, global_step=self.step)
            self.hooks = [self.rule.make_session_run_hook(*(() if kind == "model" else (self.is_chief, task)))]
            self.state_of = {v.op.name: v for v in [*tf.global_variables(), *tf.local_variables()]}
        self._gradients = gradients
        self._steps = 0
        self.session: Any = None
        self.reader: Any = None  # a second session: the first one may wait in a step
        self.error: BaseException | None = None

    def connect(self, target: str, **settings: Any) -> None:
        with self.graph.as_default():
            self.session = tf.train.MonitoredTrainingSession(
                target, self.is_chief, hooks=self.hooks, save_summaries_steps=None, save_summaries_secs=None, **settings
            )
        self.reader = tf.Session(target, graph=self.graph)

    def close(self) -> None:
        self.reader.close()
        if self.session is not None:
            self.session.close()
        self.session = None

    def call(self) -> threading.Thread:
        """Runs the next step in a thread."""
        grads = self._gradients or gradient(self.task, self._steps)
        self._steps += 1

        def run() -> None:
            try:
                self.session.run(self.train, {self.fed[name]: grad for name, grad in grads.items()})
            except tf.errors.OpError as error:
                self.error = error

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def state(self) -> dict[str, Any]:
        return {name: np.asarray(value).tolist() for name, value in self.reader.run(self.state_of).items()}


@contextlib.contextmanager
def _cluster(workers: list[Worker]) -> Iterator[None]:
    ps, *rest = free_addresses(1 + len(workers))
    spec = {"ps": [ps], "worker": rest}
    with contextlib.ExitStack() as stack:
        servers = []
        for job, task in (("ps", 0), *(("worker", w.task) for w in workers)):
            servers.append(tf.train.Server(spec, job_name=job, task_index=task))
            stack.callback(servers[-1].stop)
        for worker, server in zip(workers, servers[1:], strict=True):
            worker.connect(server.target)
            stack.callback(worker.close)
        yield


def _settles(workers: list[Worker], expected: list[dict[str, Any]]) -> None:
    """Waits until all workers see the expected state: a step that blocks changes it before it waits."""
    deadline = time.monotonic() + _DEADLINE
    while True:
        found = [worker.state() for worker in workers]
        assert [state.keys() for state in found] == [state.keys() for state in expected]
        wrong = [
            (i, name)
            for i, state in enumerate(expected)
            for name, value in state.items()
            if not np.allclose(found[i][name], value, rtol=1e-5, atol=1e-5)
        ]
        if not wrong:
            return
        assert time.monotonic() < deadline, f"{wrong}: {found} instead of {expected}"
        time.sleep(0.01)


@pytest.mark.parametrize("row", _ROWS.values(), ids=list(_ROWS))
def test_states(row: dict[str, Any]) -> None:
    base = getattr(tf.train, row["opt"]["optimizer"].rpartition(".")[2])
    settings = {} if row["kind"] == "model" else {"moving_rate": row["moving_rate"], "rho": row["rho"]}

    def worker_of(task: int, gradients: Any) -> Worker:
        def make(getter: Any) -> Any:
            return _rule(
                row["kind"], base(**row["opt"]["kwargs"]), row["workers"], task, getter, row["period"], **settings
            )

        return Worker(row["kind"], task, make, gradients)

    workers = [worker_of(i, gradients) for i, gradients in enumerate(row["gradients"])]
    for worker, made in zip(workers, row["variables"], strict=True):
        with worker.graph.as_default():
            assert [[v.op.name, v.device] for v in tf.global_variables()] == made["global"]
            assert [[v.op.name, v.device] for v in tf.local_variables()] == made["local"]
            assert [v.op.name for v in tf.trainable_variables()] == made["trainable"]
    with _cluster(workers):
        _settles(workers, row["initial"])
        pending: dict[int, threading.Thread] = {}
        for call in row["calls"]:
            pending[call["call"]] = workers[call["worker"]].call()
            for returned in (*call["unblocked_calls"], *(() if call["blocked"] else (call["call"],))):
                thread = pending.pop(returned)
                thread.join(_DEADLINE)
                assert not thread.is_alive(), f"call {returned} still waits"
            expected = call["state"]
            if call["blocked"]:
                # TensorFlow's chief raises the global step before it has the average that the step counts. That is a
                # slip: a worker that ends at that step would leave without its part, and the chief wait for ever.
                expected = [{**state, "global_step": state["global_step"] - 1} for state in expected]
            _settles(workers, expected)
            assert all(thread.is_alive() for thread in pending.values())
        assert not pending


# NumPy's workers


def _workers(kind: str, count: int, period: int, base: Callable[[], Any], **settings: Any) -> list[Worker]:
    use_resource = settings.pop("use_resource", False)
    return [
        Worker(
            kind,
            task,
            lambda getter, task=task: _rule(kind, base(), count, task, getter, period, **settings),  # type: ignore[misc]
            use_resource=use_resource,
        )
        for task in range(count)
    ]


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(_DEADLINE)
        assert not thread.is_alive(), "a step still waits"


def _agrees(worker: Worker, reference: Reference) -> None:
    found = worker.state()
    for name, value in reference.state(worker.task).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=f"{name} of {worker.task}")


@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", ["model", "elastic", "agn"])
def test_against_numpy(kind: str, count: int, momentum: float, use_resource: bool) -> None:
    period = 1 if kind == "model" and count == 3 else 2  # with 1, fast workers come to the next meeting at once
    settings = {"moving_rate": 0.3} if kind == "elastic" else {}
    base = lambda: tf.train.MomentumOptimizer(0.1, momentum)  # noqa: E731
    workers = _workers(kind, count, period, base, use_resource=use_resource, **settings)
    reference = Reference(kind, count, period, 0.3, 0.1, momentum)
    with _cluster(workers):
        for _ in range(5):
            threads = []
            for worker in workers:
                threads.append(worker.call())
                reference.step(worker.task)
                if kind != "model":  # their workers wait for nobody, so the order of their meetings must be fixed
                    _join(threads)
                    _agrees(worker, reference)
            _join(threads)
            for worker in workers:
                _agrees(worker, reference)


def test_three_workers_at_full_speed_take_every_mean_together() -> None:
    """No worker takes a token of another: each copy is the mean after each step, however the threads run."""
    workers = _workers("model", 3, 1, lambda: tf.train.GradientDescentOptimizer(0.1))
    reference = Reference("model", 3, 1, 0.0, 0.1, 0.0)
    seen: list[list[float]] = [[] for _ in workers]

    def run(worker: Worker) -> None:
        for step in range(30):
            feeds = {worker.fed[name]: grad for name, grad in gradient(worker.task, step).items()}
            worker.session.run(worker.train, feeds)
            seen[worker.task].append(worker.state()["v0"])

    with _cluster(workers):
        threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        _join(threads)
    for step in range(30):
        for task in range(3):
            reference.step(task)
        for task in range(3):
            assert seen[task][step] == pytest.approx(float(reference.center["v0"]), rel=1e-5), (task, step)


@pytest.mark.parametrize("kind", ["model", "elastic", "agn"])
@pytest.mark.parametrize("base", [lambda: tf.train.AdamOptimizer(0.1), lambda: tf.train.FtrlOptimizer(0.1)])
def test_slots_of_any_rule_are_local_to_the_worker(kind: str, base: Callable[[], Any]) -> None:
    settings = {"rho": 0.0} if kind == "elastic" else {}
    workers = _workers(kind, 2, 1, base, **settings)
    for worker in workers:
        with worker.graph.as_default():
            here = f"/job:worker/task:{worker.task}/device:CPU:0"
            assert all(v.device == here for v in tf.local_variables())
            slots = [v for v in tf.global_variables() if "center" not in v.op.name and v is not worker.step]
            assert all("/job:ps" in v.device for v in slots) and (kind == "agn" or not slots)
    with _cluster(workers):
        for _ in range(2):
            _join([worker.call() for worker in workers])
        states = [worker.state() for worker in workers]
        assert [worker.error for worker in workers] == [None, None]
        assert states[0]["global_center_variable/v0"] == states[1]["global_center_variable/v0"] != 0.0


# In one process


def _counting(shape: Any, dtype: Any, partition_info: Any = None) -> Any:
    """An initializer: 1, 2, 3, ... over the whole of a variable."""
    start = partition_info.var_offset[0] * shape[1] if partition_info is not None else 0
    return tf.constant(np.arange(start, start + np.prod(shape)).reshape(shape) + 1, dtype)


def _model(kind: str = "elastic", period: int = 2, partitioner: Any = None, **settings: Any) -> tuple[Any, Any, Any]:
    """Two copies and an optimizer for them, in a local session's graph."""
    step = tf.train.get_or_create_global_step()
    getter = _GETTERS[kind]("/cpu:0")
    with tf.variable_scope("", custom_getter=getter, partitioner=partitioner):
        w = tf.get_variable("w", [3, 2], initializer=_counting)
        b = tf.get_variable("b", [2], initializer=tf.ones_initializer())
    rule = _rule(kind, tf.train.GradientDescentOptimizer(0.5), 1, 0, getter, period, **settings)
    return step, (w, b), rule


def _init(session: Any, rule: Any) -> None:
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    session.run(rule.get_init_op() if isinstance(rule, opt.ModelAverageOptimizer) else rule.get_init_op(0))


@pytest.mark.parametrize("rho", [None, 0.2, 0.0])
def test_the_loss_pulls_towards_the_center_of_the_last_meeting(rho: float | None) -> None:
    step, (w, b), rule = _model(moving_rate=0.25, rho=rho)
    train = rule.minimize(tf.reduce_sum(b), global_step=step, var_list=[b])  # w, which is first, has no part in it
    spring = 0.5 if rho is None else rho  # moving_rate / learning_rate
    copy, center, aside = np.ones(2), np.ones(2), np.ones(2)
    with tf.Session() as session:
        _init(session, rule)
        for t in range(6):
            session.run(train)
            copy = copy - 0.5 * (1.0 + spring * (copy - aside))
            if t % 2:
                aside, pull = center, 0.25 * (copy - center)
                copy, center = copy - pull, center + pull
            np.testing.assert_allclose(session.run(b), copy, rtol=1e-6)
        assert session.run(w)[0, 0] == 1.0


@pytest.mark.parametrize("kind", ["model", "elastic", "agn"])
def test_sparse_gradients(kind: str) -> None:
    step, (w, _), rule = _model(kind, **({"rho": 0.0, "moving_rate": 1.0} if kind == "elastic" else {}))
    train = rule.minimize(tf.reduce_sum(tf.gather(w, [0, 2, 2])), global_step=step)
    after = np.float32([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]) - 0.5 * np.float32([[1], [0], [2]]) * 2
    if kind == "agn":  # the mean of two equal gradients
        after = np.float32([[0.5, 1.5], [3.0, 4.0], [4.0, 5.0]])
    with tf.Session() as session:
        _init(session, rule)
        for _ in range(2):
            session.run(train)
        np.testing.assert_allclose(session.run(rule._getter._centers[w]), after)


@pytest.mark.parametrize("kind", ["model", "elastic", "agn"])
def test_partitioned_variables_and_the_swapping_saver(kind: str, tmp_path: Any) -> None:
    partitioner = tf.fixed_size_partitioner(2)
    settings = {"rho": 0.0, "moving_rate": 0.25} if kind == "elastic" else {}
    step, (w, b), rule = _model(kind, 2, partitioner, **settings)
    train = rule.minimize(tf.reduce_sum(w) + tf.reduce_sum(b), global_step=step)
    saver = rule.swapping_saver(max_to_keep=1)
    whole = np.float32([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    moved = {"model": 1.0, "elastic": 0.25, "agn": 0.5}[kind]  # of the centers, after three steps
    with tf.Session() as session:
        _init(session, rule)
        for _ in range(3):
            session.run(train)
        centers = [session.run(rule._getter._centers[part]) for part in w]
        np.testing.assert_allclose(np.concatenate(centers), whole - moved)
        path = saver.save(session, str(tmp_path / "model"))
        session.run(tf.global_variables_initializer())
        saver.restore(session, path)
        restored = [session.run(rule._getter._centers[part]) for part in w]
        np.testing.assert_allclose(np.concatenate(restored), whole - moved)
    reader = tf.train.NewCheckpointReader(path)
    assert set(reader.get_variable_to_shape_map()) == {"w", "b", "global_step"}
    np.testing.assert_allclose(reader.get_tensor("w"), whole - moved)
    with tf.Graph().as_default(), tf.Session() as session:  # evaluation knows nothing of averages
        w = tf.get_variable("w", [3, 2])
        tf.train.Saver([w]).restore(session, path)
        np.testing.assert_allclose(session.run(w), whole - moved)


def test_training_goes_on_from_a_checkpoint_of_the_centers(tmp_path: Any) -> None:
    for expected_step, expected in ((2, 0.5), (4, 0.0)):
        with tf.Graph().as_default():
            step, (_, b), rule = _model(moving_rate=0.5, rho=0.0, period=1)
            train = rule.minimize(tf.reduce_sum(b), global_step=step)
            scaffold = tf.train.Scaffold(saver=rule.swapping_saver())
            hooks = [rule.make_session_run_hook(True, 0), tf.train.StopAtStepHook(num_steps=2)]
            # The copy and the center share each step of 0.5: both move by 0.25.
            with tf.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), scaffold=scaffold, hooks=hooks, log_step_count_steps=None
            ) as session:
                while not session.should_stop():
                    found = session.run([train, b, step])
            assert found[2] == expected_step
            reader = tf.train.NewCheckpointReader(tf.train.latest_checkpoint(str(tmp_path)))
            np.testing.assert_allclose(reader.get_tensor("b"), [expected] * 2, atol=1e-6)
    tf.summary.FileWriterCache.clear()


@pytest.mark.parametrize("kind", ["model", "elastic", "agn"])
def test_supervisor(kind: str, tmp_path: Any) -> None:
    settings = {"rho": 0.0, "moving_rate": 1.0} if kind == "elastic" else {}
    step, (_, b), rule = _model(kind, 2, **settings)
    train = rule.minimize(tf.reduce_sum(b), global_step=step)
    init = rule.get_init_op() if kind == "model" else rule.get_init_op(0)
    supervisor = tf.train.Supervisor(
        logdir=str(tmp_path), global_step=step, saver=rule.swapping_saver(), summary_op=None
    )
    with supervisor.managed_session() as session:
        session.run(init)
        while session.run(step) < 2:
            session.run(train)
        path = supervisor.saver.save(session, supervisor.save_path, global_step=step)
    reader = tf.train.NewCheckpointReader(path)
    moved = {"model": 2.0, "elastic": 1.0, "agn": 1.0}[kind]
    np.testing.assert_allclose(reader.get_tensor("b"), [1.0 - moved] * 2)


def test_variables_that_are_not_trained_are_made_as_usual() -> None:
    getter = opt.ElasticAverageCustomGetter("/job:worker/task:0")
    setter = tf.train.replica_device_setter(ps_tasks=1, worker_device="/job:worker/task:0")
    penalty = tf.contrib.layers.l2_regularizer(1.0)
    with tf.device(setter), tf.variable_scope("net", custom_getter=getter):
        w = tf.get_variable("w", [2], regularizer=penalty)
        mean = tf.get_variable("mean", [2], trainable=False)
        count = tf.get_variable("count", [], trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    assert [v.op.name for v in tf.trainable_variables()] == ["net/w"] and tf.trainable_variables()[0] is w
    assert [v.op.name for v in tf.global_variables()] == ["global_center_variable/net/w", "net/mean"]
    assert [v.op.name for v in tf.local_variables()] == ["net/w", "local_center_variable/net/w", "net/count"]
    assert mean.device == "/job:ps/task:0" and count.device == "/job:worker/task:0"
    assert len(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)) == 1
    with tf.device(setter), tf.variable_scope("net", custom_getter=getter, reuse=True):
        assert tf.get_variable("w") is w and len(getter._centers) == 1


# Workers that come, wait and go


def test_synchronous_workers_start_together() -> None:
    workers = _workers("elastic", 2, 1, lambda: tf.train.GradientDescentOptimizer(0.1), synchronous=True)
    ps, *rest = free_addresses(3)
    spec = {"ps": [ps], "worker": rest}
    with contextlib.ExitStack() as stack:
        servers = []
        for job, task in (("ps", 0), ("worker", 0), ("worker", 1)):
            servers.append(tf.train.Server(spec, job_name=job, task_index=task))
            stack.callback(servers[-1].stop)
        first = threading.Thread(target=workers[0].connect, args=(servers[1].target,), daemon=True)
        first.start()
        with tf.Session(servers[0].target) as session, tf.device("/job:ps/task:0"):
            start = tf.raw_ops.StalenessClock(num_workers=2, staleness=0, shared_name="ElasticAverageOptimizer/start")
            arrived = tf.raw_ops.StalenessClockState(handle=start).arrived
            deadline = time.monotonic() + _DEADLINE
            while session.run(arrived).tolist() != [True, False]:  # worker 0 is ready
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert first.is_alive()
        workers[1].connect(servers[2].target)
        _join([first])
        for worker in workers:
            stack.callback(worker.close)
        # Only the start is common: now one worker may go ahead.
        _join([workers[1].call()])
        assert workers[1].error is None
        # One that is killed and started again waits for nobody, in whichever way it starts.
        (_, again) = _workers("elastic", 2, 1, lambda: tf.train.GradientDescentOptimizer(0.1), synchronous=True)
        with again.graph.as_default():
            init = again.rule.get_init_op(1)
        back = threading.Thread(target=again.connect, args=(servers[2].target,), daemon=True)
        back.start()
        _join([back])
        stack.callback(again.close)
        again.reader.run(init, options=tf.RunOptions(timeout_in_ms=int(_DEADLINE * 1000)))
        _join([again.call()])
        assert again.error is None


def test_a_worker_that_never_comes_to_the_start_is_named() -> None:
    settings = {"synchronous": True, "deadline_secs": 0.2}
    workers = _workers("elastic", 2, 1, lambda: tf.train.GradientDescentOptimizer(0.1), **settings)
    ps, *rest = free_addresses(3)
    with contextlib.ExitStack() as stack:
        for job in ("ps", "worker"):
            server = tf.train.Server({"ps": [ps], "worker": rest}, job_name=job, task_index=0)
            stack.callback(server.stop)
        with pytest.raises(tf.errors.DeadlineExceededError, match=r"worker 1 \(has not reported\)"):
            workers[0].connect(server.target)


@pytest.mark.parametrize(
    ("present", "error"),
    [(0, r"has had 1 of 2 items for 0.2 s \(deadline_secs\).* num_worker = 2 workers"), (1, "Is it running")],
    ids=["the chief waits", "a worker waits"],
)
def test_a_worker_that_never_comes_to_a_meeting(present: int, error: str) -> None:
    workers = _workers("model", 2, 1, lambda: tf.train.GradientDescentOptimizer(0.1), deadline_secs=0.2)
    with _cluster(workers):
        _join([workers[present].call()])
        with pytest.raises(tf.errors.DeadlineExceededError, match=error):
            raise workers[present].error or AssertionError("it did not wait")


def test_workers_that_wait_end_when_the_chief_leaves() -> None:
    workers = _workers("model", 2, 1, lambda: tf.train.GradientDescentOptimizer(0.1))
    with _cluster(workers):
        _join([worker.call() for worker in workers])
        waiting = workers[1].call()
        target = workers[0].reader.sess_str.decode()
        workers[0].close()
        _join([waiting])
        assert isinstance(workers[1].error, tf.errors.OutOfRangeError)  # as at the end of the data
        (again,) = _workers("model", 2, 1, lambda: tf.train.GradientDescentOptimizer(0.1))[:1]
        with pytest.raises(tf.errors.FailedPreconditionError, match="an earlier job"):
            again.connect(target)


def test_all_workers_end_at_the_last_step() -> None:
    workers = _workers("model", 3, 2, lambda: tf.train.GradientDescentOptimizer(0.1))
    for worker in workers:
        worker.hooks.append(tf.train.StopAtStepHook(last_step=3))

    def run(worker: Worker) -> None:
        while not worker.session.should_stop():
            worker.session.run(worker.train, {fed: np.ones(fed.shape.as_list()) for fed in worker.fed.values()})

    with _cluster(workers):
        threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        _join(threads)
        states = [worker.state() for worker in workers]
        assert [(state["global_step"], state["local_step"]) for state in states] == [(3, 6)] * 3


def test_tokens_of_earlier_meetings_are_thrown_away() -> None:
    """They were for workers that died before they could take them."""
    workers = _workers("model", 2, 1, lambda: tf.train.GradientDescentOptimizer(0.1))
    with workers[0].graph.as_default():
        leave = [queue.enqueue(tf.constant(-1, tf.int64)) for queue in workers[0].rule._queues]
    reference = Reference("model", 2, 1, 0.0, 0.1, 0.0)
    with _cluster(workers):
        workers[0].reader.run(leave)
        for _ in range(4):
            waiting = workers[1].call()
            _settled_waiting(workers[1])
            _join([waiting, workers[0].call()])
            for worker in workers:
                reference.step(worker.task)
            for worker in workers:
                _agrees(worker, reference)


def _settled_waiting(worker: Worker) -> None:
    """Waits until the worker has added its copies to the accumulators."""
    with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
        shared = "global_center_variable/v1:0/var_accum"
        count = tf.ConditionalAccumulator(tf.float32, shape=[2], shared_name=shared).num_accumulated()
        with tf.Session(worker.reader.sess_str.decode()) as session:
            deadline = time.monotonic() + _DEADLINE
            while session.run(count) != 1:
                assert time.monotonic() < deadline
                time.sleep(0.01)


def test_a_chief_that_died_before_it_put_out_the_tokens_does_so_when_it_is_back() -> None:
    workers = _workers("model", 2, 1, lambda: tf.train.GradientDescentOptimizer(0.1))
    with workers[0].graph.as_default():
        # All that the chief does in a meeting, except for the tokens.
        centers = list(workers[0].rule._getter._centers.values())
        last_deeds = [*(center.assign(center + 7.0) for center in centers), workers[0].step.assign_add(1)]
        back = workers[0].rule.get_init_op()
    with _cluster(workers):
        waiting = workers[1].call()
        _settled_waiting(workers[1])
        workers[0].reader.run(last_deeds)
        assert waiting.is_alive()
        workers[0].reader.run(back)
        _join([waiting])
        assert workers[1].state()["v1"] == [8.0, 10.0] and workers[0].state()["v1"] == [8.0, 10.0]


@pytest.mark.parametrize("taken", [1, 2])
def test_a_chief_that_died_in_the_midst_of_a_meeting_ends_it_when_it_is_back(taken: int) -> None:
    workers = _workers("model", 2, 1, lambda: tf.train.GradientDescentOptimizer(0.1))
    chief = workers[0]
    with chief.graph.as_default():
        # The chief adds its copies, takes the means of some variables, and dies.
        centers = chief.rule._getter._centers
        last_deeds = []
        for i, (var, center) in enumerate(centers.items()):
            with tf.device("/job:ps/task:0"):
                shared = f"{center.name}/var_accum"
                accumulator = tf.ConditionalAccumulator(tf.float32, shape=center.get_shape(), shared_name=shared)
                added = accumulator.apply_grad(tf.zeros_like(var), local_step=0)
                with tf.control_dependencies([added]):
                    last_deeds.append(center.assign(accumulator.take_grad(2)) if i < taken else tf.no_op())
        back = chief.rule.get_init_op()
    with _cluster(workers):
        waiting = workers[1].call()
        _settled_waiting(workers[1])
        chief.reader.run(last_deeds)
        assert waiting.is_alive() and chief.state()["global_step"] == 0
        chief.reader.run(back, options=tf.RunOptions(timeout_in_ms=int(_DEADLINE * 1000)))
        _join([waiting])
        grads = gradient(1, 0)
        for worker in workers:
            state = worker.state()
            assert state["global_step"] == 1
            np.testing.assert_allclose(state["v0"], (0.0 - 0.1 * grads["v0"]) / 2, rtol=1e-6)
            np.testing.assert_allclose(state["v1"], (np.array([1.0, 3.0]) - 0.1 * grads["v1"]) / 2, rtol=1e-6)
        _join([worker.call() for worker in workers])  # and so on
        assert [worker.error for worker in workers] == [None, None] and chief.state()["global_step"] == 2


@pytest.mark.parametrize("counted", [1, 3])
@pytest.mark.parametrize("kind", ["model", "elastic"])
def test_a_wrong_number_of_workers_is_an_error(kind: str, counted: int) -> None:
    settings = {"synchronous": True} if kind == "elastic" else {}
    base = tf.train.GradientDescentOptimizer(0.1)
    chief = Worker(kind, 0, lambda getter: _rule(kind, base, counted, 0, getter, 1, **settings))
    ps, *rest = free_addresses(3)
    spec = {"ps": [ps], "worker": rest}
    with contextlib.ExitStack() as stack:
        for job in ("ps", "worker"):
            server = tf.train.Server(spec, job_name=job, task_index=0)
            stack.callback(server.stop)
        with pytest.raises(ValueError, match=f"num_worker is {counted}, but the cluster has 2 tasks that train"):
            chief.connect(server.target)


def test_workers_sum_gradients_of_large_batches_by_themselves() -> None:
    """Two workers send one mean of three gradients each; LAMB applies them where the variable is."""
    ps, *rest = free_addresses(3)
    spec = {"ps": [ps], "worker": rest}
    with contextlib.ExitStack() as stack:
        servers = []
        for job, task in (("ps", 0), ("worker", 0), ("worker", 1)):
            servers.append(tf.train.Server(spec, job_name=job, task_index=task))
            stack.callback(servers[-1].stop)
        sessions = []
        for task in range(2):
            place = f"/job:worker/task:{task}"
            with tf.Graph().as_default(), tf.device(tf.train.replica_device_setter(cluster=spec, worker_device=place)):
                step = tf.train.get_or_create_global_step()
                w = tf.get_variable("w", initializer=np.float32([3.0, 4.0]))
                grad = tf.placeholder(tf.float32, [2])
                rule = tf.train.GradientAccumulationOptimizer(
                    opt.LAMBOptimizer(0.1, beta1=0.0, beta2=0.0, epsilon=0.0), steps=3, worker_device=place
                )
                train = rule.apply_gradients([(grad, w)], global_step=step)
                assert w.device == "/job:ps/task:0" and {v.device for v in tf.local_variables()} == {place}
                session = tf.Session(servers[1 + task].target)
                stack.callback(session.close)
                if task == 0:
                    session.run(tf.global_variables_initializer())
                session.run(tf.local_variables_initializer())
                sessions.append((session, train, grad, w, step))
        expected = np.array([3.0, 4.0])
        for batch in range(3):
            for task, (session, train, grad, w, step) in enumerate(sessions):
                grads = np.random.RandomState(10 * batch + task).randn(3, 2)
                for part in grads:
                    np.testing.assert_allclose(session.run(w), expected, rtol=1e-5)
                    session.run(train, {grad: part})
                # Without memory Adam's direction is the sign of the gradient, whose norm is sqrt(2).
                expected = expected - 0.1 * np.linalg.norm(expected) / np.sqrt(2) * np.sign(grads.mean(0))
                assert session.run(step) == 2 * batch + task + 1


# Errors


def test_errors_name_the_argument() -> None:
    rule = tf.train.GradientDescentOptimizer(0.1)
    before = tf.get_variable("before", [2])
    model, elastic, agn = (_GETTERS[kind]("/cpu:0") for kind in ("model", "elastic", "agn"))
    step = tf.train.get_or_create_global_step()
    one = tf.constant([1.0, 1.0])
    with tf.variable_scope("", custom_getter=model):
        v = tf.get_variable("v", [2])
    with tf.variable_scope("e", custom_getter=elastic):
        e = tf.get_variable("v", [2])

    def averaging(**changed: Any) -> Any:
        return opt.ModelAverageOptimizer(
            **{"opt": rule, "num_worker": 1, "is_chief": True, "ma_custom_getter": model, **changed}
        )

    def springs(**changed: Any) -> Any:
        return opt.ElasticAverageOptimizer(**{"opt": rule, "num_worker": 1, "ea_custom_getter": elastic, **changed})

    def accumulating(**changed: Any) -> Any:
        return opt.AGNOptimizer(**{"optimizer": rule, "num_worker": 1, "custom_getter": agn, **changed})

    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ValueError, "interval_steps must be .* received 0", lambda: averaging(interval_steps=0)),
        (ValueError, "interval_steps", lambda: averaging(interval_steps=2.5)),
        (ValueError, "num_worker must be .* received 0", lambda: averaging(num_worker=0)),
        (ValueError, "num_worker", lambda: averaging(num_worker=True)),
        (TypeError, "ma_custom_getter must be a ModelAverageCustomGetter", lambda: averaging(ma_custom_getter=None)),
        (TypeError, "ma_custom_getter", lambda: averaging(ma_custom_getter=elastic)),
        (TypeError, "opt must be", lambda: averaging(opt=0.1)),
        (ValueError, "worker_device", lambda: opt.ModelAverageCustomGetter("")),
        (ValueError, "worker_device", lambda: opt.ElasticAverageCustomGetter(None)),
        (ValueError, "global_step is required", lambda: averaging().apply_gradients([(one, v)])),
        (ValueError, "grads_and_vars", lambda: averaging().apply_gradients([], step)),
        (ValueError, "grads_and_vars", lambda: averaging().apply_gradients([(None, v)], step)),
        (
            ValueError,
            r"ma_custom_getter has no copies of \['before:0'\].*tf.get_variable",
            lambda: averaging().apply_gradients([(one, before)], step),
        ),
        (ValueError, "after apply_gradients", lambda: averaging().get_init_op()),
        (ValueError, "after apply_gradients", lambda: averaging().make_session_run_hook().begin()),
        (ValueError, "communication_period", lambda: springs(communication_period=0)),
        (ValueError, "num_worker", lambda: springs(num_worker=-1)),
        (TypeError, "ea_custom_getter must be a ElasticAverageCustomGetter", lambda: springs(ea_custom_getter=None)),
        (ValueError, "task_index must be from 0", lambda: springs(num_worker=2).get_init_op(2)),
        (ValueError, "ea_custom_getter has no copies", lambda: springs().get_init_op(0)),
        (ValueError, "ea_custom_getter has no copies", lambda: springs().minimize(tf.reduce_sum(before))),
        (ValueError, "moving_rate", lambda: springs(moving_rate=-0.1)),
        (ValueError, "moving_rate", lambda: springs(moving_rate=1.5)),
        (ValueError, "rho", lambda: springs(rho=-1.0)),
        (
            ValueError,
            "rho is required",
            lambda: springs(opt=opt.MovingAverageOptimizer(rule)).minimize(tf.reduce_sum(e), var_list=[e]),
        ),
        (ValueError, "communication_period", lambda: accumulating(communication_period=0)),
        (TypeError, "custom_getter must be a AGNCustomGetter", lambda: accumulating(custom_getter=elastic)),
        (RuntimeError, "swapping_saver", lambda: accumulating().swapping_saver()),
    ]
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            call()
