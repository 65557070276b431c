"""Child processes of the launcher, one for each task, whose output and end become events."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO

from penstock.launch.cluster import Task
from penstock.launch.events import NOT_STARTED, Ended, Event, Events, Output, UnderWay
from penstock.progress import SERVES

_READ = 1 << 16
_MAX_READS = 64  # of one pipe after its process has ended; a pipe holds 1 MiB at most
_PIPE = 1 << 16  # the usual size of a pipe


@dataclass
class _Child:
    """A process, its output, a pipe that it writes to when it does its work, and a file that is readable at its end."""

    process: subprocess.Popen[bytes]
    pipes: Mapping[IO[bytes], str]
    progress: IO[bytes]
    end: int

    @property
    def files(self) -> list[IO[bytes]]:
        return [*self.pipes, self.progress]

    def close(self) -> None:
        """Closes all but the output, once the process has ended."""
        os.close(self.end)
        if self.process.stdin is not None:
            self.process.stdin.close()

    def signal(self, number: int) -> None:
        try:
            # The process is reaped only after its end was handled, so the id is not reused yet.
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # the group is empty, or (macOS) has only dead processes


class Processes:
    """The running processes by task; `post` is called with what happens to them, in the thread that waits."""

    def __init__(self, events: Events, post: Callable[[Event], None]) -> None:
        self._events = events
        self._post = post
        self._children: dict[Task, _Child] = {}

    def start(
        self, task: Task, command: Callable[[int], list[str]], environment: Mapping[str, str], told: bytes = b""
    ) -> None:
        """Starts the process of a task; `command` is given the pipe to which the task reports its progress.

        If it is `told` something, that is on its standard input, which stays open.
        """
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        progress = os.fdopen(reader, "rb", buffering=0)
        try:
            process = subprocess.Popen(
                command(writer),
                pass_fds=(writer,),
                env=environment,
                stdin=subprocess.PIPE if told else subprocess.DEVNULL,
                pipesize=max(len(told), _PIPE),  # so that writing it never waits for the process
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                # Its own group, so that it is signalled with all its children, and not by the terminal.
                start_new_session=True,
            )
        except OSError as error:
            progress.close()
            self._post(Ended(task, NOT_STARTED, f"cannot be started: {error}"))
            return
        finally:
            os.close(writer)
        assert process.stdout is not None and process.stderr is not None
        pipes = {process.stdout: "stdout", process.stderr: "stderr"}
        child = self._children[task] = _Child(process, pipes, progress, end_of(process))
        self.tell(task, told)
        self._events.watch(progress, lambda: self._progressed(task, child))
        for pipe in pipes:
            os.set_blocking(pipe.fileno(), False)
            self._events.watch(pipe, lambda pipe=pipe: self._read(task, child, pipe))  # type: ignore[misc]
        self._events.watch(child.end, lambda: self._ended(task, child))

    def signal(self, task: Task, number: int) -> None:
        """Sends a signal to a task's process and its children, if it still runs."""
        if child := self._children.get(task):
            child.signal(number)

    def tell(self, task: Task, text: bytes) -> None:
        """Writes to the standard input of a task's process, if it still runs."""
        child = self._children.get(task)
        if child is not None and child.process.stdin is not None:
            try:
                child.process.stdin.write(text)
            except BrokenPipeError:
                pass  # it has ended, which is an event of its own

    def close(self) -> None:
        """Ends all processes that are left. There are no events of them."""
        for child in self._children.values():
            self._events.forget(child.end)
            child.signal(signal.SIGKILL)
            child.process.wait()
            child.close()
            for pipe in child.files:
                if not pipe.closed:
                    self._events.forget(pipe)
                    pipe.close()
        self._children.clear()

    def _read(self, task: Task, child: _Child, pipe: IO[bytes]) -> bool:
        """Reads the available data; True if there may be more."""
        if pipe.closed:
            return False
        try:
            data = os.read(pipe.fileno(), _READ)
        except BlockingIOError:
            return False
        self._post(Output(task, child.pipes[pipe], data))
        if not data:
            self._events.forget(pipe)
            pipe.close()
        return bool(data)

    def _progressed(self, task: Task, child: _Child) -> None:
        """Handles the progress pipe: the task, or a program that replaced it by `exec`, wrote to it or closed it."""
        if child.progress.closed:
            return
        self._events.forget(child.progress)
        with child.progress as pipe:
            if word := pipe.read(1):
                self._post(UnderWay(task, serves=word == SERVES))

    def _ended(self, task: Task, child: _Child) -> None:
        self._events.forget(child.end)
        # Its children would hold its port, or outlive the job. It is not reaped yet, so its id is not reused.
        child.signal(signal.SIGKILL)
        code = child.process.wait()
        child.close()
        self._progressed(task, child)
        for pipe in child.pipes:
            # A process that left the group may hold the pipe open, or fill it for ever, so nothing waits for it.
            for _ in range(_MAX_READS):
                if not self._read(task, child, pipe):
                    break
            if not pipe.closed:
                self._events.forget(pipe)
                pipe.close()
        del self._children[task]
        self._post(Ended(task, code))


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
