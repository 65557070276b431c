"""Remote tasks that do not start or answer, and sessions that are closed while they wait for them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from loopback import free_addresses, not_listening

import penstock.v1 as tf
from penstock.errors import CancelledError, DeadlineExceededError, UnavailableError
from penstock.master import remote
from penstock.master.links import Links
from penstock.master.remote import RemoteTask
from penstock.passes.prune import prune
from penstock.wire.control import ControlClient
from penstock.wire.messages import RunGraph

_DEADLINE = 60.0


@pytest.fixture
def task() -> Iterator[RemoteTask]:
    """A server in this process, reached as if it were in another."""
    with tf.Graph().as_default(), tf.train.Server.create_local_server() as server:
        links = Links.of_client(None)
        made = RemoteTask(server.worker.name, server.target.removeprefix("grpc://"), links)
        yield made
        made.close_session("")
        links.close()


def _graph(task: RemoteTask) -> Any:
    constant = tf.constant(1.0)
    subgraph = prune((), (constant,), ())
    for node in subgraph.nodes:
        node.device = task.device_names[0]
    return task.register(subgraph, "a session")


def test_a_step_after_the_session_was_closed(task: RemoteTask) -> None:
    link = task.connect(_DEADLINE)
    graph = _graph(task)
    task.close_session("a session")
    link.channel.close()
    with pytest.raises(CancelledError, match="session has been closed"):
        task.start(graph, RunGraph(1, 0), lambda answer: None)


def test_a_graph_that_has_to_be_registered_again(task: RemoteTask) -> None:
    """The connection is back, but registering over it fails."""
    task.connect(_DEADLINE)
    graph = _graph(task)
    graph.link = None
    task.close_session("a session")
    with pytest.raises(CancelledError, match="session has been closed"):
        task.start(graph, RunGraph(1, 0), lambda answer: None)


def test_a_session_that_is_closed_while_it_connects(task: RemoteTask, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    monkeypatch.setattr(remote, "ControlClient", lambda *args: opened.append(ControlClient(*args)) or opened[-1])
    find = task._links.open

    def closing(*args: Any) -> Any:
        task.close_session("a session")
        return find(*args)

    monkeypatch.setattr(task._links, "open", closing)
    with pytest.raises(CancelledError, match="session has been closed"):
        task.connect(_DEADLINE)
    assert task._control is None
    assert [client._closed for client in opened] == [True]
    with pytest.raises(CancelledError, match="GetStatus"):
        opened[0].get_status()


def test_a_session_that_is_closed_while_it_waits_for_a_task() -> None:
    links = Links.of_client(None)
    met: list[BaseException] = []

    def connect() -> None:
        with pytest.raises(CancelledError, match="session has been closed") as caught:
            task.connect(10 * _DEADLINE)
        met.append(caught.value)

    with not_listening() as address:
        task = RemoteTask("/job:ps/replica:0/task:0", address, links)
        thread = threading.Thread(target=connect)
        thread.start()
        task.close_session("a session")
        thread.join(_DEADLINE)
    assert len(met) == 1
    links.close()


# Time limits

_LIMIT_MS = 300


@pytest.fixture(params=["nobody listens", "nobody answers"])
def silent(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a task that is missing, or that is frozen: then the system accepts connections for it."""
    if request.param == "nobody listens":
        with not_listening() as address:
            yield address
        return
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        yield f"127.0.0.1:{frozen.getsockname()[1]}"


def test_a_task_that_tensors_cannot_reach_is_lost(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step has no time limit, so the error must not look like an expired one."""
    monkeypatch.setenv("PENSTOCK_KEEPALIVE_SECS", "0.5")
    links = Links.of_client(None)
    with pytest.raises(UnavailableError, match=silent):
        links.reach("/job:ps/replica:0/task:0", silent)
    links.close()


def test_a_session_has_a_time_limit_to_connect(silent: str) -> None:
    limited = tf.ConfigProto(operation_timeout_in_ms=_LIMIT_MS)
    with pytest.raises(DeadlineExceededError, match=f"No session within 0.3 s: .*{silent}"):
        tf.Session(f"grpc://{silent}", config=limited)


@pytest.mark.parametrize("limit", ["operation_timeout_in_ms", "RunOptions"])
def test_a_step_has_a_time_limit_to_connect(silent: str, limit: str) -> None:
    (here,) = free_addresses(1)
    config, options = tf.ConfigProto(operation_timeout_in_ms=2000), tf.RunOptions(timeout_in_ms=_LIMIT_MS)
    with tf.Graph().as_default(), tf.train.Server({"worker": [here], "ps": [silent]}, "worker", 0) as server:
        with tf.device("/job:ps/task:0"):
            there = tf.constant(1.0) + 1.0
        with tf.Session(server.target, config=config if limit == "operation_timeout_in_ms" else None) as session:
            with pytest.raises(DeadlineExceededError, match=f"time limit has passed: /job:ps/.*task:0 .*{silent}"):
                session.run(there, options=options if limit == "RunOptions" else None)
            # A time limit of its own: that of the session is for all its steps.
            assert session.run(tf.constant(2.0), options=tf.RunOptions(timeout_in_ms=int(_DEADLINE * 1000))) == 2.0
