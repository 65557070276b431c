"""Shards: the records of each epoch, dealt out to workers that ask for the next part when they are done with one.

The shards are on a parameter server (`ops/queue/shard_resources.py`). A worker leases one at a time: in a loop that
feeds what it reads itself, or in a dataset. Both are iterations of `_Taking`, which reports a shard done when it is
asked for the next.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock import logging
from penstock.data.dataset import Dataset
from penstock.data.structure import TensorSpec
from penstock.errors import FailedPreconditionError, OutOfRangeError
from penstock.graph import dtype as dt
from penstock.graph.graph import executing_eagerly
from penstock.graph.operation import Tensor
from penstock.graph.scopes import device, name_scope
from penstock.ops.array.creation import placeholder
from penstock.ops.queue import shard_ops
from penstock.optim.rule import require_whole
from penstock.train.session_run_hook import SessionRunContext, SessionRunHook
from penstock.train.worker_copies import deadline_of
from penstock.variables.resource import ResourceVariable

DEADLINE_SECS = 3600.0  # at the end of the data a worker waits for the last shards of others


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of the records of an epoch: those from `start` to before `stop`, or the `files` with these numbers."""

    index: int
    epoch: int
    start: int
    stop: int
    files: tuple[str, ...]


class Shards:
    """Deals the records of each epoch out to workers, so that each is trained on once.

    `records` is the number of records, cut into `num_shards` ranges of equal length, or a list of files, each of them a
    shard unless `num_shards` says how many there are. They are dealt out `epochs` times (None: without end), in their
    order, or with a `seed` in another order in each epoch. All workers must give the same. What is done is saved with
    the variables. A shard goes back when its worker's session ends before it is done; with `lease_secs`, also when
    another worker has nothing to do and that one has made no step for so long. A worker that has nothing to do, since
    others have the last shards, waits for `deadline_secs` at most, and then gets DeadlineExceededError.

    >>> shards = tf.data.Shards(files, epochs=3, seed=1)
    >>> dataset = shards.dataset(lambda files: tf.data.TFRecordDataset(files).map(parse).batch(32))
    >>> x, y = dataset.make_one_shot_iterator().get_next()
    >>> with tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=[shards.make_session_run_hook()]) as sess:
    ...     while not sess.should_stop():
    ...         sess.run(train)

    A shard is done when the next one is asked for. So all that buffers records (shuffle, batch, prefetch) belongs into
    the function, not behind it, and a worker makes one step at a time.
    """

    def __init__(
        self,
        records: int | Sequence[str],
        num_shards: int | None = None,
        *,
        epochs: int | None = 1,
        seed: int | None = None,
        lease_secs: float | None = None,
        deadline_secs: float | None = DEADLINE_SECS,
        name: str = "shards",
    ) -> None:
        if executing_eagerly():
            raise RuntimeError(
                "tf.data.Shards is for graphs and sessions. With a ClusterCoordinator, create_per_worker_dataset(..., "
                "visit_once=True) has each record visited once."
            )
        if isinstance(records, (str, bytes)):
            raise TypeError(f"records must be a number or a list of files, received {records!r}.")
        self._files = None if isinstance(records, (int, np.integer)) else tuple(os.fsdecode(file) for file in records)
        self._count = int(records) if isinstance(records, (int, np.integer)) else len(records)
        if num_shards is None:
            if self._files is None:
                raise ValueError("num_shards must be given with a number of records.")
            num_shards = self._count
        require_whole(1, records=self._count, num_shards=num_shards)
        if num_shards > self._count:
            raise ValueError(f"num_shards must be at most the number of records, {self._count}, received {num_shards}.")
        if epochs is not None:
            require_whole(1, epochs=epochs)
        if seed is not None:
            require_whole(0, seed=seed)
        if lease_secs is not None and not 0 < lease_secs < math.inf:
            raise ValueError(f"lease_secs must be above 0, or None for no limit, received {lease_secs}.")
        self._num_shards, self.lease_secs = num_shards, lease_secs
        self._deadline = deadline_of(deadline_secs)
        self._has_dataset = False
        self._session: Any = None  # of the dataset; a hook sets it
        with name_scope(name) as scope, device("/cpu:0"):  # all of it is on the host
            self.name = scope.rstrip("/")
            self._counts = ResourceVariable(np.zeros(num_shards, np.int64), trainable=False, name="done")
        with name_scope(scope), device(self._counts.device):
            self._handle = shard_ops.shards(
                num_shards=num_shards,
                epochs=-1 if epochs is None else epochs,
                seed=-1 if seed is None else seed,
                lease_secs=math.inf if lease_secs is None else lease_secs,
                shared_name=f"{self.name}/leases",
            )
            counts = self._counts.handle
            self._progress = shard_ops.shards_progress(self._handle, counts)
            self._holder = shard_ops.shards_holder(shared_name=self.name)
            self._take = shard_ops.shards_take(self._handle, counts, self._holder, deadline_secs=self._deadline)
            self._lease = placeholder(dt.int64, ())
            self._finish = shard_ops.shards_finish(self._handle, counts, self._holder, self._lease)
            self._renew = shard_ops.shards_renew(self._handle, self._holder)

    def taken(self, session: Any) -> Iterator[Shard]:
        """The shards that this worker gets, for a loop that feeds what it reads itself, one loop at a time.

        A shard is done when the loop asks for the next. It ends when all shards are done, also those of others.

        >>> for shard in shards.taken(sess):
        ...     for i in range(shard.start, shard.stop, 32):
        ...         sess.run(train, {x: images[i : min(i + 32, shard.stop)]})
        """
        if self._has_dataset:
            raise ValueError(f"The shards '{self.name}' go to a dataset. A loop needs shards of another name.")
        return _Taking(self, lambda: session)

    def dataset(self, make: Callable[..., Dataset]) -> Dataset:
        """The records of the shards that this worker gets, one shard after the other; it ends when all are done.

        `make` is called with the files of a shard, or with the numbers of its first record and of that behind its last
        one, and returns a dataset. The session must have the hook of `make_session_run_hook`.

        >>> shards.dataset(lambda start, stop: tf.data.Dataset.range(start, stop).shuffle(100).batch(10))
        """
        if self._has_dataset:
            raise ValueError(
                f"The shards '{self.name}' go to a dataset already. Call get_next() of its iterator as often as a step "
                "needs elements, or make shards of another name."
            )
        self._has_dataset = True
        spec: Any = TensorSpec((), dt.int64), TensorSpec((), dt.int64)
        if self._files is not None:
            spec = TensorSpec((None,), dt.string)

        def arguments(shard: Shard) -> Any:
            return (shard.start, shard.stop) if self._files is None else list(shard.files)

        taken = Dataset.from_generator(lambda: map(arguments, _Taking(self, self._attached)), output_signature=spec)
        records: Dataset = taken.flat_map(make)
        return records

    def attach(self, session: Any) -> None:
        """Tells the dataset which session it is run by, where there is no hook: with a Supervisor.

        >>> with sv.managed_session(server.target) as sess:
        ...     shards.attach(sess)
        """
        self._session = session

    def make_session_run_hook(self) -> SessionRunHook:
        """The hook that the MonitoredSession of a worker needs for a dataset, and for `lease_secs`.

        >>> tf.train.MonitoredTrainingSession(server.target, is_chief, hooks=[shards.make_session_run_hook()])
        """
        return _ShardsHook(self)

    def progress(self) -> tuple[Tensor, Tensor, Tensor]:
        """The first epoch that is not done, how many of its shards are, and how many shards workers have now.

        At the end they are the number of epochs, all shards, and 0.

        >>> epoch, done, leased = sess.run(shards.progress())
        """
        epoch, done, leased = self._progress
        return epoch, done, leased

    def _attached(self) -> Any:
        if self._session is None:
            raise RuntimeError(
                f"The dataset of the shards '{self.name}' has no session to ask for shards in. Add "
                "shards.make_session_run_hook() to the hooks of the MonitoredSession, or call shards.attach(session)."
            )
        return self._session

    def _shard(self, index: int, epoch: int) -> Shard:
        start, stop = (i * self._count // self._num_shards for i in (index, index + 1))
        return Shard(index, epoch, start, stop, self._files[start:stop] if self._files is not None else ())


class _Taking:
    """One iteration over shards. It is no generator: after an error it can be asked again, in a new session."""

    def __init__(self, shards: Shards, session: Callable[[], Any]) -> None:
        self._shards, self._session = shards, session
        self._lease: int | None = None

    def __iter__(self) -> _Taking:
        return self

    def __next__(self) -> Shard:
        session, shards = self._session(), self._shards
        if self._lease is not None:
            try:
                _run(session, shards._finish, {shards._lease: self._lease})
            except FailedPreconditionError as error:
                # Nothing is lost: the shard is trained on again, by whoever takes it.
                logging.warning("A shard of '%s' does not count as done: %s", shards.name, error.message)
            self._lease = None
        try:
            self._lease, index, epoch = map(int, _run(session, shards._take))
        except OutOfRangeError:
            raise StopIteration from None
        return shards._shard(index, epoch)


def _run(session: Any, fetches: Any, feeds: Any = None) -> Any:
    """Runs a step without the hooks of a MonitoredSession, as it is no step of the training."""
    if hasattr(session, "run_step_fn"):
        return session.run_step_fn(lambda step_context: step_context.session.run(fetches, feeds))
    return session.run(fetches, feeds)


class _ShardsHook(SessionRunHook):
    """Tells a dataset its session, and keeps the shard of a worker that makes steps."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._every = math.inf if shards.lease_secs is None else shards.lease_secs / 3
        self._renewed = time.monotonic()

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._shards.attach(session)

    def before_run(self, run_context: SessionRunContext) -> None:
        now = time.monotonic()
        if now - self._renewed >= self._every:
            self._renewed = now
            run_context.session.run(self._shards._renew)
