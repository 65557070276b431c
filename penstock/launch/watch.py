"""Watches a cluster: asks all of its tasks repeatedly for their status."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.errors import DeadlineExceededError, OpError, PermissionDeniedError, UnavailableError
from penstock.launch.cluster import Task
from penstock.launch.cluster_view import task_of, view_of
from penstock.master.membership import Membership
from penstock.wire.control import ControlClient

DEADLINE = 3.0  # seconds after which a task counts as not answering
MAX_THREADS = 64


def listens(address: str) -> bool:
    """Tells if anything listens at an address."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), DEADLINE).close()
    except OSError:
        return False
    return True


class Watch:
    """Asks all tasks of the cluster that the task at an address belongs to.

    >>> with Watch("localhost:2222", None) as cluster: print(next(cluster.views(1.0)))
    """

    def __init__(self, address: str, credentials: Any) -> None:
        self._credentials = credentials
        self._clients: dict[str, Any] = {}
        answer = self._ask(address)
        try:
            if isinstance(answer, PermissionDeniedError):
                raise PermissionDeniedError(
                    f"The task at {address} refused: {answer.message} PENSTOCK_CREDENTIALS must name the "
                    "credentials of this job."
                )
            if isinstance(answer, OpError):
                raise UnavailableError(
                    f"Nothing answers at {address}: {_reason(answer)}. Is a task running there? Give the "
                    f"address of any task of the cluster. {_about_credentials(credentials)}"
                )
        except OpError:
            self.close()
            raise
        self.addresses = {
            Task(job.name, number): at for job in answer.cluster.job for number, at in sorted(job.tasks.items())
        }
        if answer.membership:  # tasks have joined or left since the job began
            members = Membership.from_json(answer.membership, f"the status of {address}").tasks
            self.addresses = {Task(job, n): at for job, tasks in members.items() for n, at in sorted(tasks.items())}
        asked = task_of(answer.task)
        if asked is not None:
            self.addresses[asked] = address  # the task's own address may differ, such as one with port 0
        self._pool = ThreadPoolExecutor(min(MAX_THREADS, len(self.addresses) or 1), "penstock-status")

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        self.close()

    def close(self) -> None:
        """Ends the connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def views(self, interval: float) -> Iterator[Any]:
        """Views of the cluster, one every `interval` seconds."""
        before = self.sample()
        due = time.monotonic() + interval
        while True:
            time.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic()) + interval
            now = self.sample()
            yield view_of(self.addresses, before, now)
            before = now

    def sample(self) -> dict[Any, Any]:
        """The current Status of each task, or a text that says why there is none."""
        return dict(zip(self.addresses, self._pool.map(self._ask_task, self.addresses), strict=True))

    def _ask_task(self, task: Any) -> Any:
        answer = self._ask(self.addresses[task])
        if isinstance(answer, OpError):
            return _reason(answer)
        found = task_of(answer.task)
        if found != task:
            return f"{found} is there. Do all tasks have the same ClusterSpec?"
        return answer

    def _ask(self, address: str) -> Any:
        """The Status of the task at an address, or the error."""
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = ControlClient(address, self._credentials)
        try:
            return client.get_status(details=True, timeout=DEADLINE)
        except OpError as error:
            # A new connection next time: a failed one waits longer and longer before it retries.
            with contextlib.suppress(KeyError):
                self._clients.pop(address).close()
            return error


def _reason(error: Any) -> str:
    if isinstance(error, DeadlineExceededError):
        return f"no answer within {DEADLINE:.0f} s"
    message = error.message.removeprefix("No answer from ").rstrip(".")
    return str(message.rpartition("Failed to connect to remote host: ")[2] or message)


def _about_credentials(credentials: Any) -> str:
    if credentials is None:
        return "If the job has credentials, set PENSTOCK_CREDENTIALS to their directory."
    return f"PENSTOCK_CREDENTIALS is '{credentials.directory}': if the job has no credentials or others, change that."
