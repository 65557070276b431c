"""The few calls of Kubernetes that the engine makes, by the official client."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.launch.cluster import LaunchError
from penstock.launch.kubernetes.manifests import Manifest
from penstock.launch.kubernetes.pods import Pod
from penstock.launch.kubernetes.text import missing_package

CALL_SECS = 30.0  # in which a call must be answered
WATCH_SECS = 60  # after which a watch is begun anew
SILENT_SECS = 60.0  # after which a log without news is asked for anew: its connection may be dead
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_GONE, _EXISTS_NOT = 410, 404


class ClusterError(LaunchError):
    """Raised if a call fails; `status` is that of HTTP, or 0 if there was no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """Calls Kubernetes in one namespace, for the objects that a selector selects."""

    def __init__(self, client: Any, configuration: Any, namespace: str, selector: str) -> None:
        self.host = str(configuration.host)
        self.namespace = namespace
        self._client = client
        self._selector = selector
        calls = client.ApiClient(configuration)
        self._core = client.CoreV1Api(calls)
        apps, batch = client.AppsV1Api(calls), client.BatchV1Api(calls)
        self._kinds = {
            "Service": (self._core, "service"),
            "Secret": (self._core, "secret"),
            "ConfigMap": (self._core, "config_map"),
            "StatefulSet": (apps, "stateful_set"),
            "Job": (batch, "job"),
        }

    def create(self, manifest: Manifest) -> None:
        """Creates an object."""
        api, kind = self._kinds[manifest["kind"]]
        with self._explained(f"create {_named(manifest)}"):
            self._answer(getattr(api, f"create_namespaced_{kind}"), self.namespace, manifest)

    def delete(self, manifest: Manifest) -> None:
        """Deletes an object, if it is there; pods that belong to it get SIGTERM."""
        api, kind = self._kinds[manifest["kind"]]
        with self._explained(f"delete {_named(manifest)}"), self._missing_is_fine():
            delete, name = getattr(api, f"delete_namespaced_{kind}"), manifest["metadata"]["name"]
            self._answer(delete, name, self.namespace, propagation_policy="Background")

    def kill(self, pod: str) -> None:
        """Ends a pod at once, if it is there."""
        with self._explained(f"delete the pod {pod}"), self._missing_is_fine():
            self._answer(self._core.delete_namespaced_pod, pod, self.namespace, grace_period_seconds=0)

    def pods(self) -> tuple[list[Pod], str]:
        """All pods, and the version from which on to watch them."""
        with self._explained("list the pods"):
            found = self._answer(self._core.list_namespaced_pod, self.namespace, label_selector=self._selector)
            return found["items"], found["metadata"]["resourceVersion"]

    def changes(self, version: str) -> Iterator[tuple[bool, Pod]]:
        """The pods that have changed since a version, as they do: (it is still there, pod). Ends after a while."""
        watched = {"watch": True, "resource_version": version, "timeout_seconds": WATCH_SECS}
        with self._explained("watch the pods"):
            held = b""
            for data in self._stream(
                self._core.list_namespaced_pod,
                self.namespace,
                label_selector=self._selector,
                _request_timeout=(CALL_SECS, WATCH_SECS + CALL_SECS),
                **watched,
            ):
                *lines, held = (held + data).split(b"\n")
                for change in map(json.loads, lines):
                    if change["type"] == "ERROR" and change["object"].get("code") == _GONE:
                        return  # the version is too old: the caller lists the pods anew
                    if change["type"] in ("ADDED", "MODIFIED", "DELETED"):
                        yield change["type"] != "DELETED", change["object"]

    def log(self, pod: str, previous: bool, since: int | None) -> Iterator[bytes]:
        """The log of a pod's container, or of the one before, as it is written; of the last seconds or from the start.

        It ends with the container, or with a ClusterError, also after a time without news.
        """
        asked = {"follow": True, "previous": previous, **({} if since is None else {"since_seconds": since})}
        with self._explained(f"read the log of pod {pod}"):
            yield from self._stream(
                self._core.read_namespaced_pod_log,
                pod,
                self.namespace,
                _request_timeout=(CALL_SECS, SILENT_SECS),
                **asked,
            )

    def warning(self, name: str) -> str:
        """The last warning of Kubernetes about an object; "" if there is none."""
        selector = f"involvedObject.name={name},type=Warning"
        with self._explained(f"list the events of {name}"):
            items = self._answer(self._core.list_namespaced_event, self.namespace, field_selector=selector)["items"]
            return str(max(items, key=lambda item: item.get("lastTimestamp") or "")["message"]) if items else ""

    def _answer(self, call: Any, *args: Any, **options: Any) -> Any:
        return json.loads(b"".join(self._stream(call, *args, _request_timeout=CALL_SECS, **options)))

    def _stream(self, call: Any, *args: Any, **options: Any) -> Iterator[bytes]:
        # The answer is read as it is: the client's typed objects refuse some answers, and differ in its versions.
        response = call(*args, _preload_content=False, **options)
        try:
            if not 200 <= response.status <= 299:
                error = self._client.ApiException(status=response.status, reason=response.reason)
                error.body = response.data
                raise error
            yield from response.stream()
        finally:
            response.close()

    @contextlib.contextmanager
    def _missing_is_fine(self) -> Iterator[None]:
        try:
            yield
        except self._client.ApiException as error:
            if error.status != _EXISTS_NOT:
                raise

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        from urllib3.exceptions import HTTPError  # optional: it comes with the client

        try:
            yield
        except self._client.ApiException as error:
            told = f"cannot {doing} in namespace '{self.namespace}' at {self.host}: {error.status} {_message(error)}"
            raise ClusterError(told, int(error.status or 0)) from error
        except (HTTPError, OSError) as error:
            why = getattr(error, "reason", None) or error
            raise ClusterError(f"cannot {doing}: no answer from the Kubernetes API at {self.host}: {why}") from error
        except (ValueError, KeyError, TypeError) as error:  # no JSON, or other JSON than that of Kubernetes
            raise ClusterError(f"cannot {doing}: {self.host} does not answer as Kubernetes does: {error!r}") from error


def connect(namespace: str | None, selector: str, connections: int) -> Api:
    """The API of the current context of kubectl, or of the cluster that this process runs in."""
    try:
        from kubernetes import client, config  # optional
    except ImportError:
        raise missing_package() from None
    configuration = client.Configuration()
    remedy = "Check `kubectl get pods`, or print the manifests with --dry-run and apply them where that works."
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            config.load_incluster_config(client_configuration=configuration)
            found = _NAMESPACE.read_text() if _NAMESPACE.exists() else ""
        else:
            config.load_kube_config(client_configuration=configuration)
            found = config.list_kube_config_contexts()[1]["context"].get("namespace", "")
    except Exception as error:  # its parts raise what they like for files that are no configuration
        raise LaunchError(f"there is no configuration for a Kubernetes cluster: {error}. {remedy}") from error
    configuration.retries = 0  # those who call try again where that helps
    configuration.connection_pool_maxsize = connections
    return Api(client, configuration, namespace or found or "default", selector)


def _named(manifest: Manifest) -> str:
    return f"the {manifest['kind']} {manifest['metadata']['name']}"


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.reason)
