"""The engine of a Ray cluster: a placement group with one bundle for each task, and an actor in each bundle.

An actor holds the place and the port of its task, and runs it in a process of its own (`penstock.launch.ray_actor`). A
task that fails is started again by the same actor, at the same address. When a node dies, Ray finds other nodes for its
bundles; new actors there take the tasks, and the launcher restarts the others, which have to learn the new addresses.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.launch.accelerators import FRACTION, SHARED
from penstock.launch.cluster import Cluster, LaunchError, Task
from penstock.launch.engine import Engine, Invocation, Request
from penstock.launch.events import NOT_STARTED, Ended, Events, Moved, Notice, Output
from penstock.launch.ray_bundles import bundles
from penstock.launch.ray_cluster import connected, cpus_here, load_ray, nodes, placement_group, require_answer
from penstock.launch.ray_places import Place, Places
from penstock.launch.remote import KILL, TERMINATE, Marks, job_credentials, letter
from penstock.launch.working_dir import WorkingDir

_START_WITHIN = 60.0  # seconds, for an actor that is there already
_THREADS_END_WITHIN = 10.0
_SIGNALS = {TERMINATE: -signal.SIGTERM, KILL: -signal.SIGKILL}
_ABOUT_THE_LAUNCHER = ("RAY_", "CUDA_VISIBLE_DEVICES")  # variables that are not passed on to tasks


@dataclass
class _Life:
    """One start of a task."""

    task: Task
    asked: bytes = b""  # TERMINATE or KILL, if it was asked to end
    running: tuple[Any, int] | None = None  # its actor, and the process there
    lock: threading.Lock = field(default_factory=threading.Lock)


class RayEngine:
    """Runs tasks by actors. Each start of a task has a thread here, which waits for Ray and posts what happens."""

    def __init__(self, ray: Any, places: Places, request: Request, events: Events) -> None:
        self._ray = ray
        self._places = places
        self._request = request
        self._events = events
        self._credentials = job_credentials()
        self._placing = threading.Lock()
        self._lives: dict[Task, _Life] = {}
        self._threads: set[threading.Thread] = set()
        self.cluster = self._cluster()
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
        thread = threading.Thread(target=self._live, args=(life,), name=f"penstock-ray-{task}", daemon=True)
        self._threads = {each for each in self._threads if each.is_alive()} | {thread}
        thread.start()

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
        self._places.interrupt()
        self._places.close()
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
        self._places.interrupt()

    def _live(self, life: _Life) -> None:
        """Runs a task from its start to its end."""
        try:
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
        self._places.fill(lambda: life.asked)
        before, self.cluster = self.cluster.places, self._cluster()
        now = self.cluster.places
        if moved := tuple(task for task in self._request.size.addressed if before[str(task)] != now[str(task)]):
            told = [f"{task} to node {self._places[task].host}, at {now[str(task)]}" for task in moved]
            self._events.post(Notice(f"moving {'; '.join(told)}"))
            self._events.post(Moved(moved))
        return self._places[life.task]

    def _cluster(self) -> Cluster:
        size = self._request.size
        return Cluster.at(size, [self._places[task].address for task in size.addressed])

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
    cpus = cpus_here(len(tasks), given=any(request.needs.of(task).cpus is not None for task in tasks))
    with (
        connected(ray, address, cpus, lambda text: events.post(Notice(f"Ray: {text}"))),
        placement_group(ray, wanted, request.wait) as group,
        closing(Places(ray, group, wanted, files, request.wait)) as places,
    ):
        places.fill()
        with closing(RayEngine(ray, places, request, events)) as engine:
            yield engine
