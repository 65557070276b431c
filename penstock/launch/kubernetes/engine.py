"""The engine of Kubernetes: applies the manifests of a job, follows its pods, and deletes everything at the end.

Kubernetes itself runs a container again that has ended, after 10, 20, 40 s. The launcher counts: `start` of a task that
has run before waits for its next life, and a job that the launcher stops is deleted.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

from penstock.launch.cluster import Task
from penstock.launch.engine import Engine, Request
from penstock.launch.events import Events, Notice
from penstock.launch.kubernetes.api import Api, ClusterError, connect
from penstock.launch.kubernetes.lives import Lives, Wishes
from penstock.launch.kubernetes.manifests import JobOnKubernetes, Manifest, job_on_kubernetes, manifests
from penstock.launch.kubernetes.seen import SeenPods
from penstock.launch.kubernetes.text import as_yaml
from penstock.launch.remote import job_credentials

_GONE_SECS = 60.0  # in which all pods must be gone at the end
_CALLS = 4  # at a time, to delete


class KubernetesEngine:
    """Runs tasks in pods."""

    def __init__(self, job: JobOnKubernetes, made: list[Manifest], api: Api, seen: SeenPods, events: Events) -> None:
        self.cluster = job.cluster
        self.notices = [f"job {job.name} in namespace {api.namespace} of {api.host}, with image {job.pods.image}"]
        self._api = api
        self._seen = seen
        self._calls = ThreadPoolExecutor(_CALLS, "penstock-kubernetes")
        self._events = events
        self._controllers = {task: job.controller(task) for task in self.cluster.tasks}
        self._made = {manifest["metadata"]["name"]: manifest for manifest in made}
        self._wishes = Wishes()
        self._lives = Lives(api, seen, self._wishes, self._controllers, events.post)

    def start(self, task: Task, attempt: int) -> None:
        """Follows the next life of a task, which Kubernetes starts."""
        threading.Thread(target=self._lives.follow, args=[task], name=f"penstock-{task}", daemon=True).start()

    def terminate(self, task: Task) -> None:
        """Deletes the StatefulSet or Job of a task, once: a launcher that asks one task to end asks all."""
        self._wishes.asked.add(task)
        if manifest := self._made.pop(self._controllers[task], None):
            self._call(lambda: self._api.delete(manifest))
        self._seen.wake()

    def kill(self, task: Task) -> None:
        """Deletes the pods of a task, which ends them at once."""
        self._wishes.killed[task] = time.monotonic()
        self._call(lambda: self._kill_pods(task))
        self._seen.wake()

    def close(self) -> None:
        """Waits for the calls that are under way."""
        self._calls.shutdown()

    def _kill_pods(self, task: Task) -> None:
        for pod in self._seen.of(task)[1]:
            self._api.kill(pod["metadata"]["name"])

    def _call(self, call: Callable[[], None]) -> None:
        def act() -> None:
            try:
                call()
            except ClusterError as error:
                self._events.post(Notice(str(error)))

        self._calls.submit(act)


@contextmanager
def place(request: Request, events: Events) -> Iterator[Engine]:
    """Runs tasks in the current Kubernetes cluster inside the `with`; afterwards nothing is left of them there."""
    job = job_on_kubernetes(request)
    made = manifests(job, job_credentials())
    # Of each task its log, the watch, and what is deleted.
    api = connect(job.pods.namespace, job.selector, len(job.cluster.tasks) + 1 + _CALLS)
    seen = SeenPods(api, lambda text: events.post(Notice(text)))
    with ExitStack() as stack:
        stack.callback(seen.close)
        created: list[Manifest] = []
        stack.callback(_delete, job, api, created)
        for manifest in made:
            created.append(manifest)
            try:
                api.create(manifest)
            except ClusterError as error:
                if error.status:  # it was refused; one without an answer may exist
                    created.remove(manifest)
                raise
        seen.start()
        with closing(KubernetesEngine(job, made, api, seen, events)) as engine:
            yield engine


def manifests_text(request: Request) -> str:
    """The manifests of a job, as YAML. The Secret in it has new credentials."""
    return as_yaml(manifests(job_on_kubernetes(request), job_credentials()))


def _delete(job: JobOnKubernetes, api: Api, created: list[Manifest]) -> None:
    """Deletes all that was created, StatefulSets and Jobs first, and waits until their pods are gone."""
    left = []
    for manifest in reversed(created):
        try:
            api.delete(manifest)
        except ClusterError as error:
            left.append(str(error))
    if not left:
        left += _pods_left(api)
    if left:
        kinds = "statefulset,job,pod,service,secret,configmap"
        told = f"{'; '.join(left)}. Delete what is left: kubectl delete {kinds} -n {api.namespace} -l {job.selector}"
        print(f"penstock launch: {told}", file=sys.stderr)


def _pods_left(api: Api) -> list[str]:
    """Ends the pods that are still there, and waits until none is."""
    until = time.monotonic() + _GONE_SECS
    try:
        pods, version = api.pods()
        names = {pod["metadata"]["name"] for pod in pods}
        for name in names:
            api.kill(name)
        for there, pod in api.changes(version) if names else ():
            (names.add if there else names.discard)(pod["metadata"]["name"])
            if not names or time.monotonic() > until:
                break
    except ClusterError as error:
        return [str(error)]
    return [f"these pods are still there: {', '.join(sorted(names))}"] if names else []
