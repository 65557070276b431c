"""`penstock scale`: workers and parameter servers join and leave a job while it trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from launch.elastic_training import PROGRAM, alone, check_losses, run_sequence, runs, scale, undisturbed
from launch.launching import DEADLINE, PATHS, finish

from penstock.launch.cluster import Cluster, Size, Task
from penstock.launch.engine import Commands
from penstock.launch.job import Finish, Job, Kill, Policy, Say, Start, Terminate
from penstock.launch.program import Program

PS0, W0, W1, W2 = Task("ps", 0), Task("worker", 0), Task("worker", 1), Task("worker", 2)
pytestmark = pytest.mark.timeout(200)


# The job decides


def begun() -> Job:
    job = Job([PS0, W0, W1], Policy(kill_after=5))
    job.start()
    for task in (PS0, W0, W1):
        job.under_way(task, serves=task is PS0)
    return job


def test_a_worker_joins_and_is_waited_for() -> None:
    job = begun()
    assert job.join([W2]) == [Start(W2, 0)]
    assert not job.is_under_way(W2)
    job.under_way(W2)
    job.joined([W2])
    job.ended(W0, 0, now=1.0)
    job.ended(W1, 0, now=2.0)
    assert job.ended(W2, 0, now=3.0) == [Say("worker:2 is done"), Terminate(PS0)]
    assert job.ended(PS0, -15, now=4.0) == [Finish(0)]


def test_one_that_ends_before_it_joined_is_no_failure() -> None:
    job = begun()
    job.join([W2])
    assert job.ended(W2, 3, now=1.0, error="ValueError: no") == [
        Say("worker:2 exited with code 3 (ValueError: no) before it could join")
    ]
    assert job.deadline is None  # no restart
    assert job.join([W2]) == [Start(W2, 1)]


def test_one_that_leaves_ends_by_itself_or_is_ended() -> None:
    job = begun()
    assert job.leave([W1], now=10.0) == []
    assert job.deadline == 15.0
    assert job.due(now=15.0) == [Terminate(W1)]
    assert job.due(now=20.0) == [Kill(W1)]
    assert job.ended(W1, -9, now=21.0) == [Say("worker:1 has left")]
    assert job.deadline is None
    job.ended(W0, 0, now=30.0)
    assert job.ended(PS0, -15, now=31.0) == [Finish(0)]


def test_the_job_does_not_wait_for_those_that_leave() -> None:
    job = begun()
    job.ended(W0, 0, now=1.0)
    assert job.leave([W1], now=2.0) == [Terminate(PS0), Terminate(W1)]


def test_one_that_ends_while_it_becomes_a_member_is_started_again() -> None:
    job = begun()
    job.join([W2])
    job.under_way(W2)
    job.ended(W2, -9, now=1.0)
    assert job.joined([W2]) == [Start(W2, 1)]
    job.ended(W0, 0, now=2.0)
    job.ended(W1, 0, now=3.0)
    assert Terminate(PS0) in job.ended(W2, 0, now=4.0)


def test_parameter_servers_that_leave_are_asked_at_once() -> None:
    job = begun()
    joined = Task("ps", 1)
    job.join([joined])
    job.under_way(joined, serves=True)
    job.joined([joined])
    assert job.leave([joined], now=1.0) == [Terminate(joined)]


def test_programs_are_told_of_the_first_parameter_servers() -> None:
    first = Cluster.at(Size(ps=1, workers=1), ["a", "b"])
    grown = first.resized(Size(ps=2, workers=2), ["a", "c", "b", "d"])
    assert grown.size == Size(ps=2, workers=2)
    assert grown.told_to(Task("worker", 1)).addresses == {"ps": ("a",), "worker": ("b", "d")}
    assert grown.told_to(Task("ps", 1)).addresses == {"ps": ("a", "c"), "worker": ("b", "d")}
    two = Cluster.at(Size(ps=2, workers=1), ["a", "c", "b"])
    fewer = two.resized(Size(ps=1, workers=1), ["a", "b"])
    assert fewer.told_to(W0).addresses == {"ps": ("a", "c"), "worker": ("b",)}
    moved = fewer.resized(Size(ps=1, workers=1), ["z", "b"])
    assert moved.told_to(W0).addresses == {"ps": ("z", "c"), "worker": ("b",)}


def test_the_record_has_the_addresses_that_members_have_now() -> None:
    home = ["/job:ps/replica:0/task:0", "", "w", "/job:ps/replica:0/task:1"]
    tasks = {"ps": {"0": "a", "1": "c"}, "worker": {"0": "b"}}
    record = {"version": 2, "tasks": tasks, "homes": [home], "left": []}
    commands = Commands(Program(PROGRAM, ()))
    first = Cluster.at(Size(ps=1, workers=1), ["a", "b"])
    assert commands.of(W0, first).membership == ""
    commands.record.update(record)
    # A node was lost, and a second worker is about to join.
    moved = first.resized(Size(ps=2, workers=2), ["a", "z", "y", "x"])
    found = commands.of(W0, moved)
    tasks = {"ps": {"0": "a", "1": "z"}, "worker": {"0": "y"}}
    assert json.loads(found.membership) == {**record, "tasks": tasks}
    assert json.loads(found.settings["TF_CONFIG"])["cluster"] == {"ps": ["a"], "worker": ["y", "x"]}


# The command


SERVES_NOTHING = """
begin()
if me == "ps":
    wait()
if index == 2:
    {joiner}
print("runs", flush=True)
hear("over")
"""


@pytest.mark.parametrize(
    ("joiner", "why"),
    [
        ("sys.exit(3)", "worker:2 ended before it could join"),
        ("wait()", "No answer from 127.0.0.1"),  # it joins, but the parameter server of this script is none
    ],
)
def test_a_job_that_cannot_be_scaled_goes_on(launch, tmp_path, joiner, why):
    text = SERVES_NOTHING.format(joiner=joiner)
    text = text.replace("begin()\n", "index == 2 or begin()\n") if "exit" in joiner else text
    process = launch(text, options=["--log-dir", tmp_path / "logs"])
    runs(tmp_path, "runs")
    found = scale(tmp_path, "--workers", 3)
    assert found.returncode == 1
    assert "from 1 parameter server and 2 workers to 1 parameter server and 3 workers" in found.stdout
    assert "the job keeps 1 parameter server and 2 workers: " in found.stderr and why in found.stderr
    assert scale(tmp_path, "--workers", 2).stdout == (
        "penstock scale: the job has 1 parameter server and 2 workers already\n"
    )
    (tmp_path / "over.told").touch()
    code, _, err = finish(process)
    assert code == 0, err
    assert "failed once" not in err
    assert not list((tmp_path / f"penstock-{os.getuid()}").iterdir())


def test_bad_requests(launch, tmp_path):
    found = scale(tmp_path, "--workers", 3)
    assert found.returncode == 2 and "no job of `penstock launch` is running here" in found.stderr
    process = launch("begin()\nprint('runs', flush=True)\nhear('over')", options=["--log-dir", tmp_path / "logs"])
    runs(tmp_path, "runs")
    socket = tmp_path / f"penstock-{os.getuid()}" / f"{process.pid}.sock"
    assert socket.stat().st_mode & 0o777 == 0o600
    for args, code, why in (
        ([], 2, "give --workers, --ps or both"),
        (["other.py", "--ps", 2], 2, "there is no job 'other.py': give one of"),
        (["--ps", 0], 1, "--ps must be at least 1, received 0"),
        (["--workers", 0], 1, "--workers must be at least 1, received 0"),
        ([process.pid, "--ps", -1], 1, "--ps must be at least 1, received -1"),
    ):
        found = scale(tmp_path, *args)
        assert (found.returncode, why in found.stderr) == (code, True), found.stderr
    (tmp_path / "over.told").touch()
    assert finish(process)[0] == 0


def test_the_launcher_is_killed_while_it_scales(launch, tmp_path):
    """All tasks end, those that were to join included, and the command says so; the fixture looks for what is left."""
    text = "if index < 2: begin()\nprint('runs', flush=True)\nhear('over')"
    process = launch(text, options=["--log-dir", tmp_path / "logs"])
    runs(tmp_path, "runs")
    command = [sys.executable, "-m", "penstock", "scale", "--workers", "3"]
    env = {**os.environ, "TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": "", "PYTHONPATH": PATHS}
    asking = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    runs(tmp_path, "runs", "worker-2")
    process.send_signal(signal.SIGKILL)
    _, err = asking.communicate(timeout=DEADLINE)
    assert asking.returncode == 1
    assert "does not answer: the launcher ended before it was done" in err
    process.wait(DEADLINE)
    assert scale(tmp_path, "--workers", 3).returncode == 2
    assert not list((tmp_path / f"penstock-{os.getuid()}").iterdir())  # what it left is removed


# Training


def test_synchronous_training_goes_on_as_if_undisturbed(launch, tmp_path):
    found = run_sequence(launch, tmp_path, [(2, 3), (1, 2)], sync=True)
    check_losses(found, alone(tmp_path, len(found)))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_longer_sequence(launch, tmp_path):
    found = run_sequence(launch, tmp_path, [(3, 6), (2, 3)], sync=True)
    check_losses(found, undisturbed(launch, tmp_path / "undisturbed", len(found)))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_asynchronous_training_goes_on(launch, tmp_path):
    run_sequence(launch, tmp_path, [(1, 6), (3, 6), (3, 3), (2, 3)], sync=False)
