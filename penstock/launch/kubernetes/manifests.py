"""The manifests of a job: what `--dry-run` prints, and what is applied without it.

Parameter servers, which run until they are stopped, are a StatefulSet. Tasks that end by themselves are an indexed Job
for each kind. A headless Service gives the pods their names, which stay the same when a pod is replaced. Credentials
are in a Secret, and the script, unless it is in the image, in a ConfigMap.
"""

from __future__ import annotations

import math
import re
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.launch.cluster import PS, WORKER, Cluster, LaunchError, Task
from penstock.launch.engine import Request
from penstock.launch.flags import neighbours
from penstock.launch.kubernetes.options import Pods
from penstock.launch.resources import Resources
from penstock.wire.credentials import ENVIRONMENT_VARIABLE

Manifest = dict[str, Any]

PORT = 2222
INDEX = "PENSTOCK_TASK_INDEX"
INSTANCE, COMPONENT = "app.kubernetes.io/instance", "app.kubernetes.io/component"
# Where the controllers of Kubernetes write the index of a pod.
SET_INDEX, JOB_INDEX = "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index"
PYTHON = "python3"  # images from python:3 have it, and those with the system's or conda's Python too
_SCRIPT, _CREDENTIALS = "/etc/penstock/script", "/etc/penstock/credentials"
_LARGEST_SCRIPT = 1_000_000  # bytes; a ConfigMap holds 1 MiB with all around it
_LONGEST_NAME = 30
# Stands for the index in the invocation of a kind of task: a number that no flag or address has.
_ANY_INDEX = 9_876_543_210


@dataclass(frozen=True)
class JobOnKubernetes:
    """A job under its name in Kubernetes."""

    name: str
    request: Request
    pods: Pods

    @property
    def port(self) -> int:
        """The port of every task; each pod has an address of its own."""
        return self.request.base_port or PORT

    @property
    def cluster(self) -> Cluster:
        """The addresses of all tasks: names that resolve in pods of the same namespace."""
        places = (
            f"{self.name}-{task.job}-{task.index}.{self.name}:{self.port}" for task in self.request.size.addressed
        )
        return Cluster.at(self.request.size, places)

    @property
    def selector(self) -> str:
        """Selects all objects of the job: `kubectl get all,secret,configmap -l SELECTOR`."""
        return f"{INSTANCE}={self.name}"

    def controller(self, task: Task) -> str:
        """The name of the StatefulSet or Job that a task's pod belongs to."""
        return f"{self.name}-{task.job}"


def job_on_kubernetes(request: Request) -> JobOnKubernetes:
    """The job of a request, with a new name. LaunchError says what the request lacks."""
    pods = request.pods
    if pods is None or not pods.image:
        raise LaunchError(
            "--on kubernetes needs --image, an image with Python and penstock in which the tasks run, "
            "such as --image registry.example.org/penstock:1."
        )
    if request.base_port is not None and not 1 <= request.base_port <= 65535:
        raise LaunchError(f"--base-port must be between 1 and 65535, received {request.base_port}.")
    stem = re.sub(r"[^a-z0-9]+", "-", request.commands.program.script.stem.lower()).strip("-")[:_LONGEST_NAME]
    # A name begins with a letter. No vowels: five letters are no word.
    suffix = "".join(secrets.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))
    first = stem if stem[:1] in set(string.ascii_lowercase) else f"job-{stem}".rstrip("-")
    return JobOnKubernetes(f"{first.rstrip('-')}-{suffix}", request, pods)


def manifests(job: JobOnKubernetes, credentials: Mapping[str, str]) -> list[Manifest]:
    """All manifests of a job, in the order in which they are applied."""
    counts = {kind: len(found) for kind, found in job.cluster.addresses.items()}
    if job.request.size.evaluator:
        counts["evaluator"] = 1
    common = [_service(job), _secret(job, credentials)]
    if job.pods.script is None:
        common.append(_script(job))
    return [*common, *(_set(job, n) if kind == PS else _job(job, kind, n) for kind, n in counts.items())]


def _object(api: str, kind: str, job: JobOnKubernetes, part: str = "", **content: Any) -> Manifest:
    name = f"{job.name}-{part}" if part else job.name
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": _labels(job)}, **content}


def _labels(job: JobOnKubernetes, kind: str = "") -> dict[str, str]:
    labels = {"app.kubernetes.io/name": "penstock", INSTANCE: job.name}
    return {**labels, COMPONENT: kind} if kind else labels


def _service(job: JobOnKubernetes) -> Manifest:
    spec = {
        "clusterIP": "None",
        # Tasks look for each other before they are ready.
        "publishNotReadyAddresses": True,
        "selector": _labels(job),
        "ports": [{"name": "grpc", "port": job.port}],
    }
    return _object("v1", "Service", job, spec=spec)


def _secret(job: JobOnKubernetes, credentials: Mapping[str, str]) -> Manifest:
    return _object("v1", "Secret", job, "credentials", type="Opaque", stringData=dict(credentials))


def _script(job: JobOnKubernetes) -> Manifest:
    script = job.request.commands.program.script
    remedy = f"Build them into the image and give --image-script PATH, the path of {script.name} there."
    if beside := neighbours(script):
        names = ", ".join(str(path.relative_to(script.parent)) for path in beside)
        raise LaunchError(f"'{script}' imports files beside it, and one file is all that is sent: {names}. {remedy}")
    try:
        text = script.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise LaunchError(f"'{script}' is not UTF-8: {error}. Save it as that.") from error
    if len(text.encode()) > _LARGEST_SCRIPT:
        raise LaunchError(f"'{script}' is larger than the {_LARGEST_SCRIPT:,} bytes that can be sent. {remedy}")
    return _object("v1", "ConfigMap", job, "script", data={script.name: text})


def _set(job: JobOnKubernetes, replicas: int) -> Manifest:
    spec = {
        "serviceName": job.name,
        "replicas": replicas,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": _labels(job, PS)},
        "template": _template(job, PS, f"metadata.labels['{SET_INDEX}']", {}),
    }
    return _object("apps/v1", "StatefulSet", job, PS, spec=spec)


def _job(job: JobOnKubernetes, kind: str, tasks: int) -> Manifest:
    spec = {
        "completionMode": "Indexed",
        "completions": tasks,
        "parallelism": tasks,
        "backoffLimitPerIndex": job.pods.max_restarts,
        "maxFailedIndexes": 0,
        # A task has one pod at a time, since both would have its name.
        "podReplacementPolicy": "Failed",
        # The names of a Job's pods are in the Service only with its name as subdomain.
        "template": _template(
            job, kind, f"metadata.annotations['{JOB_INDEX}']", {"restartPolicy": "Never", "subdomain": job.name}
        ),
    }
    return _object("batch/v1", "Job", job, kind, spec=spec)


def _template(job: JobOnKubernetes, kind: str, index: str, spec: Manifest) -> Manifest:
    volumes = [{"name": "credentials", "secret": {"secretName": f"{job.name}-credentials", "defaultMode": 0o400}}]
    mounts = [{"name": "credentials", "mountPath": _CREDENTIALS, "readOnly": True}]
    if job.pods.script is None:
        volumes.append({"name": "script", "configMap": {"name": f"{job.name}-script"}})
        mounts.append({"name": "script", "mountPath": _SCRIPT, "readOnly": True})
    container = {
        "name": "task",
        "image": job.pods.image,
        **_invocation(job, kind, index),
        "volumeMounts": mounts,
        "resources": _resources(job.request.needs.of(Task(kind, 0))),
        **({"ports": [{"name": "grpc", "containerPort": job.port}], **_probes(job, kind)} if kind in _SERVERS else {}),
    }
    return {"metadata": {"labels": _labels(job, kind)}, "spec": {**spec, "containers": [container], "volumes": volumes}}


def _invocation(job: JobOnKubernetes, kind: str, index: str) -> Manifest:
    """The command and environment of all tasks of a kind: Kubernetes puts the index of each in place of `$(NAME)`."""
    commands = job.request.commands
    run = commands.of(Task(kind, _ANY_INDEX), job.cluster)
    own = len(run.args) - len(commands.program.args)  # the flags in front of the script's own arguments

    def indexed(text: str) -> str:
        return _literal(text).replace(str(_ANY_INDEX), f"$({INDEX})")

    script = job.pods.script or f"{_SCRIPT}/{Path(run.script).name}"
    args = [*map(indexed, run.args[:own]), *map(_literal, run.args[own:])]
    settings = {**run.defaults, **run.settings, ENVIRONMENT_VARIABLE: _CREDENTIALS}
    return {
        "command": [PYTHON, "-m", "penstock.launch.kubernetes.pod", _literal(script), *args],
        "env": [
            {"name": INDEX, "valueFrom": {"fieldRef": {"fieldPath": index}}},
            *({"name": name, "value": indexed(value)} for name, value in settings.items()),
        ],
    }


def _literal(text: str) -> str:
    """The text in a manifest of which Kubernetes makes `text`: it reads `$(NAME)` as a variable and `$$` as `$`."""
    return text.replace("$", "$$")


def _resources(needs: Resources) -> Manifest:
    if needs.gpus is not None and needs.gpus != int(needs.gpus):
        raise LaunchError(f"--gpus takes whole numbers on Kubernetes, received {needs.gpus:g}.")
    amounts: dict[str, str] = {}
    if needs.cpus:
        amounts["cpu"] = f"{math.ceil(needs.cpus * 1000)}m"
    if needs.memory:
        amounts["memory"] = f"{math.ceil(needs.memory / (1 << 20))}Mi"
    if needs.gpus:
        amounts["nvidia.com/gpu"] = str(int(needs.gpus))
    # Both the same: a task is never ended because its neighbours need more.
    return {"requests": amounts, "limits": dict(amounts)} if amounts else {}


_SERVERS = (PS, WORKER)  # a chief or an evaluator may have no server


def _probes(job: JobOnKubernetes, kind: str) -> Manifest:
    """Ask a task's health service. The probe is a program, since Kubernetes' own for gRPC has no credentials."""

    def probe(period: int, failures: int) -> Manifest:
        command = [PYTHON, "-m", "penstock.launch.kubernetes.probe", str(job.port)]
        times = {"periodSeconds": period, "timeoutSeconds": 10, "failureThreshold": failures}
        return {"exec": {"command": command}, **times}

    if kind != PS:
        return {"readinessProbe": probe(30, 3)}  # it is shown; nothing is ended for it
    # A parameter server has ten minutes to come up, as long as others wait for it.
    return {"startupProbe": probe(10, 60), "readinessProbe": probe(30, 3), "livenessProbe": probe(60, 5)}
