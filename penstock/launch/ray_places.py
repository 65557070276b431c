"""The places of tasks on a Ray cluster: an actor for each, in its bundle of a placement group."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import penstock
from penstock.launch import ray_actor
from penstock.launch.cluster import LaunchError, Task
from penstock.launch.ray_bundles import Amounts
from penstock.launch.ray_cluster import no_place, nodes
from penstock.launch.working_dir import WorkingDir

_CLOSE_WITHIN = 10.0  # seconds


@dataclass
class Place:
    """An actor that is ready to run a task, as often as it is asked to."""

    actor: Any
    node: str  # its id
    host: str
    port: int
    script: str | None  # in the directory that was sent there; None if the node has the launcher's files
    lost: bool = False

    @property
    def address(self) -> str:
        """The address of the task."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Places:
    """The places of tasks that are started together. Only `interrupt` may be called in another thread than the others.

    The tasks of a lot have one placement group: they get their bundles at the same time or not at all, spread over the
    nodes. JAX uses all cores of its machine, whatever Ray counts, and a node that dies takes as few tasks with it as
    possible. Ray takes a group back as a whole. It has its autoscaler bring nodes for a group that waits for some.
    """

    def __init__(
        self,
        ray: Any,
        lots: Sequence[Mapping[Task, Amounts]],
        everyone: dict[Task, Amounts],  # with the tasks of other places; those of these lots are added
        files: WorkingDir,
        wait: float,
    ) -> None:
        self._ray = ray
        self._wanted = {task: bundle for lot in lots for task, bundle in lot.items()}
        self._everyone = everyone
        self._everyone.update(self._wanted)
        self._bundles: dict[Task, tuple[Any, int]] = {}  # the group, and the number of the bundle in it
        for lot in lots:
            group = ray.util.placement_group([dict(bundle) for bundle in lot.values()], strategy="SPREAD")
            self._bundles.update({task: (group, number) for number, task in enumerate(lot)})
        self._ready: set[Any] = set()  # groups
        self._files = files
        self._here, self._digests = os.getcwd(), files.digests()
        self._wait = wait
        self._package: Any = None  # an object in Ray's store, once a node needs it
        self._found: dict[Task, Place] = {}
        self._coming: dict[Task, Any] = {}
        # By value: nodes without penstock can be asked, too.
        ray.cloudpickle.register_pickle_by_value(ray_actor)
        self._actor_class = ray.remote(ray_actor.TaskRunner)

    def __getitem__(self, task: Task) -> Place:
        return self._found[task]

    @property
    def tasks(self) -> list[Task]:
        """All tasks that have a place here, or will have one."""
        return [*self._wanted]

    def fill(self, stopped: Callable[[], object] = lambda: False, among: Collection[Task] | None = None) -> None:
        """Finds a place for every task (`among` some) that has none, or whose node is dead, until `stopped`."""
        before = nodes(self._ray)
        deadline = time.monotonic() + self._wait
        try:
            self._reserve(before, deadline, stopped)
            while without := [task for task in self._without() if among is None or task in among]:
                self._coming = {task: self._actor(task) for task in without}
                # After that assignment: `interrupt` is called when `stopped` is true already.
                if stopped():
                    raise LaunchError(f"{', '.join(map(str, without))} were asked to end")
                self._settle(deadline)
                self.interrupt()  # those that are left have died
        except self._ray.exceptions.GetTimeoutError:
            raise no_place(self._ray, self._everyone, before, self._wait, [*self._coming]) from None
        except self._ray.exceptions.RayError as error:
            raise LaunchError(f"the Ray cluster cannot run tasks: {getattr(error, 'cause', error)}") from error
        finally:
            self.interrupt()
            self._coming = {}

    def interrupt(self) -> None:
        """Ends a wait for places: the actors that are being placed die."""
        for actor in [*self._coming.values()]:
            self._ray.kill(actor)

    def is_alone(self, task: Task) -> bool:
        """Tells if a task has a placement group of its own."""
        groups = [group for group, _ in self._bundles.values()]
        return task in self._bundles and groups.count(self._bundles[task][0]) == 1

    def close(self, leaving: Collection[Task] | None = None) -> None:
        """Ends all tasks (or those that are `leaving`) with their actors, and gives their bundles back."""
        tasks = self.tasks if leaving is None else leaving
        groups = {self._bundles.pop(task)[0] for task in tasks if task in self._bundles}
        actors = [place.actor for task in tasks if (place := self._found.pop(task, None)) and not place.lost]
        for task in tasks:
            self._wanted.pop(task, None)
            self._everyone.pop(task, None)
        closing = [actor.close.remote(_CLOSE_WITHIN / 2) for actor in actors]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_WITHIN)
        for actor in actors:
            self._ray.kill(actor)
        for group in groups:
            self._ray.util.remove_placement_group(group)

    def _reserve(
        self, before: Mapping[str, tuple[str, Amounts]], deadline: float, stopped: Callable[[], object]
    ) -> None:
        """Waits until Ray has nodes for all groups."""
        for group in {group: None for group, _ in self._bundles.values() if group not in self._ready}:
            # In short waits: Ray does not see a Ctrl-C during one.
            while not group.wait(min(1.0, max(0.0, deadline - time.monotonic()))):
                if stopped():
                    raise LaunchError(f"{', '.join(map(str, self._wanted))} were asked to end")
                if time.monotonic() >= deadline:
                    late = [task for task, (its_group, _) in self._bundles.items() if not its_group.wait(0.0)]
                    raise no_place(self._ray, self._everyone, before, self._wait, late)
            self._ready.add(group)

    def _without(self) -> list[Task]:
        alive = nodes(self._ray)
        found = {task for task, place in self._found.items() if not place.lost and place.node in alive}
        return [task for task in self._wanted if task not in found]

    def _actor(self, task: Task) -> Any:
        bundle = self._wanted[task]
        group, number = self._bundles[task]
        where = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=number
        )
        return self._actor_class.options(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            memory=bundle.get("memory", 0),
            scheduling_strategy=where,
            max_restarts=0,  # a new one is made here, which looks around anew
            max_concurrency=3,  # it is told things while it sends output
        ).remote()

    def _settle(self, deadline: float) -> None:
        """Has the coming actors look around. Those that are ready then have found their places."""
        seen = self._ask(lambda task, actor: actor.look.remote(self._here, self._digests), deadline)
        lacking = {task: lacks for task, (_, lacks) in seen.items() if lacks}
        if lacking and self._package is None:
            self._package = self._ray.put(self._files.package())
        self._ask(lambda task, actor: actor.unpack.remote(self._package) if task in lacking else None, deadline)
        patience = max(1.0, deadline - time.monotonic())
        versions = self._ask(lambda task, actor: actor.version.remote(patience), deadline)
        hosts = {node: host for node, (host, _) in nodes(self._ray).items()}
        where = {task: (node, hosts[node]) for task, (node, _) in seen.items() if node in hosts}
        for task in where.keys() & versions.keys():
            _require_same(where[task][1], *versions[task])

        def reserve(task: Task, actor: Any) -> Any:
            wanted = self._found[task].port if task in self._found else 0
            return actor.reserve.remote(where[task][1], wanted) if task in where else None

        for task, port in self._ask(reserve, deadline).items():
            sent = self._files.relative if task in lacking else None
            self._found[task] = Place(self._coming.pop(task), *where[task], port, sent)

    def _ask(self, question: Callable[[Task, Any], Any], deadline: float) -> dict[Task, Any]:
        """The answers of the coming actors, except those that die; `question` gives None for one that is not asked."""
        asked = {task: question(task, actor) for task, actor in self._coming.items()}
        answers = {}
        for task, answer in asked.items():
            if answer is None:
                continue
            try:
                answers[task] = self._ray.get(answer, timeout=max(0.0, deadline - time.monotonic()))
            except self._ray.exceptions.RayActorError:
                pass  # it is tried again, until the deadline
        return answers


def _require_same(host: str, version: str, why: str) -> None:
    if why:
        raise LaunchError(
            f"node {host} cannot import penstock ({why}). Install penstock {penstock.__version__} there, in the "
            f"Python that runs Ray."
        )
    if version != penstock.__version__:
        raise LaunchError(
            f"node {host} has penstock {version}, and the launcher {penstock.__version__}. Install the same on all "
            f"nodes of the Ray cluster."
        )
