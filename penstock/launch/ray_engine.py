"""The engine of a Ray cluster: a placement group with one bundle for each task, and an actor in each bundle.

An actor holds the place and the port of its task, and runs it in a process of its own (`penstock.launch.ray_actor`). A
task that fails is started again by the same actor, at the same address. When a node dies, Ray finds other nodes for its
bundles; new actors there take the tasks, and the launcher restarts the others, which have to learn the new addresses.

A task that joins later has a placement group of its own, which is given back once the task has left and ended.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.launch.accelerators import FRACTION, SHARED
from penstock.launch.cluster import Cluster, LaunchError, Size, Task
from penstock.launch.engine import Engine, Invocation, Request
from penstock.launch.events import NOT_STARTED, Ended, Events, Moved, Notice, Output
from penstock.launch.ray_bundles import Amounts, bundles
from penstock.launch.ray_cluster import connected, cpus_here, load_ray, nodes, require_answer
from penstock.launch.ray_places import Place, Places
from penstock.launch.remote import KILL, TERMINATE, Marks, job_credentials, letter
from penstock.launch.working_dir import WorkingDir

_START_WITHIN = 60.0  # seconds, for an actor that is there already
_THREADS_END_WITHIN = 10.0
_SIGNALS = {TERMINATE: -signal.SIGTERM, KILL: -signal.SIGKILL}
_ABOUT_THE_LAUNCHER = ("RAY_", "CUDA_VISIBLE_DEVICES")  # variables that are not passed on to tasks

MakePlaces = Callable[[Sequence[Mapping[Task, Amounts]]], Places]  # of lots


@dataclass
class _Life:
    """One start of a task."""

    task: Task
    asked: bytes = b""  # TERMINATE or KILL, if it was asked to end
    running: tuple[Any, int] | None = None  # its actor, and the process there
    over: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class RayEngine:
    """Runs tasks by actors. Each start of a task has a thread here, which waits for Ray and posts what happens."""

    def __init__(self, ray: Any, places: Places, make: MakePlaces, request: Request, events: Events) -> None:
        self._ray = ray
        self._make = make  # finds places for tasks that join
        self._request = request
        self._events = events
        self._credentials = job_credentials()
        # The state is shared with the threads. The other two locks are held while places are found: of tasks that
        # have lost theirs, and of tasks that join, for whom nobody else waits.
        self._state, self._placing, self._joining = threading.Lock(), threading.Lock(), threading.Lock()
        self._places = dict.fromkeys(places.tasks, places)
        self._coming: Places | None = None  # those of tasks that join
        self._size = request.size  # what was asked for; `cluster` has it once all tasks have places
        self._lives: dict[Task, _Life] = {}
        self._threads: set[threading.Thread] = set()
        self.cluster = Cluster.at(request.size, [places[task].address for task in request.size.addressed])
        tasks: dict[str, list[str]] = {}
        for task in request.size.tasks:
            tasks.setdefault(places[task].host, []).append(str(task))
        self.notices = ["Ray: " + "; ".join(f"{', '.join(found)} on node {host}" for host, found in tasks.items())]
        gpus = sum(resources.get("GPU", 0) for _, resources in nodes(ray).values())
        if gpus and not any(request.needs.of(task).gpus for task in request.size.tasks):
            self.notices.append(f"the Ray cluster has {gpus:g} GPUs, and no task asks for one: give --gpus worker=1")

    def start(self, task: Task, attempt: int) -> None:
        """Starts a task where its actor is, or where there is a new place for it."""
        life = self._lives[task] = _Life(task)
        self._in_thread(lambda: self._live(life), task)

    def resize(self, size: Size) -> float:
        """Asks Ray for bundles for tasks that join, and gives back those of tasks that have left and ended."""
        with self._state:
            joining = [task for task in size.tasks if task not in self._places]
            left = [task for task in self._places if task not in size.tasks]
            self._size, before = size, self._coming
            self._coming = self._make([bundles([task], self._request.needs) for task in joining]) if joining else None
            if not joining:
                self.cluster = self._cluster(size)
        if before is not None:  # the thread that waits for these places gives them back
            before.interrupt()
        for task in left:
            self._in_thread(lambda task=task: self._release(task), task)  # type: ignore[misc]
        return self._request.wait if joining else 0.0

    def terminate(self, task: Task) -> None:
        """Has the program on the node send SIGTERM to the task."""
        self._tell(self._lives[task], TERMINATE)

    def kill(self, task: Task) -> None:
        """Has the program on the node send SIGKILL to the task."""
        self._tell(self._lives[task], KILL)

    def close(self) -> None:
        """Ends all tasks and actors."""
        for life in self._lives.values():
            life.asked = KILL
        for places in self._all_places():
            places.interrupt()
            places.close()
        deadline = time.monotonic() + _THREADS_END_WITHIN
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _tell(self, life: _Life, word: bytes) -> None:
        with life.lock:
            life.asked = word
            if life.running:
                actor, process = life.running
                actor.tell.remote(process, word)
                return
        for places in self._all_places():
            places.interrupt()

    def _in_thread(self, call: Callable[[], None], task: Task) -> None:
        thread = threading.Thread(target=call, name=f"penstock-ray-{task}", daemon=True)
        self._threads = {each for each in self._threads if each.is_alive()} | {thread}
        thread.start()

    def _all_places(self) -> list[Places]:
        with self._state:
            return [*dict.fromkeys(filter(None, [*self._places.values(), self._coming]))]

    def _live(self, life: _Life) -> None:
        """Runs a task from its start to its end."""
        try:
            self._run(life)
        finally:
            life.over = True
            self._release(life.task)

    def _run(self, life: _Life) -> None:
        try:
            self._admit(life)
            with self._placing:
                place = self._placed(life)
                run = self._invocation(life.task, place)
        except (LaunchError, self._ray.exceptions.RayError) as error:
            stopped = _SIGNALS.get(life.asked)
            why = "" if stopped else f"cannot be started: {error}"
            self._events.post(Ended(life.task, stopped or NOT_STARTED, why))
            return
        marks, why = Marks(life.task, self._events.post), ""
        try:
            starting = place.actor.start.remote(letter(run, self._credentials))
            process = self._ray.get(starting, timeout=_START_WITHIN)
            with life.lock:
                life.running = place.actor, process
                if life.asked:
                    place.actor.tell.remote(process, life.asked)
            for item in place.actor.output.options(num_returns="streaming").remote():
                self._heard(life.task, marks, *self._ray.get(item))
        except self._ray.exceptions.RayError:
            place.lost = True
            self._ray.kill(place.actor)
            # Ray sees the death of a node only some time after that of its actors.
            why = f"was lost with its actor on node {place.host}"
        if marks.code is None:
            self._events.post(Ended(life.task, -signal.SIGKILL, why))
        else:
            self._events.post(Ended(life.task, marks.code))

    def _heard(self, task: Task, marks: Marks, stream: str, data: bytes) -> None:
        if stream == "stderr":
            data = marks.feed(data)
        if data:
            self._events.post(Output(task, stream, data))

    def _placed(self, life: _Life) -> Place:
        """The place of a task. If that is lost, all tasks without one get new ones; the others hear of addresses."""
        for places in dict.fromkeys(map(self._places.get, self.cluster.tasks)):
            if places is not None:
                places.fill(lambda: life.asked, self.cluster.tasks)
        with self._state:
            before, self.cluster = self.cluster.places, self._cluster(self.cluster.size)
            now = self.cluster
        if moved := tuple(task for task in now.size.addressed if before[str(task)] != now.places[str(task)]):
            self._events.post(Notice(f"moving {self._told(moved, 'to')}"))
            self._events.post(Moved(moved))
        return self._places[life.task][life.task]

    def _admit(self, life: _Life) -> None:
        """Waits until all tasks that join together with this one have places; they are part of the cluster then."""
        if life.task in self.cluster.tasks:
            return
        with self._joining:
            coming = self._coming
            if coming is None:
                if life.task in self.cluster.tasks:  # the thread of another one has waited
                    return
                raise LaunchError("tasks that were to join with it have no place")
            try:
                coming.fill(lambda: life.asked or self._coming is not coming)
                with self._state:
                    if self._coming is not coming:
                        raise LaunchError("it is not to join any more")
                    self._places.update(dict.fromkeys(coming.tasks, coming))
                    self.cluster, self._coming = self._cluster(self._size), None
            except BaseException:
                with self._state:
                    self._coming = None if self._coming is coming else self._coming
                coming.close()
                raise
            self._events.post(Notice(f"Ray: {self._told(coming.tasks, 'on')}"))

    def _release(self, task: Task) -> None:
        """Gives the bundle of a task back, if it has left and ended. Those of the first tasks stay until the end."""
        with self._placing:
            with self._state:
                places, life = self._places.get(task), self._lives.get(task)
                unused = task not in self._size.tasks and (life is None or life.over)
                if places is None or not unused or not places.is_alone(task):
                    return
                del self._places[task]
            places.close([task])

    def _cluster(self, size: Size) -> Cluster:
        return self.cluster.resized(size, [self._places[task][task].address for task in size.addressed])

    def _told(self, tasks: Sequence[Task], where: str) -> str:
        found = [(task, self._places[task][task]) for task in tasks]
        return "; ".join(f"{task} {where} node {place.host}, at {place.address}" for task, place in found)

    def _invocation(self, task: Task, place: Place) -> Invocation:
        """Says what a task runs: with the environment of its node, and the variables that only the launcher has."""
        run = self._request.commands.of(task, self.cluster)
        settings, defaults = dict(run.settings), dict(run.defaults)
        gpus = self._request.needs.of(task).gpus or 0
        if not gpus:
            settings["CUDA_VISIBLE_DEVICES"] = ""  # Ray hides GPUs only from tasks that ask for some
        elif gpus < 1:
            defaults[FRACTION] = f"{SHARED * gpus:.3f}"
        for name, value in os.environ.items():
            if not name.startswith(_ABOUT_THE_LAUNCHER):
                defaults[name] = value
        return replace(run, script=place.script or run.script, settings=settings, defaults=defaults)


@contextmanager
def place(request: Request, events: Events) -> Iterator[Engine]:
    """Runs tasks on a Ray cluster inside the `with`; afterwards no process or placement group of them is left."""
    if request.base_port is not None:
        raise LaunchError("--base-port has no meaning with --on ray: each node finds a free port. Leave it out.")
    if not request.wait > 0:
        raise LaunchError(f"--wait must be positive, received {request.wait:g}: Ray needs time to place tasks.")
    address = request.address or os.environ.get("RAY_ADDRESS") or None
    if address:
        require_answer(address)
    ray = load_ray(address)
    tasks = request.size.tasks
    wanted = bundles(tasks, request.needs)
    files = WorkingDir.of(request.commands.program.script)
    everyone: dict[Task, Amounts] = {}
    cpus = cpus_here(len(tasks), given=any(request.needs.of(task).cpus is not None for task in tasks))

    def make(lots: Sequence[Mapping[Task, Amounts]]) -> Places:
        return Places(ray, lots, everyone, files, request.wait)

    with (
        connected(ray, address, cpus, lambda text: events.post(Notice(f"Ray: {text}"))),
        closing(make([wanted])) as places,
    ):
        places.fill()
        with closing(RayEngine(ray, places, make, request, events)) as engine:
            yield engine
