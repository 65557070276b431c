"""The control plane of a server: answers, refusals, and errors."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from leaks import leak_check
from loopback import not_listening
from tensorboard.compat.proto.graph_pb2 import GraphDef

import penstock.v1 as tf
from penstock import server as server_module
from penstock.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from penstock.passes.ir import Subgraph
from penstock.passes.place import place
from penstock.passes.portable import to_graph_def
from penstock.passes.prune import prune
from penstock.server import Server
from penstock.wire.control import SERVICE, ControlClient, wait_until_listening
from penstock.wire.credentials import Credentials

DEADLINE = 60.0
CPU = "/job:ps/replica:0/task:0/device:CPU:0"


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    with leak_check(), tf.Graph().as_default():
        yield


@pytest.fixture
def over_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes sessions use sockets, though the server is in this process."""
    monkeypatch.setattr(server_module, "server_at", lambda address: None)


@pytest.fixture
def client(server: Server) -> Iterator[ControlClient]:
    made = ControlClient(server.address)
    yield made
    made.close()


def partition(fetch: Any, device: str = CPU) -> GraphDef:
    """The graph of a fetch, in the form in which a master sends it."""
    subgraph: Subgraph = prune([], [fetch], [])
    subgraph = place(subgraph, [device], soft=False) if device else subgraph
    return to_graph_def(subgraph)


# Answers


def test_status(server: Server, client: ControlClient) -> None:
    status = client.get_status()
    assert (status.task, status.incarnation) == (server.name, server.incarnation)
    assert CPU in [device.name for device in status.devices]
    assert status.channel_port == server._listener.port  # type: ignore[union-attr]
    assert [job.name for job in status.cluster.job] == ["ps"]
    assert not status.sessions


@pytest.mark.usefixtures("over_sockets")
def test_details(server: Server, client: ControlClient) -> None:
    variable = tf.Variable(np.zeros((3, 2), np.float32), name="weights")
    queue = tf.FIFOQueue(5, tf.int32, name="queue")
    with tf.Session(server.target) as session:
        session.run([tf.global_variables_initializer(), queue.enqueue(1)])
        session.run(tf.assign_add(variable, np.ones((3, 2), np.float32)))
        status = client.get_status(details=True)
    (found,) = status.variables
    assert (found.name, list(found.shape), found.dtype, found.bytes) == ("weights", [3, 2], "float32", 24)
    (resource,) = status.resources
    assert (resource.name, resource.size, resource.capacity) == ("queue", 1, 5)
    assert [entry.graphs for entry in status.sessions] == [2]
    assert (status.steps, status.failed_steps) == (2, 0)
    (peer,) = status.peers
    assert min(peer.bytes_sent, peer.bytes_received) > 0


def test_health(server: Server) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection(server: Server) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        services, file = stub.ServerReflectionInfo(iter(asked), timeout=DEADLINE)
    assert {s.name for s in services.list_services_response.service} >= {SERVICE, "grpc.health.v1.Health"}
    assert b"RegisterGraph" in file.file_descriptor_response.file_descriptor_proto[0]


# Refusals


def raw_call(server: Server, method: str, content: bytes) -> Any:
    with grpc.insecure_channel(server.address) as channel:
        return channel.unary_unary(f"/{SERVICE}/{method}")(content, timeout=DEADLINE)


@pytest.mark.parametrize("content", [b"\xff" * 50, b"\x1a\xff\xff\xff\x7f", b"HTTP"], ids=["bits", "length", "text"])
def test_bytes_that_are_no_request(server: Server, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(server, "RegisterGraph", content)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "RegisterGraphRequest" in caught.value.details()
    assert not caplog.records


def test_a_graph_that_is_none(client: ControlClient) -> None:
    graph = GraphDef()
    graph.node.add(name="x", op="NoOp")
    with pytest.raises(InvalidArgumentError, match="must begin with"):
        client.register_graph("s", 1, graph)
    with pytest.raises(InvalidArgumentError):
        client.register_graph("s", 1, GraphDef())


def test_an_op_that_is_not_there(client: ControlClient) -> None:
    graph = partition(tf.add(1, 2, name="sum"))
    graph.node[-1].op = "Nonsense"
    with pytest.raises(NotFoundError, match="no op type 'Nonsense'") as caught:
        client.register_graph("s", 1, graph)
    assert caught.value.op_name == "sum"


@pytest.mark.parametrize("device", ["", "/job:ps/replica:0/task:1/device:CPU:0", "nonsense"])
def test_a_device_that_is_not_there(server: Server, client: ControlClient, device: str) -> None:
    graph = partition(tf.add(1, 2, name="sum"))
    graph.node[-1].device = device
    with pytest.raises(InvalidArgumentError, match=r"Node 'sum' is on '.*', which /job:ps\S* does not have") as caught:
        client.register_graph("s", 1, graph)
    assert caught.value.op_name == "sum"
    assert not server.worker.sessions()


def test_a_graph_that_cannot_be_compiled(
    server: Server, client: ControlClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> int:
        raise KeyError("a pass expected something else")

    monkeypatch.setattr(server.worker, "register_graph", fail)
    with pytest.raises(InvalidArgumentError, match="cannot be compiled: KeyError"):
        client.register_graph("s", 1, partition(tf.constant(1)))


@pytest.mark.parametrize("message", ["x" * 100_000, "ä" * 100_000, "a\nb\0c", "\udcff"], ids=range(4))
def test_any_error_arrives(
    server: Server, client: ControlClient, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    """The error has the name of its op, for any text."""

    def fail(*_: Any) -> int:
        raise NotFoundError(None, "scope/öp", message)

    monkeypatch.setattr(server.worker, "register_graph", fail)
    with pytest.raises(NotFoundError) as caught:
        client.register_graph("s", 1, partition(tf.constant(1)))
    assert caught.value.op_name == "scope/öp"
    assert caught.value.message[:3] == message.encode(errors="backslashreplace").decode()[:3]


@pytest.mark.usefixtures("over_sockets")
def test_an_error_of_a_step_names_its_op(server: Server) -> None:
    x = tf.placeholder(tf.int32, [None])
    picked = tf.gather([1, 2, 3], x, name="pick")
    with tf.Session(server.target) as session:
        with pytest.raises(InvalidArgumentError) as caught:
            session.run(picked, {x: [7]})
        assert caught.value.op_name == "pick"
        assert session.run(picked, {x: [2]}).tolist() == [3]


def test_sessions_are_closed(server: Server, client: ControlClient) -> None:
    for session in ("a", "a", "b"):
        client.register_graph(session, 1, partition(tf.constant(1)))
    assert server.worker.sessions() == {"a": 2, "b": 1}
    client.close_session("a")
    assert server.worker.sessions() == {"b": 1}
    client.close_session("never there")
    client.reset([])
    assert server.worker.sessions() == {}


# Addresses


def test_a_port_that_is_taken(server: Server) -> None:
    with pytest.raises(UnavailableError, match=f"cannot listen at '{server.address}': .*in use"):
        Server({"ps": [server.address]})


def test_a_server_off_loopback_needs_credentials(job: Credentials) -> None:
    with pytest.raises(PermissionDeniedError, match="there are no credentials"):
        Server({"ps": ["0.0.0.0:0"]})
    for allowed in ({"insecure": True}, {"credentials": job}):
        with Server({"ps": ["0.0.0.0:0"]}, **allowed) as server:  # type: ignore[arg-type]
            address = f"127.0.0.1:{server.address.rpartition(':')[2]}"
            client = ControlClient(address, server.credentials)
            assert client.get_status().task == server.name
            client.close()


@pytest.mark.parametrize("insecure", [False, True])
def test_tls_is_not_promised_without_credentials(insecure: bool, job: Credentials) -> None:
    with pytest.raises(FailedPreconditionError, match=r"plain text.*penstock credentials create DIR.*PENSTOCK_CRED"):
        Server({"ps": ["localhost:0"]}, protocol="grpc+tls", insecure=insecure)
    with Server({"ps": ["localhost:0"]}, protocol="grpc+tls", credentials=job) as server:
        client = ControlClient(server.address, job)
        assert client.get_status().task == server.name
        client.close()


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:", "127.0.0.1:-1", "127.0.0.1:99999"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is no host and port"):
        Server({"ps": [address]}, insecure=True)


def test_nobody_is_there() -> None:
    said: list[str] = []
    ended = threading.Event()

    def say(why: str, seconds: float) -> None:
        said.append(why)
        ended.set()

    with not_listening() as address:
        with pytest.raises(UnavailableError, match=f"nothing answers at {address}"):
            wait_until_listening(address, DEADLINE, say, every=0.1, ended=ended)
        with pytest.raises(UnavailableError, match=f"nothing answers at {address}"):
            wait_until_listening(address, 0.2, say)
        client = ControlClient(address)
        with pytest.raises(UnavailableError, match="No answer from"):
            client.get_status(timeout=DEADLINE)
        client.close()
    assert len(said) == 1


def test_somebody_else_is_there() -> None:
    """A port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = ControlClient(f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises((UnavailableError, DeadlineExceededError)):
            client.get_status(timeout=0.5)
        client.close()


# With credentials


@pytest.mark.usefixtures("over_sockets")
def test_training_over_tls(job: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", str(job.directory))
    x = tf.placeholder(tf.float32, [None, 1])
    weight = tf.Variable([[0.0]])
    loss = tf.reduce_mean(tf.square(tf.matmul(x, weight) - 3.0 * x))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with Server({"ps": ["127.0.0.1:0"]}) as server, tf.Session(server.target) as session:
        assert server.credentials is not None
        assert session._links.all()[0].channel._stream.__class__.__name__ == "TlsStream"
        session.run(tf.global_variables_initializer())
        for _ in range(100):
            session.run(train, {x: [[1.0], [2.0]]})
        np.testing.assert_allclose(session.run(weight), [[3.0]], atol=1e-3)


def test_strangers_are_refused(job: Credentials, other_job: Credentials, caplog: pytest.LogCaptureFixture) -> None:
    with Server({"ps": ["127.0.0.1:0"]}, credentials=job) as server:
        for credentials, error in (
            (dataclasses.replace(job, token=b"?" * 64), PermissionDeniedError),
            (dataclasses.replace(job, certificate=other_job.certificate, key=other_job.key), UnavailableError),
            (other_job, UnavailableError),
            (None, UnavailableError),
        ):
            client = ControlClient(server.address, credentials)
            for _ in range(2):
                with pytest.raises(error):
                    client.get_status(timeout=DEADLINE)
            client.close()
        client = ControlClient(server.address, job)
        assert client.get_status().task == server.name
        client.close()
    tokens = [r.getMessage() for r in caplog.records if "token is wrong" in r.getMessage()]
    assert len(tokens) == 1
    assert job.token.decode() not in caplog.text
