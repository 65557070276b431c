"""Tasks in a Slurm allocation: commands and errors, and runs on a real Slurm of three nodes where one is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from launch.launching import DEADLINE, PATHS, ROOT, finish, wait_until
from launch.slurm_cluster import NODES, needs_slurm

from penstock.launch import running
from penstock.launch.cluster import LaunchError, Size, Task
from penstock.launch.engine import Commands, Request
from penstock.launch.events import Events, Output
from penstock.launch.program import Program
from penstock.launch.remote import Marks
from penstock.launch.resources import Needs, Resources
from penstock.launch.slurm import SlurmEngine, _Life, srun
from penstock.launch.slurm_nodes import Node, placed
from penstock.launch.slurm_submit import batch_script
from penstock.train.checkpoint_state import latest_checkpoint
from penstock.wire.credentials import Credentials

PS, W0, W1 = Task("ps", 0), Task("worker", 0), Task("worker", 1)


def test_the_command_of_a_step():
    shared = srun("7", "n3", PS, Resources())
    assert shared[:6] == ["srun", "--jobid=7", "--nodes=1", "--ntasks=1", "--nodelist=n3", "--job-name=ps:0"]
    assert "--overlap" in shared and "--exact" not in shared
    own = srun("7", "n3", W0, Resources(2, 1, 3 << 30))
    assert {"--exact", "--cpus-per-task=2", "--gpus-per-task=1", "--mem=3072M"} < set(own) and "--overlap" not in own
    assert own[-3:] == [sys.executable, "-m", "penstock.launch.remote"]


def test_tasks_are_spread_over_the_nodes_with_room():
    nodes = [Node("a", "a", 4, 8 << 30), Node("b", "b", 2, 8 << 30)]
    assert placed([PS, W0, W1], Needs.parse(), nodes) == {PS: "a", W0: "b", W1: "a"}
    assert placed([PS, W0, W1], Needs.parse("ps=1,worker=3"), [*nodes[:1], Node("c", "c", 3)])[W1] == "a"
    # One that stays keeps its part.
    assert placed([W0], Needs.parse("2"), nodes, {PS: "b"}) == {PS: "b", W0: "a"}
    with pytest.raises(LaunchError, match=r"no room for worker:1: it needs 3 CPUs; .* a has 1 CPUs.* b has 2 CPUs"):
        placed([W0, W1], Needs.parse("3"), nodes)
    with pytest.raises(LaunchError, match="it needs 0 CPUs and 9216 MiB of memory"):
        placed([W0], Needs.parse(memory="9G"), nodes)
    with pytest.raises(LaunchError, match="no node is left"):
        placed([W0], Needs.parse(), [])


def test_tasks_that_join_get_places_and_ports():
    nodes = [Node("a", "10.0.0.1", 4, ports=(1, 2, 3)), Node("b", "10.0.0.2", 2, ports=(1,))]
    program = Commands(Program(Path("train.py"), ()))
    with Events() as events:
        engine = SlurmEngine("7", nodes, Request(Size(ps=1, workers=1), program, Needs.parse("2")), events)
        first = {"ps:0": "10.0.0.1:1", "worker:0": "10.0.0.2:1"}
        assert engine.cluster.places == first
        engine.resize(Size(ps=1, workers=2))
        assert engine.cluster.places == {**first, "worker:1": "10.0.0.1:2"}
        with pytest.raises(LaunchError, match=r"no room for worker:2: it needs 2 CPUs; .* a has 0 CPUs, b has 0 CPUs"):
            engine.resize(Size(ps=1, workers=3))
        assert engine.cluster.size == Size(ps=1, workers=2)
        engine.resize(Size(ps=1, workers=1))  # it does not run, so that its place is free
        engine.resize(Size(ps=2, workers=1))
        assert engine.cluster.places == {**first, "ps:1": "10.0.0.1:2"}
        engine.close()
    with Events() as events:
        engine = SlurmEngine("7", nodes[1:], Request(Size(ps=0, workers=1), program), events)
        with pytest.raises(LaunchError, match="node b has no port left for worker:1"):
            engine.resize(Size(ps=0, workers=2))
        assert engine.cluster.places == {"worker:0": "10.0.0.2:1"}
        engine.close()


def test_what_a_task_says_last_is_heard_and_what_srun_says_then_is_not():
    request = Request(Size(ps=0, workers=1), Commands(Program(Path("train.py"), ())))
    with Events() as events:
        engine = SlurmEngine("7", [Node("a", "10.0.0.1", 4, ports=(1,))], request, events)
        engine._lives[W0] = _Life("a", Marks(W0))
        marks = [f"\x1b]penstock {mark}\x07\n".encode() for mark in ("u", 1)]
        engine._heard(Output(W0, "stderr", marks[0] + b"ValueError: no\n" + marks[1] + b"srun: error: exit 1\n"))
        assert events.next(0.0) == [Output(W0, "stderr", b"ValueError: no\n")]
        engine.close()


def test_a_requeued_job_keeps_the_logs_of_its_earlier_lives(tmp_path):
    text = batch_script(["--on=slurm"], tmp_path, ["a b.py", "--x=$1"]).replace("exec ", "exec echo ")
    for count, logs in (("", tmp_path), ("0", tmp_path), ("2", tmp_path / "requeue-2")):
        environment = {**os.environ, "SLURM_RESTART_COUNT": count}
        done = subprocess.run(["sh"], input=text, env=environment, capture_output=True, text=True, timeout=DEADLINE)
        assert done.stdout.endswith(f"-m penstock launch --on=slurm --log-dir={logs} a b.py --x=$1\n"), done.stderr


def refused(script, options, **environment):
    """What is said about a launch that does not begin."""
    command = [sys.executable, "-m", "penstock", "launch", *options, str(script("print('ran')"))]
    base = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environment = {**base, "PYTHONPATH": PATHS, "COLUMNS": "200", **environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture
def some_slurm(tmp_path):
    """A PATH with commands of Slurm that are not there to be run."""
    for name in ("srun", "scontrol", "sbatch"):
        shutil.copy("/bin/false", tmp_path / name)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "outside of an allocation: SLURM_JOB_ID is not set. Do one of these"),
        (["--cpus", "worker=1.5"], "Slurm gives whole CPUs and GPUs, received --cpus worker=1.5"),
        (["--submit", "--nodes=3"], "sbatch refused the job"),
        (["--submit", "'"], "cannot be submitted with --submit ''': No closing quotation"),
    ],
)
def test_what_cannot_be_launched(script, some_slurm, tmp_path, options, says):
    assert says in refused(script, ["--on", "slurm", "--log-dir", str(tmp_path / "logs"), *options], PATH=some_slurm)


def test_without_slurm(script, tmp_path):
    says = refused(script, ["--on", "slurm"], PATH=str(tmp_path), SLURM_JOB_ID="7")
    assert "needs the command `srun`, which is not on this machine" in says
    assert "--submit is for --on slurm" in refused(script, ["--submit", ""])


def test_an_environment_that_describes_no_allocation(script, some_slurm):
    says = refused(script, ["--on", "slurm"], PATH=some_slurm, SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n[1")
    assert "does not describe the allocation 7" in says and "received 'n[1'" in says


# Stands in for srun: it runs the command here, except on a node that is noted as dead.
SRUN = """#!/bin/bash
for option in "$@"; do case $option in --nodelist=*) nodes=${option#*=};; esac; done
while [[ $1 == --* ]]; do shift; done
for node in ${nodes//,/ }; do
    export SLURMD_NODENAME=$node
    if [[ $* == *free_ports* ]]; then "$@"
    elif [[ -e HERE/$node.dead ]]; then
        echo "srun: error: Task launch for StepId=7.1 failed on node $node: Communication connection failure" >&2
        exit 233
    elif [[ -e HERE/$node.busy ]]; then
        echo "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)" >&2
        exec sleep 600
    else exec "$@"
    fi
done
"""


@pytest.fixture
def pretended(launch, tmp_path):
    """Launches with a stand-in for Slurm's commands: three nodes, all of them this machine."""
    here = tmp_path / "bin"
    here.mkdir()
    names = {"srun": SRUN.replace("HERE", str(here)), "scontrol": "#!/bin/sh\n"}
    names["scontrol"] += "".join(f"echo NodeName={node} Arch=any NodeAddr=127.0.0.1 Port=1\n" for node in NODES)
    for name, text in names.items():
        (here / name).write_text(text)
        (here / name).chmod(0o755)
    allocated = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[0-2]", "SLURM_JOB_CPUS_PER_NODE": "4(x3)"}
    environment = {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(tmp_path), **allocated}

    def start(text, options=(), **nodes):
        for state, named in nodes.items():
            for node in named:
                (here / f"{node}.{state}").touch()
        return launch(text, options=["--on", "slurm", *options], env=environment)

    return start


def test_a_node_that_vanishes_during_the_start_is_replaced(pretended, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    text = """
print(me, index, os.environ["SLURMD_NODENAME"], flush=True)
if me == "ps": wait()
if index == 0: tell("up")
begin(); hear("seen")
"""
    process = pretended(text, dead=["n1"])
    said = ""
    while "moved to another address" not in said:  # the others end when they are told to
        said += process.stderr.readline()
    wait_until((tmp_path / "up.told").exists)
    (job,) = running.running_jobs()
    Credentials.load(job.credentials)
    (tmp_path / "seen.told").touch()
    code, lines, err = finish(process)
    err = said + err
    assert code == 0, err
    assert "[worker:0] worker 0 n0" in lines and not any("n1" in line for line in lines)
    assert "node n1 is lost: srun: error: Task launch for StepId=7.1 failed on node n1" in err
    assert f"moving worker:0 to n0, at {job.addresses['worker:0']}" in err
    assert "worker:0 moved to another address: restarting ps:0, worker:1, which must learn it" in err
    assert "failed" not in err.replace("failed on node n1", "")
    assert not os.path.exists(job.credentials)


def test_when_all_nodes_vanish_the_job_ends(pretended):
    code, lines, err = finish(pretended("print('ran')", dead=NODES))
    assert code == 126 and lines == []
    assert "no node is left" in err and "failed on node n0" in err


def test_a_step_that_is_killed_is_restarted_where_it_was(pretended):
    text = """
print(me, index, os.environ["SLURMD_NODENAME"], flush=True)
if me == "ps": wait()
if index and tell("killed"):
    import shutil
    shutil.rmtree(os.environ["PENSTOCK_CREDENTIALS"])  # the program that would remove it is killed:
    os.kill(os.getppid(), signal.SIGKILL)  # as the system does that is out of memory
"""
    code, lines, err = finish(pretended(text))
    assert code == 0, err
    assert "[worker:1] worker 1 n2" in lines and "is lost" not in err
    assert "worker:1 was ended by SIGKILL: restart 1 of 3 in 1 s" in err


def test_a_job_is_stopped_while_a_task_waits_for_its_node(pretended):
    process = pretended("wait()", options=["--kill-after", 0.5], busy=["n2"])
    for _ in range(2):
        assert process.stdout.readline().endswith("waiting\n")
    process.terminate()
    code, _, err = finish(process)
    assert code == 143 and re.search(r"still running after 0\.5 s: (ps:0, )?(worker:0, )?worker:1\n", err), err


def test_tasks_that_do_not_stop_are_killed(pretended):
    process = pretended("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwait()", options=["--kill-after", 0.5])
    for _ in range(3):
        assert process.stdout.readline().endswith("waiting\n")
    process.terminate()
    code, _, err = finish(process)
    assert code == 143 and "still running after 0.5 s: ps:0, worker:0, worker:1" in err


def test_tasks_end_with_a_launcher_that_is_killed(pretended, tmp_path):
    process = pretended("wait()")
    for _ in range(3):
        assert process.stdout.readline().endswith("waiting\n")
    process.kill()
    process.wait(DEADLINE)  # the fixture sees that no process is left
    (file,) = (tmp_path / "penstock").glob("*.json")
    shutil.rmtree(json.loads(file.read_text())["credentials"])


@needs_slurm
def test_a_job_on_three_nodes(launch_on_slurm, tmp_path):
    text = """
folder = os.environ["PENSTOCK_CREDENTIALS"]
print(me, index, os.environ["SLURMD_NODENAME"], oct(os.stat(folder).st_mode)[-3:], folder, flush=True)
if me == "ps": wait()
begin()
if index == 1 and tell("failed"):
    print("partial", end="")
    raise ValueError("no data")
"""
    code, lines, err = finish(launch_on_slurm(text, options=["--log-dir", tmp_path / "logs"]))
    assert code == 0, err
    found = [re.match(r"\[(\S+):(\d)\] \1 \2 (n\d) 700 (\S+)", line) for line in lines]
    places, folders = {each.groups()[:3] for each in found if each}, {each[4] for each in found if each}
    assert places == {("ps", "0", "n0"), ("worker", "0", "n1"), ("worker", "1", "n2")}  # also after the restart
    assert len(folders) == 4 and not any(map(os.path.exists, folders))
    assert "[worker:1] partial" in lines
    assert "worker:1 exited with code 1 (ValueError: no data): restart 1 of 3 in 1 s" in err
    assert "srun:" not in err
    log = (tmp_path / "logs" / "worker-1.log").read_text()
    assert "--- restart 1 ---" in log and "\x1b" not in log


@needs_slurm
@pytest.mark.long
def test_a_signal_ends_the_tasks_on_all_nodes(slurm, launch_on_slurm):
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsubprocess.Popen(['sleep', '600'])\nwait()"
    # Not as its child: salloc passes no signals on.
    process = launch_on_slurm(
        text, options=["--kill-after", 1], within=["salloc", "--quiet", "-N3", "sh", "-c", '"$@"; echo code $?', "-"]
    )
    for _ in range(3):
        assert process.stdout.readline().endswith("waiting\n")
    (pid,) = [pid for pid in _launchers() if _environment(pid).get("SLURM_CONF") == slurm.environment["SLURM_CONF"]]
    os.kill(pid, signal.SIGTERM)
    _, lines, err = finish(process)
    assert lines == ["code 143"], err
    assert "still running after 1 s: ps:0, worker:0, worker:1" in err


def _launchers():
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"\0penstock\0launch\0" in path.read_bytes() and b"python" in path.read_bytes().split(b"\0")[0]:
                yield int(path.parent.name)
        except OSError:
            pass


def _environment(pid):
    return dict(item.split("=", 1) for item in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in item)


@needs_slurm
@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--cpus", "worker=5"], "no room for worker:0: it needs 5 CPUs"),
        (["--gpus", "worker=1"], "cannot be started on node n"),
        (["--base-port", "TAKEN"], "is taken: give another --base-port"),
    ],
)
def test_too_few_resources(launch_on_slurm, options, says):
    within = ("salloc", "--quiet", "--no-kill", "--nodes=3", "--ntasks=3", "--cpus-per-task=4")
    with socket.create_server(("", 0)) as taken:
        options = [str(taken.getsockname()[1]) if option == "TAKEN" else option for option in options]
        code, lines, err = finish(launch_on_slurm("print('ran')\nwait()", options=options, within=within))
    assert code != 0 and says in err, err
    assert "[worker:0] ran" not in lines


@needs_slurm
@pytest.mark.long
def test_tasks_with_cpus_and_memory_of_their_own_run_at_the_same_time(launch_on_slurm):
    text = (
        "tell(f'{me}{index}'); hear('ps0'); hear('worker0'); hear('worker1')\nprint(os.environ['SLURM_CPUS_ON_NODE'])"
    )
    within = ("salloc", "--quiet", "--no-kill", "--nodes=1", "--ntasks=1", "--cpus-per-task=4", "--mem=2000")
    options = ["--cpus", "ps=2,worker=1", "--memory", "ps=1000M,worker=500M"]
    code, lines, err = finish(launch_on_slurm(text, options=options, within=within))
    assert (code, lines) == (0, ["[ps:0] 2", "[worker:0] 1", "[worker:1] 1"]), err


@needs_slurm
@pytest.mark.long
def test_a_node_that_is_dead_at_the_start_is_named(slurm, launch_on_slurm):
    # The node dies when the allocation has it, and before the launcher starts.
    wait = (
        "sh",
        "-c",
        f'touch {slurm.folder}/has; while ! [ -e {slurm.folder}/go ]; do sleep 0.1; done; exec "$@"',
        "-",
    )
    process = launch_on_slurm("print('ran')", within=("salloc", "--quiet", "--no-kill", "--nodes=3", *wait))
    wait_until((slurm.folder / "has").exists)
    slurm.kill_node("n1")
    (slurm.folder / "go").touch()
    code, lines, err = finish(process)
    for name in ("has", "go"):
        (slurm.folder / name).unlink()
    assert (code, lines) == (2, []) and "failed on node n1" in err, err


@needs_slurm
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("node", ["n0", "n2"], ids=["of the parameter server", "of a worker"])
def test_the_digits_are_trained_though_a_node_dies(slurm, launch_on_slurm, tmp_path, node):
    steps, there = 400, tmp_path / "train"
    arguments = [f"--steps={steps}", f"--train_dir={there}"]
    process = launch_on_slurm(ROOT / "examples" / "digits_cluster.py", *arguments)
    while "step " not in process.stdout.readline():
        assert process.poll() is None
    slurm.kill_node(node)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert f"{steps} steps in" in out and latest_checkpoint(there).endswith(f"-{steps}")
    assert f"was lost with node {node}: restart 1 of 3" in err and "moved to another address" in err


@needs_slurm
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not installed")
def test_embeddings_are_trained_though_a_node_dies(slurm, launch_on_slurm, tmp_path):
    options = ["--ps", 2, "--workers", 2, "--chief", "--evaluator"]
    script = ROOT / "examples" / "ps_custom_loop.py"
    process = launch_on_slurm(script, options=options, env={"TRAIN_DIR": str(tmp_path / "train")})
    while "epoch 1:" not in process.stdout.readline():
        assert process.poll() is None
    slurm.kill_node("n1")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "epoch 4: accuracy" in out and "trained, final loss" in out
    assert "was lost with node n1" in err


@needs_slurm
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_submitted_job_goes_on_after_it_was_requeued(slurm, launch, tmp_path):
    steps, logs, there = 300, tmp_path / "logs", tmp_path / "train"
    options = ["--on", "slurm", "--submit", "--nodes=3", "--log-dir", logs]
    script, arguments = ROOT / "examples" / "digits_cluster.py", [f"--steps={steps}", f"--train_dir={there}"]
    code, _, err = finish(launch(script, *arguments, options=options, env=slurm.environment))
    assert code == 0, err
    job = re.search(r"submitted as Slurm job (\d+); its output goes to (\S+)/launch.log", err)
    assert job and job[2] == str(logs), err

    def wrote(text, name="launch.log"):
        return (logs / name).exists() and text in (logs / name).read_text()

    wait_until(lambda: wrote("step   "))
    slurm.run("scontrol", "requeue", job[1])
    # A requeued job waits some minutes before it may start again.
    wait_until(lambda: slurm.run("squeue", "--noheader", "--format=%T", "--job", job[1]) == "PENDING\n")
    slurm.run("scontrol", "update", f"jobid={job[1]}", "starttime=now")
    wait_until(lambda: slurm.run("squeue", "--noheader", "--format=%T", "--job", job[1]) == "", seconds=240)
    assert wrote("SIGTERM: stopping all tasks") and wrote("Restoring parameters from")
    assert wrote(f"{steps} steps in", "requeue-1/worker-0.log") and wrote("step   ", "worker-0.log")
    assert latest_checkpoint(there).endswith(f"-{steps}")
