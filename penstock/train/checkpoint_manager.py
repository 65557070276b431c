"""CheckpointManager: keeps the last checkpoints of a directory, and removes older ones."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

from penstock import logging
from penstock.train.checkpoint_state import get_checkpoint_state, remove_checkpoint, update_checkpoint_state
from penstock.train.checkpoint_writing import CheckpointOptions
from penstock.train.object_checkpoint import Checkpoint


class CheckpointManager:
    """Saves checkpoints with numbers, and keeps the last `max_to_keep` of them.

    With `keep_checkpoint_every_n_hours`, one checkpoint per that many hours is kept for good when it leaves the list.
    With `checkpoint_interval`, `save` does nothing until `step_counter` has advanced by that much.

    >>> manager = tf.train.CheckpointManager(checkpoint, "/tmp/train", max_to_keep=3)
    >>> manager.restore_or_initialize()
    >>> manager.save()
    '/tmp/train/ckpt-1'
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: Any,
        max_to_keep: int | None,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
        last_checkpoint_step: int | None = None,
    ) -> None:
        if max_to_keep is not None and max_to_keep <= 0:
            raise ValueError(f"Expected a positive integer or `None` for `max_to_keep`, got {max_to_keep}.")
        if checkpoint_interval is not None and step_counter is None:
            raise ValueError("`step_counter` should be passed if `checkpoint_interval` is not None.")
        self._checkpoint = checkpoint
        self._max_to_keep = max_to_keep
        self._keep_every_secs = (keep_checkpoint_every_n_hours or 0) * 3600.0
        self._directory: str = os.fspath(directory)
        self._prefix = os.path.join(self._directory, checkpoint_name)
        self._step_counter = step_counter
        self._interval = checkpoint_interval
        self._init_fn = init_fn
        self._last_step = last_checkpoint_step
        self._times: dict[str, float] = {}  # by checkpoint, oldest first: when it was written
        self._latest: str | None = None
        self._last_preserved = time.time() - 1.0
        self._recover()

    def _recover(self) -> None:
        """Takes over the checkpoints that the directory lists."""
        state = get_checkpoint_state(self._directory)
        if state is None:
            return
        now = time.time()
        self._latest = state.model_checkpoint_path
        if now < state.last_preserved_timestamp:
            logging.warning("The clock is behind the last checkpoint that was kept in %s.", self._directory)
        self._last_preserved = min(state.last_preserved_timestamp, now)
        paths = list(state.all_model_checkpoint_paths)
        times = list(state.all_model_checkpoint_timestamps) or [self._last_preserved] * len(paths)
        for path, written in zip(paths, times, strict=False):
            if min(written, now) > self._last_preserved:
                self._times[path] = min(written, now)

    @property
    def directory(self) -> str:
        """The directory of the checkpoints."""
        return self._directory

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that is saved."""
        return self._checkpoint

    @property
    def checkpoint_interval(self) -> int | None:
        """The number of steps between two saves."""
        return self._interval

    @property
    def latest_checkpoint(self) -> str | None:
        """The last checkpoint, or None."""
        return self._latest

    @property
    def checkpoints(self) -> list[str]:
        """The checkpoints that may be removed later, oldest first."""
        return list(self._times)

    def save(
        self, checkpoint_number: Any = None, check_interval: bool = True, options: CheckpointOptions | None = None
    ) -> str | None:
        """Saves a checkpoint, and removes those that are too many. Returns its name; None if it is not due yet."""
        if self._interval is not None:
            step = int(self._step_counter)
            if self._last_step is not None:
                due = self._last_step + self._interval if check_interval else step
                if step == self._last_step or step < due:
                    return None
            self._last_step = step
        counter = self._checkpoint.save_counter
        counter.assign_add(1)
        number = int(counter if checkpoint_number is None else checkpoint_number)
        given = options or CheckpointOptions()
        callbacks = [*(given.experimental_write_callbacks or ()), self._written]
        path: str = self._checkpoint.write(
            f"{self._prefix}-{number}", dataclasses.replace(given, experimental_write_callbacks=callbacks)
        )
        return path

    def _written(self, path: str) -> None:
        """Lists a checkpoint that is on disk, then removes the oldest ones: files that are listed are always there."""
        self._times.pop(path, None)
        self._times[path] = time.time()
        self._latest = path
        removed = []
        while self._max_to_keep is not None and len(self._times) > self._max_to_keep:
            oldest, written = next(iter(self._times.items()))
            del self._times[oldest]
            if self._keep_every_secs and written - self._keep_every_secs >= self._last_preserved:
                self._last_preserved = written
            else:
                removed.append(oldest)
        update_checkpoint_state(
            self._directory,
            path,
            list(self._times),
            all_model_checkpoint_timestamps=list(self._times.values()),
            last_preserved_timestamp=self._last_preserved,
            save_relative_paths=True,
        )
        for each in removed:
            remove_checkpoint(each)

    def restore_or_initialize(self) -> str | None:
        """Restores the last checkpoint and returns its name; if there is none, calls `init_fn` and returns None."""
        if self._latest is not None:
            self._checkpoint.restore(self._latest)
            if self._interval is not None:
                self._last_step = int(self._step_counter)
            return self._latest
        if self._init_fn is not None:
            self._init_fn()
        return None

    def sync(self) -> None:
        """Waits until a checkpoint that a thread writes is on disk."""
        self._checkpoint.sync()
