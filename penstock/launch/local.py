"""Runs a whole cluster on this machine: starts its processes, watches, restarts and stops them.

`penstock.launch.job` decides; this module acts. One thread waits for the next event: a line from a task, the end of a
process, a signal, a deadline.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import IO

from penstock.launch.cluster import PS, Cluster, LaunchError, Size, Task
from penstock.launch.flags import ClusterFlags
from penstock.launch.job import Finish, Instruction, Job, Kill, Policy, Say, Start, Terminate
from penstock.launch.output import Display, LastError, LineBuffer
from penstock.launch.program import Program
from penstock.progress import SERVES

_READ = 1 << 16
_MAX_READS = 64  # of one pipe after its process has ended; a pipe holds 1 MiB at most
_NOT_STARTED = 126  # the exit code of a shell for a command that it cannot execute


@dataclass(frozen=True)
class Commands:
    """The commands that the task processes of a cluster run."""

    program: Program
    cluster: Cluster
    flags: ClusterFlags
    columns: int | None = None  # width of the terminal that shows a task's lines
    accelerators: Mapping[Task, Mapping[str, str]] = field(
        default_factory=dict
    )  # settings by which a task sees its own

    def command(self, task: Task, pipe: int) -> list[str]:
        """The command line of a task. Its flags come first, since arguments after a `--` are not parsed as flags.

        The task writes to `pipe` when it is doing its work.
        """
        entry = [sys.executable, "-m", "penstock.launch.task", str(os.getpid()), str(pipe), str(self.program.script)]
        return [*entry, *self.flags.arguments(self.cluster, task), *self.program.args]

    def environment(self, task: Task) -> dict[str, str]:
        """The environment of a task: the launcher's own (including credentials), and the task's place."""
        own = {"TF_CONFIG": self.cluster.tf_config(task), "PENSTOCK_LAUNCHED": "1", "PYTHONUNBUFFERED": "1"}
        # Tasks write to a pipe. Without this they would not know that a progress bar is visible.
        terminal = {} if self.columns is None else {"PENSTOCK_TERMINAL_COLUMNS": str(self.columns)}
        # Parameter servers keep variables in host memory: the accelerators are left to the workers.
        platform = {"JAX_PLATFORMS": "cpu"} if task.job == PS else {}
        return {**platform, **os.environ, **own, **terminal, **self.accelerators.get(task, {})}


@dataclass
class _Child:
    """A process, its output, a pipe that it writes to when it does its work, and a file that is readable at its end."""

    process: subprocess.Popen[bytes]
    pipes: Mapping[IO[bytes], tuple[str, LineBuffer]]
    progress: IO[bytes]
    end: int
    error: LastError = field(default_factory=LastError)

    def signal(self, number: int) -> None:
        try:
            # The process is reaped only after its end was handled, so the id is not reused yet.
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # the group is empty, or (macOS) has only dead processes


class Launcher:
    """Runs a job; `run` returns its exit code. Use it in the main thread, whose signals it handles.

    >>> Launcher(commands, Policy(), display).run()  # doctest: +SKIP
    0
    """

    def __init__(self, commands: Commands, policy: Policy, display: Display) -> None:
        self._commands = commands
        self._display = display
        self._job = Job(commands.cluster.tasks, policy)
        self._children: dict[Task, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._code: int | None = None

    def run(self) -> int:
        """Start all tasks and run the job to its end; afterwards none of its processes is left."""
        with ExitStack() as stack:
            stack.callback(self._selector.close)
            stack.enter_context(self._signals())
            stack.callback(self._abandon)
            self._act(self._job.start())
            while self._code is None:
                deadline = self._job.deadline
                ready = self._selector.select(None if deadline is None else max(0.0, deadline - time.monotonic()))
                for key, _ in ready:
                    key.data()
                self._act(self._job.due(time.monotonic()))
                if self._display.gone:
                    self._act(
                        self._job.stop(128 + signal.SIGPIPE, "nobody reads the output: stopping", time.monotonic())
                    )
            return self._code

    def _act(self, instructions: list[Instruction]) -> None:
        # An action may add instructions to the list while it is iterated.
        for instruction in instructions:
            match instruction:
                case Start(task, attempt):
                    instructions += self._start(task, attempt)
                case Terminate(task):
                    self._children[task].signal(signal.SIGTERM)
                    # A stopped process would not handle SIGTERM.
                    self._children[task].signal(signal.SIGCONT)
                case Kill(task):
                    self._children[task].signal(signal.SIGKILL)
                case Say(text):
                    self._display.notice(text)
                case Finish(code):
                    self._code = code

    def _start(self, task: Task, attempt: int) -> list[Instruction]:
        if attempt:
            self._display.record(task, f"--- restart {attempt} ---\n".encode())
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        progress = os.fdopen(reader, "rb", buffering=0)
        try:
            process = subprocess.Popen(
                self._commands.command(task, writer),
                pass_fds=(writer,),
                env=self._commands.environment(task),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                # Its own group, so that it is signalled with all its children, and not by the terminal.
                start_new_session=True,
            )
        except OSError as error:
            progress.close()
            return self._job.ended(task, _NOT_STARTED, time.monotonic(), f"it cannot be started: {error}")
        finally:
            os.close(writer)
        assert process.stdout is not None and process.stderr is not None
        pipes = {process.stdout: ("stdout", LineBuffer()), process.stderr: ("stderr", LineBuffer())}
        child = self._children[task] = _Child(process, pipes, progress, end_of(process))
        self._selector.register(progress, selectors.EVENT_READ, lambda: self._progressed(task, child))
        for pipe in pipes:
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, lambda pipe=pipe: self._read(task, child, pipe))
        self._selector.register(child.end, selectors.EVENT_READ, lambda: self._ended(task, child))
        return []

    def _read(self, task: Task, child: _Child, pipe: IO[bytes]) -> bool:
        """Read the available data; True if there may be more."""
        if pipe.closed:
            return False
        try:
            data = os.read(pipe.fileno(), _READ)
        except BlockingIOError:
            return False
        stream, lines = child.pipes[pipe]
        if not data:
            self._flush(task, stream, lines)
            self._selector.unregister(pipe)
            pipe.close()
            return False
        self._display.record(task, data)
        if whole := lines.feed(data):
            self._display.progress(task, stream, b"")  # these lines include its last state
            self._show(task, stream, whole)
        self._display.progress(task, stream, lines.state)
        return True

    def _flush(self, task: Task, stream: str, lines: LineBuffer) -> None:
        self._display.progress(task, stream, b"")
        self._show(task, stream, lines.rest())

    def _show(self, task: Task, stream: str, lines: list[bytes]) -> None:
        if stream == "stderr":
            self._children[task].error.feed(lines)
        self._display.show(task, stream, lines)

    def _progressed(self, task: Task, child: _Child) -> None:
        """Handles the progress pipe: the task, or a program that replaced it by `exec`, wrote to it or closed it."""
        if child.progress.closed:
            return
        self._selector.unregister(child.progress)
        with child.progress as pipe:
            if word := pipe.read(1):
                self._job.under_way(task, serves=word == SERVES)

    def _ended(self, task: Task, child: _Child) -> None:
        self._selector.unregister(child.end)
        os.close(child.end)
        # Its children would hold its port, or outlive the job. It is not reaped yet, so its id is not reused.
        child.signal(signal.SIGKILL)
        code = child.process.wait()
        self._progressed(task, child)
        for pipe, (stream, lines) in child.pipes.items():
            # A process that left the group may hold the pipe open, or fill it for ever, so nothing waits for it.
            for _ in range(_MAX_READS):
                if not self._read(task, child, pipe):
                    break
            if not pipe.closed:
                self._flush(task, stream, lines)
                self._selector.unregister(pipe)
                pipe.close()
        del self._children[task]
        self._act(self._job.ended(task, code, time.monotonic(), child.error.text))

    def _abandon(self) -> None:
        """Ends all tasks after an error of the launcher itself."""
        for child in self._children.values():
            child.signal(signal.SIGKILL)
            child.process.wait()
            os.close(child.end)
            for pipe in (*child.pipes, child.progress):
                pipe.close()
        self._children.clear()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Makes signals wake the waiting thread and become events."""
        # An ignored signal stays ignored: `nohup` and background jobs rely on it.
        wanted = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        handled = {each for each in wanted if signal.getsignal(each) is not signal.SIG_IGN}
        reader, writer = socket.socketpair()
        with reader, writer:
            reader.setblocking(False)
            writer.setblocking(False)

            def arrived() -> None:
                for number in reader.recv(_READ):
                    if number in handled:
                        self._act(self._job.interrupted(number, time.monotonic()))

            self._selector.register(reader, selectors.EVENT_READ, arrived)
            wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
            before = {number: signal.signal(number, lambda *_: None) for number in handled}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
                signal.set_wakeup_fd(wakeup)
                self._selector.unregister(reader)


def end_of(process: subprocess.Popen[bytes]) -> int:
    """A descriptor that becomes readable when the process has ended."""
    if sys.platform == "linux":
        try:
            return os.pidfd_open(process.pid)
        except OSError:
            pass  # an old kernel, or a sandbox that does not allow it
    return _end_by_thread(process)


def _end_by_thread(process: subprocess.Popen[bytes]) -> int:
    reader, writer = os.pipe()

    def wait() -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()
        os.close(writer)

    threading.Thread(target=wait, name=f"end of process {process.pid}", daemon=True).start()
    return reader


@contextmanager
def reserve(size: Size, first: int | None = None) -> Iterator[Cluster]:
    """A cluster on free loopback ports, or on those from `first` on, reserved inside the `with`.

    >>> with reserve(Size(ps=0, workers=1)) as cluster:
    ...     cluster.tasks
    [Task(job='worker', index=0)]
    """
    tasks = size.addressed
    if first is not None and not 1 <= first <= 65536 - len(tasks):
        raise LaunchError(
            f"--base-port must leave room for {len(tasks)} ports between 1 and 65535, received {first}. "
            f"Leave it out to have free ports picked."
        )
    with ExitStack() as stack:
        ports = [_bound(stack, task, 0 if first is None else first + place) for place, task in enumerate(tasks)]
        if sys.platform != "linux":
            stack.close()
        # On Linux the bound sockets stay open: they do not listen, and let a server bind that sets SO_REUSEADDR, as
        # gRPC's do. No other program gets such a port, even while its task waits for a restart.
        yield Cluster.at(size, ports)


def _bound(stack: ExitStack, task: Task, port: int) -> int:
    try:
        listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        remedy = (
            "Give another --base-port, or leave it out to have free ports picked." if port else "Ask for fewer tasks."
        )
        raise LaunchError(f"port {port or '(any)'} for {task} cannot be had: {error.strerror}. {remedy}") from error
    found: int = listener.getsockname()[1]
    return found
