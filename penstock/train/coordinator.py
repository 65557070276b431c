"""Coordinator: lets threads ask each other to stop, and raises the first error in the thread that joins."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from penstock import logging
from penstock.errors import AbortedError, OutOfRangeError, UnavailableError

_POLL = 1.0  # seconds between checks of the threads while no stop is requested


class Coordinator:
    """Stops a set of threads together.

    >>> coord = tf.train.Coordinator()
    >>> threads = tf.train.start_queue_runners(sess, coord)
    >>> while not coord.should_stop():
    ...     sess.run(train)
    >>> coord.join(threads)
    """

    def __init__(self, clean_stop_exception_types: tuple[type[BaseException], ...] | None = None) -> None:
        self._clean = (OutOfRangeError,) if clean_stop_exception_types is None else tuple(clean_stop_exception_types)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._error: BaseException | None = None  # `join` raises it
        self._threads: set[threading.Thread] = set()
        self._joined = False
        self.lost = False  # True if a task of the cluster was lost
        self.recovers = False  # True if the training continues in another session after that

    def request_stop(self, ex: Any = None) -> None:
        """Asks the threads to stop. `join` raises `ex` (an exception or `sys.exc_info()`) if it is the first error.

        An OutOfRangeError is the normal end of input and is not raised.
        """
        error = _exception(ex)
        with self._lock:
            if self._joined:
                # `join` is over and cannot raise it.
                if error is not None and not isinstance(error, self._clean):
                    raise error
                return
            if self._stopped.is_set():
                return
            if error is not None and isinstance(error, self._clean):
                logging.info("Reached the end of input: %s", error)
            elif error is not None:
                logging.info("Error reported to Coordinator: %s, %s", type(error), error)
                self._error = error
                self.lost = self.lost or isinstance(error, (AbortedError, UnavailableError))
            self._stopped.set()

    def clear_stop(self) -> None:
        """Clears the request to stop, and the error."""
        with self._lock:
            self._joined = False
            self._error = None
            self.lost = False
            self._stopped.clear()

    def should_stop(self) -> bool:
        """True if a stop was requested."""
        return self._stopped.is_set()

    def wait_for_stop(self, timeout: float | None = None) -> bool:
        """Waits until a stop is requested, at most `timeout` seconds. True if it was requested."""
        return self._stopped.wait(timeout)

    @contextlib.contextmanager
    def stop_on_exception(self) -> Iterator[None]:
        """A context that turns an exception raised in it into a request to stop.

        >>> with coord.stop_on_exception():
        ...     while not coord.should_stop():
        ...         work()
        """
        try:
            yield
        except BaseException as error:
            self.request_stop(error)

    def register_thread(self, thread: threading.Thread) -> None:
        """Makes `join` wait for a thread."""
        with self._lock:
            self._threads.add(thread)

    def join(
        self,
        threads: Iterable[threading.Thread] | None = None,
        stop_grace_period_secs: float = 120,
        ignore_live_threads: bool = False,
    ) -> None:
        """Waits until all threads have ended, and raises the first error that one of them reported.

        After a request to stop, the threads have `stop_grace_period_secs` to end. A RuntimeError names those that
        have not ended, unless `ignore_live_threads` is True.
        """
        with self._lock:
            waited_for = [*self._threads, *(t for t in threads or () if t not in self._threads)]
        while not self._stopped.wait(_POLL if any(t.is_alive() for t in waited_for) else 0):
            if not any(t.is_alive() for t in waited_for):
                break
        deadline = time.monotonic() + stop_grace_period_secs
        for thread in waited_for:
            thread.join(max(0.0, deadline - time.monotonic()))
        stragglers = [t.name for t in waited_for if t.is_alive()]
        with self._lock:
            self._joined = True
            self._threads.clear()
            if self._error is not None:
                raise self._error
        if stragglers and not ignore_live_threads:
            raise RuntimeError(
                f"Coordinator stopped with threads still running after {stop_grace_period_secs} s: "
                f"{' '.join(stragglers)}"
            )
        if stragglers:
            logging.info("Coordinator stopped with threads still running: %s", " ".join(stragglers))

    @property
    def joined(self) -> bool:
        return self._joined

    def raise_requested_exception(self) -> None:
        """Raises the error that a thread reported, if any."""
        with self._lock:
            if self._error is not None:
                raise self._error


def _exception(ex: Any) -> BaseException | None:
    if ex is None:
        return None
    if isinstance(ex, tuple) and len(ex) == 3 and isinstance(ex[1], BaseException):
        return ex[1].with_traceback(ex[2] if isinstance(ex[2], TracebackType) else None)
    if not isinstance(ex, BaseException):
        raise TypeError(f"request_stop takes an exception or sys.exc_info(), received {ex!r}.")
    if ex.__traceback__ is None and sys.exc_info()[1] is None:
        raise TypeError(
            f"request_stop received {ex!r}, which nobody has raised: call it in the `except` block of the exception."
        )
    return ex


class LooperThread(threading.Thread):
    """A thread that calls a function at a fixed interval until the coordinator stops it.

    >>> thread = tf.train.LooperThread.loop(coord, 60, target=save)
    """

    def __init__(
        self,
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any] | None = None,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(coord, Coordinator):
            raise ValueError(f"'coord' argument must be a Coordinator: {coord}")
        super().__init__(daemon=True)
        self._coord = coord
        self._interval = timer_interval_secs
        self._call = (target, tuple(args or ()), dict(kwargs or {}))
        coord.register_thread(self)

    @staticmethod
    def loop(
        coord: Coordinator,
        timer_interval_secs: float | None,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> LooperThread:
        """A started LooperThread."""
        looper = LooperThread(coord, timer_interval_secs, target=target, args=args, kwargs=kwargs)
        looper.start()
        return looper

    def run(self) -> None:
        with self._coord.stop_on_exception():
            self.start_loop()
            due = time.monotonic()
            while not self._coord.wait_for_stop(max(0.0, due - time.monotonic())):
                self.run_loop()
                # Counted from when the call was due, not from when it ended, so that calls keep their pace.
                due = due + self._interval if self._interval else time.monotonic()
            self.stop_loop()

    def start_loop(self) -> None:
        """Called before the loop starts."""

    def stop_loop(self) -> None:
        """Called after the loop has ended."""

    def run_loop(self) -> None:
        """Calls the function once."""
        target, args, kwargs = self._call
        if target is not None:
            target(*args, **kwargs)
