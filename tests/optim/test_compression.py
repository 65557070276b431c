"""Gradients that travel compressed: each method beside NumPy, as the papers write it, with 1, 2 and 3 workers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leaks import leak_check
from loopback import free_addresses

import penstock.v1 as tf

_STEPS = 8
_RATE = 0.1
_SHAPES = {"w": (6, 7), "b": (3,)}
_DEADLINE = 60.0
train = tf.train
Gradients = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def _start(name: str) -> np.ndarray:
    return np.random.RandomState(len(name) + 5).randn(*_SHAPES[name])


def _gradients(worker: int, step: int) -> Gradients:
    random = np.random.RandomState(100 * worker + step)
    return {name: random.randn(*shape) for name, shape in _SHAPES.items()}


class _DeepCompression:
    """One worker of the paper's algorithm; `send` gives what arrives at the parameter server."""

    def __init__(
        self,
        sparsity: Callable[[int], float],
        momentum: float = 0.0,
        nesterov: bool = False,
        clip: float = np.inf,
        dense: tuple[str, ...] = ("b",),
    ) -> None:
        self.sparsity, self.momentum, self.nesterov, self.clip, self.dense = sparsity, momentum, nesterov, clip, dense
        self.u = {name: np.zeros(shape) for name, shape in _SHAPES.items()}
        self.v = {name: np.zeros(shape) for name, shape in _SHAPES.items()}

    def send(self, grads: Gradients, step: int) -> Gradients:
        norm = np.sqrt(sum(np.sum(g**2) for g in grads.values()))
        return {name: self._send(name, g * min(1.0, self.clip / norm), step) for name, g in grads.items()}

    def _send(self, name: str, g: np.ndarray, step: int) -> np.ndarray:
        u, v = self.u[name], self.v[name]
        u[:] = self.momentum * (u + g) if self.nesterov else self.momentum * u + g
        v += u + g if self.nesterov else u
        if name in self.dense:
            sent = v.copy()
            v[:] = 0
            return sent
        count = max(1, round(g.size * (1 - self.sparsity(step))))
        mask = np.abs(v) >= np.sort(np.abs(v), None)[-count]
        sent = v * mask
        u[mask] = v[mask] = 0
        return sent


class _OneBit:
    """One worker with error feedback."""

    def __init__(self, per_column: bool = True) -> None:
        self.per_column = per_column
        self.residual = {name: np.zeros(shape) for name, shape in _SHAPES.items()}

    def send(self, grads: Gradients, step: int) -> Gradients:
        sent = {}
        for name, g in grads.items():
            wanted = g + self.residual[name]
            columns = wanted if self.per_column and wanted.ndim > 1 else wanted.reshape(-1, 1)
            sent[name] = np.apply_along_axis(self._column, 0, columns).reshape(g.shape)
            self.residual[name] = wanted - sent[name]
        return sent

    @staticmethod
    def _column(values: np.ndarray) -> np.ndarray:
        up = values >= 0
        result = np.zeros_like(values)
        for chosen in (up, ~up):
            if chosen.any():
                result[chosen] = values[chosen].mean()
        return result


class _Simulated:
    """Workers that train the same variables in one process, in turn, each with local variables of its own."""

    def __init__(self, make: Callable[[], Any], workers: int, use_resource: bool = False) -> None:
        self.variables = {n: tf.Variable(_start(n), name=n, use_resource=use_resource) for n in _SHAPES}
        self.fed = {name: tf.placeholder(tf.float64, shape) for name, shape in _SHAPES.items()}
        self.count = train.get_or_create_global_step()
        pairs = [(self.fed[name], var) for name, var in self.variables.items()]
        self.trains, self.locals = [], []
        for _ in range(workers):
            before = len(tf.local_variables())
            self.trains.append(make().apply_gradients(pairs, global_step=self.count))
            self.locals.append(tf.local_variables()[before:])
        self.session = tf.Session()
        self.session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])

    def step(self, worker: int, grads: Gradients) -> Gradients:
        self.session.run(self.trains[worker], {self.fed[name]: g for name, g in grads.items()})
        found: Gradients = self.session.run(self.variables)
        return found


def _check(make: Callable[[], Any], senders: list[Any], use_resource: bool = False) -> _Simulated:
    """Gradient descent by what the senders send."""
    simulated = _Simulated(make, len(senders), use_resource)
    expected = {name: _start(name) for name in _SHAPES}
    for step in range(_STEPS):
        for worker, sender in enumerate(senders):
            grads = _gradients(worker, step)
            sent = sender.send(grads, step * len(senders) + worker)
            found = simulated.step(worker, grads)
            for name in _SHAPES:
                expected[name] = expected[name] - _RATE * sent[name]
                message = f"{name} at step {step} of worker {worker}"
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6, err_msg=message)
    return simulated


def _descent() -> Any:
    return train.GradientDescentOptimizer(_RATE)


# Each method beside NumPy

_WORKERS = pytest.mark.parametrize("workers, use_resource", [(1, False), (2, True), (3, False)])


@_WORKERS
@pytest.mark.parametrize("momentum, nesterov", [(0.0, False), (0.9, False), (0.9, True)])
def test_deep_compression(workers: int, momentum: float, nesterov: bool, use_resource: bool) -> None:
    senders = [_DeepCompression(lambda step: 0.9, momentum, nesterov, 4.0 / np.sqrt(workers)) for _ in range(workers)]

    def make() -> Any:
        return train.DeepGradientCompressionOptimizer(
            _descent(), 0.9, (), momentum, nesterov, clip_norm=4.0, num_workers=workers, dense_below=4
        )

    simulated = _check(make, senders, use_resource)
    with simulated.session as session:
        for sender, made in zip(senders, simulated.locals, strict=True):
            held = {v.op.name.split("/")[0] + v.op.name.split("/")[-1][0]: session.run(v) for v in made}
            assert held.keys() == ({"wr", "wv", "bv"} if momentum else {"wr"})
            np.testing.assert_allclose(held["wr"], sender.v["w"].reshape(-1), atol=1e-6)
            if momentum:
                np.testing.assert_allclose(held["wv"], sender.u["w"].reshape(-1), atol=1e-6)
                np.testing.assert_allclose(held["bv"], sender.u["b"], atol=1e-6)


@pytest.mark.parametrize("workers", [1, 2])
def test_deep_compression_warms_up(workers: int) -> None:
    sparsity, boundaries = [0.0, 0.5, 0.9, 0.999], [2, 5, 7]

    def at(step: int) -> float:
        return sparsity[int(np.searchsorted(boundaries, step, "right"))]

    senders = [_DeepCompression(at, 0.5, dense=()) for _ in range(workers)]
    make = train.DeepGradientCompressionOptimizer
    _check(lambda: make(_descent(), sparsity, boundaries, 0.5, dense_below=0), senders).session.close()
    assert make.WARM_UP == (0.75, 0.9375, 0.984375, 0.996, 0.999)


@_WORKERS
@pytest.mark.parametrize("per_column", [True, False])
def test_one_bit(workers: int, per_column: bool, use_resource: bool) -> None:
    senders = [_OneBit(per_column) for _ in range(workers)]
    simulated = _check(lambda: train.OneBitOptimizer(_descent(), per_column, dense_below=0), senders, use_resource)
    with simulated.session as session:
        for sender, (w, b) in zip(senders, simulated.locals, strict=True):
            np.testing.assert_allclose(session.run(w).reshape(6, 7), sender.residual["w"], atol=1e-6)
            np.testing.assert_allclose(session.run(b).reshape(3), sender.residual["b"], atol=1e-6)


class _Cast:
    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype.as_numpy_dtype

    def send(self, grads: Gradients, step: int) -> Gradients:
        return {name: g.astype(self.dtype).astype(np.float64) for name, g in grads.items()}


@_WORKERS
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16], ids=["bfloat16", "float16"])
def test_wire_formats(dtype: Any, workers: int, use_resource: bool) -> None:
    senders = [_Cast(dtype) for _ in range(workers)]
    _check(lambda: train.WireFormatOptimizer(_descent(), dtype), senders, use_resource).session.close()


@pytest.mark.parametrize("dtype, largest", [(tf.float16, 65504.0), (tf.bfloat16, 3.3895313892515355e38)])
def test_wire_formats_keep_numbers_finite(dtype: Any, largest: float) -> None:
    w = tf.Variable(np.zeros(5, np.float32))
    grad = tf.placeholder(tf.float32, [5])
    step = train.WireFormatOptimizer(train.GradientDescentOptimizer(1.0), dtype).apply_gradients([(grad, w)])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step, {grad: np.float32([3.4e38, -3.4e38, np.inf, np.nan, 0.5])})
        np.testing.assert_array_equal(session.run(w), np.float32([-largest, largest, -largest, np.nan, -0.5]))


_METHODS: dict[str, tuple[Callable[..., Any], Callable[[], Any]]] = {
    "deep": (
        lambda opt: train.DeepGradientCompressionOptimizer(opt, 0.8, momentum=0.5, dense_below=4),
        lambda: _DeepCompression(lambda step: 0.8, 0.5),
    ),
    "one bit": (lambda opt: train.OneBitOptimizer(opt, dense_below=0), _OneBit),
    "bfloat16": (lambda opt: train.WireFormatOptimizer(opt, tf.bfloat16), lambda: _Cast(tf.bfloat16)),
}
_EACH = pytest.mark.parametrize("method", _METHODS)


@_EACH
@pytest.mark.parametrize("base", ["AdamOptimizer", "FtrlOptimizer"])
def test_any_rule_applies_what_arrives(method: str, base: str) -> None:
    make, sender = _METHODS[method][0], _METHODS[method][1]()
    rule = getattr(train, base)(0.1)
    compressed, plain = _Simulated(lambda: make(rule), 1), _Simulated(lambda: getattr(train, base)(0.1), 1)
    assert rule.variables()
    with compressed.session, plain.session:
        for step in range(3):
            found = compressed.step(0, _gradients(0, step))
            expected = plain.step(0, sender.send(_gradients(0, step), step))
            for name in _SHAPES:
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6)


@_EACH
@pytest.mark.parametrize("use_resource", [False, True], ids=["ref", "resource"])
def test_rows_of_sparse_gradients_travel_by_themselves(method: str, use_resource: bool) -> None:
    table = tf.Variable(np.zeros((5, 2), np.float32), use_resource=use_resource)
    rows = tf.gather(table, [1, 3, 1])
    loss = tf.reduce_sum(rows * np.float32([[1, 2], [3, 4], [5, 6]]))
    step = _METHODS[method][0](train.GradientDescentOptimizer(1.0)).minimize(loss)
    assert not tf.local_variables()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step)
        np.testing.assert_array_equal(session.run(table), [[0, 0], [-6, -8], [0, 0], [-3, -4], [0, 0]])


def test_clipping_takes_all_gradients_together() -> None:
    w, table, unused = (tf.Variable(np.zeros((2, 1), np.float32)) for _ in range(3))
    rows = tf.IndexedSlices(tf.constant([[4.0]]), tf.constant([1]))
    rule = train.DeepGradientCompressionOptimizer(
        train.GradientDescentOptimizer(1.0), momentum=0.0, clip_norm=2.0, num_workers=4, dense_below=0
    )
    step = rule.apply_gradients([(tf.constant([[3.0], [0.0]]), w), (rows, table), (None, unused)])
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run(step)  # the norm is 5, and the limit 2 / sqrt(4)
        np.testing.assert_allclose(session.run([w, table]), [[[-0.6], [0]], [[0], [-0.8]]], rtol=1e-6)


@_EACH
def test_sums_of_large_batches_are_compressed(method: str) -> None:
    make, sender = _METHODS[method][0], _METHODS[method][1]()
    simulated = _Simulated(lambda: train.GradientAccumulationOptimizer(make(_descent()), steps=2), 1)
    expected = {name: _start(name) for name in _SHAPES}
    with simulated.session:
        for step in range(0, _STEPS, 2):
            pair = [_gradients(0, step), _gradients(0, step + 1)]
            found = [simulated.step(0, grads) for grads in pair][1]
            sent = sender.send({name: (pair[0][name] + pair[1][name]) / 2 for name in _SHAPES}, step)
            for name in _SHAPES:
                expected[name] = expected[name] - _RATE * sent[name]
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6)


# Training loops


def _regression(method: str) -> tuple[Any, Any]:
    """The train op and the loss."""
    random = np.random.RandomState(0)
    x, true = random.randn(50, 10).astype("f"), random.randn(10, 2).astype("f")
    w = tf.get_variable("w", [10, 2], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - x @ true))
    rule = _METHODS[method][0](train.GradientDescentOptimizer(0.1))
    return rule.minimize(loss, global_step=train.get_or_create_global_step()), loss


@_EACH
@pytest.mark.parametrize("loop", ["monitored", "supervisor"])
def test_training_goes_on_in_a_new_session(method: str, loop: str, tmp_path: Path) -> None:
    step, loss = _regression(method)
    has_state = method != "bfloat16"
    assert [v.op.name.split("/")[0] for v in tf.local_variables()] == ["w"] * (2 if method == "deep" else has_state)
    held = [tf.reduce_max(tf.abs(v)) for v in tf.local_variables()]
    supervisor = train.Supervisor(logdir=str(tmp_path)) if loop == "supervisor" else None
    counted = train.get_global_step()
    for turn in range(2):
        with contextlib.ExitStack() as stack:
            if supervisor is None:
                session = stack.enter_context(train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)))
            else:
                session = stack.enter_context(supervisor.managed_session())
            assert session.run([counted, *held]) == [60 * turn, *[0.0] * len(held)]
            for _ in range(60):
                session.run(step)
            assert all(session.run(held)) and session.run(counted) == 60 * (turn + 1)
            if supervisor is not None:
                supervisor.saver.save(session, supervisor.save_path, global_step=60)
                break  # a supervisor has one session
            last = session.run(loss)
    if supervisor is None:
        assert last < 1e-3


@_EACH
def test_synchronous_workers(method: str) -> None:
    """State of a worker is on the worker; gradients of both are restored, and their mean is applied."""
    make, sender = _METHODS[method]
    ps, *rest = free_addresses(3)
    spec = {"ps": [ps], "worker": rest}
    with leak_check(), contextlib.ExitStack() as stack:
        servers = []
        for job, task in (("ps", 0), ("worker", 0), ("worker", 1)):
            servers.append(train.Server(spec, job_name=job, task_index=task))
            stack.callback(servers[-1].stop)
        workers = []
        for task in range(2):
            place = f"/job:worker/task:{task}"
            built = stack.enter_context(contextlib.ExitStack())
            built.enter_context(tf.Graph().as_default())
            with tf.device(train.replica_device_setter(cluster=spec, worker_device=place)):
                step = train.get_or_create_global_step()
                variables = {n: tf.get_variable(n, initializer=_start(n)) for n in _SHAPES}
                fed = {name: tf.placeholder(tf.float64, shape) for name, shape in _SHAPES.items()}
                sync = train.SyncReplicasOptimizer(train.GradientDescentOptimizer(_RATE), replicas_to_aggregate=2)
                op = make(sync).apply_gradients([(fed[n], variables[n]) for n in _SHAPES], global_step=step)
            assert {v.device for v in tf.global_variables()} == {"/job:ps/task:0"}
            assert {v.device for v in tf.local_variables()} == {place}
            session = train.MonitoredTrainingSession(
                servers[1 + task].target, task == 0, hooks=[sync.make_session_run_hook(task == 0, 0)]
            )
            workers.append((session, op, fed, variables))
            built.close()
        senders = [sender(), sender()]
        expected = {name: _start(name) for name in _SHAPES}
        for number in range(3):
            threads = []
            for task, (session, op, fed, _) in enumerate(workers):
                feed = {fed[name]: g for name, g in _gradients(task, number).items()}
                threads.append(threading.Thread(target=session.run, args=(op, feed), daemon=True))
                threads[-1].start()
            for thread in threads:
                thread.join(_DEADLINE)
                assert not thread.is_alive(), "a step still waits"
            sent = [s.send(_gradients(task, number), number) for task, s in enumerate(senders)]
            found = workers[0][0].run(workers[0][3])
            for name in _SHAPES:
                expected[name] = expected[name] - _RATE * np.mean([one[name] for one in sent], 0)
                np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6)
        for session, *_ in reversed(workers):
            session.close()


# Errors


def test_errors_name_the_argument() -> None:
    base = train.GradientDescentOptimizer(0.1)
    deep, one_bit, wire = (
        lambda **given: train.DeepGradientCompressionOptimizer(**{"opt": base, **given}),
        lambda **given: train.OneBitOptimizer(**{"opt": base, **given}),
        lambda **given: train.WireFormatOptimizer(**{"opt": base, **given}),
    )
    w = tf.Variable(np.zeros(300, np.float32))
    grad = tf.ones([300])
    unknown = tf.Variable(tf.placeholder_with_default(np.zeros(3, "f"), [None]), validate_shape=False)
    warm = {"sparsity": [0.5, 0.9, 0.99], "boundaries": [10, 20]}
    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ValueError, "sparsity must be .* received -0.1", lambda: deep(sparsity=-0.1)),
        (ValueError, "sparsity must be .* received 1.5", lambda: deep(sparsity=1.5)),
        (ValueError, "sparsity", lambda: deep(sparsity=1.0)),
        (ValueError, "sparsity", lambda: deep(sparsity="0.9")),
        (ValueError, "sparsity", lambda: deep(**{**warm, "sparsity": [0.5, 2.0, 0.9]})),
        (ValueError, "boundaries must increase, received .20, 10", lambda: deep(**{**warm, "boundaries": [20, 10]})),
        (ValueError, "boundaries must increase", lambda: deep(**{**warm, "boundaries": [10, 10]})),
        (ValueError, "boundaries must be whole numbers", lambda: deep(**{**warm, "boundaries": [0.5, 10]})),
        (ValueError, "boundaries must be one fewer", lambda: deep(sparsity=[0.5, 0.9])),
        (ValueError, "boundaries must be one fewer", lambda: deep(boundaries=[10])),
        (TypeError, "boundaries must be a list of steps, received None", lambda: deep(boundaries=None)),
        (ValueError, "global_step is required", lambda: deep(**warm).apply_gradients([(grad, w)])),
        (ValueError, "momentum must be", lambda: deep(momentum=1.0)),
        (ValueError, "clip_norm must be positive", lambda: deep(clip_norm=0.0)),
        (ValueError, "num_workers must be", lambda: deep(num_workers=0)),
        (ValueError, "dense_below must be", lambda: deep(dense_below=-1)),
        (ValueError, "dense_below must be", lambda: one_bit(dense_below=0.5)),
        (ValueError, "dtype must be tf.bfloat16 or tf.float16, received float32", lambda: wire(dtype=tf.float32)),
        (TypeError, "dtype must be tf.bfloat16 or tf.float16, received 'half-ish'", lambda: wire(dtype="half-ish")),
        (TypeError, "opt must be", lambda: wire(opt=0.1)),
        (TypeError, "opt compresses gradients already", lambda: deep(opt=one_bit())),
        (TypeError, "opt .*DeepGradientCompression", lambda: train.SyncReplicasOptimizer(deep(), 2)),
        (ValueError, "No gradients provided", lambda: deep().apply_gradients([(None, w)])),
        (ValueError, "No variables provided", lambda: one_bit().apply_gradients([])),
        (ValueError, "shape that is known", lambda: one_bit().apply_gradients([(tf.ones([3]), unknown)])),
    ]
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            call()
