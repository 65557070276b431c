"""Graphs of several sessions whose segments are the same share compiled code, and what is not the same does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.passes.place import place
from penstock.passes.prune import prune
from penstock.worker.cancellation import Cancellation
from penstock.worker.devices import local_devices
from penstock.worker.step import Step
from penstock.worker.worker import Worker

Build = Callable[[Any, Any], Any]  # makes an op of a variable and a fed tensor


@pytest.fixture
def server(exact_tier: None) -> Iterator[Worker]:
    """A worker of a server, whose sessions share segments."""
    made = Worker(local_devices("ps"))
    made.watched = True
    yield made
    made.close()


class Client:
    """Runs one op over the variable `w` of a server, on its CPU, in a session and a graph of its own."""

    def __init__(self, server: Worker, session: str, build: Build) -> None:
        self._server = server
        with tf.Graph().as_default(), tf.device("/device:CPU:0"):
            x = tf.placeholder(tf.float32, [None])
            w = tf.get_variable("w", shape=[3], use_resource=True)
            op = build(w, x)
            self._init = self._registered(session, tf.assign(w, tf.ones([3])))
            self._run = self._registered(session, op, x)
            self._read = self._registered(session, w.read_value())

    def _registered(self, session: str, op: Any, *feeds: Any) -> int:
        subgraph = place(prune(feeds, (tf.convert_to_tensor(op),), ()), self._server.device_names)
        return self._server.register_graph(subgraph, session)

    def _call(self, handle: int, *fed: Any) -> Any:
        (result,) = self._server.run_graph(handle, fed, Step(Cancellation()))
        return np.asarray(result)

    def init(self) -> None:
        self._call(self._init)

    def run(self, *fed: float) -> Any:
        return self._call(self._run, np.asarray(fed, np.float32))

    def read(self) -> list[float]:
        values: list[float] = self._call(self._read).tolist()
        return values


def _programs(worker: Worker) -> int:
    """The number of programs that were compiled, or loaded from disk."""
    return worker.compilations.count + worker.compilations.loaded


def _scaled(by: float) -> Build:
    return lambda w, x: tf.assign_sub(w, by * x)


def test_the_same_update_of_several_sessions_is_compiled_once(server: Worker) -> None:
    clients = [Client(server, f"session {i}", _scaled(0.5)) for i in range(3)]
    clients[0].init()
    clients[0].run(2, 2, 2)
    before = _programs(server)
    for client in clients[1:]:
        client.run(2, 0, 0)
    assert _programs(server) == before
    assert all(client.read() == [-2, 0, 0] for client in clients)


def test_updates_by_another_constant_or_of_another_variable_are_not_the_same(server: Worker) -> None:
    one, other = Client(server, "1", _scaled(0.5)), Client(server, "2", _scaled(0.25))

    def of_another(w: Any, x: Any) -> Any:
        return tf.assign_sub(tf.get_variable("v", shape=[3], use_resource=True), 0.5 * x)

    third = Client(server, "3", of_another)
    one.init()
    one.run(4, 0, 0)
    other.run(4, 0, 0)
    with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value v"):
        third.run(4, 0, 0)
    assert one.read() == [-2, 1, 1]


def test_what_is_shared_outlives_the_session_that_made_it(server: Worker) -> None:
    one, other = Client(server, "1", _scaled(1.0)), Client(server, "2", _scaled(1.0))
    one.init()
    one.run(1, 1, 1)
    server.deregister_graphs("1")
    other.run(1, 0, 0)
    assert other.read() == [-1, 0, 0]
    with pytest.raises(tf.errors.AbortedError, match="not registered"):
        one.run(1, 1, 1)


def test_nothing_is_shared_once_the_variable_is_another(server: Worker) -> None:
    old = Client(server, "1", _scaled(1.0))
    old.init()
    old.run(1, 1, 1)
    server.reset()
    new = Client(server, "2", _scaled(1.0))
    with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value w"):
        new.run(1, 1, 1)
    new.init()
    new.run(3, 0, 0)
    assert new.read() == [-2, 1, 1]


def test_sessions_draw_their_own_numbers(server: Worker) -> None:
    def drawn(w: Any, x: Any) -> Any:
        return tf.random_uniform([3], seed=7) + 0.0 * x

    clients = [Client(server, f"session {i}", drawn) for i in range(2)]
    first = [client.run(0, 0, 0).tolist() for client in clients]
    second = [client.run(0, 0, 0).tolist() for client in clients]
    assert first[0] == first[1]
    assert second[0] == second[1] != first[0]


def test_a_failed_check_names_the_op_in_each_session(server: Worker) -> None:
    def checked(w: Any, x: Any) -> Any:
        return tf.assign_sub(w, tf.check_numerics(x, "a gradient", name="checked"))

    clients = [Client(server, f"session {i}", checked) for i in range(2)]
    clients[0].init()
    for client in clients:
        with pytest.raises(tf.errors.InvalidArgumentError, match="a gradient"):
            client.run(1, float("nan"), 1)
    assert clients[0].read() == [1, 1, 1]


def test_sessions_of_one_process_share_nothing(exact_tier: None) -> None:
    alone = Worker(local_devices())
    clients = [Client(alone, f"session {i}", _scaled(0.5)) for i in range(2)]
    clients[0].init()
    clients[0].run(2, 2, 2)
    before = _programs(alone)
    clients[1].run(2, 2, 2)
    assert _programs(alone) == before + 1
    alone.close()
