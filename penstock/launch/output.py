"""The output of tasks: whole lines with the task's name in front, and one log file per task."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from rich.console import Console
from rich.text import Text

from penstock.launch.cluster import PS, LaunchError, Task

# A longer line is shown in pieces, so that the buffer of a line that never ends is bounded.
LONGEST_LINE = 1 << 16
LONGEST_ERROR = 300  # characters of an error that is repeated
_MOVES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-ln-~]")  # control sequences other than colours
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
    """Turns bytes into whole lines.

    >>> lines = LineBuffer()
    >>> lines.feed(b"step 1\\nst"), lines.feed(b"ep 2\\n"), lines.rest()
    ([b'step 1'], [b'step 2'], [])
    """

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        *lines, partial = (self._partial + data).split(b"\n")
        if len(partial) > LONGEST_LINE:
            lines.append(partial)
            partial = b""
        # A progress bar may never end its line, so its earlier states are dropped.
        self._partial = partial[max(0, partial.rstrip(b"\r").rfind(b"\r")) :]
        return [_last_state(line) for line in lines]

    @property
    def state(self) -> bytes:
        """The current progress bar: an unfinished line after a carriage return, empty if there is none.

        >>> lines.feed(b"10%\\r20%"), lines.state
        ([], b'20%')
        """
        return _last_state(self._partial) if b"\r" in self._partial else b""

    def rest(self) -> list[bytes]:
        """The last line, if it has no line end."""
        partial, self._partial = self._partial, b""
        return [_last_state(partial)] if partial else []


def _last_state(line: bytes) -> bytes:
    """The text that a terminal would show: a progress bar returns to the start of its line to redraw itself."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class LastError:
    """The last line of the last traceback among the lines of a task.

    >>> error = LastError()
    >>> error.feed([b"Traceback (most recent call last):", b'  File "a.py", line 1', b"ValueError: no data"])
    >>> error.text
    'ValueError: no data'
    """

    def __init__(self) -> None:
        self.text = ""
        self._in_traceback = False

    def feed(self, lines: Sequence[bytes]) -> None:
        """Scans the next lines."""
        for line in lines:
            if line.startswith(b"Traceback (most recent call last):"):
                self._in_traceback = True
            elif self._in_traceback and line and not line.startswith(b" "):
                self._in_traceback = False
                text = line.decode(errors="replace")[:LONGEST_ERROR]
                self.text = "".join(c if c.isprintable() else "?" for c in text)


class Screen:
    """One stream of the launcher; if its reader goes away, that is no error, but nothing more is shown."""

    def __init__(self, stream: TextIO, tasks: Sequence[Task]) -> None:
        self._stream: BinaryIO = stream.buffer
        self.gone = False
        self._console = console = Console(file=stream)
        # Rendered once: a terminal gets colours, a file or a pipe gets plain text.
        self._prefixes: dict[Task, bytes] = {}
        self.add(tasks)
        self._own = _prefix(console, "[launch]", "dim")

    def add(self, tasks: Sequence[Task]) -> None:
        """Prepare to show lines of more tasks."""
        self._prefixes |= {task: _prefix(self._console, f"[{task}]", _colour(task)) for task in tasks}

    def lines(self, task: Task, lines: Sequence[bytes]) -> None:
        """Show lines of a task."""
        # A line that moves the cursor, as a progress bar may, would overwrite the task's name.
        self.write(b"".join(self._prefixes[task] + _MOVES.sub(b"", line) + b"\n" for line in lines))

    def notice(self, text: str) -> None:
        """Show a line of the launcher's own."""
        self.write(self._own + text.encode(errors="replace") + b"\n")

    @property
    def columns(self) -> int | None:
        """The width of a terminal line without the task's name; None if this is no terminal, or cannot draw."""
        if not self._stream.isatty() or self._console.is_dumb_terminal:
            return None
        # One character less than the width: many terminals wrap after the last.
        return max(20, self._console.width - 1 - max(len(f"[{task}] ") for task in self._prefixes))

    def bar(self, task: Task, state: bytes) -> bytes:
        """A progress bar as one line of the terminal, without sequences that move the cursor."""
        text = Text.from_ansi(state.decode(errors="replace"))
        text.truncate(self.columns or 80, overflow="ellipsis")
        with self._console.capture() as capture:
            self._console.print(text, end="", highlight=False)
        return self._prefixes[task] + capture.get().encode()

    def write(self, data: bytes) -> None:
        """Write data unchanged, if there is a reader."""
        if self.gone or not data:
            return
        try:
            self._stream.write(data)
            self._stream.flush()
        except OSError:
            self.gone = True
            # Otherwise the buffered data would fail again when Python flushes at exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def _prefix(console: Console, name: str, style: str) -> bytes:
    with console.capture() as capture:
        console.print(Text(name, style), end=" ")
    return capture.get().encode()


def _colour(task: Task) -> str:
    return "bold blue" if task.job == PS else _WORKER_COLOURS[task.index % len(_WORKER_COLOURS)]


class Bars:
    """The progress bars of tasks, in the last lines of a terminal, below all other output."""

    def __init__(self, screen: Screen | None) -> None:
        self._screen = screen
        self._states: dict[tuple[Task, str], bytes] = {}
        self._drawn = 0

    def set(self, task: Task, stream: str, state: bytes) -> None:
        """Show a task's current bar; an empty one removes it."""
        if self._screen is None or state == self._states.get((task, stream), b""):
            return
        with self.away():
            self._states[task, stream] = state
            if not state:
                del self._states[task, stream]

    @contextmanager
    def away(self) -> Iterator[None]:
        """Erase the bars to make room for other lines."""
        if self._screen is not None and self._drawn:
            up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
            self._screen.write(f"\r{up}\x1b[J".encode())
            self._drawn = 0
        yield
        if self._screen is not None and self._states:
            bars = [self._screen.bar(task, state) for (task, _), state in sorted(self._states.items())]
            self._screen.write(b"\n".join(bars))
            self._drawn = len(bars)


def _screens(tasks: Sequence[Task]) -> dict[str, Screen]:
    return {"stdout": Screen(sys.stdout, tasks), "stderr": Screen(sys.stderr, tasks)}


def _terminal(screens: Mapping[str, Screen]) -> Screen | None:
    return next((screen for screen in screens.values() if screen.columns is not None), None)


def columns_for(tasks: Sequence[Task]) -> int | None:
    """The width that a progress bar of these tasks may have; None if no terminal shows it."""
    terminal = _terminal(_screens(tasks))
    return terminal.columns if terminal else None


class Display:
    """The launcher's stdout and stderr, and the log files `<job>-<index>.log` in a directory."""

    def __init__(self, tasks: Sequence[Task], logs: Path) -> None:
        self.logs = logs
        self.screens = _screens(tasks)
        self._bars = Bars(_terminal(self.screens))
        self._files: dict[Task, BinaryIO] = {}
        try:
            self._open(tasks)
        except LaunchError:
            self.close()
            raise

    def add(self, tasks: Sequence[Task]) -> None:
        """Shows more tasks from now on. One that was there before goes on with its log."""
        for screen in self.screens.values():
            screen.add(tasks)
        self._open([task for task in tasks if task not in self._files])

    def _open(self, tasks: Sequence[Task]) -> None:
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            for task in tasks:
                # Unbuffered, since a log is read while the task runs.
                self._files[task] = self.log(task).open("wb", buffering=0)
        except OSError as error:
            raise LaunchError(
                f"cannot write logs to '{self.logs}': {error.strerror}. Give another directory with --log-dir."
            ) from error

    def log(self, task: Task) -> Path:
        """The log file of a task."""
        return self.logs / f"{task.job}-{task.index}.log"

    @property
    def gone(self) -> bool:
        """Tells if the output of tasks has no reader any more."""
        return self.screens["stdout"].gone

    def record(self, task: Task, data: bytes) -> None:
        """Add data to a task's log, unchanged."""
        file = self._files.get(task)
        if file is None:
            return
        try:
            file.write(data)
        except OSError as error:
            # A full disk must not end a training: the lines are still shown.
            del self._files[task]
            file.close()
            self.notice(f"cannot write '{self.log(task)}': {error.strerror}; the log of {task} ends there")

    def show(self, task: Task, stream: str, lines: Sequence[bytes]) -> None:
        """Show whole lines of a task on the launcher's stream of that name."""
        if lines:
            with self._bars.away():
                self.screens[stream].lines(task, lines)

    def progress(self, task: Task, stream: str, state: bytes) -> None:
        """Show the state of a task's progress bar on a terminal; nothing if it has none."""
        self._bars.set(task, stream, state)

    def notice(self, text: str) -> None:
        """Say something to the user."""
        with self._bars.away():
            self.screens["stderr"].notice(text)

    def close(self) -> None:
        """Close the log files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
