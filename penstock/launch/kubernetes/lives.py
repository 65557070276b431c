"""Follows one life of a task in a thread: waits until its pod runs, passes its log on, and finds how it ended."""

from __future__ import annotations

import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.launch.cluster import Task
from penstock.launch.events import NOT_STARTED, Ended, Event, Notice
from penstock.launch.kubernetes.api import SILENT_SECS, Api, ClusterError
from penstock.launch.kubernetes.log import LogReader
from penstock.launch.kubernetes.pods import (
    End,
    Life,
    Pod,
    begun,
    end_of,
    hopeless,
    image_of,
    life_of,
    newest,
    node_of,
    not_started,
    obstacle,
)
from penstock.launch.kubernetes.seen import SeenPods

TELL_SECS = 3.0  # after which the user is told why a task has not begun
_LATE_SECS = 30.0  # past its time, after which a pod that is to go is taken for lost
_SETTLE_SECS = 5.0  # in which Kubernetes tells of the end of a container whose log has ended
_LOG_SECS = 10.0  # in which the rest of a log must come after the end
_NO_PENSTOCK = re.compile(rb"No module named '?penstock")


def start_secs() -> float:
    """The time in which a task must begin; others wait as long for it (`penstock.master.remote`)."""
    return float(os.environ.get("PENSTOCK_START_TIMEOUT_SECS", "600"))


@dataclass
class Wishes:
    """Tells which tasks the launcher wants ended."""

    asked: set[Task] = field(default_factory=set)
    killed: dict[Task, float] = field(default_factory=dict)  # when


class Lives:
    """Follows lives of tasks. `post` gets their events, of each life `Ended` as the last."""

    def __init__(
        self, api: Api, seen: SeenPods, wishes: Wishes, controllers: Mapping[Task, str], post: Callable[[Event], None]
    ) -> None:
        self._api = api
        self._seen = seen
        self._wishes = wishes
        self._controllers = controllers
        self._post = post
        self._past: set[Life] = set()  # those that were followed

    def follow(self, task: Task) -> None:
        """Follows the next life of a task, to its end."""
        try:
            end = self._followed(task)
        except Exception as error:  # without its end the launcher would wait for ever
            end = End(1, f"is out of sight: {error if isinstance(error, ClusterError) else repr(error)}")
        self._post(Ended(task, end.code, end.why))

    def _followed(self, task: Task) -> End:
        found = self._beginning(task)
        if isinstance(found, End):
            return found
        life = life_of(found)
        self._past.add(life)
        log = _Log(self._api, self._seen, task, life, self._post)
        log.start()
        end = self._end(task, life)
        reader = log.finish()
        if end.code != 0 and not reader.marked and _NO_PENSTOCK.search(reader.beginning):
            image = image_of(found)
            return End(
                NOT_STARTED,
                f"cannot be started: the image '{image}' of pod {life.pod} has no penstock, or an older one. "
                "Build an image with `pip install penstock` of this version and give it as --image",
            )
        # The mark tells signals from codes.
        return End(reader.code, end.why) if reader.code is not None and not end.why else end

    def _beginning(self, task: Task) -> Pod | End:
        """The pod of the task's next life once it has begun, or the end of one that does not begin."""
        began = time.monotonic()
        tell_at, give_up_at = began + TELL_SECS, began + start_secs()
        seen: Pod | None = None
        while True:
            version, pods = self._seen.of(task)
            pod = newest(pod for pod in pods if life_of(pod) not in self._past)
            # First: another pod in its place may have begun already.
            if seen is not None and (pod is None or pod["metadata"]["uid"] != seen["metadata"]["uid"]):
                name = seen["metadata"]["name"]
                # Kubernetes makes another one, unless all are being stopped.
                return End(-signal.SIGKILL, f"was lost: pod {name} was deleted before it began")
            if pod is not None and begun(pod):
                return pod
            if pod is not None and hopeless(pod):
                return not_started(pod)
            seen = pod
            now = time.monotonic()
            if task in self._wishes.asked and (pod is None or self._overdue(task, now)):
                return End(-signal.SIGTERM)
            if now >= give_up_at:
                why = f"cannot be started: {self._reason(task, pod)} (waited {start_secs():g} s)"
                return End(NOT_STARTED, why)
            if now >= tell_at:
                tell_at = math.inf
                self._post(Notice(f"{task} has not begun: {self._reason(task, pod)}"))
            self._seen.wait(version, min(tell_at, give_up_at, now + TELL_SECS) - now)

    def _reason(self, task: Task, pod: Pod | None) -> str:
        if pod is not None:
            return f"pod {pod['metadata']['name']}: {obstacle(pod) or 'no reason is given'}"
        name = self._controllers[task]
        return f"{name} has no pod for it: {self._api.warning(name) or 'no reason is given'}"

    def _end(self, task: Task, life: Life) -> End:
        leaves_at: float | None = None
        while True:
            version, pods = self._seen.of(task)
            pod = next((pod for pod in pods if pod["metadata"]["uid"] == life.uid), None)
            last = pod or self._seen.gone(life.uid)
            if last is not None and (end := end_of(life, last)):
                return end
            if pod is None and task in self._wishes.asked:
                return End(-signal.SIGTERM)
            if pod is None:
                return End(-signal.SIGKILL, f"was lost: pod {life.pod} was deleted")
            now = time.monotonic()
            if self._overdue(task, now):
                return End(-signal.SIGKILL, f"is out of reach: pod {life.pod} on node {node_of(pod)} does not end")
            if "deletionTimestamp" in pod["metadata"]:
                grace = pod["metadata"].get("deletionGracePeriodSeconds", 0)
                leaves_at = leaves_at or now + grace + _LATE_SECS
                if now >= leaves_at:
                    # Its node does not answer. Without this no other pod would take its place.
                    self._api.kill(life.pod)
                    return End(-signal.SIGKILL, f"was lost with node {node_of(pod)}")
            self._seen.wait(version, TELL_SECS)

    def _overdue(self, task: Task, now: float) -> bool:
        return now >= self._wishes.killed.get(task, math.inf) + _LATE_SECS


class _Log:
    """Passes the log of a life on, in a thread of its own, which may be left behind: its node may not answer."""

    def __init__(self, api: Api, seen: SeenPods, task: Task, life: Life, post: Callable[[Event], None]) -> None:
        self._api = api
        self._seen = seen
        self._task = task
        self._life = life
        self._post = post
        self._reader = LogReader(task)
        self._lock = threading.Lock()
        self._finished = False
        self._thread = threading.Thread(target=self._run, name=f"penstock-log-{task}", daemon=True)

    def start(self) -> None:
        """Starts to pass the log on."""
        self._thread.start()

    def finish(self) -> LogReader:
        """Waits a while for the rest of the log. Afterwards nothing more is passed on."""
        self._thread.join(_LOG_SECS)
        self._feed(b"")
        with self._lock:
            self._finished = True
            return self._reader

    def _feed(self, data: bytes) -> None:
        with self._lock:
            if not self._finished:
                for event in self._reader.feed(data):
                    self._post(event)

    def _run(self) -> None:
        since: int | None = None
        while not self._finished:
            heard = time.monotonic()
            try:
                for data in self._api.log(self._life.pod, self._restarted(), since):
                    heard = time.monotonic()
                    self._feed(data)
            except ClusterError:
                pass  # the watch tells of a Kubernetes that is gone; a single lost connection is made anew
            if self._ended(_SETTLE_SECS):
                return
            # After a lost connection a line may come twice, rather than be lost; after a silence none was lost.
            silence = time.monotonic() - heard
            since = int(silence) if silence >= SILENT_SECS else math.ceil(silence) + 1

    def _pod(self) -> tuple[int, Pod | None]:
        version, pods = self._seen.of(self._task)
        return version, next((pod for pod in pods if pod["metadata"]["uid"] == self._life.uid), None)

    def _restarted(self) -> bool:
        _, pod = self._pod()
        return pod is not None and life_of(pod) != self._life

    def _ended(self, seconds: float) -> bool:
        """Waits for news that the life has ended, for that long at most."""
        until = time.monotonic() + seconds
        while True:
            try:
                version, pod = self._pod()
            except ClusterError:
                return True
            if pod is None or end_of(self._life, pod):
                return True
            if (left := until - time.monotonic()) <= 0:
                return False
            self._seen.wait(version, left)
