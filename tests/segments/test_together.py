"""Steps that wait at once run a small update in one call, which does what their calls one after the other do."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.errors import FailedPreconditionError, InvalidArgumentError, OpError
from penstock.passes.place import place
from penstock.passes.prune import prune
from penstock.segments import together
from penstock.segments.compilation import wait_idle
from penstock.wire.messages import RunGraph
from penstock.worker import driver
from penstock.worker.devices import local_devices
from penstock.worker.run_queue import run_queue
from penstock.worker.worker import Worker

DEADLINE = 30.0
SIZE = 8
Build = Callable[[Any, Any], Any]  # makes an op of a variable and a fed tensor


def momentum(w: Any, x: Any) -> Any:
    """An update of two variables that depends on its place among others, and a number that counts it."""
    m = tf.get_variable("m", shape=[SIZE], use_resource=True)
    count = tf.get_variable("count", shape=[], dtype=tf.int64, use_resource=True)
    with tf.control_dependencies([tf.assign(m, 0.5 * m + x)]):
        moved = tf.assign_sub(w, m.read_value() * w)
    with tf.control_dependencies([moved]):
        return tf.assign_add(count, 1)


class Server:
    """The worker of a server, with a graph for each of several sessions: the same update of the same variables."""

    def __init__(self, build: Build, sessions: int) -> None:
        self.worker = Worker(local_devices("ps"))
        self.worker.watched = True
        self._step = 0
        self._updates, self._reads = [], []
        for i in range(sessions):
            with tf.Graph().as_default(), tf.device("/device:CPU:0"):
                x = tf.placeholder(tf.float32, [None])
                w = tf.get_variable("w", shape=[SIZE], use_resource=True)
                op = build(w, x)
                variables = tf.global_variables()
                self._updates.append(self._registered(i, op, x))
                self._reads = [self._registered(i, v.read_value()) for v in variables]
                init = [self._registered(i, tf.assign(v, tf.ones(v.shape, v.dtype))) for v in variables]
        self.init = lambda: self.run([(handle, ()) for handle in init])

    def _registered(self, session: int, op: Any, *feeds: Any) -> int:
        subgraph = place(prune(feeds, (tf.convert_to_tensor(op),), ()), self.worker.device_names)
        return self.worker.register_graph(subgraph, f"session {session}")

    def run(self, graphs: list[tuple[int, tuple[Any, ...]]]) -> list[Any]:
        """Runs a step of each graph, as if all were asked for at once. Returns the result, or the error, of each."""
        answers: dict[int, Any] = {}
        answered = threading.Event()

        def start(place: int, handle: int, fed: tuple[Any, ...]) -> None:
            def on_done(results: list[Any] | None, error: OpError | None, step: Any) -> None:
                answers[place] = error if results is None else np.array(results[0])
                if len(answers) == len(graphs):
                    answered.set()

            self._step += 1
            self.worker.start_graph(RunGraph(self._step, handle, fed=len(fed), values=fed), on_done)

        run_queue.collect(lambda: [start(i, *graph) for i, graph in enumerate(graphs)])  # type: ignore[func-returns-value]
        assert answered.wait(DEADLINE)
        return [answers[i] for i in range(len(graphs))]

    def update(self, *fed: Any) -> list[Any]:
        """Has each session update once, all at once."""
        values = [(np.full(SIZE, x, np.float32),) if np.isscalar(x) else (x,) for x in fed]
        return self.run(list(zip(self._updates, values, strict=False)))

    def state(self) -> list[Any]:
        return [self.run([(handle, ())])[0] for handle in self._reads]

    def programs(self) -> int:
        return sum(c.kind == "together" and not c.error for c in self.worker.compilations.recent())


@pytest.fixture
def served(
    exact_tier: None, nothing_on_disk: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Build, int], Server]]:
    monkeypatch.setattr(driver, "QUICK", math.inf)  # else a step that was slow for once gets a thread of its own
    made: list[Server] = []

    def serve(build: Build, sessions: int) -> Server:
        server = Server(build, sessions)
        made.append(server)
        return server

    yield serve
    for server in made:
        server.worker.close()


def _warm(server: Server, sessions: int) -> None:
    """Has the sessions update at once until there is code for that."""
    server.init()
    for _ in range(together.OFTEN + 5):
        server.update(*[0.0] * sessions)
    assert wait_idle(DEADLINE)


@pytest.mark.parametrize("sessions", [2, 5, 11])
def test_updates_at_once_do_what_they_do_one_after_the_other(
    served: Callable[[Build, int], Server], sessions: int
) -> None:
    server, alone = served(momentum, sessions), served(momentum, 1)
    _warm(server, sessions)
    assert server.programs()
    server.init()
    alone.init()
    for k in range(4):
        fed = [0.01 * (i + k) for i in range(sessions)]
        counts = server.update(*fed)
        assert counts == [alone.update(x)[0] for x in fed]
        assert counts == list(range(2 + k * sessions, 2 + (k + 1) * sessions))
    for ours, theirs in zip(server.state(), alone.state(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_code_is_compiled_for_two_four_and_eight_once_as_many_meet(served: Callable[[Build, int], Server]) -> None:
    server = served(momentum, 11)
    server.init()
    for _ in range(2 * together.OFTEN):
        server.update(0.0)
    assert wait_idle(DEADLINE)
    assert server.programs() == 0
    for programs, sessions in enumerate((4, 2, 11), start=1):
        _warm(server, sessions)
        assert server.programs() == programs


def test_steps_with_other_shapes_do_not_run_in_one_call(served: Callable[[Build, int], Server]) -> None:
    server = served(lambda w, x: tf.assign_add(w, tf.fill([SIZE], tf.reduce_sum(x))), 4)
    _warm(server, 4)
    server.init()
    server.update(*[np.ones(size, np.float32) for size in (1, 2, 1, 3)])
    (state,) = server.state()
    assert state.tolist() == [8.0] * SIZE


def test_a_failed_check_is_the_failure_of_its_own_step(served: Callable[[Build, int], Server]) -> None:
    def checked(w: Any, x: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_non_negative(x, message="no debts")]):
            return tf.assign_add(w, tf.identity(x))

    server = served(checked, 4)
    _warm(server, 4)
    server.init()
    answers = server.update(1.0, 2.0, -1.0, 4.0)
    assert [isinstance(answer, InvalidArgumentError) for answer in answers] == [False, False, True, False]
    (state,) = server.state()
    assert state.tolist() == [8.0] * SIZE


def test_each_of_them_finds_that_a_variable_is_not_initialised(served: Callable[[Build, int], Server]) -> None:
    server = served(momentum, 4)
    _warm(server, 4)
    for device in server.worker.devices:
        for (_, name), resource in device.resources.items():
            if name == "m":
                resource.forget()
    assert all(isinstance(answer, FailedPreconditionError) for answer in server.update(*[0.0] * 4))
    server.init()
    assert server.update(*[0.0] * 4) == [2, 3, 4, 5]


@pytest.mark.parametrize(
    "build", [lambda w, x: tf.assign(w, x), lambda w, x: tf.assign_add(w, tf.random_uniform([SIZE]))]
)
def test_what_does_not_run_in_one_call(served: Callable[[Build, int], Server], build: Build) -> None:
    """What only overwrites has nothing to keep in the caches, and each session draws its own numbers."""
    server = served(build, 4)
    _warm(server, 4)
    server.update(*[0.0] * 4)
    assert server.programs() == 0
