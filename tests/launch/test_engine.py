"""The parts that all engines share: resources, events, and a job whose tasks move to other addresses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
from launch.launching import DEADLINE, PATHS, finish

from penstock.launch.cluster import LaunchError, Task
from penstock.launch.events import Events, Notice, Signal
from penstock.launch.job import Finish, Job, Kill, Policy, Say, Start, Terminate
from penstock.launch.resources import Needs, Resources

PS, W0, W1 = Task("ps", 0), Task("worker", 0), Task("worker", 1)


def test_resources_are_given_for_all_tasks_or_by_kind():
    needs = Needs.parse("2", "worker=1,chief=0.5", "ps=512M,worker=8GiB")
    assert needs.of(PS) == Resources(2, None, 512 << 20)
    assert needs.of(W1) == Resources(2, 1, 8 << 30)
    assert needs.of(Task("chief", 0)) == Resources(2, 0.5, None)
    assert needs.given == "--cpus 2 --gpus worker=1,chief=0.5 --memory ps=512M,worker=8GiB"
    assert Needs.parse().of(W0) == Resources()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cpus": "many"}, "--cpus takes numbers that are not negative, received 'many'"),
        ({"cpus": "worker=-1"}, "received '-1'"),
        ({"gpus": "master=1"}, "the kinds are ps, chief, worker, evaluator"),
        ({"gpus": "ps=1,ps=2"}, "each at most once"),
        ({"memory": "4"}, "--memory takes amounts such as 512M or 4G, received '4'"),
    ],
)
def test_resources_that_cannot_be_read(given, says):
    with pytest.raises(LaunchError, match=says):
        Needs.parse(**given)


def test_events_of_threads_and_signals_end_the_wait():
    with Events() as events, events.signals():
        threading.Timer(0.05, events.post, [Notice("from a thread")]).start()
        assert events.next(None) == [Notice("from a thread")]
        signal.raise_signal(signal.SIGTERM)
        found = events.next(None)
        while not found:  # the first wake-up may have been that of the post above
            found = events.next(None)
        assert found == [Signal(signal.SIGTERM)]
        assert events.next(0.0) == []


def test_a_task_that_moves_has_all_others_restarted():
    job = Job([PS, W0, W1], Policy(kill_after=5))
    job.start()
    assert isinstance(job.ended(PS, -9, 10.0, why="was lost with node n1")[0], Say)
    assert job.due(11.0) == [Start(PS, 1)]
    said, *asked = job.moved([PS], 11.0)
    assert said.text == "ps:0 moved to another address: restarting worker:0, worker:1, which must learn it"
    assert asked == [Terminate(W0), Terminate(W1)]
    assert job.moved([PS], 11.5) == []  # they are asked once
    # No code of theirs counts, and none of the restarts.
    assert job.ended(W0, 0, 12.0) == [Start(W0, 1)]
    assert job.deadline == 16.0
    assert job.due(16.0) == [Kill(W1)]
    assert job.ended(W1, -9, 16.5) == [Start(W1, 1)]
    assert (job.deadline, job.stopping) == (None, False)
    job.ended(W0, 0, 20.0)
    job.ended(W1, 0, 21.0)
    last = job.ended(PS, -15, 22.0)
    assert last == [Say("ps:0 failed once: was lost with node n1"), Finish(0)]


def test_a_task_that_waits_or_is_done_is_not_asked_when_another_moves():
    job = Job([PS, W0, W1], Policy())
    job.start()
    job.ended(W0, 0, 1.0)
    job.ended(W1, -9, 1.0)
    assert job.moved([PS], 1.5) == []
    job.stop(3, "", 2.0)
    assert job.moved([PS], 2.5) == []


def test_options_of_engines_are_the_same_on_this_machine(launch):
    options = ["--on", "local", "--workers", 1, "--ps", 0, "--cpus", "worker=1", "--memory", "1G"]
    code, lines, err = finish(launch("print(os.environ['PENSTOCK_LAUNCHED'])", options=options))
    assert (code, lines) == (0, ["[worker:0] 1"])
    assert "[launch] the tasks share this machine: --cpus worker=1 --memory 1G has no effect\n" in err


@pytest.mark.parametrize(
    ("options", "says"), [(["--on", "cloud"], "'cloud' is not one of"), (["--cpus", "x"], "--cpus takes numbers")]
)
def test_what_cannot_be_asked_for(script, options, says):
    command = [sys.executable, "-m", "penstock", "launch", *options, str(script("print('ran')"))]
    environment = {**os.environ, "PYTHONPATH": PATHS, "COLUMNS": "200"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr and "Traceback" not in done.stderr
