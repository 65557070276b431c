"""A server and its peers: strangers, silent and slow ones, those that come back, and those that vanish."""

from __future__ import annotations

import dataclasses
import random
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from leaks import leak_check

import penstock.v1 as tf
from penstock import server as server_module
from penstock.errors import (
    AbortedError,
    DataLossError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    PermissionDeniedError,
    UnavailableError,
)
from penstock.master.links import Link, Links
from penstock.server import Server
from penstock.wire import endpoint
from penstock.wire.channel import Channel
from penstock.wire.codec import encode
from penstock.wire.control import ControlClient
from penstock.wire.credentials import Credentials
from penstock.wire.loop import Loop
from penstock.wire.messages import Cancel, Hello, Region, RunGraph, Tensors
from penstock.worker.cancellation import Cancellation
from penstock.worker.step import Step
from penstock.worker.worker import MAX_EARLY, MAX_ENDED

DEADLINE = 60.0
WORKER = "/job:worker/replica:0/task:0"


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with leak_check(), tf.Graph().as_default():
        yield


@pytest.fixture(autouse=True)
def _over_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes sessions use sockets, though the server is in this process."""
    monkeypatch.setattr(server_module, "server_at", lambda address: None)


@pytest.fixture
def safe_server(job: Credentials) -> Iterator[Server]:
    with Server({"ps": ["127.0.0.1:0"]}, credentials=job) as running:
        yield running


def wait_until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def listener(server: Server) -> endpoint.Listener:
    assert server._listener is not None
    return server._listener


def serves(server: Server) -> bool:
    """True if a session on the server runs."""
    with tf.Graph().as_default(), tf.Session(server.target) as session:
        return bool(session.run(tf.constant([1, 2]) + 3).tolist() == [4, 5])


def frame(message: Any) -> bytes:
    return b"".join(bytes(memoryview(buffer)) for buffer in encode(message))


def dial(server: Server, content: bytes = b"", unix: bool = False) -> socket.socket:
    """A connection that sends `content`."""
    name = listener(server).unix_name
    if unix and name:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(f"\0{name}")
    else:
        sock = socket.create_connection(("127.0.0.1", listener(server).port))
    sock.settimeout(DEADLINE)
    sock.sendall(content)
    return sock


def dropped(sock: socket.socket) -> bool:
    """True if the server closes a connection; its messages before that are ignored."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    sock.close()
    return True


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("Refused")]


# Strangers


def malformed(choose: random.Random) -> bytes:
    """Random bytes, a frame with some bytes changed or missing, or a message that is no Hello."""
    kind = choose.randrange(4)
    if kind == 0:
        return choose.randbytes(choose.randint(1, 200))
    if kind == 1:
        some = Cancel(1, 2, "x"), RunGraph(1, 2), Region(0, 1 << 40), Tensors(1, [0], [np.ones(9)])
        return frame(choose.choice(some))
    content = bytearray(frame(Hello(b"token", "x\ny", 7)))
    if kind == 2:
        return bytes(content[: choose.randint(1, len(content) - 1)])
    content[choose.choice([0, 1, 2, 3, 5, 7, 16, 18, 25, 26])] ^= choose.randint(1, 255)
    return bytes(content)


def test_a_thousand_malformed_connections(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    choose = random.Random(0)
    with tf.Session(server.target) as session:
        three = tf.constant(1) + 2
        assert session.run(three) == 3
        for i in range(1000):
            sock = dial(server, malformed(choose), unix=i % 2 == 0)
            sock.shutdown(socket.SHUT_WR)
            assert dropped(sock)
        assert session.run(three) == 3
    assert serves(server)
    assert listener(server)._refusals.total == 1000
    assert 1 <= len(refusals(caplog)) <= 257
    assert len(set(refusals(caplog))) == len(refusals(caplog))
    assert len(caplog.records) == len(refusals(caplog))


def test_a_large_first_message_is_refused_at_once(server: Server) -> None:
    """It takes no memory before its sender is known."""
    assert dropped(dial(server, frame(Tensors(1, [0], [np.zeros(1 << 20, np.uint8)]))[:100]))
    assert dropped(dial(server, frame(Hello(b"", "x" * (1 << 20), 1))[:100]))
    assert serves(server)


def test_garbage_after_a_hello(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    choose = random.Random(1)
    for i in range(20):
        assert dropped(dial(server, frame(Hello(b"", "", i)) + b"?" + choose.randbytes(100)))
    assert len([r for r in caplog.records if "sent bytes that are no message" in r.getMessage()]) == 20
    wait_until(lambda: not server.links.all())
    assert serves(server)


def test_the_silent_are_dropped(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(endpoint, "HANDSHAKE_SECS", 5.0)  # the session below must say who it is within that, too
    said = [b"", b"P", frame(Hello(b"", "", 1))[:20]]
    silent = [dial(server, said[i % 3], unix=i % 2 == 0) for i in range(96)]
    assert serves(server)  # meanwhile
    assert all(dropped(sock) for sock in silent)
    assert serves(server)
    assert listener(server)._refusals.total == 96
    # Of this host's process and of its address: that they sent nothing, and that they took too long.
    assert len(refusals(caplog)) == 4


def test_the_slow_are_dropped(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending a byte now and then does not extend the time limit."""
    monkeypatch.setattr(endpoint, "HANDSHAKE_SECS", 1.0)
    sock = dial(server)
    began = time.monotonic()
    with pytest.raises(OSError):
        for byte in frame(Hello(b"x" * 2000, "", 1)):
            sock.sendall(bytes([byte]))
            time.sleep(0.1)
    assert time.monotonic() - began < DEADLINE
    sock.close()


def test_the_oldest_of_too_many_goes(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "HANDSHAKE_SECS", DEADLINE)
    monkeypatch.setattr(endpoint, "MAX_SILENT", 10)
    silent = []
    for i in range(12):
        silent.append(dial(server))
        wait_until(lambda i=i: listener(server)._refusals.total >= i - 9)
    assert dropped(silent[0])
    assert dropped(silent[1])
    silent[-1].sendall(frame(Hello(b"", "", 3)))
    assert silent[-1].recv(2) == b"PS"  # a welcome
    assert listener(server)._refusals.total == 2
    for sock in silent:
        sock.close()


def test_a_server_that_ends_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "HANDSHAKE_SECS", DEADLINE)
    server = Server({"ps": ["127.0.0.1:0"]})
    silent = [dial(server, said) for said in (b"", b"P") for _ in range(10)]
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < endpoint.HANDSHAKE_SECS
    assert all(dropped(sock) for sock in silent)


# Credentials


def other_certificate(job: Credentials, other: Credentials) -> Credentials:
    """Credentials with the job's authority and token, but a certificate of another job."""
    context = ssl.create_default_context(cadata=job.ca.decode())
    context.load_cert_chain(other.directory / "task.pem", other.directory / "task.key")
    return dataclasses.replace(job, _client_context=context)


STRANGERS: dict[str, tuple[Callable[[Credentials, Credentials], Credentials | None], type[OpError], str]] = {
    "wrong token": (lambda job, _: dataclasses.replace(job, token=b"?" * 64), PermissionDeniedError, "token is wrong"),
    "wrong authority": (lambda _, other: other, UnavailableError, "SSL"),
    "wrong certificate": (other_certificate, UnavailableError, "SSL"),
    "no TLS": (lambda *_: None, UnavailableError, "SSL"),
}


@pytest.mark.parametrize("who", STRANGERS)
def test_strangers_are_refused(
    who: str, safe_server: Server, job: Credentials, other_job: Credentials, caplog: pytest.LogCaptureFixture
) -> None:
    credentials_of, error, logged = STRANGERS[who]
    credentials = credentials_of(job, other_job)
    hello = Hello(credentials.token if credentials else job.token, "", 1)
    for _ in range(3):
        with pytest.raises(error):
            endpoint.connect("127.0.0.1", listener(safe_server).port, "", hello, credentials)
    wait_until(lambda: listener(safe_server)._refusals.total == 3)
    assert len(refusals(caplog)) == 1
    assert logged in refusals(caplog)[0]
    assert job.token.decode() not in caplog.text
    channel, _ = endpoint.connect("127.0.0.1", listener(safe_server).port, "", Hello(job.token, "", 2), job)
    channel.close()


def test_tls_client_against_a_plain_server(server: Server, job: Credentials) -> None:
    with pytest.raises((UnavailableError, DataLossError)):
        endpoint.connect("127.0.0.1", listener(server).port, "", Hello(job.token, "", 1), job)
    assert serves(server)


def test_a_safe_server_has_no_unix_socket(safe_server: Server) -> None:
    assert listener(safe_server).unix_name == ""


# Peers that come back, and peers that are late


def linked(server: Server, task: str, incarnation: int) -> Channel:
    """A task's channel to the server."""
    channel, welcome = endpoint.connect(
        "127.0.0.1", listener(server).port, listener(server).unix_name, Hello(b"", task, incarnation)
    )
    assert (welcome.task, welcome.incarnation) == (server.name, server.incarnation)
    return channel


def started(channel: Channel) -> tuple[threading.Event, list[OpError]]:
    """Starts to read. Returns an event for the end, and a list for its reason."""
    ended, why = threading.Event(), []

    def on_close(_: Channel, reason: OpError) -> None:
        why.append(reason)
        ended.set()

    channel.start(lambda channel, message: None, on_close, Loop())
    return ended, why


def test_a_task_that_comes_back_replaces_itself(server: Server) -> None:
    first = linked(server, WORKER, 1)
    ended, why = started(first)
    wait_until(lambda: server.links.find(WORKER))
    second = linked(server, WORKER, 2)
    second_ended, _ = started(second)
    assert ended.wait(DEADLINE)
    assert "another incarnation" in why[0].message
    # The old one is not dead, only late: it must not replace the new one.
    late = linked(server, WORKER, 1)
    late_ended, late_why = started(late)
    assert late_ended.wait(DEADLINE)
    assert isinstance(late_why[0], AbortedError)
    assert not second_ended.is_set()
    link = server.links.find(WORKER)
    assert link is not None
    assert link.incarnation == 2
    for channel in (first, second, late):
        channel.close()
        channel.join(DEADLINE)


@pytest.mark.parametrize("first", [0, 1])
def test_two_links_to_one_task(server: Server, first: int) -> None:
    """If both sides open one at the same time, both work, and the peer's sessions stay while one is left."""
    lost: list[int] = []
    server.links.on_lost = lost.append
    channels: list[Channel] = []
    for count in (1, 2):  # one after the other, so that it is known which is the second
        channels.append(linked(server, WORKER, 1))
        started(channels[-1])
        wait_until(lambda count=count: len(server.links.all()) == count)  # type: ignore[misc]
    channels[first].close()
    wait_until(lambda: len(server.links.all()) == 1)
    wait_until(lambda: server.links.find(WORKER) is not None)
    assert lost == []
    channels[1 - first].close()
    wait_until(lambda: lost == [1])
    for channel in channels:
        channel.join(DEADLINE)


def test_tensors_of_unknown_steps_are_few(server: Server) -> None:
    """Tensors for steps that never begin, or have ended, are not kept for long."""
    worker = server.worker
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    for step in range(5000):
        value = np.zeros(1000).view(_Weak)
        alive.add(value)
        worker.deliver(step, [0], [value])
    del value
    assert len(alive) <= MAX_EARLY
    assert len(worker._steps) == len(worker._early) <= MAX_EARLY
    for step in range(5000):
        worker.cancel(step)
    assert not worker._steps
    assert not alive
    assert len(worker._ended) <= MAX_ENDED
    worker.deliver(4999, [0], [np.zeros(1)])
    assert not worker._steps


class _Weak(np.ndarray):
    """An array that supports weak references and compares by identity."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        return self is other


def test_tensors_of_unknown_steps_over_the_wire(server: Server) -> None:
    channel = linked(server, "", 5)
    started(channel)
    for step in range(2000):
        channel.send(Tensors(step, [0], [np.zeros(100)]))
    wait_until(lambda: 1999 in server.worker._steps)
    assert len(server.worker._steps) <= MAX_EARLY
    assert serves(server)
    channel.close()
    channel.join(DEADLINE)


@pytest.fixture
def client(server: Server) -> Iterator[tuple[Links, Link, ControlClient]]:
    """A client without a session: its links, its link to the server, and its control connection."""
    links, control = Links.of_client(None), ControlClient(server.address)
    yield links, links.open(server.address, control.get_status()), control
    control.close()
    links.close()


def answer_of(link: Link, step: int, handle: int, fed: list[Any], times: int = 1) -> Any:
    answers: list[Any] = []
    came = threading.Event()
    request = RunGraph(step, handle, times=times, fed=len(fed), keys=range(len(fed)), values=fed)
    link.run(request, lambda answer: (answers.append(answer), came.set()))  # type: ignore[func-returns-value]
    assert came.wait(DEADLINE)
    return answers[0]


def test_an_unknown_graph(client: tuple[Links, Link, ControlClient]) -> None:
    answer = answer_of(client[1], 1, 999, [])
    assert isinstance(answer, AbortedError)
    assert "Graph handle 999 is not registered on /job:ps" in answer.message


def test_a_step_that_was_cancelled_before_it_began(server: Server) -> None:
    with tf.Session(server.target) as session:
        session.run(tf.constant(1) + 1)
        (handle,) = server.worker._graphs
        links, control = Links.of_client(None), ControlClient(server.address)
        link = links.open(server.address, control.get_status())
        link.cancel(77, AbortedError(None, None, "late"))
        answer = answer_of(link, 77, handle, [])
        assert isinstance(answer, AbortedError)
        assert "was cancelled before it began" in answer.message
        control.close()
        links.close()


@pytest.mark.parametrize("again", [False, True])  # at first a graph runs in a separate thread, then in the reader's
def test_values_that_do_not_fit(server: Server, client: tuple[Links, Link, ControlClient], again: bool) -> None:
    x = tf.placeholder(tf.float32, [2])
    with tf.Session(server.target) as session:
        fetch = x * 2.0
        for _ in range(3 if again else 1):
            assert session.run(fetch, {x: [1, 2]}).tolist() == [2, 4]
        (handle,) = server.worker._graphs
        for step, fed in enumerate(([], [np.ones(2, "f4")] * 2)):
            answer = answer_of(client[1], step, handle, fed)
            assert isinstance(answer, InvalidArgumentError)
        assert isinstance(answer_of(client[1], 3, handle, [np.array([b"a"], object)]), OpError)
        assert session.run(fetch, {x: [1, 2]}).tolist() == [2, 4]
        wait_until(lambda: not server.worker._steps)


def test_a_step_that_is_repeated(server: Server, client: tuple[Links, Link, ControlClient]) -> None:
    """It answers once, after the last time or the first error, and is suspended while it waits."""
    count = tf.get_variable("count", initializer=0)
    queue = tf.FIFOQueue(10, tf.int32, shapes=[()])
    step = tf.assign_add(count, queue.dequeue()).op
    fill, close = queue.enqueue_many([[1, 2, 3, 4, 5]]), queue.close()
    with tf.Session(server.target) as session:
        session.run([count.initializer, fill])
        before = set(server.worker._graphs)
        session.run(step)
        (handle,) = set(server.worker._graphs) - before
        steps = server.worker.counters.steps
        assert answer_of(client[1], 1, handle, [], times=3).values == []
        assert session.run(count) == 10
        assert server.worker.counters.steps == steps + 4
        answers: list[Any] = []
        client[1].run(RunGraph(2, handle, times=100), answers.append)
        wait_until(lambda: session.run(count) == 15)
        session.run(fill)  # it still waits there
        wait_until(lambda: session.run(count) == 30)
        assert not answers
        session.run(close)
        wait_until(lambda: answers)
        assert isinstance(answers[0], OutOfRangeError)
        wait_until(lambda: not server.worker._steps)


def test_an_error_as_long_as_a_book(
    server: Server, client: tuple[Links, Link, ControlClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives, shortened: otherwise the caller would wait for ever."""
    book = DataLossError(None, "op", "\udcff" + "x" * (20 << 20))
    monkeypatch.setattr(server.worker, "start_graph", lambda *args: args[1](None, book, Step(Cancellation())))
    answer = answer_of(client[1], 1, 1, [])
    assert isinstance(answer, DataLossError)
    assert answer.op_name == "op"
    assert answer.message.startswith("\\udcffxxx")


# Peers that vanish


def test_a_client_that_vanishes(server: Server) -> None:
    """Its step is cancelled, and its graphs are dropped; the resources stay."""
    queue = tf.FIFOQueue(10, tf.int32, shared_name="shared")
    enqueue, dequeue, size = queue.enqueue(7), queue.dequeue(), queue.size()
    caught: list[BaseException] = []
    session = tf.Session(server.target)
    assert session.run(size) == 0

    def run() -> None:
        try:
            session.run(dequeue)
        except OpError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: server.worker._steps)
    (link,) = session._links.all()
    link.channel._stream.close()  # without a message, as when its process is killed
    thread.join(DEADLINE)
    assert isinstance(caught[0], UnavailableError)
    assert "Lost the connection to /job:ps/replica:0/task:0" in str(caught[0])
    wait_until(lambda: not server.worker.sessions() and not server.worker._steps and not server.links.all())
    with tf.Session(server.target) as other:
        other.run(enqueue)
        assert other.run(size) == 1  # no step waits for it any more
    session.close()


def test_a_session_goes_on_when_only_the_connection_was_lost(server: Server) -> None:
    variable = tf.Variable(1)
    step = tf.assign_add(variable, 1)
    with tf.Session(server.target) as session:
        session.run(tf.global_variables_initializer())
        assert session.run(step) == 2
        (link,) = session._links.all()
        link.channel._stream.close()
        wait_until(lambda: not link.channel.is_open and not server.worker.sessions())
        assert session.run(step) == 3
    wait_until(lambda: not server.worker.sessions())
