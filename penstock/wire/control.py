"""The control service: tasks ask each other for all but steps over gRPC, such as to register a graph or end a session.

Health (`grpc.health.v1`) and reflection are served at the same address, for orchestrators and grpcurl.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError
from tensorboard.compat.proto import cluster_pb2, graph_pb2

from penstock import logging
from penstock.errors import (
    CancelledError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    OpError,
    PermissionDeniedError,
    UnavailableError,
    error_from_code,
)
from penstock.graph.protos import make_messages
from penstock.wire.credentials import TOKEN_METADATA, Credentials, RefusalLog

MAX_MESSAGE = 1 << 31  # bytes: protobuf's limit
SERVICE = "penstock.Control"
_OP = "penstock-op-bin"  # the metadata key of the op that failed; binary, since names need not be ASCII
_LONGEST_OP, _LONGEST_MESSAGE = 1024, 4096  # bytes
STATUS_SECS = 10.0  # in which a task that listens must answer GetStatus
_SHORTEST_TRY, _LONGEST_TRY = 0.05, 5.0  # seconds for one attempt to connect

_METHODS = {
    "GetStatus": ("StatusRequest", "Status"),
    "RegisterGraph": ("RegisterGraphRequest", "RegisterGraphReply"),
    "CloseSession": ("CloseSessionRequest", "Empty"),
    "Reset": ("ResetRequest", "Empty"),
    "Resize": ("ResizeRequest", "ResizeReply"),
    "Move": ("MoveRequest", "MoveReply"),
}

_MESSAGES = {
    "Empty": "",
    "StatusRequest": "bool details",
    "Device": "string name; string device_type; int64 memory_limit_bytes; uint64 incarnation",
    "Session": "string name; int64 graphs",
    "Variable": "string name; string container; string device; string dtype; repeated int64 shape; int64 bytes",
    "Staleness": "int64 updates; int64 count",
    "Resource": """
        string name; string container; string kind; int64 size; int64 capacity;
        repeated Staleness staleness; repeated Staleness clocks_ahead
    """,
    "Peer": "string name; uint64 bytes_sent; uint64 bytes_received",
    "Compiled": "string segment; int64 count; double seconds",
    "Status": """
        string task; uint64 incarnation; tensorboard.ClusterDef cluster; repeated Device devices;
        uint32 channel_port; string unix_name;
        double uptime; double clock; int64 steps; int64 failed_steps; int64 updates; double busy;
        uint64 bytes_sent; uint64 bytes_received;
        repeated Session sessions; repeated Variable variables; repeated Resource resources; repeated Peer peers;
        repeated Staleness staleness;
        Compiled compiled; Compiled compiled_last_minute; repeated Compiled compiled_segments; int64 loaded_programs;
        string membership
    """,
    "RegisterGraphRequest": """
        string session; uint64 client; tensorboard.GraphDef graph; tensorboard.ClusterDef cluster; bool is_function;
        uint64 version
    """,
    "RegisterGraphReply": "uint64 handle",
    "CloseSessionRequest": "string session",
    "ResetRequest": "repeated string containers",
    "ResizeRequest": "tensorboard.ClusterDef cluster",
    "ResizeReply": "uint64 version; double pause; int64 resources; int64 bytes; string membership",
    "Held": """
        string device; string container; string name; string kind; int64 bytes; bool movable;
        string settings; int64 arrays; repeated string bonds
    """,
    "MoveRequest": "string act; uint32 round; uint64 step; string task; string membership; repeated Held resources",
    "MoveReply": "bool idle; bool waiting; repeated string busy; repeated Held resources; bool driven",
}

messages = make_messages(
    "penstock/control.proto",
    "penstock",
    _MESSAGES,
    {"Control": _METHODS},
    [cluster_pb2.DESCRIPTOR, graph_pb2.DESCRIPTOR],
)


Watched = Callable[[Callable[[], Any]], AbstractContextManager[None]]


class Service(Protocol):
    """A task implements these methods; each takes the request of a call and returns the reply."""

    def get_status(self, request: Any) -> Any: ...
    def register_graph(self, request: Any) -> Any: ...
    def close_session(self, request: Any) -> Any: ...
    def reset(self, request: Any) -> Any: ...
    def resize(self, request: Any) -> Any: ...
    def move(self, request: Any) -> Any: ...


class ControlServer:
    """Serves a task's control service at an address. `port` is the port that it got."""

    def __init__(self, address: str, service: Service, credentials: Credentials | None = None) -> None:
        if not re.fullmatch(r".*:[0-9]{1,5}", address) or int(address.rpartition(":")[2]) > 65535:
            raise InvalidArgumentError(
                f"A server's address must be of the form 'host:port', received '{address[:200]}'."
            )
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # start-up
        from grpc_reflection.v1alpha import reflection  # start-up

        self._started = False
        self._pool = ThreadPoolExecutor(8, "penstock-control")
        self._server = grpc.server(
            self._pool,
            interceptors=[_TokenCheck(credentials)] if credentials else (),
            options=[("grpc.so_reuseport", 0), *_SIZES],
        )
        handlers = {
            "GetStatus": service.get_status,
            "RegisterGraph": service.register_graph,
            "CloseSession": service.close_session,
            "Reset": service.reset,
            "Resize": service.resize,
            "Move": service.move,
        }
        rpcs = {name: _handler(name, handlers[name]) for name in _METHODS}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, rpcs),))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        for name in ("", SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        reflection.enable_server_reflection(
            (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME), self._server
        )
        try:
            if credentials is None:
                self.port: int = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, credentials.grpc_server_credentials())
        except RuntimeError as error:
            self._pool.shutdown()
            raise UnavailableError(
                f"The server cannot listen at '{address}': {_why_not(address)}. Is another task using that port?"
            ) from error

    def start(self) -> None:
        """Starts serving."""
        self._started = True
        self._server.start()

    def stop(self) -> None:
        """Stops serving and closes the port. Calls in progress get a moment to end."""
        self._health.enter_graceful_shutdown()
        if not self._started:
            self._server.start()  # gRPC closes the port only of a server that was started
        self._server.stop(1.0).wait(5.0)
        self._pool.shutdown(wait=False)


def _why_not(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        socket.create_server((host.strip("[]"), int(port))).close()
    except (OSError, ValueError, OverflowError) as error:
        return str(error)
    return "gRPC could not open it"


_SIZES = [("grpc.max_receive_message_length", MAX_MESSAGE - 1), ("grpc.max_send_message_length", MAX_MESSAGE - 1)]


def _handler(name: str, act: Callable[[Any], Any]) -> Any:
    request, reply = (messages[kind] for kind in _METHODS[name])

    def answer(content: bytes, context: Any) -> Any:
        try:
            return act(request.FromString(content))
        except OpError as error:
            failure = error
        except DecodeError as error:
            failure = InvalidArgumentError(f"{name}: the request is no {request.DESCRIPTOR.name}: {error}")
        except Exception as error:
            logging.error("penstock: %s failed", name, exc_info=error)
            failure = InternalError(f"{name} failed: {error!r}")
        _abort(context, failure)

    return grpc.unary_unary_rpc_method_handler(answer, None, reply.SerializeToString)


def _abort(context: Any, error: OpError) -> None:
    """Ends a call with an error. The error travels in headers, of which gRPC takes 8 KB."""
    code = next((c for c in grpc.StatusCode if c.value[0] == error.error_code), grpc.StatusCode.UNKNOWN)
    op = (error.op_name or "").encode(errors="replace")[:_LONGEST_OP]
    context.set_trailing_metadata(((_OP, op),))
    text = error.message.encode(errors="backslashreplace")
    # A byte that is not ASCII takes three bytes in a header.
    longest = _LONGEST_MESSAGE if text.isascii() else _LONGEST_MESSAGE // 3
    if len(text) > longest:
        text = text[:longest] + b" ..."
    context.abort(code, text.decode(errors="ignore"))


class _TokenCheck(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls that do not carry the job's token."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._refusals = RefusalLog()

        def refuse(_: Any, context: Any) -> None:
            self._refusals.refused(context.peer(), "its token is wrong")
            _abort(context, PermissionDeniedError("The token is not that of this job."))

        self._refuse = grpc.unary_unary_rpc_method_handler(refuse)

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        for key, value in details.invocation_metadata:
            if key == TOKEN_METADATA and self._credentials.token_matches(value):
                return continuation(details)
        return self._refuse


class ControlClient:
    """Calls the control service of the task at an address.

    >>> ControlClient("localhost:2222").get_status().task
    '/job:ps/replica:0/task:0'
    """

    def __init__(self, address: str, credentials: Credentials | None = None) -> None:
        self.address = address
        self._closed = False
        self._metadata = credentials.grpc_metadata() if credentials else None
        # Channels that share a subchannel also share its back-off, so this one has its own.
        options: list[tuple[str, Any]] = [*_SIZES, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        if credentials is None:
            self._grpc_channel = grpc.insecure_channel(address, options)
        else:
            options += credentials.grpc_channel_options()
            self._grpc_channel = grpc.secure_channel(address, credentials.grpc_channel_credentials(), options)
        self._calls = {
            name: self._grpc_channel.unary_unary(
                f"/{SERVICE}/{name}",
                request_serializer=messages[request].SerializeToString,
                response_deserializer=messages[reply].FromString,
            )
            for name, (request, reply) in _METHODS.items()
        }

    def _call(self, name: str, request: Any, timeout: float | None, watched: Watched | None = None) -> Any:
        try:
            if watched is None:
                return self._calls[name](request, timeout=timeout, metadata=self._metadata)
            call = self._calls[name].future(request, timeout=timeout, metadata=self._metadata)
            with watched(call.cancel):
                return call.result()
        except grpc.FutureCancelledError as error:
            raise CancelledError(f"{name} at {self.address} was cancelled.") from error
        except grpc.RpcError as error:
            raise self._error(name, error, timeout) from error
        except ValueError as error:  # the gRPC channel is closed, or the message is too large
            kind = CancelledError if self._closed else InvalidArgumentError
            raise kind(f"{name} at {self.address}: {error}") from error

    def _error(self, name: str, error: Any, timeout: float | None) -> OpError:
        code, said = error.code().value[0], error.details() or ""
        if code == DeadlineExceededError._code:
            return DeadlineExceededError(f"{self.address} accepted {name} but has not answered within {timeout:g} s.")
        op = next((value for key, value in error.trailing_metadata() or () if key == _OP), b"")
        if code == UnavailableError._code:
            return UnavailableError(f"No answer from {self.address}: {said}")
        return error_from_code(code, said, op.decode(errors="replace") or None)

    def get_status(self, details: bool = False, timeout: float = STATUS_SECS) -> Any:
        """Asks the task who it is, and with `details` what it holds."""
        return self._call("GetStatus", messages["StatusRequest"](details=details), timeout)

    def register_graph(
        self,
        session: str,
        client: int,
        graph: Any,
        timeout: float | None = None,
        watched: Watched | None = None,
        cluster: Any = None,
        is_function: bool = False,
        version: int = 0,
    ) -> int:
        """Registers a partition and returns its handle; `cluster` is the ClusterDef that the session brings, if any.

        With `is_function` it is a whole graph, which the task drives itself over the others. `version` is that of the
        membership by which the graph was placed.

        There is no default time limit, since a large graph takes long. `watched(cancel)` is a context around the call:
        a call of `cancel` in it raises CancelledError here.
        """
        request = messages["RegisterGraphRequest"](
            session=session, client=client, graph=graph, cluster=cluster, is_function=is_function, version=version
        )
        return int(self._call("RegisterGraph", request, timeout, watched).handle)

    def close_session(self, session: str, timeout: float = 5.0) -> None:
        """Tells the task to forget a session's graphs."""
        self._call("CloseSession", messages["CloseSessionRequest"](session=session), timeout)

    def reset(self, containers: list[str], timeout: float = 30.0) -> None:
        """Clears the named containers, or all if none is named."""
        self._call("Reset", messages["ResetRequest"](containers=containers), timeout)

    def resize(self, cluster: Any, timeout: float) -> Any:
        """Asks the first parameter server to have the tasks of a ClusterDef from now on."""
        return self._call("Resize", messages["ResizeRequest"](cluster=cluster), timeout)

    def move(self, request: Any, timeout: float) -> Any:
        """Asks a parameter server for one act of a move (a MoveRequest)."""
        return self._call("Move", request, timeout)

    def close(self) -> None:
        """Closes the connection."""
        self._closed = True
        self._grpc_channel.close()


def wait_until_listening(
    address: str,
    timeout: float,
    say: Callable[[str, float], None],
    every: float = 10.0,
    ended: threading.Event | None = None,
) -> None:
    """Waits until something listens at an address, and calls `say(why_not, seconds)` every so often.

    Raises UnavailableError after `timeout` seconds, or at once when another thread sets `ended`.
    """
    host, _, port = address.rpartition(":")
    ended = ended or threading.Event()
    began = time.monotonic()
    said = began
    pause = 0.02
    while True:
        try:
            left = max(_SHORTEST_TRY, began + timeout - time.monotonic())
            socket.create_connection((host.strip("[]"), int(port)), timeout=min(_LONGEST_TRY, left)).close()
            return
        except (OSError, ValueError) as error:
            why = str(error)
        now = time.monotonic()
        if now - began >= timeout or ended.is_set():
            raise UnavailableError(f"nothing answers at {address} ({why}) after {now - began:.0f} s")
        if now - said >= every:
            said = now
            say(why, now - began)
        ended.wait(min(pause, max(0.0, began + timeout - now)))
        pause = min(pause * 1.5, 0.5)
