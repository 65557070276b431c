"""Which jobs of this user are running: one small file for each, so that `penstock status` finds them.

A file is written by the launcher and removed at its end. One that was left behind, because the launcher was killed, is
known by its process: none has that number, or one that was started at another time.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunningJob:
    """A job, by the process of its launcher; `addresses` are those of its tasks, `{"ps:0": "127.0.0.1:2222"}`."""

    pid: int
    started: str
    script: str
    addresses: dict[str, str]


@contextmanager
def announced(script: str, addresses: dict[str, str]) -> Iterator[None]:
    """Makes a job of this process known to `running_jobs` inside the `with`; OSError if that cannot be.

    >>> with announced("train.py", {"ps:0": "127.0.0.1:2222"}):
    ...     running_jobs()[0].script
    'train.py'
    """
    folder = _folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    _check(folder)
    job = RunningJob(os.getpid(), started(os.getpid()) or "", script, addresses)
    path = folder / f"{job.pid}.json"
    # Written aside, so that nobody reads half of it. A file of mkstemp is this user's alone.
    descriptor, aside = tempfile.mkstemp(dir=folder)
    try:
        with open(descriptor, "w") as file:
            json.dump(asdict(job), file)
        os.replace(aside, path)
    except OSError:
        os.unlink(aside)
        raise
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def running_jobs() -> list[RunningJob]:
    """The jobs of this user that are running, the one that was launched last first. Files left behind are removed."""
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
            continue  # it was removed meanwhile, or is no file of a launcher
        if job.started == started(job.pid):
            jobs.append(job)
        else:
            path.unlink(missing_ok=True)
    return jobs


def _read(path: Path) -> RunningJob:
    found = json.loads(path.read_text())
    addresses = {str(task): str(address) for task, address in dict(found["addresses"]).items()}
    return RunningJob(int(found["pid"]), str(found["started"]), str(found["script"]), addresses)


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "penstock" if runtime else Path(tempfile.gettempdir()) / f"penstock-{os.getuid()}"


def _check(folder: Path) -> None:
    """Refuses a folder that others may write to: what is in it is believed."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"'{folder}' is not a directory of this user alone")


def started(pid: int) -> str | None:
    """When a process was started, in whatever form the system says it; None if there is none of that number."""
    try:
        # The name of the program stands in parentheses and may hold any character.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
