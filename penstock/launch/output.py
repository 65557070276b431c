"""What tasks print: whole lines with the task's name in front, and one log file per task."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

from rich.console import Console
from rich.text import Text

from penstock.launch.cluster import PS, LaunchError, Task

# A longer line is shown in pieces: what is held for one that never ends is bounded.
LONGEST_LINE = 1 << 16
_WORKER_COLOURS = (
    "green",
    "yellow",
    "magenta",
    "cyan",
    "bright_green",
    "bright_yellow",
    "bright_magenta",
    "bright_cyan",
)


class LineBuffer:
    """Bytes as they come in, whole lines out.

    >>> lines = LineBuffer()
    >>> lines.feed(b"step 1\\nst"), lines.feed(b"ep 2\\n"), lines.rest()
    ([b'step 1'], [b'step 2'], [])
    """

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > LONGEST_LINE:
            lines.append(self._partial)
            self._partial = b""
        return [_last_state(line) for line in lines]

    def rest(self) -> list[bytes]:
        """The line that no end came for, if there is one."""
        partial, self._partial = self._partial, b""
        return [_last_state(partial)] if partial else []


def _last_state(line: bytes) -> bytes:
    """What a terminal would be left with: a progress bar goes back to the start of its line to draw itself anew."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class Screen:
    """One stream of the launcher; a reader that went away is no error, but nothing more is shown."""

    def __init__(self, stream: TextIO, tasks: Sequence[Task]) -> None:
        self._stream: BinaryIO = stream.buffer
        self.gone = False
        console = Console(file=stream)
        # Rendered once: a terminal gets colours, a file or a pipe gets plain text.
        self._prefixes = {task: _prefix(console, f"[{task}]", _colour(task)) for task in tasks}
        self._own = _prefix(console, "[launch]", "dim")

    def lines(self, task: Task, lines: Sequence[bytes]) -> None:
        """Show lines of a task."""
        self._write(b"".join(self._prefixes[task] + line + b"\n" for line in lines))

    def notice(self, text: str) -> None:
        """Show a line of the launcher's own."""
        self._write(self._own + text.encode(errors="replace") + b"\n")

    def _write(self, data: bytes) -> None:
        if self.gone or not data:
            return
        try:
            self._stream.write(data)
            self._stream.flush()
        except OSError:
            self.gone = True
            # What is still buffered would fail again when Python flushes at exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def _prefix(console: Console, name: str, style: str) -> bytes:
    with console.capture() as capture:
        console.print(Text(name, style), end=" ")
    return capture.get().encode()


def _colour(task: Task) -> str:
    return "bold blue" if task.job == PS else _WORKER_COLOURS[task.index % len(_WORKER_COLOURS)]


class Display:
    """The launcher's stdout and stderr, and the log files `<job>-<index>.log` in a directory."""

    def __init__(self, tasks: Sequence[Task], logs: Path) -> None:
        self.logs = logs
        self.screens = {"stdout": Screen(sys.stdout, tasks), "stderr": Screen(sys.stderr, tasks)}
        self._files: dict[Task, BinaryIO] = {}
        try:
            logs.mkdir(parents=True, exist_ok=True)
            for task in tasks:
                # Unbuffered: a log is read while the task runs.
                self._files[task] = self.log(task).open("wb", buffering=0)
        except OSError as error:
            self.close()
            raise LaunchError(
                f"cannot write logs to '{logs}': {error.strerror}. Give another directory with --log-dir."
            ) from error

    def log(self, task: Task) -> Path:
        """The log file of a task."""
        return self.logs / f"{task.job}-{task.index}.log"

    @property
    def gone(self) -> bool:
        """Whether nobody reads what tasks print."""
        return self.screens["stdout"].gone

    def record(self, task: Task, data: bytes) -> None:
        """Add to a task's log, as it came."""
        file = self._files.get(task)
        if file is None:
            return
        try:
            file.write(data)
        except OSError as error:
            # A full disk need not end a training: the lines are still shown.
            del self._files[task]
            file.close()
            self.notice(f"cannot write '{self.log(task)}': {error.strerror}; the log of {task} ends there")

    def show(self, task: Task, stream: str, lines: Sequence[bytes]) -> None:
        """Show whole lines of a task on the launcher's stream of that name."""
        self.screens[stream].lines(task, lines)

    def notice(self, text: str) -> None:
        """Say something to the user."""
        self.screens["stderr"].notice(text)

    def close(self) -> None:
        """Close the log files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
