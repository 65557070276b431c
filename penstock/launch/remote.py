"""Runs a task on another machine, for engines that reach it by a command with pipes, as `srun` and a Ray actor do.

The engine starts `COMMAND` there, writes `letter(...)` to its standard input, and keeps that open. The letter has the
script, its settings, the job's credentials and its membership record: those are on no command line and no shared disk.
This program writes them to a directory of its own, in memory where that is possible, which only its user can read, and
removes it at the end; if it is killed, the next such program does. Later the engine may write TERMINATE or KILL. When
the standard input ends, since the engine is gone, the task is terminated, and killed if it is not gone soon.

The task's output is passed on as it is. In between, on stderr, are marks for the engine, which `Marks` takes out: the
task is there (every few seconds), it does its work, it has ended with that code (a command such as srun does not tell
signals from exit codes).
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from penstock import errors
from penstock.launch.cluster import LaunchError, Task
from penstock.launch.engine import MEMBERSHIP, Invocation
from penstock.launch.events import Ended, Event, Events, Output, Signal, UnderWay
from penstock.launch.job import exit_code
from penstock.launch.processes import Processes
from penstock.progress import SERVES, STEPS
from penstock.wire.credentials import ENVIRONMENT_VARIABLE, Credentials, create_credentials

COMMAND = (sys.executable, "-m", "penstock.launch.remote")
TERMINATE, KILL = b"t", b"k"
BEAT = 2.0  # seconds between two signs of life
_LONGEST_LETTER = 1 << 20
_ORPHAN_ENDS_WITHIN = 10.0  # seconds, after the engine is gone
_MEMORY = Path("/dev/shm")
_PRIVATE = "penstock-private-"
_LOCKED_WITHIN = 60.0  # seconds after which a directory that nobody has locked was left
_FILES = ("ca.pem", "task.pem", "task.key", "token")
# A command for the application, which terminals do not show. Its line end lets commands that buffer lines pass it on.
_MARK = re.compile(rb"\x1b\]penstock ([.su]|-?\d+)\x07\n")
_UP = b"u"
_BEGINNING, _LONGEST_MARK = b"\x1b]penstock ", 32


def job_credentials() -> dict[str, str]:
    """The credentials of a job as files by name: those of the launcher, if it has any, or new ones.

    New ones are made in memory, where the system has a place there.
    """
    try:
        if found := Credentials.from_environment():
            return _files(found)
        with _private_folder() as folder:
            return _files(create_credentials(Path(folder) / "credentials"))
    except errors.OpError as error:
        raise LaunchError(error.message) from error


def _files(credentials: Credentials) -> dict[str, str]:
    return {name: (credentials.directory / name).read_text("ascii") for name in _FILES}


@contextmanager
def _private_folder() -> Iterator[str]:
    """A directory that only this user can read, inside the `with`. A process that is killed leaves it to the next."""
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    for other in parent.glob(f"{_PRIVATE}*"):
        with suppress(OSError):  # it belongs to another user, or another process removes it as well
            _remove_if_left(other)
    with tempfile.TemporaryDirectory(prefix=_PRIVATE, dir=parent) as folder, _open(folder) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # which ends with this process, however it ends
        yield folder


def _remove_if_left(folder: Path) -> None:
    with _open(folder) as descriptor:
        is_new = time.time() - os.fstat(descriptor).st_mtime < _LOCKED_WITHIN
        if not is_new:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)


@contextmanager
def _open(folder: str | Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def credentials_here() -> Iterator[None]:
    """Gives this process the credentials of its job inside the `with`, if it has none: `penstock status` needs them."""
    if os.environ.get(ENVIRONMENT_VARIABLE):
        yield
        return
    with unpacked(job_credentials()) as own:
        os.environ.update(own)
        try:
            yield
        finally:
            os.environ.pop(ENVIRONMENT_VARIABLE, None)


@contextmanager
def unpacked(credentials: Mapping[str, str], membership: str = "") -> Iterator[dict[str, str]]:
    """Writes credentials and a record to a private directory inside the `with`; gives the variables that name them."""
    files = {**credentials, **({"membership": membership} if membership else {})}
    with _private_folder() as folder:
        for name, text in files.items():
            path = Path(folder) / Path(name).name
            path.touch(0o600)
            path.write_text(text, "ascii")
        variables = {ENVIRONMENT_VARIABLE: folder} if credentials else {}
        yield {**variables, MEMBERSHIP: str(Path(folder) / "membership")} if membership else variables


def letter(run: Invocation, credentials: Mapping[str, str]) -> bytes:
    """The line that tells this program what to run. It is compressed: a record may name thousands of variables."""
    text = json.dumps({**vars(run), "credentials": dict(credentials)}, default=dict)
    return base64.b64encode(zlib.compress(text.encode())) + b"\n"


class Marks:
    """Takes the marks out of a task's stderr, however it is cut into pieces.

    >>> marks = Marks(Task("worker", 0))
    >>> marks.feed(b"step 1\\n\\x1b]pen"), marks.feed(b"stock .\\x07\\nstep 2\\n"), marks.under_way
    (b'step 1\\n', b'step 2\\n', UnderWay(task=Task(job='worker', index=0), serves=False))
    """

    def __init__(self, task: Task, post: Callable[[Event], object] = lambda event: None) -> None:
        self._task = task
        self._post = post  # is told when the task does its work
        self._held = b""
        self.up = False  # the program there has begun
        self.under_way: UnderWay | None = None
        self.code: int | None = None  # the exit code, or minus the signal, once the task has ended

    def feed(self, data: bytes) -> bytes:
        """The data without marks; the beginning of a mark is held back. The end of the stream, b"", releases it."""
        text = _MARK.sub(self._found, self._held + data)
        start = text.rfind(b"\x1b", -_LONGEST_MARK) if data else -1
        whole = start < 0 or not (_BEGINNING.startswith(text[start:]) or text[start:].startswith(_BEGINNING))
        text, self._held = (text, b"") if whole else (text[:start], text[start:])
        return text

    def _found(self, mark: re.Match[bytes]) -> bytes:
        self.up = True
        if mark[1] == _UP:
            return b""
        if mark[1] in (STEPS, SERVES):
            self.under_way = UnderWay(self._task, serves=mark[1] == SERVES)
            self._post(self.under_way)
        else:
            self.code = int(mark[1])
        return b""


def _mark(word: bytes) -> bytes:
    return _BEGINNING + word + b"\x07\n"


def main() -> None:
    """Runs the task that the letter on the standard input describes."""
    written = _line()
    if not written.endswith(b"\n"):
        sys.exit("penstock launch: the launcher was gone before it said what to run, so this task does not start.")
    fields = json.loads(zlib.decompress(base64.b64decode(written)))
    credentials = fields.pop("credentials")
    task = Task("task", 0)  # it is the only one here
    run = Invocation(**fields)
    entry = [sys.executable, "-m", "penstock.launch.task", str(os.getpid())]
    with (
        unpacked(credentials, run.membership) as own,
        Events() as events,
        closing(Processes(events, events.post)) as processes,
        events.signals(),
    ):

        def terminate() -> None:
            processes.signal(task, signal.SIGTERM)
            # A stopped process would not handle SIGTERM.
            processes.signal(task, signal.SIGCONT)

        def kill() -> None:
            processes.signal(task, signal.SIGKILL)

        def told() -> None:
            match os.read(0, 1):
                case b"":
                    events.forget(0)
                    terminate()
                    events.later(_ORPHAN_ENDS_WITHIN, kill)
                case word if word == TERMINATE:
                    terminate()
                case word if word == KILL:
                    kill()

        def beat() -> None:
            _write(2, _mark(_UP))
            events.later(BEAT, beat)

        beat()
        events.watch(0, told)
        environment = {**run.environment(os.environ), **own}
        processes.start(task, lambda pipe: [*entry, str(pipe), run.script, *run.args], environment)
        while True:
            for event in events.next(None):
                match event:
                    case Output(_, stream, data):
                        _write(1 if stream == "stdout" else 2, data)
                    case UnderWay(_, serves):
                        _write(2, _mark(SERVES if serves else STEPS))
                    case Signal():
                        terminate()
                    case Ended(_, code, why):
                        _write(2, f"penstock launch: the task {why}\n".encode() if why else b"")
                        _write(2, _mark(str(code).encode()))
                        sys.exit(exit_code(code))


def _line() -> bytes:
    # Unbuffered, so that what follows the letter is still there to be read.
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        return stdin.readline(_LONGEST_LETTER)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main()
