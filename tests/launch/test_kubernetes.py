"""Jobs on Kubernetes: a small one on loopback, whose pods are real processes, and the launcher as it is run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

pytest.importorskip("kubernetes", reason="the package kubernetes is not installed")

from kubernetes.config import kube_config
from launch.elastic_training import scale
from launch.launching import DEADLINE, PATHS, ROOT, TASK, finish, wait_until
from launch.small_kubernetes import SmallKubernetes
from loopback import not_listening
from typer.testing import CliRunner

from penstock.launch.cli import app

DIGITS = ROOT / "examples" / "digits_cluster.py"


@pytest.fixture
def cluster(tmp_path):
    folder = tmp_path / "kubernetes"
    folder.mkdir()
    with SmallKubernetes(folder) as small:
        yield small


@pytest.fixture
def on_cluster(launch, cluster):
    def start(text, *args, options=(), env=(), image="penstock:1"):
        given = ["--on", "kubernetes", "--image", image, *options]
        return launch(text, *args, options=given, env={"KUBECONFIG": str(cluster.kubeconfig), **dict(env)})

    return start


@pytest.fixture
def refused(script, monkeypatch, tmp_path):
    """What is said about a launch that does not begin, in this process, which has loaded the client already."""

    def start(config):
        monkeypatch.setenv("KUBECONFIG", str(config))
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(config))  # it is read at the import
        command = ["launch", "--on", "kubernetes", "--image", "penstock:1", f"--log-dir={tmp_path}/logs"]
        done = CliRunner().invoke(app, [*command, str(script(TASK + "wait()"))], obj=[])
        assert (done.exit_code, done.stdout) == (2, "") and "Traceback" not in done.stderr
        return done.stderr

    return start


def nothing_left(cluster):
    return not cluster.objects and not cluster.pods


def running(cluster, kind):
    """The container of a kind of task that runs, once there is one."""
    return wait_until(lambda: [found for name, found in list(cluster.containers.items()) if f"-{kind}" in name])[0]


def test_a_job_runs_to_its_end_and_leaves_nothing(on_cluster, cluster):
    text = """
print(me, index, sys.argv[1:], "out", flush=True)
print("err", file=sys.stderr)
if me == "ps": wait()
"""
    code, lines, err = finish(on_cluster(text, "--cost=$(HOME)", "$$", options=["--evaluator"]))
    assert (code, nothing_left(cluster)) == (0, True), err
    told = "['--cost=$(HOME)', '$$'] out"
    said = [f"[{task}:{n}] {task} {n} {told}" for task, n in [("evaluator", 0), ("worker", 0), ("worker", 1)]]
    # The parameter server is stopped when the others are done, which may be before its first line.
    assert [line for line in lines if "[ps:" not in line] == said
    assert "[worker:1] err\n" in err and " in namespace team of http://127.0.0.1:" in err
    assert "[launch] done after" in err and "failed" not in err


def test_it_cannot_be_scaled_and_the_message_says_what_to_do(on_cluster, cluster, tmp_path):
    process = on_cluster("here = sys.argv[1]\nhear('over')", str(tmp_path), options=["--ps", 0, "--workers", 1])
    wait_until(lambda: list((tmp_path / f"penstock-{os.getuid()}").glob("*.sock")))
    found = scale(tmp_path, "--workers", 3)
    assert found.returncode == 1
    assert "tasks cannot join or leave it. Stop it, and launch it with the numbers that you want" in found.stderr
    (tmp_path / "over.told").touch()
    assert finish(process)[0] == 0


TRAINING = """
import penstock.v1 as tf
here = sys.argv[1]
spec = tf.train.ClusterSpec(json.loads(os.environ["TF_CONFIG"])["cluster"])
server = tf.train.Server(spec, job_name=me, task_index=index)
if me == "ps": server.join()
with tf.device(tf.train.replica_device_setter(cluster=spec, worker_device=f"/job:worker/task:{index}")):
    step = tf.train.get_or_create_global_step()
    up = step.assign_add(1)
with tf.train.MonitoredTrainingSession(
    server.target, checkpoint_dir=f"{here}/train", hooks=[tf.train.StopAtStepHook(last_step=40)],
    save_checkpoint_steps=5, save_checkpoint_secs=None,
) as session:
    while not session.should_stop():
        now = session.run(up)
        if now >= 10: hear("go on")
        if now >= 20 and tell("killed"): os.kill(os.getpid(), signal.SIGKILL)
    print("steps", now, flush=True)
"""


@pytest.mark.long
def test_a_training_goes_on_after_its_worker_is_killed(on_cluster, cluster, tmp_path):
    process = on_cluster(TRAINING, str(tmp_path), options=["--workers", 1])
    # The probes of both tasks are answered, with the job's credentials.
    for kind in ("ps", "worker"):
        _, container = running(cluster, kind)
        wait_until(lambda: probed(container, container.probes["readinessProbe"]) == (0, ""))  # noqa: B023
    _, container = running(cluster, "ps")
    assert set(container.probes) == {"startupProbe", "readinessProbe", "livenessProbe"}
    assert len({tuple(command) for command in container.probes.values()}) == 1
    strange = {**container.environment, "PENSTOCK_CREDENTIALS": ""}
    refused = probed(container, container.probes["livenessProbe"], strange)
    assert refused[0] == 1 and "UNAVAILABLE" in refused[1]
    (tmp_path / "go on.told").touch()
    code, lines, err = finish(process)
    assert (code, nothing_left(cluster)) == (0, True), err
    assert "[worker:0] steps 40" in lines
    assert "[launch] worker:0 was ended by SIGKILL: restart 1 of 3 in 1 s" in err
    assert probed(container, container.probes["livenessProbe"])[0] == 1


def probed(container, command, environment=None):
    """The exit code of a probe of a container, and what it says."""
    assert command[0] == "python3"
    done = subprocess.run(
        [sys.executable, *command[1:]],
        env=environment or container.environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    return done.returncode, done.stderr.strip()


@pytest.mark.long
def test_a_training_goes_on_after_its_parameter_server_is_killed(on_cluster, cluster, tmp_path):
    (tmp_path / "killed.told").touch()
    process = on_cluster(TRAINING, str(tmp_path), options=["--workers", 1])
    wait_until((tmp_path / "train" / "checkpoint").exists)
    first, _ = running(cluster, "ps")
    first.kill()
    wait_until(lambda: running(cluster, "ps")[0] is not first)
    (tmp_path / "go on.told").touch()
    code, lines, err = finish(process)
    assert (code, nothing_left(cluster)) == (0, True), err
    assert "[worker:0] steps 40" in lines and "ps:0 was ended by SIGKILL: restart 1 of 3" in err


@pytest.mark.long
def test_the_digits_train_unchanged(cluster, tmp_path):
    options = ["--on", "kubernetes", "--image", "penstock:1", str(DIGITS), "--steps=40", f"--train_dir={tmp_path}/d"]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "launch", *options],
        env={**os.environ, "PYTHONPATH": PATHS, "KUBECONFIG": str(cluster.kubeconfig), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=4 * DEADLINE,
    )
    assert (done.returncode, nothing_left(cluster)) == (0, True), done.stderr
    assert "accuracy" in done.stdout + done.stderr


@pytest.mark.long
def test_exit_codes_and_failures_are_those_of_the_local_engine(on_cluster, cluster):
    process = on_cluster("if me == 'worker' and index: sys.exit(7)\nwait()")
    code, _, err = finish(process)
    assert (code, nothing_left(cluster)) == (7, True), err
    assert "[launch] worker:1 exited with code 7 before its first step: it is not restarted" in err


def test_ctrl_c_ends_the_pods_and_leaves_nothing(on_cluster, cluster):
    process = on_cluster("wait()", options=["--kill-after", 30])
    wait_until(lambda: len(cluster.containers) == 3)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert (code, nothing_left(cluster)) == (130, True), err


def test_an_image_without_penstock_is_named(on_cluster, cluster):
    code, _, err = finish(on_cluster("wait()", image="bare:1", options=["--workers", 1, "--ps", 0]))
    assert (code, nothing_left(cluster)) == (126, True), err
    assert "cannot be started: the image 'bare:1' of pod program-" in err and "has no penstock" in err


@pytest.mark.long
@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("scratch:1", "The image 'scratch:1' seems to have no Python"),
        ("missing:1", "ImagePullBackOff: Back-off pulling image \"missing:1\". Check --image 'missing:1'"),
    ],
)
def test_an_image_that_does_not_run_is_named(on_cluster, cluster, image, says):
    code, _, err = finish(on_cluster("wait()", image=image, options=["--workers", 1, "--ps", 0]))
    assert (code, nothing_left(cluster)) == (126, True), err
    assert says in err


@pytest.mark.long
@pytest.mark.parametrize("made_pods", [True, pytest.param(False, marks=pytest.mark.long)])
def test_too_few_resources_are_named_after_a_while(on_cluster, cluster, made_pods):
    cluster.obstacle = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    cluster.made_pods = made_pods
    why = "exceeded quota: gpus"
    cluster.warning = why
    options = ["--workers", 1, "--ps", 0, "--gpus", "worker=8"]
    code, _, err = finish(on_cluster("wait()", options=options, env={"PENSTOCK_START_TIMEOUT_SECS": "1"}))
    assert (code, nothing_left(cluster)) == (126, True), err
    told = cluster.obstacle if made_pods else why
    assert re.search(rf"worker:0 cannot be started: .*{re.escape(told)} \(waited 1 s\)", err), err


def test_a_pod_that_vanishes_before_it_begins_is_named_and_replaced(on_cluster, cluster):
    cluster.obstacle = "0/1 nodes are available: 1 Too many pods."
    process = on_cluster("print('ran')", options=["--workers", 1, "--ps", 0])
    said = []
    for line in process.stderr:
        said.append(line)
        if "worker:0 has not begun: pod program-" in line and cluster.obstacle:
            assert cluster.obstacle in line
            cluster.obstacle = None
            cluster.lose_pods()
    err = "".join(said)
    assert (process.wait(DEADLINE), process.stdout.read()) == (0, "[worker:0] ran\n"), err
    assert nothing_left(cluster)
    assert re.search(r"worker:0 was lost: pod program-\S+ was deleted before it began: restart 1 of 3", err), err


def test_what_kubernetes_refuses_is_told_and_what_it_took_is_deleted(refused, cluster):
    cluster.refuse["jobs"] = (403, 'jobs.batch is forbidden: User "me" cannot create resource "jobs"')
    err = refused(cluster.kubeconfig)
    assert nothing_left(cluster), err
    assert "cannot create the Job program-" in err and "in namespace 'team'" in err and "403 jobs.batch is forb" in err


def test_no_cluster_is_reached(refused, cluster, tmp_path):
    assert "there is no configuration for a Kubernetes cluster" in refused(tmp_path / "none")
    with not_listening() as address:
        host = f"http://{address}"
        config = tmp_path / "refused"
        config.write_text(cluster.kubeconfig.read_text().replace(cluster.host, host))
        err = refused(config)
    assert "Connection refused" in err and host in err
