"""The pods of a job as Kubernetes tells of them, kept up to date by a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from penstock.launch.cluster import Task
from penstock.launch.kubernetes.api import Api, ClusterError
from penstock.launch.kubernetes.pods import Pod, task_of

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds between two attempts to reach Kubernetes
OUT_OF_SIGHT_SECS = 300.0  # after which a job whose Kubernetes does not answer is given up


class SeenPods:
    """Watches pods; threads wait for changes.

    >>> version, pods = seen.of(task)  # doctest: +SKIP
    >>> seen.wait(version, 10.0)  # doctest: +SKIP
    """

    def __init__(self, api: Api, say: Callable[[str], None]) -> None:
        self._api = api
        self._say = say
        self._changed = threading.Condition()
        self._version = 0
        self._pods: dict[str, Pod] = {}  # by uid
        self._gone: dict[str, Pod] = {}  # the last that was seen of those that were deleted
        self._failing_since: float | None = None
        self._error: ClusterError | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-pods", daemon=True)

    def start(self) -> None:
        """Starts to watch."""
        self._thread.start()

    def close(self) -> None:
        """Stops to watch; a call that waits for Kubernetes ends by itself."""
        self._closed.set()

    def of(self, task: Task) -> tuple[int, list[Pod]]:
        """The pods of a task, and the version of what is seen. ClusterError if Kubernetes is out of sight."""
        with self._changed:
            if self._error is not None:
                raise self._error
            return self._version, [pod for pod in self._pods.values() if task_of(pod) == task]

    def gone(self, uid: str) -> Pod | None:
        """The last that was seen of a deleted pod."""
        with self._changed:
            return self._gone.get(uid)

    def wait(self, version: int, seconds: float) -> None:
        """Waits until something has changed since a version, for that long at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, max(0.0, seconds))

    def wake(self) -> None:
        """Has those that wait look again."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closed.is_set():
            try:
                pods, version = self._api.pods()
                self._replace(pods)
                self._reached()
                pause = _FIRST_PAUSE
                for there, pod in self._api.changes(version):
                    self._note(there, pod)
                    if self._closed.is_set():
                        return
            except ClusterError as error:
                self._failed(error)
                self._closed.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _replace(self, pods: list[Pod]) -> None:
        with self._changed:
            there = {pod["metadata"]["uid"]: pod for pod in pods}
            self._gone |= {uid: pod for uid, pod in self._pods.items() if uid not in there}
            self._pods = there
        self.wake()

    def _note(self, there: bool, pod: Pod) -> None:
        uid = pod["metadata"]["uid"]
        with self._changed:
            self._pods.pop(uid, None)
            (self._pods if there else self._gone)[uid] = pod
        self.wake()

    def _reached(self) -> None:
        if self._failing_since is not None:
            self._failing_since = None
            self._say("Kubernetes answers again")

    def _failed(self, error: ClusterError) -> None:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            self._say(f"{error}: trying again for {OUT_OF_SIGHT_SECS:g} s")
        elif now - self._failing_since > OUT_OF_SIGHT_SECS:
            with self._changed:
                self._error = error
            self.wake()
