"""Timers that tell hooks when to act: every N global steps or seconds."""

from __future__ import annotations

import time
from typing import Any

from penstock import logging
from penstock.train.coordinator import Coordinator
from penstock.train.session_run_hook import SessionRunContext, SessionRunValues
from penstock.variables.global_step import get_global_step

_POLL_EVERY, _LOG_EVERY = 0.5, 10.0  # seconds between two reads, and two log lines, while waiting for a step


class SecondOrStepTimer:
    """Tells when to act again: every N steps or seconds.

    >>> timer = tf.train.SecondOrStepTimer(every_steps=100)
    """

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        if (every_secs is None) == (every_steps is None):
            raise ValueError("Exactly one of every_secs and every_steps should be provided.")
        self._every_secs = every_secs
        self._every_steps = every_steps
        self.reset()

    def reset(self) -> None:
        """Forgets when it last triggered."""
        self._last_step: int | None = None
        self._last_time: float | None = None

    def should_trigger_for_step(self, step: int) -> bool:
        """True if it is time to act at this step; the first time it always is."""
        if self._last_step is None:
            return True
        if self._last_step == step:
            return False
        if self._every_secs is not None:
            assert self._last_time is not None
            return time.time() >= self._last_time + self._every_secs
        assert self._every_steps is not None
        return step >= self._last_step + self._every_steps

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Records that the hook acted at this step. Returns the seconds and steps since the time before."""
        now = time.time()
        since: tuple[float | None, int | None] = (None, None)
        if self._last_time is not None and self._last_step is not None:
            since = now - self._last_time, step - self._last_step
        self._last_time, self._last_step = now, step
        return since

    def last_triggered_step(self) -> int | None:
        """The step at which it last triggered."""
        return self._last_step


class NeverTriggerTimer(SecondOrStepTimer):
    """A timer that never triggers, for a hook that acts only at the end."""

    def __init__(self) -> None:
        self.reset()

    def should_trigger_for_step(self, step: int) -> bool:
        return False


def step_if_due(
    timer: SecondOrStepTimer, global_step: Any, context: SessionRunContext, values: SessionRunValues
) -> int | None:
    """Called after a step that has fetched the global step. Returns the global step if it is time to act, else None.

    The fetched value may be older than the step itself, so the global step is read again if it may be time.
    """
    if timer.should_trigger_for_step(int(values.results) + 1):
        step = int(context.session.run(global_step))
        if timer.should_trigger_for_step(step):
            return step
    return None


def required_global_step(hook: str) -> Any:
    """The global step, as a hook fetches it; RuntimeError if there is none."""
    step = get_global_step()
    if step is None:
        raise RuntimeError(f"Global step should be created to use {hook}: call tf.train.get_or_create_global_step().")
    return step._ref() if hasattr(step, "_ref") and not hasattr(step, "handle") else step


def wait_for_step(session: Any, global_step: Any, wanted: int, coord: Coordinator) -> bool:
    """Waits until other workers have reached a global step, and logs that it waits.

    Returns False if the training is to stop before. An error of the session, such as a lost task, is raised.
    """
    logged = -_LOG_EVERY
    began = time.monotonic()
    while (step := int(session.run(global_step))) < wanted:
        waited = time.monotonic() - began
        if waited >= logged + _LOG_EVERY:
            logged = waited
            logging.info(
                "Waiting for global step %d before starting training. Current step is %d (for %.0f s).",
                wanted,
                step,
                waited,
            )
        if coord.wait_for_stop(_POLL_EVERY):
            return False
    return True
