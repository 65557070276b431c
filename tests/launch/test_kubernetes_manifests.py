"""The manifests of a job: their form by the schema of the official client, what they say, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from launch.launching import DEADLINE, PATHS
from launch.small_kubernetes import expanded

from penstock.launch.cluster import LaunchError, Size, Task
from penstock.launch.engine import Commands, Request
from penstock.launch.events import Output, UnderWay
from penstock.launch.flags import flags_of
from penstock.launch.kubernetes.log import LogReader, LogWriter
from penstock.launch.kubernetes.manifests import job_on_kubernetes, manifests
from penstock.launch.kubernetes.options import Pods
from penstock.launch.kubernetes.pods import End, Life, begun, end_of, hopeless, not_started, obstacle, task_of
from penstock.launch.program import Program
from penstock.launch.resources import Needs

try:
    from kubernetes import client
except ImportError:
    client = None
needs_client = pytest.mark.skipif(client is None, reason="the package kubernetes is not installed")

CREDENTIALS = {"ca.pem": "a", "task.pem": "b", "task.key": "c", "token": "d"}
FLAGGED = 'add_argument("--job_name"); add_argument("--task_index")\n'


@pytest.fixture
def request_for(script):
    def make(text=FLAGGED, args=(), size=None, pods=None, needs=None, name="train_it.py", **rest):
        path = script(text, name)
        commands = Commands(Program(path, tuple(args)), flags_of(path, args, wanted=None, chief=False))
        needs = needs or Needs.parse("ps=0.5,worker=2", "worker=1", "4G")
        return Request(size or Size(2, 3, evaluator=True), commands, needs, pods=pods or Pods("registry/p:1"), **rest)

    return make


def made(request):
    return {
        (each["kind"], each["metadata"]["name"]): each for each in manifests(job_on_kubernetes(request), CREDENTIALS)
    }


def of_kind(found, kind, ending=""):
    return next(each for (has, name), each in found.items() if has == kind and name.endswith(ending))


def typed(content, kind, path):
    """The object of the official client for a part of a manifest: refuses fields and types that it does not have."""
    if form := re.fullmatch(r"list\[(.+)\]", kind, re.IGNORECASE):
        return [typed(each, form[1], f"{path}[{place}]") for place, each in enumerate(content)]
    if form := re.fullmatch(r"dict[(\[]str, (.+)[)\]]", kind, re.IGNORECASE):
        return {key: typed(value, form[1], f"{path}.{key}") for key, value in content.items()}
    if kind in PLAIN:
        assert type(content) is PLAIN[kind], f"{path} takes {kind}, received {content!r}"
        return content
    model = getattr(client, kind)
    names = {json_name: name for name, json_name in model.attribute_map.items()}
    assert not set(content) - set(names), f"{path} has no {set(content) - set(names)}"
    parts = {
        names[key]: typed(value, model.openapi_types[names[key]], f"{path}.{key}") for key, value in content.items()
    }
    return model(**parts)  # refuses what lacks a field that is required


PLAIN = {"str": str, "int": int, "bool": bool}


@needs_client
def test_the_manifests_have_the_form_of_the_official_client(request_for):
    found = made(request_for(pods=Pods("registry/p:1", max_restarts=2)))
    kinds = [kind for kind, _ in found]
    assert kinds == ["Service", "Secret", "ConfigMap", "StatefulSet", "Job", "Job"]
    for (kind, name), manifest in found.items():
        assert manifest["apiVersion"] == {"StatefulSet": "apps/v1", "Job": "batch/v1"}.get(kind, "v1")
        assert client.ApiClient().sanitize_for_serialization(typed(manifest, f"V1{kind}", name)) == manifest


@needs_client
def test_the_check_of_manifests_finds_mistakes(request_for):
    job = of_kind(made(request_for()), "Job")
    [task] = job["spec"]["template"]["spec"]["containers"]
    task["readinessProbe"]["exec"]["comand"] = []
    with pytest.raises(AssertionError, match=r"readinessProbe\.exec has no {'comand'}"):
        typed(job, "V1Job", "job")
    del task["readinessProbe"], job["spec"]["template"]["spec"]["containers"]
    with pytest.raises(ValueError, match="containers"):
        typed(job, "V1Job", "job")


def test_the_manifests_say_what_was_asked_for(request_for):
    request = request_for(args=["--rate=$(X)", "9876543210"], base_port=4444)
    found = made(request)
    job, servers = of_kind(found, "Job", "-worker"), of_kind(found, "StatefulSet")
    name = of_kind(found, "Service")["metadata"]["name"]
    assert name.startswith("train-it-")
    assert (servers["spec"]["replicas"], job["spec"]["completions"], job["spec"]["parallelism"]) == (2, 3, 3)
    assert job["spec"]["backoffLimitPerIndex"] == 3 and servers["spec"]["serviceName"] == name
    assert of_kind(found, "Secret")["stringData"] == CREDENTIALS
    assert of_kind(found, "ConfigMap")["data"] == {"train_it.py": FLAGGED}
    assert of_kind(found, "Service")["spec"]["publishNotReadyAddresses"] is True
    [task] = job["spec"]["template"]["spec"]["containers"]
    same = {"cpu": "2000m", "memory": "4096Mi", "nvidia.com/gpu": "1"}
    assert task["resources"] == {"requests": same, "limits": same}
    ps = servers["spec"]["template"]["spec"]["containers"][0]
    assert ps["resources"]["limits"] == {"cpu": "500m", "memory": "4096Mi"}
    assert {"name": "JAX_PLATFORMS", "value": "cpu"} in ps["env"]
    # A worker with index 2 reads these as its place.
    here = {"PENSTOCK_TASK_INDEX": "2"}
    command = [expanded(part, here) for part in task["command"]]
    assert command[3:] == [
        "/etc/penstock/script/train_it.py", "--job_name=worker", "--task_index=2", "--rate=$(X)", "9876543210",
    ]  # fmt: skip
    config = next(each["value"] for each in task["env"] if each["name"] == "TF_CONFIG")
    place = json.loads(expanded(config, here))
    assert place["task"] == {"type": "worker", "index": 2}
    assert place["cluster"]["worker"][2] == f"{name}-worker-2.{name}:4444" and len(place["cluster"]["ps"]) == 2
    evaluator = of_kind(found, "Job", "-evaluator")["spec"]["template"]["spec"]["containers"][0]
    assert "readinessProbe" not in evaluator and task["readinessProbe"]["exec"]["command"][-1] == "4444"


def test_a_script_in_the_image_is_not_sent(request_for):
    found = made(request_for("import helper", pods=Pods("p:1", script="/app/train.py")))
    assert "ConfigMap" not in {kind for kind, _ in found}
    assert of_kind(found, "Job")["spec"]["template"]["spec"]["containers"][0]["command"][3] == "/app/train.py"


def refused(request, says):
    with pytest.raises(LaunchError, match=says):
        made(request)


def test_what_cannot_be_asked_for(request_for, script):
    refused(request_for(pods=Pods("")), "needs --image")
    refused(request_for(base_port=70000), "--base-port must be between 1 and 65535, received 70000")
    refused(request_for(needs=Needs.parse(gpus="0.5")), "--gpus takes whole numbers on Kubernetes, received 0.5")
    refused(request_for("x = '" + "a" * 1_000_000 + "'"), "is larger than the 1,000,000 bytes")
    script("", "helper.py")
    refused(request_for("import helper"), r"imports files beside it.*: helper\.py\. .*--image-script PATH")
    assert job_on_kubernetes(request_for("1", name="1_é.py")).name.startswith("job-1-")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--dry-run", "--image", "x"], "are for --on kubernetes, not local"),
        (["--on", "kubernetes", "--dry-run"], "needs --image"),
    ],
)
def test_options_that_do_not_fit(script, options, says):
    command = [sys.executable, "-m", "penstock", "launch", *options, str(script("print('ran')"))]
    environment = {**os.environ, "PYTHONPATH": PATHS, "COLUMNS": "200"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (2, "") and says in done.stderr and "Traceback" not in done.stderr


def test_a_dry_run_prints_yaml_and_reaches_for_no_cluster(script, tmp_path):
    yaml = pytest.importorskip("yaml", reason="the package pyyaml is not installed")
    text = "first = 1\nsecond = 'two'\n"
    command = [sys.executable, "-m", "penstock", "launch", "--on", "kubernetes", "--dry-run", "--image", "p:1"]
    environment = {**os.environ, "PYTHONPATH": PATHS, "KUBECONFIG": str(tmp_path / "none")}
    done = subprocess.run(
        [*command, str(script(text))], env=environment, capture_output=True, text=True, timeout=DEADLINE
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = list(yaml.safe_load_all(done.stdout))
    assert [each["kind"] for each in found] == ["Service", "Secret", "ConfigMap", "StatefulSet", "Job"]
    assert found[2]["data"] == {"program.py": text} and "    first = 1\n" in done.stdout
    assert set(found[1]["stringData"]) == set(CREDENTIALS)


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_without_the_package_the_error_says_what_to_install(script, tmp_path, more):
    for name in ("kubernetes", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('none here')")
    paths = os.pathsep.join([str(tmp_path), PATHS])
    command = [sys.executable, "-m", "penstock", "launch", "--on", "kubernetes", "--image", "p:1", *more]
    done = subprocess.run(
        [*command, str(script("1"))],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("Install it: pip install 'penstock[kubernetes]'.\n") and "Traceback" not in done.stderr


def test_both_streams_and_marks_are_one_log(tmp_path):
    worker = Task("worker", 0)
    path = tmp_path / "log"
    with path.open("wb") as file:
        log = LogWriter(file.fileno())
        log.output("stdout", b"one\r")
        log.mark(b".")
        log.output("stderr", b"two\n\x1b[1m")
        log.output("stdout", b"three\x1b]pen")
        log.mark(b"-9")
    data = path.read_bytes()
    for size in range(1, len(data) + 1):
        reader = LogReader(worker)
        found = [event for at in range(0, len(data), size) for event in reader.feed(data[at : at + size])]
        found += reader.feed(b"")
        streams = {"stdout": b"", "stderr": b""}
        for event in found:
            if isinstance(event, Output):
                streams[event.stream] += event.data
        assert streams == {"stdout": b"one\rthree\x1b]pen", "stderr": b"two\n\x1b[1m"}
        assert [event for event in found if not isinstance(event, Output)] == [UnderWay(worker)]
        assert (reader.code, reader.marked) == (-9, True)


def pod(status, **metadata):
    labels = {"app.kubernetes.io/component": "ps", "apps.kubernetes.io/pod-index": "1"}
    about = {"name": "p-ps-1", "uid": "u", "labels": labels, **metadata}
    return {"metadata": about, "spec": {"containers": [{"image": "p:1"}], "nodeName": "n3"}, "status": status}


def container(restarts, state, last=None):
    status = {"restartCount": restarts, "state": state, "lastState": last or {}}
    return pod({"phase": "Running", "containerStatuses": [status]})


def ended(code, **more):
    return {"terminated": {"exitCode": code, **more}}


@pytest.mark.parametrize(
    ("state", "end"),
    [
        (container(0, {"running": {}}), None),
        (container(0, ended(3)), End(3)),
        (container(0, ended(143)), End(-15)),
        (container(1, {"running": {}}, ended(137)), End(-9)),
        (container(0, ended(137, reason="OOMKilled")), "was out of memory (OOMKilled in pod p-ps-1); --memory gives"),
        (container(2, {"running": {}}, ended(1)), End(1)),
        (container(0, ended(128, reason="StartError", message="exec: no such file or directory")), "to have no Python"),
        (pod({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}), "with pod p-ps-1: Evicted: low"),
    ],
)
def test_the_end_of_a_life_is_found_in_its_pod(state, end):
    found = end_of(Life("p-ps-1", "u", 0), state)
    assert task_of(state) == Task("ps", 1) and begun(state)
    assert found == end if not isinstance(end, str) else end in found.why


def test_why_a_pod_does_not_begin():
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    waits = pod({"phase": "Pending", "conditions": [condition]})
    assert (begun(waits), hopeless(waits), obstacle(waits)) == (False, False, "Unschedulable: 0/1 nodes")
    pulls = container(0, {"waiting": {"reason": "InvalidImageName", "message": "bad"}})
    assert (begun(pulls), hopeless(pulls)) == (False, True)
    assert not_started(pulls).code == 126 and "InvalidImageName: bad. Check --image 'p:1'" in not_started(pulls).why
    assert obstacle(container(0, {"waiting": {"reason": "ContainerCreating"}})) == "ContainerCreating"
