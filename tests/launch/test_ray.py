"""Tasks on a Ray cluster: what they ask for, their actors, and errors; runs on a real Ray where it is installed."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import venv
import zipfile
from pathlib import Path

import pytest
from launch.elastic_training import runs, scale
from launch.launching import DEADLINE, PATHS, ROOT, TASK, wait_until
from launch.ray_nodes import LONG, NODES, can_hide, groups_left, needs_ray, until
from loopback import not_listening

import penstock
from penstock.launch import working_dir
from penstock.launch.cluster import Cluster, LaunchError, Task
from penstock.launch.engine import Commands
from penstock.launch.program import Program
from penstock.launch.ray_actor import TaskRunner
from penstock.launch.ray_bundles import bundles, misfit
from penstock.launch.remote import TERMINATE, Marks, job_credentials, letter
from penstock.launch.resources import Needs
from penstock.launch.working_dir import WorkingDir
from penstock.train.checkpoint_state import latest_checkpoint
from penstock.train.checkpoint_utils import load_checkpoint

PS, W0, W1 = Task("ps", 0), Task("worker", 0), Task("worker", 1)


def test_each_task_has_a_bundle():
    found = bundles([PS, W0], Needs.parse("worker=4,ps=0", "worker=0.5", "worker=2G"))
    assert found == {PS: {"CPU": 0.001}, W0: {"CPU": 4, "GPU": 0.5, "memory": 2 << 30}}
    assert bundles([PS], Needs.parse()) == {PS: {"CPU": 1}}
    with pytest.raises(LaunchError, match=r"--gpus for worker:0 cannot be 1\.5"):
        bundles([PS, W0], Needs.parse(gpus="worker=1.5"))


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({PS: {"CPU": 1}, W0: {"CPU": 5}}, "worker:0 needs 5 CPU, and no node has that. The nodes have: 4 CPU (a); 2"),
        ({W0: {"CPU": 1, "GPU": 1}}, "worker:0 needs 1 CPU, 1 GPU, and no node"),
        ({W0: {"memory": 3 << 30}}, "worker:0 needs 3 GiB memory, and no node"),
        ({PS: {"CPU": 1}, W0: {"CPU": 3}, W1: {"CPU": 3}}, "worker:1 needs 3 CPU, and there is no room for it beside"),
        ({PS: {"CPU": 2}, W0: {"CPU": 4}}, "the nodes are large enough, but other jobs use them"),
    ],
)
def test_the_task_without_a_place_is_named(wanted, says):
    assert says in misfit(wanted, {"a": {"CPU": 4}, "b": {"CPU": 2}})


def test_what_is_sent_to_a_node_without_it(script, tmp_path, monkeypatch):
    path = script("import helper, os\n", "code/train.py")
    for name in ("code/helper.py", "code/data.csv", "code/.hidden", ".git/config", "env/pyvenv.cfg", "env/x.py"):
        script("x = 1\n", name)
    monkeypatch.chdir(tmp_path)
    files = WorkingDir.of(Path("code/train.py"))
    assert sorted(map(os.path.basename, files.digests())) == ["helper.py", "train.py"]
    assert files.relative == os.path.join("code", "train.py")
    with zipfile.ZipFile(io.BytesIO(files.package())) as package:
        assert package.namelist() == ["code/data.csv", "code/helper.py", "code/train.py"]
    monkeypatch.setattr(working_dir, "_LARGEST", 5)
    monkeypatch.chdir(tmp_path / "env")
    files = WorkingDir.of(path)
    assert (files.directory, files.relative) == (path.parent, "train.py")
    with pytest.raises(LaunchError, match="is not on all nodes and has more than"):
        files.package()


@pytest.fixture
def runner(monkeypatch):
    """An actor of a task, in this process."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = TaskRunner()
    yield found
    found.close(DEADLINE)
    if found._port:
        found._port.close()


def told(runner, path):
    """Starts a script in an actor; returns its number."""
    commands = Commands(Program(Path(path), ()))
    return runner.start(letter(commands.of(W0, Cluster({"worker": ("127.0.0.1:2222",)})), job_credentials()))


def heard(output):
    marks, shown = Marks(W0), b""
    for stream, data in output:
        shown += marks.feed(data) if stream == "stderr" else data
    return marks.code, shown.decode()


def test_an_actor_runs_what_was_sent_to_it_again_and_again(runner, script, tmp_path, monkeypatch):
    text = "import helper, os, sys\nprint(os.getcwd(), helper.x, open('data.csv').read())\nsys.exit(3)"
    script(text, "code/train.py")
    script("x = 7", "code/helper.py")
    script("1,2", "code/data.csv")
    monkeypatch.chdir(tmp_path / "code")
    runner.unpack(WorkingDir.of(Path("train.py")).package())
    assert runner.version(DEADLINE) == (penstock.__version__, "")
    for _ in range(2):
        told(runner, "train.py")
        code, shown = heard(runner.output())
        folder, *rest = shown.split()
        assert (code, rest) == (3, ["7", "1,2"]) and folder != str(tmp_path / "code")
    runner.close(DEADLINE)
    assert not os.path.exists(folder)


@pytest.mark.parametrize("how", ["is asked", "is closed", "is gone"])
def test_a_task_ends_with_its_children_when_its_actor(runner, script, how):
    ignored = "" if how == "is asked" else "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    text = "child = subprocess.Popen(['sleep', '600'])\nprint(os.getpid(), child.pid, flush=True)\nwait()"
    number = told(runner, script(TASK + ignored + text))
    output = runner.output()
    shown = b""
    while b"waiting" not in shown:
        stream, data = next(output)
        shown += data if stream == "stdout" else b""
    if how == "is gone":  # as when Ray kills it: its pipes are closed
        output.close()
    else:
        act = (lambda: runner.tell(number, TERMINATE)) if how == "is asked" else (lambda: runner.close(DEADLINE))
        thread = threading.Thread(target=act)
        thread.start()
        assert heard(output)[0] == (-signal.SIGTERM if how == "is asked" else -signal.SIGKILL)
        thread.join(DEADLINE)
        runner.tell(number, TERMINATE)  # has no effect any more
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid.decode()}") for pid in shown.split()[:2]))


def test_an_actor_keeps_its_port_from_others(runner):
    port = runner.reserve("127.0.0.1", 0)
    with socket.socket() as server:  # as servers of tasks do
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        other = TaskRunner()
        assert other.reserve("127.0.0.1", number) != number
        if other._port:
            other._port.close()


def refused(script, options, **environment):
    """What is said about a launch that does not begin."""
    command = [sys.executable, "-m", "penstock", "launch", "--on", "ray", *options, str(script("print('ran')"))]
    base = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, [environment.pop("before", ""), PATHS]))}
    environment = {**base, **paths, "COLUMNS": "200", **environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONG)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    return done.stderr


def test_without_ray_the_error_says_how_to_get_it(script, tmp_path):
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\")")
    assert "pip install 'penstock[ray]'" in refused(script, [], before=str(tmp_path))


def test_an_address_without_a_cluster(script):
    with not_listening() as nobody:
        assert f"no Ray cluster answers at '{nobody}'" in refused(script, ["--address", nobody])
        assert f"no Ray cluster answers at '{nobody}'" in refused(script, [], RAY_ADDRESS=nobody)
    assert "is that of Ray's client server" in refused(script, ["--address", "ray://127.0.0.1:10001"])
    assert "--address is for --on ray" in refused(script, ["--on", "local", "--address", nobody])
    assert "--wait must be positive, received 0" in refused(script, ["--wait", "0"])
    assert "--base-port has no meaning with --on ray" in refused(script, ["--base-port", "3000"])


def finish(process):
    """Exit code, lines on stdout, stderr."""
    out, err = process.communicate(timeout=LONG)
    return process.returncode, out.splitlines(), err


@needs_ray
def test_a_cluster_on_this_machine_ends_with_the_job(launch, tmp_path):
    text = """
print(me, os.getcwd(), sorted(os.listdir(os.environ["PENSTOCK_CREDENTIALS"])), os.environ["OWN"], flush=True)
if me == "ps": wait()
begin()
if tell("failed"): os.kill(os.getpid(), signal.SIGKILL)
"""
    env = {"HOME": str(tmp_path), "OWN": "7", "TMPDIR": "/tmp"}  # the path of a socket must be short
    code, lines, err = finish(launch(text, options=["--on", "ray", "--workers", 1], env=env))
    assert code == 0, err
    files = ["ca.pem", "task.key", "task.pem", "token"]
    assert lines.count(f"[worker:0] worker {os.getcwd()} {files} 7") == 2
    assert f"[ps:0] ps {os.getcwd()} {files} 7" in lines
    assert "worker:0 was ended by SIGKILL: restart 1 of 3 in 1 s" in err and "moved" not in err
    assert not (tmp_path / ".ray").exists()
    # The fixture sees that no process is left.


@needs_ray
def test_a_task_that_cannot_join_gives_its_place_back(launch, tmp_path):
    text = "begin()\nif me == 'ps': wait()\nprint('runs', flush=True)\nhear('over')"
    here = Path("/tmp")  # the path of a socket must be short
    options = ["--on", "ray", "--cpus", 0.4, "--kill-after", 0.5, "--log-dir", tmp_path / "logs"]
    process = launch(text, options=options, env={"HOME": str(tmp_path), "TMPDIR": str(here)})
    runs(tmp_path, "runs")
    said = ""
    for count in (2, 4):  # there is room for two more
        found = scale(here, process.pid, "--workers", 4)
        assert found.returncode == 1
        # It is not a real parameter server.
        assert "the job keeps 1 parameter server and 2 workers: No answer from" in found.stderr
        while said.count("has left") < count:
            said += process.stderr.readline()
    (tmp_path / "over.told").touch()
    code, _, err = finish(process)
    assert code == 0, err
    assert len(re.findall(r"Ray: worker:2 on node \S+, at \S+; worker:3 on node", said)) == 2
    assert "failed once" not in err


@needs_ray
@pytest.mark.long
@pytest.mark.parametrize("victim", ["ps:0", "worker:0"])
@pytest.mark.timeout(500)
def test_digits_are_learned_although_a_node_dies(ray_nodes, launch_on_ray, tmp_path, victim):
    args = ["--steps=2000", f"--train_dir={tmp_path / 'digits'}"]
    process = launch_on_ray(ROOT / "examples" / "digits_cluster.py", *args)
    until(process, "step  2")
    said = process.stderr.readline() + process.stderr.readline()
    host = re.search(rf"{victim} at (\S+):\d+", said)[1]
    ray_nodes.kill_node(host)
    code, lines, err = finish(process)
    assert code == 0, err
    assert f"{victim} was lost with its actor on node {host}: restart 1 of 3" in err
    assert f"moving {victim} to node" in err and "moved to another address" in err
    assert any(line.startswith("[worker:0] 2000 steps in") for line in lines)
    assert latest_checkpoint(str(tmp_path / "digits")).endswith("model.ckpt-2000")
    assert groups_left(ray_nodes) == set()


@needs_ray
@pytest.mark.long
@pytest.mark.timeout(500)
def test_embeddings_are_learned_although_a_node_dies(ray_nodes, launch_on_ray, tmp_path):
    options = ["--ps", 2, "--workers", 2, "--chief", "--evaluator", "--cpus", "0.5"]
    process = launch_on_ray(
        ROOT / "examples" / "ps_custom_loop.py", options=options, env={"TRAIN_DIR": str(tmp_path / "heroes")}
    )
    until(process, "part_1")
    ray_nodes.kill_node(re.search(r"ps:1 at (\S+):\d+", process.stderr.readline())[1])
    code, lines, err = finish(process)
    assert code == 0, err
    assert "ps:1 was lost with its actor" in err and "[chief:0] epoch 4: accuracy" in "\n".join(lines)
    steps = load_checkpoint(str(tmp_path / "heroes")).get_tensor("optimizer/0/.ATTRIBUTES/VARIABLE_VALUE")
    assert steps == 80


@needs_ray
@pytest.mark.long
def test_too_few_resources(ray_nodes, launch_on_ray):
    code, lines, err = finish(launch_on_ray("print('ran')", options=["--wait", 3, "--workers", 9]))
    assert (code, lines) == (2, [])
    assert "found no place on the Ray cluster within 3 s: worker:5 needs 1 CPU, and there is no room for it" in err
    code, lines, err = finish(launch_on_ray("print('ran')", options=["--wait", 3, "--gpus", "worker=1"]))
    assert (code, lines) == (2, [])
    assert "worker:0 needs 1 CPU, 1 GPU, and no node has that. The nodes have" in err
    process = launch_on_ray("print('ran')", options=["--wait", 100, "--workers", 9])
    wait_until(lambda: groups_left(ray_nodes))
    process.send_signal(signal.SIGINT)
    assert finish(process)[0] == 130
    assert groups_left(ray_nodes) == set()


@needs_ray
@pytest.mark.long
def test_a_node_with_another_penstock_is_named(ray_nodes, launch_on_ray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # tasks would find a penstock here
    venv.create(tmp_path / "env")
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    spec = importlib.util.find_spec("ray")
    (packages / "others.pth").write_text(str(Path(spec.origin).parents[1]))
    for host in NODES:
        ray_nodes.kill_node(host)
    try:
        ray_nodes.start_node(NODES[0], str(tmp_path / "env" / "bin" / "python"))
        code, _, err = finish(launch_on_ray("print('ran')", options=["--workers", 1]))
        assert code == 2
        assert f"node {NODES[0]} cannot import penstock ({tmp_path}/env/bin/python: ModuleNotFoundError" in err
        (packages / "penstock").mkdir()
        (packages / "penstock" / "__init__.py").write_text("__version__ = '0.0.7'")
        code, _, err = finish(launch_on_ray("print('ran')", options=["--workers", 1]))
        assert code == 2
        assert f"node {NODES[0]} has penstock 0.0.7, and the launcher {penstock.__version__}" in err
    finally:
        ray_nodes.kill_node(NODES[0])
    assert groups_left(ray_nodes) == set()


@needs_ray
@pytest.mark.long
@pytest.mark.skipif(not can_hide(), reason="this user cannot mount anything: unshare --mount")
def test_a_node_without_the_files_gets_them(ray_nodes, launch_on_ray, script, tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    script("x = 7", "code/helper.py")
    path = script("import helper, os\nprint(os.getcwd(), helper.x, open('data.csv').read())", "code/train.py")
    script("1,2", "code/data.csv")
    monkeypatch.chdir(path.parent)
    for host in NODES:
        ray_nodes.kill_node(host)
    try:
        ray_nodes.start_node(NODES[0], hidden=path.parent)
        code, (line,), err = finish(launch_on_ray(path, options=["--workers", 1, "--ps", 0]))
    finally:
        ray_nodes.kill_node(NODES[0])
    assert code == 0, err
    folder = re.fullmatch(r"\[worker:0\] (\S+) 7 1,2", line)[1]
    assert folder != str(path.parent) and not os.path.exists(folder)


@needs_ray
@pytest.mark.long
def test_a_node_that_vanishes_during_the_start_is_named(ray_nodes, launch_on_ray):
    # The launcher waits for a third place, and for those on this node then.
    process = launch_on_ray("print('ran')", options=["--workers", 6, "--wait", 40])
    wait_until(lambda: groups_left(ray_nodes))
    ray_nodes.kill_node(NODES[2])
    code, lines, err = finish(process)
    assert (code, lines) == (2, [])
    assert f"node {NODES[2]} vanished; worker:3 needs 1 CPU" in err
    assert groups_left(ray_nodes) == set()


@needs_ray
@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_task_outlives_its_launcher(ray_nodes, launch_on_ray, how):
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsubprocess.Popen(['sleep', '600'])\nbegin()\nwait()"
    process = launch_on_ray(text, options=["--kill-after", 1])
    for _ in range(3):
        until(process, "waiting")
    process.send_signal(how)
    code, _, err = finish(process)
    assert code == (130 if how == signal.SIGINT else -signal.SIGKILL), err
    wait_until(lambda: ray_nodes.tasks() == [] and groups_left(ray_nodes) == set())
