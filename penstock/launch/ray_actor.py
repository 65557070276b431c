"""The Ray actor of a task: it runs on the node that Ray has chosen, and starts the task there in a process of its own.

This module is sent to the node, where penstock may be missing or have another version: it says so, instead of failing
with an error of Ray's. So it imports nothing of penstock.
"""

from __future__ import annotations

import hashlib
import io
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

_READ = 1 << 16  # Ray sends results of this size directly, without its object store
_KILL = b"k"  # a word of penstock.launch.remote
_VERSION = "import penstock; print(penstock.__version__)"
# Ray kills the children of an actor together with it. A grandchild lives long enough to end the task and clean up.
_REMOTE = """import os, sys
if os.fork():
    os._exit(0)
os.execv(sys.executable, [sys.executable, "-m", "penstock.launch.remote"])"""


class TaskRunner:
    """Holds the place and the port of a task, and runs it as often as it is started."""

    def __init__(self) -> None:
        self._directory = os.getcwd()
        self._unpacked: tempfile.TemporaryDirectory[str] | None = None
        self._port: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = threading.Event()  # the process has closed its output

    def look(self, directory: str, digests: Mapping[str, str]) -> tuple[str, str]:
        """The id of this node, and a file that it lacks or has otherwise than the launcher; "" if there is none.

        Then the launcher's directory is the task's, too.
        """
        import ray  # optional

        lacks = "" if os.path.isdir(directory) else directory
        for path, digest in digests.items():
            if not os.path.isfile(path) or hashlib.sha256(Path(path).read_bytes()).hexdigest() != digest:
                lacks = lacks or path
        if not lacks:
            self._directory = directory
        return ray.get_runtime_context().get_node_id(), lacks

    def unpack(self, package: bytes) -> None:
        """Takes the files of a package as the task's directory; they are removed with this actor."""
        self._unpacked = tempfile.TemporaryDirectory(prefix="penstock-")
        self._directory = self._unpacked.name
        with zipfile.ZipFile(io.BytesIO(package)) as files:
            files.extractall(self._directory)

    def version(self, patience: float) -> tuple[str, str]:
        """The version of penstock that the task will import, or "" and why there is none."""
        command = [sys.executable, "-c", _VERSION]
        done = subprocess.run(command, cwd=self._directory, capture_output=True, text=True, timeout=patience)
        if done.returncode == 0:
            return done.stdout.strip(), ""
        said = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        return "", f"{sys.executable}: {said[-1]}"

    def reserve(self, host: str, wanted: int) -> int:
        """A port for the task: the wanted one if it is free. Nobody else gets it while this actor lives (on Linux)."""
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        # It does not listen, and lets a server bind that sets this too, as gRPC's do.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, wanted))
        except OSError:
            listener.bind((host, 0))
        found: int = listener.getsockname()[1]
        if sys.platform == "linux":
            self._port = listener
        else:
            listener.close()
        return found

    def start(self, letter: bytes) -> int:
        """Starts `penstock.launch.remote`, gives it the letter, and returns a number of this process."""
        process = self._process = subprocess.Popen(
            [sys.executable, "-c", _REMOTE],
            cwd=self._directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self._ended.clear()
        assert process.stdin is not None
        process.stdin.write(letter)
        return process.pid

    def output(self) -> Iterator[tuple[str, bytes]]:
        """Yields what the process prints, each piece with the name of its stream, until the process has ended."""
        process = self._process
        assert process is not None
        try:
            with selectors.DefaultSelector() as waiting, process:
                for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
                    assert pipe is not None
                    waiting.register(pipe, selectors.EVENT_READ, name)
                while waiting.get_map():
                    for key, _ in waiting.select():
                        if data := os.read(key.fd, _READ):
                            yield key.data, data
                        else:
                            waiting.unregister(key.fileobj)
        finally:
            self._ended.set()

    def tell(self, number: int, word: bytes) -> None:
        """Writes a word to the process with that number, if it still runs."""
        process = self._process
        if process is not None and process.pid == number and not self._ended.is_set():
            assert process.stdin is not None
            try:
                process.stdin.write(word)
            except (BrokenPipeError, ValueError):
                pass  # it has just ended

    def close(self, patience: float) -> None:
        """Ends the process, and removes what was unpacked for it."""
        if self._process is not None:
            self.tell(self._process.pid, _KILL)
            self._ended.wait(patience)
        if self._unpacked is not None:
            self._unpacked.cleanup()
