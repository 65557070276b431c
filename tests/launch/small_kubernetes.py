"""A small Kubernetes on loopback: the few API calls that the launcher makes, and pods that are real processes.

It stands in for the API server, its controllers and one node, for tests without a cluster. The container of a pod is a
process with the command, environment, Secret and ConfigMap of its manifest; names of pods become loopback addresses.
"""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from launch.launching import DEADLINE, PATHS
from loopback import free_addresses

SET_INDEX, JOB_INDEX = "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index"
RESTART_SECS = 0.2
_VARIABLE = re.compile(r"\$(?:\$|\((\w+)\))")
_PATH = re.compile(r"/(?:api|apis/\w+)/v1/namespaces/([\w-]+)/(\w+)(?:/([\w.-]+))?(/log)?$")


def expanded(text, variables):
    """The text as Kubernetes reads it in commands and variables."""
    return _VARIABLE.sub(lambda found: "$" if found[0] == "$$" else variables.get(found[1], found[0]), text)


def field(pod, path):
    """The value of a fieldRef, such as metadata.labels['key']."""
    part, key = re.fullmatch(r"metadata\.(\w+)\['(.+)'\]", path).groups()
    return pod["metadata"][part][key]


class Container:
    """The process of a pod's container, from its manifest alone."""

    def __init__(self, pod, objects, places, folder):
        spec = pod["spec"]["containers"][0]
        paths = {}
        for mount in spec["volumeMounts"]:
            volume = next(each for each in pod["spec"]["volumes"] if each["name"] == mount["name"])
            paths[mount["mountPath"]] = str(mounted(volume, objects, Path(folder)))
        replaced = {**places, **paths}

        def here(text):
            for name, instead in replaced.items():
                text = text.replace(name, instead)
            return text

        variables = {}
        for entry in spec["env"]:
            source = entry.get("valueFrom")
            variables[entry["name"]] = (
                field(pod, source["fieldRef"]["fieldPath"]) if source else expanded(entry["value"], variables)
            )
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ},
            "PYTHONPATH": PATHS,
            "JAX_PLATFORMS": "cpu",
            **{name: here(value) for name, value in variables.items()},
        }
        self.command = [here(expanded(part, variables)) for part in spec["command"]]
        # A pod has an address of its own, so its port is in no other name.
        ports = {str(port["containerPort"]): self.port(pod, places) for port in spec.get("ports", ())}
        self.probes = {
            kind: [ports.get(part, part) for part in spec[kind]["exec"]["command"]]
            for kind in spec
            if kind.endswith("Probe")
        }

    @staticmethod
    def port(pod, places):
        metadata = pod["metadata"]
        index = metadata["labels"].get(SET_INDEX) or metadata["annotations"][JOB_INDEX]
        own = f"-{metadata['labels']['app.kubernetes.io/component']}-{index}."
        return next(place.rpartition(":")[2] for name, place in places.items() if own in name)

    def start(self, image, log):
        """Starts the process; an image without penstock is a Python without packages."""
        python = [sys.executable, "-S", "-E"] if image.startswith("bare") else [sys.executable]
        assert self.command[0] == "python3"
        return subprocess.Popen(
            [*python, *self.command[1:]],
            env=self.environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd="/",
        )


def mounted(volume, objects, folder):
    """Writes a Secret or ConfigMap to a folder, as it would be mounted."""
    secret = volume.get("secret")
    name = secret["secretName"] if secret else volume["configMap"]["name"]
    found = objects["secrets" if secret else "configmaps", name]
    place = folder / name
    place.mkdir(exist_ok=True)
    for key, text in (found["stringData"] if secret else found["data"]).items():
        path = place / key
        if not path.exists():
            path.touch(0o600)
            path.write_text(text)
            path.chmod(secret["defaultMode"] if secret else 0o644)
    return place


class SmallKubernetes:
    """Use it in a `with`; `kubeconfig` is the path of its configuration."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.objects = {}  # by (plural, name)
        self.history = []  # (version, type, pod)
        self.pods = {}  # by name
        self.containers = {}
        self.processes = []
        self.changed = threading.Condition(threading.RLock())
        self.refuse = {}  # plural: (status, message)
        self.obstacle = None  # the scheduler's reason why no pod gets a node
        self.warning = ""  # about every object
        self.made_pods = True  # whether controllers make pods
        self._places = {}
        self._closed = False
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self.server.daemon_threads = True
        self.host = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.kubeconfig = self.folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "small", "cluster": {"server": self.host}}],
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "small", "user": "me", "namespace": "team"}}],
            "current-context": "c",
        }
        self.kubeconfig.write_text(json.dumps(config))
        return self

    def __exit__(self, *_):
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        left = [process for process in self.processes if process.poll() is None]
        for process in left:
            process.kill()
        for process in self.processes:
            process.wait(DEADLINE)
        self.server.shutdown()
        self.server.server_close()
        assert not left, "a container still ran"

    # What the controllers and the node do.

    def create(self, plural, manifest):
        with self.changed:
            name = manifest["metadata"]["name"]
            assert (plural, name) not in self.objects
            self.objects[plural, name] = manifest
            if plural in ("statefulsets", "jobs") and self.made_pods:
                spec = manifest["spec"]
                for index in range(spec["replicas"] if plural == "statefulsets" else spec["completions"]):
                    self._make_pod(plural, manifest, index)

    def _make_pod(self, plural, manifest, index, failures=0):
        name, template = manifest["metadata"]["name"], copy.deepcopy(manifest["spec"]["template"])
        host = f"{name}-{index}"
        own = host if plural == "statefulsets" else f"{host}-{os.urandom(3).hex()}"
        metadata = {"name": own, "uid": os.urandom(8).hex(), "creationTimestamp": f"t{len(self.history):09}"}
        metadata |= {"labels": dict(template["metadata"]["labels"]), "annotations": {}}
        (metadata["labels"] if plural == "statefulsets" else metadata["annotations"])[
            SET_INDEX if plural == "statefulsets" else JOB_INDEX
        ] = str(index)
        pod = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
        pod["owner"] = (plural, manifest, index, failures)
        # What the names in the Service would resolve to: one port for each.
        service = manifest["spec"].get("serviceName") or template["spec"]["subdomain"]
        found = sorted(
            set(re.findall(rf"{re.escape(service)}-\w+-\d+\.{re.escape(service)}:\d+", json.dumps(template)))
        )
        new = [place for place in found if place not in self._places]
        self._places |= dict(zip(new, free_addresses(len(new)), strict=True))
        self.pods[own] = pod
        self._tell("ADDED", pod)
        threading.Thread(target=self._run_pod, args=[pod], daemon=True).start()

    def _run_pod(self, pod):
        image = pod["spec"]["containers"][0]["image"]
        if self.obstacle:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": self.obstacle}
            self._set(pod, {"phase": "Pending", "conditions": [condition]})
            return
        if image.startswith("missing"):
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
            self._set_container(pod, 0, {"waiting": waiting})
            return
        self._run_containers(pod, image)

    def _run_containers(self, pod, image):
        restarts, last = 0, None
        while True:
            container = Container(pod, self.objects, self._places, self.folder)
            name = pod["metadata"]["name"]
            path = self._log(pod, restarts)
            with path.open("wb") as log, self.changed:
                if name not in self.pods or "deletionTimestamp" in pod["metadata"]:
                    break
                if image.startswith("scratch"):
                    told = 'exec: "python3": executable file not found in $PATH'
                    terminated = {"exitCode": 128, "reason": "StartError", "message": told}
                    self._set_container(pod, 0, {"terminated": terminated}, "Failed")
                    return
                process = container.start(image, log)
                self.processes.append(process)
                self.containers[name] = (process, container)
                self._set_container(pod, restarts, {"running": {}}, "Running", last)
            code = process.wait()
            code = code if code >= 0 else 128 - code
            last = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
            again = pod["owner"][0] == "statefulsets" and "deletionTimestamp" not in pod["metadata"]
            phase = "Running" if again else "Failed" if code else "Succeeded"
            self._set_container(pod, restarts, last, phase)
            if not again:
                break
            with self.changed:
                self.changed.wait(RESTART_SECS)  # as a node does before it runs a container again
            restarts += 1
        with self.changed:
            plural, manifest, index, failures = pod["owner"]
            if "deletionTimestamp" in pod["metadata"]:
                self._remove(pod)
                return
            again = ("jobs", manifest["metadata"]["name"]) in self.objects
            if code and again and failures < manifest["spec"]["backoffLimitPerIndex"]:
                self._make_pod(plural, manifest, index, failures + 1)

    def delete_pod(self, pod, grace):
        with self.changed:
            process, _ = self.containers.get(pod["metadata"]["name"], (None, None))
            running = process is not None and process.poll() is None
            if grace and running:
                pod["metadata"] |= {"deletionTimestamp": "now", "deletionGracePeriodSeconds": grace}
                self._tell("MODIFIED", pod)
            else:
                self._remove(pod)
            if running:
                process.send_signal(signal.SIGTERM if grace else signal.SIGKILL)

    def lose_pods(self):
        """Deletes all pods, for which the controllers make others."""
        with self.changed:
            for pod in list(self.pods.values()):
                self._make_pod(*self._remove(pod))

    def delete(self, plural, name):
        with self.changed:
            del self.objects[plural, name]
            for pod in [pod for pod in self.pods.values() if pod["owner"][1]["metadata"]["name"] == name]:
                if plural in ("statefulsets", "jobs"):
                    self.delete_pod(pod, 30)

    def _log(self, pod, restarts):
        return self.folder / f"{pod['metadata']['uid']}.{restarts}.log"

    def _remove(self, pod):
        if self.pods.pop(pod["metadata"]["name"], None):
            self._tell("DELETED", pod)
        return pod["owner"]

    def _set_container(self, pod, restarts, state, phase="Pending", last=None):
        status = {"name": "task", "restartCount": restarts, "state": state, "lastState": last or {}}
        self._set(pod, {"phase": phase, "containerStatuses": [status]})

    def _set(self, pod, status):
        with self.changed:
            pod["status"] = status
            if pod["metadata"]["name"] in self.pods:
                self._tell("MODIFIED", pod)

    def _tell(self, kind, pod):
        with self.changed:
            shown = copy.deepcopy({key: value for key, value in pod.items() if key != "owner"})
            self.history.append((len(self.history) + 1, kind, shown))
            self.changed.notify_all()

    # What the API server answers.

    def list(self):
        with self.changed:
            items = [{key: value for key, value in pod.items() if key != "owner"} for pod in self.pods.values()]
            return json.loads(json.dumps({"items": items, "metadata": {"resourceVersion": str(len(self.history))}}))

    def watch(self, version):
        while True:
            with self.changed:
                while not self._closed and len(self.history) == version:
                    self.changed.wait()
                if self._closed:
                    return
                news, version = self.history[version:], len(self.history)
            for _, kind, pod in news:
                yield json.dumps({"type": kind, "object": pod}).encode() + b"\n"

    def log(self, name, previous):
        with self.changed:
            pod = self.pods[name]
            restarts = pod["status"]["containerStatuses"][0]["restartCount"] - previous
        with self._log(pod, restarts).open("rb") as file:
            while True:
                state = pod["status"]["containerStatuses"][0]
                ended = state["restartCount"] > restarts or "terminated" in state["state"] or name not in self.pods
                if data := file.read():
                    yield data
                elif ended or self._closed:
                    return
                else:
                    with self.changed:
                        self.changed.wait(0.05)


def handler(cluster):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self, status, content):
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def refuse(self, status, message):
            self.answer(status, {"kind": "Status", "status": "Failure", "message": message, "code": status})

        def stream(self, pieces):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for piece in pieces:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
            except OSError:
                self.close_connection = True  # the client has gone

        def handle_one(self):
            url = urllib.parse.urlsplit(self.path)
            asked = dict(urllib.parse.parse_qsl(url.query))
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            namespace, plural, name, log = _PATH.match(url.path).groups()
            assert namespace == "team" and self.headers["Authorization"] == "Bearer t"
            if plural in cluster.refuse:
                return self.refuse(*cluster.refuse[plural])
            if self.command == "POST":
                cluster.create(plural, body)
                return self.answer(201, body)
            if self.command == "DELETE":
                with cluster.changed:
                    if name not in cluster.pods if plural == "pods" else (plural, name) not in cluster.objects:
                        return self.refuse(404, f'{plural} "{name}" not found')
                    if plural == "pods":
                        cluster.delete_pod(cluster.pods[name], int(asked.get("gracePeriodSeconds", 30)))
                    else:
                        assert asked["propagationPolicy"] == "Background"
                        cluster.delete(plural, name)
                return self.answer(200, {"kind": "Status", "status": "Success"})
            if plural == "events":
                about = re.match(r"involvedObject\.name=([^,]+)", asked["fieldSelector"])[1]
                known = any(found == about for _, found in cluster.objects)
                return self.answer(200, {"items": [{"message": cluster.warning}] if known and cluster.warning else []})
            if log:
                if name not in cluster.pods:
                    return self.refuse(404, f'pods "{name}" not found')
                return self.stream(cluster.log(name, asked.get("previous") == "true"))
            assert asked["labelSelector"].startswith("app.kubernetes.io/instance=")
            if asked.get("watch"):
                return self.stream(cluster.watch(int(asked["resourceVersion"])))
            return self.answer(200, cluster.list())

        do_GET = do_POST = do_DELETE = handle_one

    return Handler
