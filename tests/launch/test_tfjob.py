"""Tasks with the environment that Kubeflow's training operator sets, as real processes on loopback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest
from launch.launching import DEADLINE, PATHS, ROOT
from loopback import free_addresses

from penstock.wire.credentials import create_credentials

PROGRAM = """
import json, os, sys, time
import tensorflow.compat.v1 as tf
config = json.loads(os.environ["TF_CONFIG"])
assert config["environment"] == "cloud"
cluster, kind, index = config["cluster"], config["task"]["type"], config["task"]["index"]
folder = sys.argv[1]
if kind == "evaluator":
    assert "evaluator" not in cluster
    for path in tf.train.checkpoints_iterator(folder, timeout=60):
        step = int(path.rpartition("-")[2])
        if step >= 10:
            break
    sys.exit(print("evaluated", step))
server = tf.train.Server(cluster, job_name=kind, task_index=index)
if kind == "ps":
    server.join()
setter = tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:{kind}/task:{index}")
with tf.device(setter):
    up = tf.train.get_or_create_global_step().assign_add(1)
chief = kind in ("chief", "master")
# A worker that comes before the variables have values would look again after 30 s.
while not chief and not tf.train.latest_checkpoint(folder):
    time.sleep(0.05)
hooks = [tf.train.StopAtStepHook(last_step=10)]
with tf.train.MonitoredTrainingSession(
    server.target, is_chief=chief, checkpoint_dir=folder if chief else None, hooks=hooks
) as session:
    while not session.should_stop():
        session.run(up)
print("trained", tf.train.ClusterSpec(cluster).jobs)
"""


def operator_config(name, replicas, kind, index):
    """TF_CONFIG as the operator writes it: names of Services in the namespace, and an evaluator outside the cluster."""
    cluster = {
        each: [f"{name}-{each}-{number}.default.svc:2222" for number in range(count)]
        for each, count in replicas.items()
        if each != "evaluator"
    }
    config = {"cluster": cluster, "task": {"type": kind, "index": index}, "environment": "cloud"}
    return json.dumps(config, separators=(",", ":"))


@contextmanager
def started(name, replicas, command, credentials):
    """Starts all tasks with the command; what they print is in pipes. The servers that are left are ended."""
    tasks = [(kind, index) for kind, count in replicas.items() for index in range(count)]
    names = sorted(set(re.findall(r"[\w.-]+:2222", operator_config(name, replicas, *tasks[0]))))
    places = dict(zip(names, free_addresses(len(names)), strict=True))
    with ExitStack() as stack:
        found = {}
        for task in tasks:
            config = operator_config(name, replicas, *task)
            for each, place in places.items():
                config = config.replace(each, place)
            environment = {
                **{key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")},
                "PYTHONPATH": PATHS,
                "JAX_PLATFORMS": "cpu",
                "TF_CONFIG": config,
                "PENSTOCK_CREDENTIALS": str(credentials),
            }
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)
            found[task] = stack.enter_context(process)
            stack.callback(process.kill)
        yield found


@pytest.fixture
def credentials(tmp_path):
    return create_credentials(tmp_path / "credentials").directory


@pytest.mark.parametrize("chief", ["chief", pytest.param("master", marks=pytest.mark.long)])
def test_all_kinds_of_replicas_find_their_place(script, tmp_path, credentials, chief):
    replicas = {chief: 1, "ps": 1, "worker": 1, "evaluator": 1}
    command = [sys.executable, "-m", "penstock", "run", str(script(PROGRAM)), str(tmp_path / "train")]
    with started("job", replicas, command, credentials) as tasks:
        said = {kind: tasks[kind, 0].communicate(timeout=DEADLINE)[0] for kind in (chief, "worker", "evaluator")}
        codes = {kind: tasks[kind, 0].returncode for kind in said}
        assert set(codes.values()) == {0}, said
        # Both may have made a step when the tenth was seen.
        assert (
            re.search(r"evaluated 1[01]\n", said["evaluator"])
            and f"trained ['{chief}', 'ps', 'worker']" in said["worker"]
        )
        assert tasks["ps", 0].poll() is None


@pytest.mark.long
def test_the_example_trains_with_its_own_command(tmp_path, credentials):
    yaml = pytest.importorskip("yaml", reason="the package pyyaml is not installed")
    manifest = yaml.safe_load((ROOT / "examples" / "tfjob.yaml").read_text())
    specs = manifest["spec"]["tfReplicaSpecs"]
    [container] = specs["Worker"]["template"]["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["env"] == [{"name": "PENSTOCK_CREDENTIALS", "value": mounts["credentials"]}]
    here = {"/app": str(ROOT / "examples"), mounts["data"]: str(tmp_path), "--steps=400": "--steps=20"}
    command = [sys.executable, "-m", *container["command"]]
    for path, instead in here.items():
        command = [part.replace(path, instead) for part in command]
    replicas = {kind.lower(): spec["replicas"] for kind, spec in specs.items()}
    with started(manifest["metadata"]["name"], replicas, command, credentials) as tasks:
        for index in range(replicas["worker"]):
            said, _ = tasks["worker", index].communicate(timeout=2 * DEADLINE)
            assert tasks["worker", index].returncode == 0, said
    assert (tmp_path / "digits" / "checkpoint").exists()
