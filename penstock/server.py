"""A server is one task of a cluster. Its worker runs graphs for sessions of this and other processes."""

from __future__ import annotations

import functools
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock import logging
from penstock.elastic.moving import Mover
from penstock.elastic.resize import Resizing
from penstock.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    UnavailableError,
)
from penstock.graph.device import DeviceSpecV2, task_name
from penstock.master.cluster import ClusterSpec, require_port, require_tasks
from penstock.master.function_driver import FunctionDriver
from penstock.master.links import Links
from penstock.master.membership import FIRST, NOTHING_CHANGED, Membership
from penstock.master.remote import RemoteTask, start_timeout, within
from penstock.master.server_def import ServerDef, make_server_def
from penstock.master.status import fill_status
from penstock.master.tasks import LocalTask, Task, Tasks
from penstock.passes.portable import from_graph_def
from penstock.progress import SERVES, under_way
from penstock.wire.control import STATUS_SECS, ControlClient, ControlServer, messages, wait_until_listening
from penstock.wire.credentials import ENVIRONMENT_VARIABLE, Credentials, is_loopback, require_safe
from penstock.wire.endpoint import Listener
from penstock.wire.messages import Welcome
from penstock.worker.devices import local_devices, use_batch_scheduling, use_cores, use_threads
from penstock.worker.outbox import Route
from penstock.worker.worker import Worker

SWITCH_SECS = 1e-4  # after which Python switches to another thread of the process
_make_server_def = make_server_def  # TensorFlow's name for it
__all__ = ["Server", "ServerDef", "connect_to", "reset_cluster"]

_in_process: dict[str, Server] = {}  # by address; servers of one process call each other without a socket
_in_process_lock = threading.Lock()


class Server:
    """Runs a task of a cluster in this process. Sessions reach it, and the cluster, by its `target`.

    A server at a loopback address is open to programs of this machine. Any other needs credentials (see
    `penstock credentials create`, PENSTOCK_CREDENTIALS), or `insecure=True`.

    >>> server = tf.train.Server(cluster, job_name="worker", task_index=0)
    >>> sess = tf.Session(server.target)
    """

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
        *,
        insecure: bool = False,
        credentials: Credentials | None = None,
    ) -> None:
        definition = make_server_def(server_or_cluster_def, job_name, task_index, protocol, config)
        if definition.protocol not in ("grpc", "grpc+tls"):
            raise NotFoundError(f"There is no server for the protocol '{definition.protocol}': use 'grpc'.")
        self._def = definition
        self.cluster = ClusterSpec(definition.cluster)
        job, index = definition.job_name, definition.task_index
        try:
            address = self.cluster.task_address(job, index)
        except ValueError as error:
            # TensorFlow's class.
            raise InternalError(
                f"Task {index} of job '{job}' is not in the cluster: {error}. It has {self.cluster!r}."
            ) from error
        require_tasks(self.cluster)
        self.credentials = credentials or Credentials.from_environment()
        if definition.protocol == "grpc+tls" and self.credentials is None:
            raise FailedPreconditionError(
                f"The protocol 'grpc+tls' was asked for, and there are no credentials: {address} would "
                "serve plain text. Make some with `penstock credentials create DIR` and set "
                f"{ENVIRONMENT_VARIABLE}=DIR for every task, or ask for 'grpc'."
            )
        require_safe(address, self.credentials, insecure)
        use_batch_scheduling()
        self.started = time.time()
        self.incarnation = secrets.randbits(63) | 1
        self.name = task_name(job, index)
        config = definition.default_session_config
        use_threads(config.intra_op_parallelism_threads or self.cluster.share_of_cores(address))
        self.worker = Worker(local_devices(job, index, dict(config.device_count)))
        self.worker.route = self._route
        self.worker.watched = True
        self.worker.incarnation = self.incarnation
        self.worker.make_function_driver = lambda: FunctionDriver(self.tasks([], self._brought))
        self.links = Links(self.name, self.incarnation, self.worker, self.credentials)
        self.links.on_lost = self._close_sessions_of
        self.worker.commits.is_connected = self.links.has
        self._sessions: dict[int, set[str]] = {}  # of clients, by incarnation
        self._addresses: dict[str, str] = {}  # of tasks that have joined, or that sessions have brought
        self._brought: ClusterSpec | None = None  # the last of these
        self.mover = Mover(self.worker, self.links, self._sessions, self._note_addresses)
        self._note_addresses(self.mover.membership)
        self._resize = Resizing(self.mover, self.cluster, self.credentials)
        self.links.on_membership = self._follow
        self.on_members_changed: Callable[[], None] = lambda: None
        self._stopped = threading.Event()
        host, _, port = address.rpartition(":")
        # Off loopback a task listens on all addresses of its machine, since others may use any name for it.
        self._host = host.strip("[]") if is_loopback(host) else "::" if ":" in host else "0.0.0.0"
        bound = f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
        self._control = ControlServer(bound, self, self.credentials)
        self.address = f"{host}:{self._control.port}" if port == "0" else address
        self._listener: Listener | None = None
        if start:
            self.start()

    # Properties

    @property
    def server_def(self) -> Any:
        """The ServerDef that the server was made from."""
        return self._def

    @property
    def target(self) -> str:
        """The target with which `tf.Session` uses this server's cluster."""
        return f"grpc://{self.address}"

    @staticmethod
    def create_local_server(config: Any = None, start: bool = True) -> Server:
        """Makes a cluster of one task, at a free port of this machine.

        >>> server = tf.train.Server.create_local_server(); sess = tf.Session(server.target)
        """
        return Server({"localhost": ["localhost:0"]}, protocol="grpc", config=config, start=start)

    # Starting and stopping

    def start(self) -> None:
        """Starts serving, unless it has started or stopped before."""
        if self._listener is not None or self._stopped.is_set():
            return
        self._listener = Listener(self._host, Welcome(self.name, self.incarnation), self.links.accept, self.credentials)
        with _in_process_lock:
            _in_process[self.address] = self
        # Threads that bring tensors must not wait long for one that computes in Python: its 5 ms are two steps.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECS))
        self._control.start()
        # TensorFlow's servers log this in C++, where this variable silences it. jax sets it to 1 for itself.
        if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") in ("0", "1"):
            print(f"penstock: {self.name} is listening at {self.target}", file=sys.stderr, flush=True)

    def join(self) -> None:
        """Blocks until the server is stopped. In a parameter server that is the end of its process.

        Ctrl-C raises a KeyboardInterrupt here, which ends the program in one line unless it is caught.
        """
        under_way(SERVES)
        use_cores(functools.partial(self.cluster.part_of_cores, self.address))
        try:
            self._stopped.wait()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"penstock: {self.name} at {self.target} was stopped by Ctrl-C") from None

    def stop(self) -> None:
        """Stops the server: steps in flight fail, and its resources are freed."""
        if self._stopped.is_set():
            return
        with _in_process_lock:
            if _in_process.get(self.address) is self:
                del _in_process[self.address]
        self._control.stop()
        if self._listener is not None:
            self._listener.close()
        self.mover.close()
        self.links.close()
        self.worker.close()
        self._stopped.set()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # For sessions

    def tasks(self, device_filters: list[str], cluster: ClusterSpec | None = None) -> Tasks:
        """Returns the tasks that pass the device filters, of this server's cluster or of the one a session brings."""
        if cluster is not None:
            self.learn(cluster)
        known = [self.cluster.task_address(job, n) for job in self.cluster.jobs for n in self.cluster.task_indices(job)]
        for near in filter(None, map(server_at, known)):
            self._follow(near.mover.membership)  # servers of other processes tell over links, or when they get a graph
        tasks = cluster_tasks(self.cluster, LocalTask(self.worker), self.links, device_filters, cluster)
        return following(tasks, self.mover.membership)

    def _follow(self, membership: Membership) -> None:
        """Notes a membership that another task has told of, if it is newer."""
        if membership.version > self.mover.membership.version:
            self.mover.membership = membership
            self._note_addresses(membership)
            self.on_members_changed()

    def _note_addresses(self, membership: Membership) -> None:
        for job in membership.tasks:
            self._addresses.update({name: membership.address(name) for name in membership.names(job)})

    def learn(self, cluster: ClusterSpec) -> None:
        """Notes the task addresses of a session's cluster. Raises InvalidArgumentError if this task is not in it."""
        addresses = {
            task_name(job, number): cluster.task_address(job, number)
            for job in cluster.jobs
            for number in cluster.task_indices(job)
        }
        for task, address in addresses.items():
            require_port(address, task)
        if self.name not in addresses:
            raise InvalidArgumentError(
                f"The session's cluster_def has no {self.name}, which is what the server at {self.address} "
                f"was started as. It has {', '.join(addresses)}."
            )
        self._addresses.update(addresses)
        self._brought = cluster

    def _route(self, task: str) -> Route:
        """Returns the route for tensors to another task."""
        found = self.links.find(task)
        if found is not None:
            return found
        spec = DeviceSpecV2.from_string(task)
        address = self._addresses.get(task) or self.cluster.task_address(spec.job or "", spec.task or 0)
        near = server_at(address)
        return self.links.reach(task, address) if near is None else near.worker

    # The control service

    def get_status(self, request: Any) -> Any:
        """Answers who this task is, and with details what it holds."""
        status = messages["Status"](
            task=self.name,
            incarnation=self.incarnation,
            cluster=self.cluster.as_cluster_def(),
            uptime=time.time() - self.started,
            clock=time.monotonic(),
        )
        if self._listener is not None:
            status.channel_port, status.unix_name = self._listener.port, self._listener.unix_name
        if self.mover.membership.version:
            status.membership = self.mover.membership.to_json()
        fill_status(status, self.worker, self.links, request.details)
        return status

    def resize(self, request: Any) -> Any:
        """Changes the membership of the job, which the first parameter server does."""
        if self.name != FIRST:
            raise InvalidArgumentError(f"{FIRST} changes the membership of a job; {self.name} was asked to.")
        done = self._resize(ClusterSpec(request.cluster))
        return messages["ResizeReply"](**vars(done))

    def move(self, request: Any) -> Any:
        """Does its part in a change of the membership."""
        return self.mover.act(request)

    def register_graph(self, request: Any) -> Any:
        """Registers a partition for a session of a client."""
        if not request.is_function:
            self.mover.check_graph(request.session, request.version)
        subgraph = from_graph_def(request.graph)
        if request.cluster.job:
            self.learn(ClusterSpec(request.cluster))
        for node in () if request.is_function else subgraph.nodes:
            if node.device not in self.worker.device_names:
                raise InvalidArgumentError(
                    None, node.name, f"Node '{node.name}' is on '{node.device[:100]}', which {self.name} does not have."
                )
        self._sessions.setdefault(request.client, set()).add(request.session)
        try:
            register = self.worker.register_function if request.is_function else self.worker.register_graph
            handle = register(subgraph, request.session)
        except OpError:
            raise
        except Exception as error:  # a malformed graph may raise anything in kernels and passes
            raise InvalidArgumentError(f"A partition cannot be compiled: {error!r}") from error
        return messages["RegisterGraphReply"](handle=handle)

    def close_session(self, request: Any) -> Any:
        """Forgets a session's graphs."""
        self.worker.deregister_graphs(request.session)
        for sessions in list(self._sessions.values()):
            sessions.discard(request.session)
        return messages["Empty"]()

    def reset(self, request: Any) -> Any:
        """Clears the named containers, or all if none is named."""
        self.worker.reset(list(request.containers))
        return messages["Empty"]()

    def _close_sessions_of(self, client: int) -> None:
        for session in self._sessions.pop(client, ()):
            self.worker.deregister_graphs(session)


def server_at(address: str) -> Server | None:
    """Returns the server of this process at an address, or None."""
    with _in_process_lock:
        found = _in_process.get(address)
        if found is None and address.startswith(("localhost:", "127.0.0.1:")):
            port = address.rpartition(":")[2]
            found = _in_process.get(f"localhost:{port}") or _in_process.get(f"127.0.0.1:{port}")
        return found


def cluster_tasks(
    cluster: ClusterSpec, default: Task, links: Links, device_filters: list[str], brought: ClusterSpec | None
) -> Tasks:
    """Returns the tasks of a cluster, or of the one that a session has brought, that pass the filters.

    Tasks of this process are called without a socket.
    """
    cluster = brought or cluster
    filters = [DeviceSpecV2.from_string(f) for f in device_filters]

    def passes(job: str, number: int) -> bool:
        return not filters or any(f.job in (None, job) and f.task in (None, number) for f in filters)

    def make(job: str, number: int, deadline: float | None) -> Task:
        membership = tasks.membership
        now = membership.cluster if membership.version else cluster
        return task_at(now, job, number, links, brought and membership.cluster_of(brought), deadline)

    tasks = Tasks(default, make, cluster, passes)
    return tasks


def following(tasks: Tasks, membership: Membership) -> Tasks:
    """Returns the tasks, which use those of a membership if it says that some have joined or left."""
    if membership.version:
        tasks.follow(membership)
    return tasks


def task_at(
    cluster: ClusterSpec,
    job: str,
    number: int,
    links: Links,
    brought: ClusterSpec | None,
    deadline: float | None,
    closed: threading.Event | None = None,
) -> Task:
    """Returns a task of a cluster, connected to. Setting `closed` ends the waiting for it."""
    address = cluster.task_address(job, number)
    near = server_at(address)
    if near is not None:
        if brought is not None:
            near.learn(brought)
        return LocalTask(near.worker)
    brought_def = None if brought is None else brought.as_cluster_def()
    task = RemoteTask(task_name(job, number), address, links, brought_def, closed)
    task.connect(start_timeout(), deadline)
    return task


def connect_to(
    target: str, device_filters: list[str], timeout: float | None = None, cluster_def: Any = None
) -> tuple[Tasks, Links | None]:
    """Returns the tasks of a target `grpc://host:port`, and new links to them unless the server is in this process.

    A `cluster_def` with tasks replaces the cluster that the server was started with. Raises DeadlineExceededError if
    `timeout` seconds pass before the server answers.
    """
    address = target.removeprefix("grpc://")
    if address == target:
        raise NotFoundError(
            f"No session factory registered for the target '{target}'. A local session has the target '', one of a "
            "cluster 'grpc://host:port'."
        )
    require_port(address, f"The target '{target}'")
    brought = ClusterSpec(cluster_def) if cluster_def is not None and cluster_def.job else None
    near = server_at(address)
    if near is not None:
        return near.tasks(device_filters, brought), None
    credentials = Credentials.from_environment()
    limit = start_timeout()
    deadline = None if timeout is None else time.monotonic() + timeout

    def say(why: str, seconds: float) -> None:
        logging.warning("Waiting for %s: %s (for %.0f s; gives up after %.0f s).", target, why, seconds, limit)

    client = ControlClient(address, credentials)
    try:
        wait_until_listening(address, within(limit, deadline), say)
        status = client.get_status(timeout=within(STATUS_SECS, deadline))
    except (UnavailableError, DeadlineExceededError) as error:
        if deadline is None or time.monotonic() < deadline:
            raise
        raise DeadlineExceededError(f"No session within {timeout:g} s: {error.message}") from error
    finally:
        client.close()
    links = Links.of_client(credentials)
    try:
        default = RemoteTask(status.task, address, links, cluster_def if brought else None)
        default.connect(limit, deadline)
        tasks = cluster_tasks(ClusterSpec(status.cluster), default, links, device_filters, brought)
        told = Membership.from_json(status.membership, address) if status.membership else NOTHING_CHANGED
        return following(tasks, told), links
    except OpError:
        links.close()
        raise


def reset_cluster(target: str, containers: list[str], device_filters: list[str]) -> None:
    """Clears containers, or all, in every task of a target's cluster."""
    tasks, links = connect_to(target, device_filters)
    try:
        for task in tasks.all():
            task.reset(containers)
    finally:
        for task in tasks.connected():
            task.close_session("")
        if links is not None:
            links.close()
