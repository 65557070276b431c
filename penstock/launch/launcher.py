"""The one loop that runs a job on any engine: events go to the job, and its instructions to the engine.

`penstock.launch.job` decides; an engine acts; this module passes on, shows the output of tasks, and keeps time.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from penstock.launch.cluster import Task
from penstock.launch.engine import Commands, Engine
from penstock.launch.events import Ended, Event, Events, Moved, Notice, Output, Scaled, Signal, UnderWay
from penstock.launch.job import Finish, Instruction, Job, Kill, Policy, Say, Start, Terminate
from penstock.launch.output import Display, LastError, LineBuffer
from penstock.launch.scaling import Scaling


class _Reader:
    """The output of one life of a task: its unfinished lines, and the last error that it told of."""

    def __init__(self, task: Task, display: Display) -> None:
        self._task = task
        self._display = display
        self._lines = {"stdout": LineBuffer(), "stderr": LineBuffer()}
        self.error = LastError()

    def feed(self, stream: str, data: bytes) -> None:
        """Records data and shows the lines that are whole; no data ends the stream."""
        if not data:
            self._end(stream)
            return
        self._display.record(self._task, data)
        lines = self._lines[stream]
        if whole := lines.feed(data):
            self._display.progress(self._task, stream, b"")  # these lines include its last state
            self._show(stream, whole)
        self._display.progress(self._task, stream, lines.state)

    def end(self) -> None:
        """Shows the lines that have no end."""
        for stream in self._lines:
            self._end(stream)

    def _end(self, stream: str) -> None:
        self._display.progress(self._task, stream, b"")
        self._show(stream, self._lines[stream].rest())

    def _show(self, stream: str, lines: list[bytes]) -> None:
        if stream == "stderr":
            self.error.feed(lines)
        self._display.show(self._task, stream, lines)


class Launcher:
    """Runs a job; `run` returns its exit code. Use it in the main thread, whose signals it handles.

    >>> with Events() as events, place(request, events) as engine:  # doctest: +SKIP
    ...     Launcher(engine, events, Policy(), display).run()
    0
    """

    def __init__(
        self,
        engine: Engine,
        events: Events,
        policy: Policy,
        display: Display,
        moved: Callable[[dict[str, str]], None] | None = None,  # is called with the addresses when they have changed
        commands: Commands | None = None,  # those of a job that can be scaled
    ) -> None:
        self._engine = engine
        self._events = events
        self._display = display
        self._moved = moved
        self._job = Job(engine.cluster.tasks, policy)
        self._scaling = Scaling(self._job, engine, commands, events.post, display.add)
        self._readers: dict[Task, _Reader] = {}
        self._code: int | None = None

    def run(self) -> int:
        """Start all tasks and run the job to its end."""
        with self._events.signals():
            self._act(self._job.start())
            while self._code is None:
                deadlines = [each for each in (self._job.deadline, self._scaling.deadline) if each is not None]
                for event in self._events.next(min(deadlines, default=None)):
                    self._act(self._handle(event, time.monotonic()))
                    self._act(self._scaling.handle(event, time.monotonic()))
                self._act(self._job.due(time.monotonic()))
                self._act(self._scaling.due(time.monotonic()))
                if self._display.gone:
                    why = "nobody reads the output: stopping"
                    self._act(self._job.stop(128 + signal.SIGPIPE, why, time.monotonic()))
            return self._code

    def _handle(self, event: Event, now: float) -> list[Instruction]:
        match event:
            case Output(task, stream, data):
                self._readers[task].feed(stream, data)
            case UnderWay(task, serves):
                self._job.under_way(task, serves)
            case Ended(task, code, why):
                reader = self._readers[task]
                reader.end()
                return self._job.ended(task, code, now, reader.error.text, why)
            case Moved(tasks):
                self._announce()
                return self._job.moved(tasks, now)
            case Scaled():
                self._announce()
            case Notice(text):
                self._display.notice(text)
            case Signal(number):
                return self._job.interrupted(number, now)
        return []

    def _announce(self) -> None:
        """Tells where tasks are now."""
        if self._moved:
            try:
                self._moved(self._engine.cluster.places)
            except OSError as error:
                self._display.notice(f"`penstock status` needs an address to find this job: {error}")

    def _act(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Start(task, attempt):
                    if attempt:
                        self._display.record(task, f"--- restart {attempt} ---\n".encode())
                    self._readers[task] = _Reader(task, self._display)
                    self._engine.start(task, attempt)
                case Terminate(task):
                    self._engine.terminate(task)
                case Kill(task):
                    self._engine.kill(task)
                case Say(text):
                    self._display.notice(text)
                case Finish(code):
                    self._code = code
