"""Lists the running jobs of this user: one small file for each, so that `penstock status` and `scale` find them.

The launcher writes its file and removes it at the end. A stale file, left by a launcher that was killed, is recognized
by its process: none has that number, or it was started at another time.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from os.path import abspath
from pathlib import Path

from penstock.written_aside import write_aside


@dataclass(frozen=True)
class RunningJob:
    """A job, identified by its launcher's process; `addresses` are those of its tasks, `{"ps:0": "127.0.0.1:2222"}`."""

    pid: int
    started: str
    script: str
    addresses: dict[str, str]
    credentials: str = ""  # the directory; empty if the job needs none


@contextmanager
def announced(script: str, addresses: dict[str, str]) -> Iterator[Callable[[dict[str, str]], None]]:
    """Lists a job of this process in `running_jobs` inside the `with`; OSError if that is not possible.

    Call what it gives when addresses change.

    >>> with announced("train.py", {"ps:0": "127.0.0.1:2222"}):
    ...     running_jobs()[0].script
    'train.py'
    """
    folder = _folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    _check(folder)
    # From the environment, by which all tasks and clients of this process find them.
    credentials = os.environ.get("PENSTOCK_CREDENTIALS", "")
    job = RunningJob(os.getpid(), started(os.getpid()) or "", script, addresses, credentials and abspath(credentials))
    path = folder / f"{job.pid}.json"
    _write(path, job)
    try:
        yield lambda changed: _write(path, replace(job, addresses=changed))
    finally:
        path.unlink(missing_ok=True)


def _write(path: Path, job: RunningJob) -> None:
    write_aside(path, json.dumps(asdict(job)).encode())


def beside(pid: int, what: str) -> Path:
    """The path of a file that the launcher of that process has beside its own; OSError for an unsafe folder.

    `what` is "sock", at which it hears `penstock scale`, or "membership", the record of the tasks that there are.
    """
    folder = _folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    _check(folder)
    return folder / f"{pid}.{what}"


def running_jobs() -> list[RunningJob]:
    """The running jobs of this user, the most recent first. Stale files are removed."""
    folder = _folder()
    try:
        _check(folder)
        paths = sorted(folder.glob("*.json"), key=lambda path: -path.stat().st_mtime)
    except OSError:
        return []
    jobs = []
    for path in paths:
        try:
            job = _read(path)
        except (OSError, ValueError, TypeError, KeyError):
            continue  # it was removed meanwhile, or is not a file of a launcher
        if job.started == started(job.pid):
            jobs.append(job)
        else:
            for stale in (path, path.with_suffix(".sock"), path.with_suffix(".membership")):
                stale.unlink(missing_ok=True)
    return jobs


def _read(path: Path) -> RunningJob:
    found = json.loads(path.read_text())
    addresses = {str(task): str(address) for task, address in dict(found["addresses"]).items()}
    credentials = str(found.get("credentials", ""))
    return RunningJob(int(found["pid"]), str(found["started"]), str(found["script"]), addresses, credentials)


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "penstock" if runtime else Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"


def _check(folder: Path) -> None:
    """Raises an error for a folder that others may write to, since its contents are trusted."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"'{folder}' is not a directory of this user alone")


def started(pid: int) -> str | None:
    """The start time of a process, in the system's own form; None if there is no such process."""
    try:
        # The name of the program is in parentheses and may contain any character.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
