"""StepMemory: the last global step that a chief saw, to tell how many steps are lost if the model starts again."""

from __future__ import annotations

import time
from typing import Any

from penstock import logging
from penstock.errors import OpError
from penstock.train.checkpoint_state import latest_checkpoint

_EVERY = 1.0  # seconds between two reads of the global step; each costs a small step
_EAGER = 100  # at most so many reads, one after each step, until the first step is counted


class StepMemory:
    """Remembers the global step. `directory` has the checkpoints, if any are made.

    >>> memory = StepMemory(tf.train.get_global_step(), "/tmp/train")
    >>> memory.note(sess)  # after each step
    >>> memory.compare(sess)  # in the session that follows
    """

    def __init__(self, global_step: Any, directory: str | None) -> None:
        self._global_step = global_step
        self._directory = directory
        self._last = 0
        self._next_read = 0.0
        self._eager = _EAGER

    def note(self, session: Any) -> None:
        """Reads the global step, unless it was read a moment ago."""
        now = time.monotonic()
        if self._global_step is None or now < self._next_read:
            return
        try:
            self._last = int(session.run(self._global_step))
            self._eager -= 1
            if self._last or self._eager <= 0:
                self._next_read = now + _EVERY
        except (OpError, RuntimeError) as error:  # the session is lost or closed; the next step will raise that
            logging.vlog(1, "The global step could not be read: %s", error)

    def compare(self, session: Any) -> None:
        """Warns if the model of a new session has fewer steps than were seen before."""
        if not self._last:
            return
        now, before = int(session.run(self._global_step)), self._last
        self._last = now
        if now >= before:
            return
        checkpoint = latest_checkpoint(self._directory) if self._directory else None
        if checkpoint is not None:
            logging.warning(
                "The model is that of %s again, at step %d: at least %d steps that came after it are lost.",
                checkpoint,
                now,
                before - now,
            )
            return
        why = f"no checkpoint in {self._directory} yet" if self._directory else "no checkpoint directory"
        logging.warning(
            "\n" + "*" * 80 + "\nALL TRAINING SO FAR IS LOST: at least %d steps. A parameter server came back without "
            "its variables, and there is\n%s to restore them from. The training begins anew at step %d.\n"
            "To keep what is learnt, pass checkpoint_dir to MonitoredTrainingSession, or logdir to Supervisor.\n"
            + "*"
            * 80,
            before - now,
            why,
            now,
        )
