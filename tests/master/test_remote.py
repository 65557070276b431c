"""A task of another process, as a session sees it that is closed while its threads still run steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock.v1 as tf
from penstock.errors import CancelledError
from penstock.master import remote
from penstock.master.links import Links
from penstock.master.remote import RemoteTask
from penstock.passes.prune import prune
from penstock.wire.codec import RunGraph
from penstock.wire.control import ControlClient

_DEADLINE = 30.0


@pytest.fixture
def task() -> Iterator[RemoteTask]:
    """A server of this process, reached as if it were of another."""
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
    """The connection is there again, but nothing can be registered over it any more."""
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
