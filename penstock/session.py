"""A session is the client: it flattens what is fed and fetched, and gives steps to a master."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorboard.compat.proto import config_pb2

import penstock.data  # noqa: F401  declares the op types of datasets
from penstock.client.feeds import AnyFeed, NestedFeed, feed_for
from penstock.client.fetches import Fetch, fetch_for, to_numpy
from penstock.client.partial_run import PartialRun
from penstock.client.tensor_handle import KeptTensors
from penstock.errors import InvalidArgumentError, OpError
from penstock.frames import leaves_engine
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.operation import Operation, Tensor
from penstock.graph.sessions import default_session_context
from penstock.graph.typing import FeedDict
from penstock.master import ahead
from penstock.master.master import Master
from penstock.master.signature import Signature
from penstock.progress import under_way
from penstock.worker.devices import local_devices
from penstock.worker.timeline import fill_run_metadata, merge_encoded
from penstock.worker.worker import Worker


class _Run:
    """Keeps what `run` prepares once for a form of call: feeds, fetches and the compiled signature."""

    __slots__ = ("feeds", "fetch", "is_repeated", "mutations", "signature")

    def __init__(self, fetch: Fetch, feeds: Sequence[AnyFeed], signature: Signature, mutations: int) -> None:
        self.fetch = fetch
        self.feeds = feeds
        self.signature = signature
        self.mutations = mutations
        self.is_repeated = False


class DeviceAttributes:
    """Describes a device for `Session.list_devices`."""

    def __init__(self, name: str, device_type: str, memory_limit_bytes: int, incarnation: int) -> None:
        self.name = name
        self.device_type = device_type
        self.memory_limit_bytes = memory_limit_bytes
        self.incarnation = incarnation

    def __repr__(self) -> str:
        return f"_DeviceAttributes({self.name}, {self.device_type}, {self.memory_limit_bytes}, {self.incarnation})"


class BaseSession:
    """Runs parts of a graph. Safe to use from many threads at once."""

    def __init__(self, target: str | bytes = "", graph: Graph | None = None, config: Any = None) -> None:
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(f"graph must be a tf.Graph, received {graph!r}.")
        if config is not None and not isinstance(config, config_pb2.ConfigProto):
            raise TypeError(f"config must be a tf.ConfigProto, received {config!r}.")
        if not isinstance(target, (str, bytes)):
            raise TypeError(f"target must be a string, received {target!r}.")
        self._target = target.decode() if isinstance(target, bytes) else target
        self._graph = graph or get_default_graph()
        self._config = config or config_pb2.ConfigProto()
        self._timeout_ms = self._config.operation_timeout_in_ms
        self._closed = False
        self._runs: dict[Any, _Run] = {}
        self._kept = KeptTensors(self)
        self._partial_runs: dict[str, PartialRun] = {}
        self._partial_run_numbers = itertools.count()
        self._lock = threading.Lock()
        self._links: Any = None  # if the server is in another process
        self._master = self._connect()

    def _connect(self) -> Master:
        config = self._config
        if self._target:
            # A program without a cluster must not wait for gRPC to load.
            from penstock.server import connect_to  # start-up

            tasks, self._links = connect_to(
                self._target, list(config.device_filters), self._seconds(None), config.cluster_def
            )
            return Master(
                tasks, config.allow_soft_placement, config.log_device_placement, reads_ahead=ahead.is_wanted()
            )
        worker = Worker(local_devices(device_count=dict(config.device_count)))
        return Master([worker], config.allow_soft_placement, config.log_device_placement)

    # Properties

    @property
    def graph(self) -> Graph:
        return self._graph

    @property
    def graph_def(self) -> Any:
        return self._graph.as_graph_def()

    @property
    def sess_str(self) -> bytes:
        return self._target.encode()

    def list_devices(self) -> list[DeviceAttributes]:
        """Returns the devices that this session may use."""
        self._check_open()
        return [
            DeviceAttributes(d.name, d.device_type, d.memory_limit_bytes, d.incarnation)
            for task in self._master.tasks.all(self._deadline())
            for d in task.devices
        ]

    def _whole_cluster(self) -> dict[str, list[int]]:
        """Returns the task numbers of each job; none where there is no cluster, or filters hide a part of it."""
        return {} if self._config.device_filters else self._master.tasks.numbers()

    # Running

    @leaves_engine
    def run(
        self,
        fetches: Any,
        feed_dict: FeedDict | None = None,
        options: Any = None,
        run_metadata: Any = None,
        *,
        _times: int = 1,
    ) -> Any:
        """Runs what `fetches` needs and returns their values in the same structure.

        >>> sess.run({"loss": loss, "step": train_op}, feed_dict={x: batch})

        If all of the step is in one other task, that task runs it up to `_times` times.
        """
        if self._closed:
            self._check_open()
        feed_dict = feed_dict or {}
        try:
            key = (fetches if fetches.__class__ is Tensor else _structure(fetches), *feed_dict)
            run = self._runs.get(key)
        except (TypeError, AttributeError):
            key, run = (), None  # something has no hash, so nothing is cached, and the slow path checks it
        if run is None or run.mutations != self._graph.mutations:
            run = self._prepare(fetches, feed_dict, key, options)
        elif not run.is_repeated:
            # A second run of the same form means that a loop is under way, not initialisation.
            run.is_repeated = True
            under_way()
        fed: list[Any] = []
        for feed, value in zip(run.feeds, feed_dict.values(), strict=True):
            feed.append_to(fed, value)
        if options is None and run_metadata is None and not self._timeout_ms:
            try:
                values = self._master.run(run.signature, fed, times=_times)[0]
            except OpError as error:
                raise self._located(error) from error
        else:
            values = self._run_with_options(run, fed, options, run_metadata)
        return run.fetch.build([to_numpy(v) for v in values])

    def _run_with_options(self, run: _Run, fed: list[Any], options: Any, run_metadata: Any) -> list[Any]:
        if run_metadata is not None and not isinstance(run_metadata, config_pb2.RunMetadata):
            raise TypeError(f"run_metadata must be a tf.RunMetadata, received {run_metadata!r}.")
        timeout = self._seconds(options)
        trace = options is not None and options.trace_level > config_pb2.RunOptions.NO_TRACE
        try:
            values, step, traced = self._master.run(run.signature, fed, timeout, trace)
        except OpError as error:
            raise self._located(error) from error
        if run_metadata is not None:
            run_metadata.Clear()
            fill_run_metadata(run_metadata, step.timings or [])
            for part in traced:
                merge_encoded(run_metadata, part)
        return values

    def _seconds(self, options: Any) -> float | None:
        """Returns the time limit of a step, or of connecting; None without one."""
        if options is not None and not isinstance(options, config_pb2.RunOptions):
            raise TypeError(f"options must be a tf.RunOptions, received {options!r}.")
        timeout_ms = (options.timeout_in_ms if options else 0) or self._timeout_ms
        return timeout_ms / 1000 if timeout_ms else None

    def _deadline(self, options: Any = None) -> float | None:
        """Returns the deadline of a step that begins now; None without a time limit."""
        seconds = self._seconds(options)
        return None if seconds is None else time.monotonic() + seconds

    def _prepare(self, fetches: Any, feed_dict: Any, key: Any, options: Any = None) -> _Run:
        if not isinstance(feed_dict, Mapping):
            raise TypeError(f"feed_dict must be a dict from tensors to values, received {type(feed_dict).__name__}.")
        graph = self._graph
        mutations = graph.mutations
        fetch = fetch_for(graph, fetches, self._kept)
        feeds = [feed_for(graph, key) for key in feed_dict]
        fed = tuple(t for feed in feeds for t in feed.tensors)
        if len(set(fed)) < len(fed):
            nested = any(isinstance(feed, NestedFeed) for feed in feeds)
            raise (ValueError if nested else RuntimeError)("The feed_dict feeds one tensor twice.")
        try:
            signature = self._master.signature(
                fed, fetch.tensors, fetch.operations, mutations, deadline=self._deadline(options)
            )
        except OpError as error:
            raise self._located(error) from error
        run = _Run(fetch, feeds, signature, mutations)
        if key:
            with self._lock:
                self._runs[key] = run
        return run

    def _located(self, error: OpError) -> OpError:
        """Returns the error with the operation of this graph that it names, which knows where it was defined."""
        op = self._graph.find(error.op_name) if error.op is None and error.op_name else error.op
        return type(error)(None if op is None else op.node_def, op, error.message)

    def partial_run_setup(self, fetches: Any, feeds: Any = None) -> str:
        """Returns a handle for a step in pieces: each `partial_run` feeds and fetches some of these.

        >>> handle = sess.partial_run_setup([c, d], [a, b])
        >>> sess.partial_run(handle, c, {a: 1.0}); sess.partial_run(handle, d, {b: 10.0})
        """
        self._check_open()
        keys = feeds if isinstance(feeds, (list, tuple)) else [] if feeds is None else [feeds]
        fed = [t for key in keys for t in feed_for(self._graph, key).tensors]
        fetch = fetch_for(self._graph, fetches, self._kept)
        run = PartialRun(fed, fetch.tensors, fetch.operations)
        with self._lock:
            handle = f"partial_run_{next(self._partial_run_numbers)}"
            self._partial_runs[handle] = run
        return handle

    def partial_run(self, handle: str | None, fetches: Any, feed_dict: FeedDict | None = None) -> Any:
        """Runs the next piece of a step: all operations that can run with what was fed so far, each once."""
        self._check_open()
        if handle is None:
            return self.run(fetches, feed_dict)
        fetch = fetch_for(self._graph, fetches, self._kept)
        if fetch.operations:
            raise RuntimeError(f"partial_run() fetches tensors only, received operations {list(fetch.operations)}.")
        fed: dict[Tensor, Any] = {}
        for key, value in (feed_dict or {}).items():
            feed = feed_for(self._graph, key)
            values: list[Any] = []
            feed.append_to(values, value)
            fed.update(zip(feed.tensors, values, strict=True))
        if not fed and not fetch.tensors:
            return fetch.build([])
        run = self._partial_runs.get(handle)
        if run is None:
            raise InvalidArgumentError(f"partial_run_setup gave no handle {handle!r}, or its run is over.")
        piece = run.advance(fed, fetch.tensors)
        if piece.targets:
            try:
                signature = self._master.signature(
                    tuple(piece.fed), piece.fetches, piece.targets, self._graph.mutations, piece.done
                )
                values = self._master.run(signature, list(piece.fed.values()), self._seconds(None))[0]
            except OpError as error:
                self._partial_runs.pop(handle, None)  # operations that have run cannot run again
                raise self._located(error) from error
            run.keep(piece, [to_numpy(v) for v in values])
        results = run.take(fetch.tensors)
        if run.is_over:
            self._partial_runs.pop(handle, None)
        return fetch.build(results)

    def make_callable(
        self, fetches: Any, feed_list: Sequence[Any] | None = None, accept_options: bool = False
    ) -> Callable[..., Any]:
        """Returns a function that takes values for `feed_list` and returns what `run(fetches)` returns.

        >>> step = sess.make_callable([train_op, loss], feed_list=[x, y]); step(batch_x, batch_y)
        """
        self._check_open()
        if feed_list is not None and not isinstance(feed_list, (list, tuple)):
            raise TypeError(f"feed_list must be a list of tensors, received {type(feed_list).__name__}.")
        keys = list(feed_list or ())

        def call(*values: Any, **options: Any) -> Any:
            if len(values) != len(keys):
                raise TypeError(f"expected {len(keys)} values for feed_list, received {len(values)}.")
            return self.run(fetches, dict(zip(keys, values, strict=True)), **options)

        if accept_options:
            return lambda *a, options=None, run_metadata=None: call(*a, options=options, run_metadata=run_metadata)
        return call

    # Closing

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Attempted to use a closed Session.")

    def close(self) -> None:
        """Cancels the steps in flight and ends the session. A local session frees its variables and queues."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self._master.close()
            if not self._target:
                for task in self._master.tasks.connected():
                    task.worker.close()
            if self._links is not None:
                self._links.close()

    def as_default(self) -> Any:
        """Returns a context in which this is the default session; leaving it does not close the session."""
        return default_session_context(self)


class Session(BaseSession):
    """Runs parts of one graph, and closes when its context ends.

    >>> with tf.Session() as sess:
    ...     sess.run(tf.constant(2.0) * 3.0)
    6.0
    """

    def __init__(self, target: str | bytes = "", graph: Graph | None = None, config: Any = None) -> None:
        super().__init__(target, graph, config)
        self._contexts: list[Any] = []

    def __enter__(self) -> Session:
        contexts = [self._graph.as_default(), self.as_default()]
        for context in contexts:
            context.__enter__()
        self._contexts = contexts
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        while self._contexts:
            self._contexts.pop().__exit__(None, None, None)
        self.close()

    @staticmethod
    def reset(target: str, containers: list[str] | None = None, config: Any = None) -> None:
        """Clears containers, or all, in every task of a server's cluster. Sessions that use it must be made again.

        Without a target this does nothing, since a local session leaves nothing behind.
        """
        if target:
            from penstock.server import reset_cluster  # start-up

            filters = list(config.device_filters) if config is not None else []
            reset_cluster(target, list(containers or ()), filters)


class InteractiveSession(BaseSession):
    """Makes itself the default session at once, for use in a shell.

    >>> sess = tf.InteractiveSession(); tf.constant(1.0).eval()
    1.0
    """

    def __init__(self, target: str | bytes = "", graph: Graph | None = None, config: Any = None) -> None:
        super().__init__(target, graph, config)
        self._contexts = [self.as_default()] + ([graph.as_default()] if graph is not None else [])
        for context in self._contexts:
            context.__enter__()

    def close(self) -> None:
        """Ends the session, which is no longer the default then."""
        super().close()
        while self._contexts:
            self._contexts.pop().__exit__(None, None, None)


_LEAVES = frozenset((Tensor, Operation))


def _structure(fetches: Any) -> Any:
    """Returns a hashable form of a fetch structure. Equal forms mean the same."""
    if isinstance(fetches, (list, tuple)):
        return (fetches.__class__, *[f if f.__class__ in _LEAVES else _structure(f) for f in fetches])
    if isinstance(fetches, dict):
        return (fetches.__class__, *fetches.keys(), *[_structure(f) for f in fetches.values()])
    hash(fetches)
    return fetches
