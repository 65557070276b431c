"""Changes the number of tasks while a job runs: tasks that join are started, and tasks that leave are ended.

Tasks that join are started first, and become members once they do their work. Tasks that leave are no members any more
when they are ended. The first parameter server changes the membership in between (`penstock.elastic.resize`), at a step
boundary. If anything fails before that, tasks that were to join are ended, and the job goes on as it was. The new
record comes back here, and every task that is started or restarted later is given it (`Commands.of`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from penstock.launch.cluster import PS, WORKER, Cluster, LaunchError, Size, Task
from penstock.launch.engine import Commands, ElasticEngine, Engine
from penstock.launch.events import Ended, Event, Moved, Resized, Scaled, ScaleWanted, UnderWay
from penstock.launch.job import Instruction, Job, Say

JOIN_SECS = 300.0  # for tasks that join to do their work, once they have a place
RESIZE_SECS = 180.0  # for the change of the membership
_STATUS_SECS = 3.0  # for a task to say which membership it has
_ASKED_AT_ONCE = 32  # tasks


class Scaling:
    """Carries out one request after the other. All but `ask` happens in the launcher's thread."""

    def __init__(
        self,
        job: Job,
        engine: Engine,
        commands: Commands | None,
        post: Callable[[Event], None],
        added: Callable[[list[Task]], None],
    ) -> None:
        self._job = job
        self._engine = engine
        self._commands = commands
        self._post = post
        self._added = added  # is told of tasks before they are started
        self._request: ScaleWanted | None = None
        self._joining: list[Task] = []
        self._leaving: list[Task] = []
        self._before: Size | None = None
        self._after: Size | None = None
        self._asked = False
        self._deadline: float | None = None
        self._patience = JOIN_SECS

    @property
    def version(self) -> int:
        """The version of the membership."""
        return int(self._commands.record.get("version", 0)) if self._commands else 0

    @property
    def deadline(self) -> float | None:
        """The time at which `due` must be called."""
        return self._deadline

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Takes an event, after the job has, and says what to do about it."""
        match event:
            case ScaleWanted():
                return self._begin(event, now)
            case UnderWay() if self._request is not None:
                self._go_on()
            case Ended(task, _, why) if task in self._joining and not self._asked:
                told = f"{task} {why}" if why else f"{task} ended before it could join; its log says why"
                return self._give_up(told, now)
            case Moved(tasks) if self._request is not None and not self._asked:
                return self._give_up(f"{', '.join(map(str, tasks))} had to move; try again when that is done", now)
            case Resized(text, problem, record) if self._request is not None:
                return self._give_up(problem, now) if problem else self._done(text, record, now)
        return []

    def due(self, now: float) -> list[Instruction]:
        """Gives up if tasks take too long to join."""
        if self._deadline is None or now < self._deadline:
            return []
        late = ", ".join(str(task) for task in self._joining if not self._job.is_under_way(task))
        return self._give_up(f"{late} did not begin to work within {self._patience:g} s", now)

    def _begin(self, request: ScaleWanted, now: float) -> list[Instruction]:
        size = self._engine.cluster.size
        wanted = self._wanted(request, size)
        if isinstance(wanted, str):
            request.answer(f"{wanted} Nothing has changed.", 1)
            return []
        if wanted == size:
            request.answer(f"the job has {_counts(size)} already", 0)
            return []
        assert isinstance(self._engine, ElasticEngine) and self._commands is not None
        largest = replace(wanted, ps=max(size.ps, wanted.ps), workers=max(size.workers, wanted.workers))
        try:
            self._patience = self._engine.resize(largest) + JOIN_SECS
        except LaunchError as error:
            request.answer(f"{error} Nothing has changed.", 1)
            return []
        self._request, self._before, self._after, self._asked = request, size, wanted, False
        self._joining = [task for task in largest.addressed if task not in size.addressed]
        self._leaving = [task for task in largest.addressed if task not in wanted.addressed]
        self._commands.joining.update(dict.fromkeys(self._joining, self.version))
        self._deadline = now + self._patience if self._joining else None
        self._added(self._joining)
        text = f"from {_counts(size)} to {_counts(wanted)}"
        request.answer(text, None)
        started = self._job.join(self._joining)
        if not self._joining:
            self._go_on()
        return [Say(f"scaling {text}"), *started]

    def _wanted(self, request: ScaleWanted, size: Size) -> Size | str:
        """The size that a request asks for, or a text that says why it cannot be."""
        if self._request is not None:
            return "the job is being scaled already: try again when that is done."
        if self._job.stopping:
            return "the job is ending."
        if self._commands is None or not isinstance(self._engine, ElasticEngine):
            return (
                "where this job runs, tasks cannot join or leave it. Stop it, and launch it with the numbers that you "
                "want: it goes on from its last checkpoint."
            )
        if not size.ps:
            return "the job has no parameter server, which would hold its membership."
        if request.ps is not None and request.ps < 1:
            return f"--ps must be at least 1, received {request.ps}: the variables must be somewhere."
        try:
            wanted = replace(size, ps=request.ps or size.ps, workers=_or(request.workers, size.workers))
        except LaunchError as error:
            return str(error)
        if ending := [str(task) for task in wanted.addressed if self._job.is_leaving(task)]:
            return f"{', '.join(ending)} left a moment ago and did not end yet: try again when that is done."
        return wanted

    def _go_on(self) -> None:
        """Has the membership changed once all tasks that join do their work."""
        if self._asked or self._after is None or not all(map(self._job.is_under_way, self._joining)):
            return
        self._asked, self._deadline = True, None
        whole = self._engine.cluster
        counts = {PS: self._after.ps, WORKER: self._after.workers}
        members = {job: found[: counts.get(job, len(found))] for job, found in whole.addresses.items()}
        thread = threading.Thread(
            target=ask_first_server,
            args=(Cluster(members), self.version, self._post),
            name="penstock-scale",
            daemon=True,
        )
        thread.start()

    def _done(self, text: str, record: str, now: float) -> list[Instruction]:
        assert self._after is not None and isinstance(self._engine, ElasticEngine) and self._commands is not None
        self._commands.record.update(json.loads(record))
        restarted = self._job.joined(self._joining)
        self._engine.resize(self._after)
        self._post(Scaled())
        done = f"the job has {_counts(self._after)} now: {text}"
        left = self._job.leave(self._leaving, now)
        self._end(done, 0)
        return [Say(done), *restarted, *left]

    def _give_up(self, problem: str, now: float) -> list[Instruction]:
        assert self._before is not None and isinstance(self._engine, ElasticEngine)
        self._engine.resize(self._before)
        said = f"the job keeps {_counts(self._before)}: {problem}"
        left = self._job.leave(self._joining, now)
        self._end(said, 1)
        return [Say(said), *left]

    def _end(self, text: str, code: int) -> None:
        assert self._request is not None
        self._request.answer(text, code)
        self._request = self._before = self._after = self._deadline = None
        self._joining, self._leaving = [], []


def ask_first_server(cluster: Cluster, version: int, post: Callable[[Event], None]) -> None:
    """Asks the first parameter server to have the tasks of `cluster` as members, and posts what came of it.

    `version` is that of the membership before.
    """
    try:
        post(_resized(cluster, version))
    except BaseException as error:
        post(Resized("", repr(error)))
        raise


def _resized(cluster: Cluster, version: int) -> Resized:
    from penstock.errors import DeadlineExceededError, OpError, UnavailableError  # start-up: most are never scaled
    from penstock.master.cluster import ClusterSpec  # start-up
    from penstock.wire.control import ControlClient  # start-up
    from penstock.wire.credentials import Credentials  # start-up

    began = time.monotonic()
    try:
        credentials = Credentials.from_environment()
        client = ControlClient(cluster.addresses[PS][0], credentials)
    except OpError as error:
        return Resized("", error.message)
    try:
        spec = ClusterSpec({job: list(found) for job, found in cluster.addresses.items()})
        done = client.resize(spec.as_cluster_def(), RESIZE_SECS)
    except (UnavailableError, DeadlineExceededError) as error:
        # It may have died in the middle. If others have begun to change, all do once it is back.
        if record := newer_record(cluster, version, credentials):
            return Resized("the first parameter server did not live to tell more", record=record)
        return Resized("", error.message)
    except OpError as error:
        return Resized("", error.message)
    finally:
        client.close()
    moved = f"{done.resources} resources ({done.bytes / 1e6:.1f} MB) moved, " if done.resources else ""
    took = time.monotonic() - began
    text = f"{moved}steps were held for {done.pause:.2f} of {took:.2f} s; version {done.version}"
    return Resized(text, record=done.membership)


def newer_record(cluster: Cluster, version: int, credentials: Any) -> str:
    """The record of a task that has a newer version; "" if no task has one."""
    from penstock.errors import OpError  # start-up
    from penstock.wire.control import ControlClient  # start-up

    def ask(address: str) -> str:
        client = ControlClient(address, credentials)
        try:
            return str(client.get_status(timeout=_STATUS_SECS).membership)
        except OpError:
            return ""  # it is lost as well
        finally:
            client.close()

    with ThreadPoolExecutor(_ASKED_AT_ONCE, "penstock-scale") as pool:
        found = [text for text in pool.map(ask, cluster.places.values()) if text]
    return next((text for text in found if json.loads(text)["version"] > version), "")


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _counts(size: Size) -> str:
    return f"{size.ps} parameter server{'s' * (size.ps != 1)} and {size.workers} worker{'s' * (size.workers != 1)}"
