"""Records what a worker compiles and how long that takes, and compiles in a background thread.

jax tells listeners when it has traced, lowered and compiled a program, in the thread that does it. A segment leaves its
`Program` in `this_thread.program` before it calls compiled code, so that the time is attributed to that segment.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from penstock import logging
from penstock.segments.shape_watch import ShapeWatch

MAX_RECORDS = 1000  # a log keeps so many compilations, and names of segments
BACKGROUND_PRIORITY = 10  # a nice value: compiling for later takes only what is left over
SWITCH_SECS = 5e-5  # the switch interval while the background thread works
EXIT_SECS = 1.0  # the end of the process waits so long for a running compilation
PROGRAM = "segment"  # the name of the function that jax compiles for a segment
_LISTED_AS = f"jit({PROGRAM})"  # the name that jax gives it
_TRACED = "/jax/core/compile/jaxpr_trace_duration"
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILED = "/jax/core/compile/backend_compile_duration"  # jax also says so when it loads a program
_LOADED = "/jax/compilation_cache/cache_hits"


@dataclass(frozen=True, slots=True)
class Compilation:
    """Describes one program that XLA compiled. `seconds` include tracing, lowering and XLA."""

    segment: str
    # "exact": for these shapes; "padded": for smaller ones, too; "together": for several steps; "operation": one of jax
    kind: str
    shapes: str  # of its inputs
    seconds: float
    began: float  # by time.time()
    in_background: bool = False
    error: str = ""  # the reason if it failed


@dataclass(frozen=True, slots=True)
class Total:
    """Counts programs that were compiled, and the seconds that it took."""

    count: int = 0
    seconds: float = 0.0

    def plus(self, seconds: float) -> Total:
        return Total(self.count + 1, self.seconds + seconds)


class Compilations:
    """Keeps the log of one worker: totals since it began, and the last `MAX_RECORDS` compilations.

    >>> log = Compilations()
    >>> log.record(Compilation("fc/MatMul", "exact", "[8, 784]", 0.25, time.time()))
    >>> log.count, log.seconds, log.by_segment()
    (1, 0.25, {'fc/MatMul': Total(count=1, seconds=0.25)})
    """

    def __init__(self) -> None:
        _listen()
        self._lock = threading.Lock()
        self._recent: deque[Compilation] = deque(maxlen=MAX_RECORDS)
        self._total = Total()
        self._by_segment: dict[str, Total] = {}
        self._loaded = 0

    @property
    def count(self) -> int:
        return self._total.count

    @property
    def seconds(self) -> float:
        return self._total.seconds

    @property
    def loaded(self) -> int:
        """The number of programs that were found on disk, and so not compiled."""
        return self._loaded

    def record(self, compilation: Compilation) -> None:
        """Adds a compilation."""
        with self._lock:
            self._recent.append(compilation)
            self._total = self._total.plus(compilation.seconds)
            known = self._by_segment.get(compilation.segment, Total())
            self._by_segment[compilation.segment] = known.plus(compilation.seconds)
            if len(self._by_segment) > MAX_RECORDS:
                del self._by_segment[min(self._by_segment, key=lambda name: self._by_segment[name].seconds)]

    def record_loaded(self) -> None:
        """Counts a program that was found on disk."""
        with self._lock:
            self._loaded += 1

    def by_segment(self) -> dict[str, Total]:
        """Returns totals by the name of the segment; of very many names those that took longest."""
        with self._lock:
            return dict(self._by_segment)

    def recent(self, seconds: float = float("inf")) -> list[Compilation]:
        """Returns the compilations that ended within the last `seconds`, oldest first."""
        since = time.time() - seconds
        with self._lock:
            return [c for c in self._recent if c.began + c.seconds >= since]


class Program:
    """Names the segment whose code is compiled, and its inputs.

    A thread that is about to call or compile it sets `this_thread.program = program`, or opens a context:

    >>> with program.compiling():
    ...     compiled = jitted.lower(*arguments).compile()
    """

    __slots__ = ("_watch", "kind", "log", "segment")

    def __init__(self, log: Compilations, segment: str, inputs: Sequence[str] = (), kind: str = "exact") -> None:
        self.log = log
        self.segment = segment
        self.kind = kind
        self._watch = ShapeWatch(segment, inputs) if kind == "exact" else None

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Attributes what this thread compiles inside to this program."""
        before, this_thread.program = this_thread.program, self
        try:
            yield
        finally:
            this_thread.program = before

    def ready(self, shapes: Sequence[str], seconds: float, loaded: bool) -> None:
        """Notes that the program was compiled or loaded for these shapes of its inputs."""
        if loaded:
            self.log.record_loaded()
        else:
            began = time.time() - seconds
            made = Compilation(self.segment, self.kind, ", ".join(shapes), seconds, began, this_thread.in_background)
            self.log.record(made)
            if this_thread.noted is not None:
                this_thread.noted.append(made)
        if self._watch is not None and shapes:
            with _watching:
                message = self._watch.note(shapes, seconds)
            if message:
                logging.warning(message)


_watching = threading.Lock()  # two steps may compile the same segment at once


class _ThisThread(threading.local):
    """Notes which program this thread compiles."""

    program: Program | None = None  # the one called last; it is never reset, to keep calls cheap
    traced: tuple[Program | None, Sequence[str]] = None, ()  # the last program traced, and the shapes of its inputs
    spent = 0.0  # seconds of tracing and lowering it
    loaded = False  # jax found on disk what it is about to report as compiled
    noted: list[Compilation] | None = None
    in_background = False


this_thread = _ThisThread()


@contextlib.contextmanager
def noted() -> Iterator[list[Compilation]]:
    """Gives a list that fills with the compilations that this thread makes inside.

    >>> with noted() as compiled:
    ...     instruction(values, step)
    """
    before, found = this_thread.noted, list[Compilation]()
    this_thread.noted = found
    try:
        yield found
    finally:
        this_thread.noted = before


@functools.cache
def _listen() -> None:
    jax.monitoring.register_event_listener(_on_event)
    jax.monitoring.register_event_duration_secs_listener(_on_duration)


def _on_event(event: str, **_: Any) -> None:
    if event == _LOADED:
        this_thread.loaded = True


def _on_duration(event: str, duration_secs: float, **about: Any) -> None:
    fun_name = about.get("fun_name", "")
    if event == _TRACED and fun_name == PROGRAM:
        this_thread.spent = duration_secs
    elif event == _LOWERED and fun_name == _LISTED_AS:
        this_thread.spent += duration_secs
    elif event == _COMPILED:
        loaded, this_thread.loaded = this_thread.loaded, False
        if fun_name == _LISTED_AS and this_thread.program is not None:
            # A failed trace is not compiled, and jax may compile again what it has traced before.
            shapes = this_thread.traced[1] if this_thread.traced[0] is this_thread.program else ()
            spent, this_thread.spent = this_thread.spent + duration_secs, 0.0
            this_thread.traced = None, ()
            this_thread.program.ready(shapes, spent, loaded)
        else:  # a single operation of jax, such as a copy of a variable
            Program(elsewhere(), str(fun_name), kind="operation").ready((), duration_secs, loaded)


@functools.cache
def elsewhere() -> Compilations:
    """Returns the log of what this process compiled outside of segments: single operations of jax, for any worker."""
    return Compilations()


# In the background


class _Background:
    """Runs jobs one after the other in a thread that starts with the first job."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Callable[[], None], str, Compilations]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False
        self.is_ending = False  # the process is

    def put(self, job: Callable[[], None], name: str, log: Compilations) -> None:
        with self._changed:
            self._jobs.append((job, name, log))
            self._changed.notify_all()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="penstock-compile", daemon=True)
                self._thread.start()
                atexit.unregister(self._at_exit)
                atexit.register(self._at_exit)

    def wait_idle(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._busy, timeout)

    def _work(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # other systems than Linux may have no priorities of threads
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_PRIORITY)
        this_thread.in_background = True
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs)
                job, name, log = self._jobs.popleft()
                self._busy = True
            try:
                _run(job, name, log)
            finally:
                del job, log  # so that the waiting thread keeps nothing alive
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _at_exit(self) -> None:
        """Lets the process end: it stops a job that traces, and waits a while for one that XLA compiles."""
        self.is_ending = True
        with self._changed:
            self._jobs.clear()
            thread = self._thread if self._busy else None
        if thread is not None and thread.ident is not None:
            sys.unraisablehook = _unless_stopped
            deadline = time.monotonic() + EXIT_SECS
            while thread.is_alive() and time.monotonic() < deadline:
                # It is sent repeatedly, since a finaliser that runs there would swallow the exception.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
                thread.join(EXIT_SECS / 20)
            if thread.is_alive():
                _leave_compiling(thread)


def _unless_stopped(unraisable: sys.UnraisableHookArgs) -> None:
    """Reports what a finaliser has raised, unless it is the SystemExit that was sent to the thread."""
    if unraisable.exc_type is not SystemExit:
        sys.__unraisablehook__(unraisable)


def _leave_compiling(thread: threading.Thread) -> None:
    """Lets the process end, with its exit status, although a thread is still in XLA.

    Python ends such a thread when it next takes the interpreter's lock, which C++ treats as a fatal error, so the
    thread is made to pause on that error. The destructors of libraries must not run, since LLVM's would free what the
    thread uses. glibc calls the functions given to `on_exit` last one first, with the status: `_exit` comes first.
    """
    try:
        c, cpp = ctypes.CDLL(None), ctypes.CDLL("libstdc++.so.6")
        stop, leave = (ctypes.cast(f, ctypes.c_void_p) for f in (c.pause, c._exit))
        cpp._ZSt13set_terminatePFvvE(stop)
        c.on_exit(leave, None)
    except (OSError, AttributeError):  # another C or C++ library
        thread.join()


def _run(job: Callable[[], None], name: str, log: Compilations) -> None:
    began = time.time()
    before = sys.getswitchinterval()
    # NumPy releases the interpreter in each call, and a step would wait up to 5 ms each time to get it back.
    sys.setswitchinterval(min(before, SWITCH_SECS))
    try:
        job()
    except Exception as error:  # jax and XLA raise many kinds, and nobody waits for this job
        if _background.is_ending:
            return  # C++ code that calls Python turns SystemExit into an error of its own
        text = f"{type(error).__name__}: {error}"
        log.record(Compilation(name, "exact", "", time.time() - began, began, True, text))
        logging.warning("Compiling '%s' in the background failed: %s", name, text)
    finally:
        sys.setswitchinterval(before)


_background = _Background()


def in_background(job: Callable[[], None], name: str, log: Compilations | None = None) -> None:
    """Runs `job` in the process's background thread, after those that were put there before it.

    A job that fails is recorded in `log` under `name`. The process may end before its jobs do.

    >>> in_background(lambda: compile_for(shapes), "fc/MatMul", worker.compilations)
    """
    _background.put(job, name, log or elsewhere())


def wait_idle(timeout: float) -> bool:
    """Waits until the background thread has no jobs. Returns False if `timeout` seconds were not enough.

    >>> wait_idle(30.0)
    True
    """
    return _background.wait_idle(timeout)
