"""The socket at which a launcher hears `penstock scale`, and the command's side of it.

A request is one line of JSON, `{"ps": 2, "workers": null}`. The answer is lines like `{"text": "...", "code": null}`,
of which the last has an exit code. The socket is in a folder that only this user has access to.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.launch.events import Events, ScaleWanted
from penstock.launch.running import beside

ANSWER_SECS = 3600.0  # the command waits so long for a line: tasks that join may wait for machines
_LONGEST = 4096  # bytes of a request
_READ_SECS = 5.0  # in which a request must be there


@contextmanager
def listening(events: Events) -> Iterator[None]:
    """Makes requests for the job of this process events, inside the `with`; OSError if there can be no socket."""
    path = beside(os.getpid(), "sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path.unlink(missing_ok=True)  # of a launcher that was killed, and whose process had the same number
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(4)
        listener.setblocking(False)
        events.watch(listener.fileno(), lambda: _accept(listener, events))
        try:
            yield
        finally:
            events.forget(listener.fileno())
            path.unlink(missing_ok=True)


def _accept(listener: socket.socket, events: Events) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:
        return  # the caller has gone
    connection.settimeout(_READ_SECS)

    def answer(text: str, code: int | None) -> None:
        with suppress(OSError):  # the command was ended; the job is scaled all the same
            connection.sendall(json.dumps({"text": text, "code": code}).encode() + b"\n")
        if code is not None:
            connection.close()

    try:
        ps, workers = _request(connection.recv(_LONGEST))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        answer(f"this is no request of `penstock scale`: {error}", 1)
        return
    events.post(ScaleWanted(ps, workers, answer))


def _request(line: bytes) -> tuple[int | None, int | None]:
    found: dict[str, Any] = json.loads(line)
    ps, workers = (None if found.get(key) is None else int(found[key]) for key in ("ps", "workers"))
    return ps, workers


def ask(path: Path, ps: int | None, workers: int | None) -> Iterator[tuple[str, int | None]]:
    """Asks the launcher at a socket for other numbers of tasks. Yields its answers; the last has an exit code.

    >>> for text, code in ask(beside(1234, "sock"), None, 4): print(text)
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(ANSWER_SECS)
        connection.connect(str(path))
        connection.sendall(json.dumps({"ps": ps, "workers": workers}).encode() + b"\n")
        with connection.makefile("r") as lines:
            for line in lines:
                found = json.loads(line)
                yield str(found["text"]), found["code"]
                if found["code"] is not None:
                    return
    raise ConnectionError("the launcher ended before it was done")
