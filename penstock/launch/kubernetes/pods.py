"""Reads from the state of a pod which life of its task runs, how one ended, and why none begins.

A pod is the JSON object of Kubernetes. A life is one run of its container: a StatefulSet has a container that ended
run again in the same pod, a Job has another pod.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.launch.cluster import Task
from penstock.launch.events import NOT_STARTED
from penstock.launch.kubernetes.manifests import COMPONENT, JOB_INDEX, SET_INDEX

Pod = Mapping[str, Any]

# Kubernetes would try these again and again.
_HOPELESS = {
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
}
_NOT_EXECUTED = {"StartError", "ContainerCannotRun"}
_NO_COMMAND = re.compile(r"executable file not found|no such file or directory", re.IGNORECASE)


@dataclass(frozen=True)
class Life:
    """One run of a task's container."""

    pod: str
    uid: str
    restarts: int


@dataclass(frozen=True)
class End:
    """The end of a life: the code, or minus the signal, and what there is to say about it, as in `Ended`."""

    code: int
    why: str = ""


def task_of(pod: Pod) -> Task | None:
    """The task of a pod; None if its labels do not tell."""
    metadata = pod["metadata"]
    kind = metadata.get("labels", {}).get(COMPONENT)
    index = metadata.get("labels", {}).get(SET_INDEX) or metadata.get("annotations", {}).get(JOB_INDEX)
    return Task(kind, int(index)) if kind and index else None


def life_of(pod: Pod) -> Life:
    """The last life of a pod, which may not have begun."""
    metadata = pod["metadata"]
    return Life(metadata["name"], metadata["uid"], _container(pod).get("restartCount", 0))


def begun(pod: Pod) -> bool:
    """Tells if the last life of a pod has begun, and so has a log; it may have ended."""
    state = _container(pod).get("state", {})
    return "running" in state or "terminated" in state or pod["status"].get("phase") == "Failed"


def newest(pods: Iterable[Pod]) -> Pod | None:
    """The pod that was created last; None if there is none."""
    return max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)


def obstacle(pod: Pod) -> str:
    """Says why a pod has not begun: the scheduler's reason, or that of its node; "" if there is none."""
    waiting = _container(pod).get("state", {}).get("waiting", {})
    if waiting.get("message"):
        return f"{waiting.get('reason', '')}: {waiting['message']}"
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return str(waiting.get("reason", ""))


def hopeless(pod: Pod) -> bool:
    """Tells if waiting for a pod is of no use."""
    return _container(pod).get("state", {}).get("waiting", {}).get("reason") in _HOPELESS


def end_of(life: Life, pod: Pod) -> End | None:
    """The end of a life, as far as its pod tells; None if it has not ended."""
    status = _container(pod)
    ran = status.get("restartCount", 0)
    found = status.get("state" if ran == life.restarts else "lastState", {}).get("terminated")
    if found:
        return _end(life, found, image_of(pod))
    if ran > life.restarts:
        return End(-signal.SIGKILL, f"ended, and Kubernetes does not tell how: pod {life.pod} has another container")
    if pod["status"].get("phase") == "Failed":  # evicted, or its node has shut down: the container has no state
        reason = f"{pod['status'].get('reason', 'Failed')}: {pod['status'].get('message', '')}"
        return End(-signal.SIGKILL, f"was lost with pod {life.pod}: {reason}")
    return None


def not_started(pod: Pod) -> End:
    """The end of a life that could not begin."""
    name, told = pod["metadata"]["name"], obstacle(pod)
    return End(NOT_STARTED, f"cannot be started: pod {name}: {told}{_remedy(told, image_of(pod))}")


def image_of(pod: Pod) -> str:
    """The image of a pod's container."""
    return str(pod["spec"]["containers"][0]["image"])


def node_of(pod: Pod) -> str:
    """The name of a pod's node."""
    return str(pod["spec"].get("nodeName", "unknown"))


def _container(pod: Pod) -> Mapping[str, Any]:
    found: list[Mapping[str, Any]] = pod["status"].get("containerStatuses") or [{}]
    return found[0]


def _end(life: Life, found: Mapping[str, Any], image: str) -> End:
    code, reason, message = found["exitCode"], found.get("reason", ""), found.get("message", "")
    if reason == "OOMKilled":
        return End(-signal.SIGKILL, f"was out of memory (OOMKilled in pod {life.pod}); --memory gives it more")
    if reason in _NOT_EXECUTED:
        told = f"{reason}: {message}"
        return End(NOT_STARTED, f"cannot be started: pod {life.pod}: {told}{_remedy(told, image)}")
    return End(128 - code if code > 128 else code)


def _remedy(told: str, image: str) -> str:
    if _NO_COMMAND.search(told):
        return f". The image '{image}' seems to have no Python: give an --image with Python and penstock"
    if "ImagePull" in told or "InvalidImageName" in told or "ErrImageNeverPull" in told:
        return f". Check --image '{image}' and that the cluster may pull it"
    return ""
