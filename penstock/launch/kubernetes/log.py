"""The log of a pod, in which both streams of its task and marks for the launcher are one.

Kubernetes keeps one log for a container. So the pod's program writes all to its stdout, with marks in between: which
stream follows, that the task does its work, and the code with which it ended. Terminals do not show the marks.
"""

from __future__ import annotations

import os
import re

from penstock.launch.cluster import Task
from penstock.launch.events import Event, Output, UnderWay
from penstock.progress import SERVES, STEPS

_MARK = re.compile(rb"\x1b\]penstock (stdout|stderr|[.s]|-?\d+)\x07\n")
_BEGINNING, _LONGEST_MARK = b"\x1b]penstock ", 32
_BEGINNING_SIZE = 4096


class LogWriter:
    """Writes the log of a task to a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._stream = "stderr"  # what readers assume until a mark says something else

    def output(self, stream: str, data: bytes) -> None:
        """Writes what the task printed."""
        if data and stream != self._stream:
            self._stream = stream
            self.mark(stream.encode())
        self._write(data)

    def mark(self, word: bytes) -> None:
        """Writes a mark: `STEPS`, `SERVES`, or a code as `-9`."""
        # Its line end lets those that pass on whole lines pass it on.
        self._write(_BEGINNING + word + b"\x07\n")

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


class LogReader:
    """Makes events of a task's log, however it is cut into pieces.

    >>> reader = LogReader(Task("worker", 0))
    >>> reader.feed(b"a\\n\\x1b]penst"), reader.feed(b"ock stdout\\x07\\nb")
    ([Output(task=Task(job='worker', index=0), stream='stderr', data=b'a\\n')], \
[Output(task=Task(job='worker', index=0), stream='stdout', data=b'b')])
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._stream = "stderr"
        self._held = b""
        self.marked = False  # penstock runs in the pod
        self.beginning = b""  # what came before that, which is the error if penstock does not run
        self.code: int | None = None  # the exit code, or minus the signal, once the task has ended

    def feed(self, data: bytes) -> list[Event]:
        """The events in more of the log; the beginning of a mark is held back. The end, b"", releases it."""
        if not self.marked:
            self.beginning = (self.beginning + data)[:_BEGINNING_SIZE]
        text = self._held + data
        start = text.rfind(b"\x1b", max(0, len(text) - _LONGEST_MARK)) if data else -1
        tail = text[start:]
        held = start >= 0 and _MARK.match(tail) is None and (_BEGINNING.startswith(tail) or tail.startswith(_BEGINNING))
        text, self._held = (text[:start], tail) if held else (text, b"")
        found: list[Event] = []
        for place, piece in enumerate(_MARK.split(text)):  # text, word, text, word, ..., text
            if place % 2:
                found += self._marked(piece)
            elif piece:
                found.append(Output(self._task, self._stream, piece))
        return found

    def _marked(self, word: bytes) -> list[Event]:
        self.marked = True
        if word in (STEPS, SERVES):
            return [UnderWay(self._task, serves=word == SERVES)]
        if word in (b"stdout", b"stderr"):
            self._stream = word.decode()
        else:
            self.code = int(word)
        return []
