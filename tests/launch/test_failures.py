"""Messages of a launcher about failed tasks, scripts that are not cluster programs, and the addresses of its tasks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launch.launching import DEADLINE, ROOT, finish, wait_until

from penstock.launch import running
from penstock.launch.cluster import Task
from penstock.launch.job import Finish, Job, Policy, Say, Start, Terminate
from penstock.launch.output import LastError

PS, W0, W1 = Task("ps", 0), Task("worker", 0), Task("worker", 1)
MISTAKE, LOST = "NameError: name 'x' is not defined", "penstock.errors.UnavailableError: /job:ps/task:0 is gone"


@pytest.mark.parametrize(
    ("code", "error", "under_way", "restarted"),
    [
        (1, MISTAKE, False, False),
        (3, "", False, False),
        (1, MISTAKE, True, True),
        # A fault from outside, or of another task, may not occur the next time.
        (-signal.SIGKILL, "", False, True),
        (1, LOST, False, True),
    ],
)
def test_a_task_that_fails_before_its_first_step_is_not_restarted(code, error, under_way, restarted):
    job = Job([PS, W0], Policy())
    job.start()
    if under_way:
        job.under_way(W0)
    asked = job.ended(W0, code, 1.0, error)
    assert (Terminate(PS) in asked, job.stopping) == (not restarted, not restarted)
    if not restarted:
        assert "before its first step: it is not restarted" in asked[0].text and error in asked[0].text


def said(instructions):
    return [each.text for each in instructions if isinstance(each, Say)]


def test_the_last_lines_name_all_that_failed():
    job = Job([PS, W0, W1], Policy(max_restarts=5))
    job.start()
    job.under_way(W1)
    boom = "ValueError: boom"
    for now, code, error in ((1, 1, boom), (10, -signal.SIGKILL, "KeyError: of before"), (20, 1, boom)):
        job.ended(W1, code, now, error)
        assert job.due(now + 9) == [Start(W1, job._restarts[W1])]
    assert said(job.ended(W1, 0, 40)) == ["worker:1 is done"]
    job.ended(W0, 0, 41)
    told = "exited with code 1 (ValueError: boom) (2 times), was ended by SIGKILL (once)"
    last = job.ended(PS, -signal.SIGTERM, 42)
    assert (said(last), last[-1]) == ([f"worker:1 failed 3 times: {told}"], Finish(0))


def test_what_fails_while_the_job_is_stopped_is_named_unless_others_are_the_cause():
    job = Job([PS, W0, W1], Policy())
    job.start()
    job.ended(W0, 1, 1, MISTAKE)
    job.ended(W1, 1, 2, MISTAKE)
    last = said(job.ended(PS, 1, 3, LOST))
    assert last == [f"worker:{index} failed once: exited with code 1 ({MISTAKE})" for index in (0, 1)]


def test_the_last_line_of_a_traceback_is_found():
    found = LastError()
    first = [b"Traceback (most recent call last):", b'  File "a.py", line 1, in f', b"    g()", b"KeyError: 'a'"]
    found.feed([b"step 1", *first[:2]])
    assert found.text == ""
    found.feed(first[2:])
    assert found.text == "KeyError: 'a'"
    found.feed([b"", b"During handling of the above exception, another one occurred:", b""])
    found.feed([*first[:3], b"a.B: \xff\x1b[2J", b"C"])
    assert found.text == "a.B: \ufffd?[2J"


def test_a_task_that_fails_before_its_first_step_shows_its_error_once(launch):
    code, _, err = finish(launch("if me == 'ps': wait()\nif index == 1: no_such_name\nwait()"))
    assert code == 1
    assert err.count("[worker:1] NameError: name 'no_such_name' is not defined\n") == err.count("Traceback") == 1
    assert "before its first step: it is not restarted" in err
    assert err.splitlines()[-2] == (
        "[launch] worker:1 failed once: exited with code 1 (NameError: name 'no_such_name' is not defined)"
    )


TRAINING = """
import tensorflow as tf
x = tf.placeholder(tf.float32, [None])
total = tf.Variable([0.0])
train = total.assign_add(x)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in range(4):
        session.run(train, {x: [1.0, 2.0] if step == int(sys.argv[1]) and tell("wrong") else [1.0]})
print("trained")
"""


@pytest.mark.parametrize(("step", "restarted"), [(0, False), (3, True)])
def test_a_session_tells_that_its_first_step_is_over(launch, step, restarted):
    code, lines, err = finish(launch(TRAINING, str(step), options=["--ps", 0, "--workers", 1]))
    assert (code, lines) == ((0, ["[worker:0] trained"]) if restarted else (1, [])), err
    assert ("restart 1 of 3" in err, "before its first step" in err) == (restarted, not restarted), err
    assert "[launch] worker:0 failed once: exited with code 1 (penstock.errors.InvalidArgumentError" in err


def test_a_script_that_is_no_cluster_program_is_told_from_one(script, tmp_path):
    warned = []
    for name, text in (
        ("alone.py", "print('ran')"),
        ("server.py", "def f(tf): return tf.train.Server"),
        ("config.py", "import os\nos.environ['TF_CONFIG']"),
        ("far.py", "import server"),
    ):
        command = [sys.executable, "-m", "penstock", "launch", "--workers", "1", str(script(text, name))]
        paths = os.pathsep.join([str(ROOT), *sys.path])
        environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": ""}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE)
        assert done.returncode == 0, done.stderr
        warned += [name] * ("each of the 2 tasks runs all of it by itself. `penstock run " in done.stderr)
    assert warned == ["alone.py"]


def test_addresses_are_printed_and_status_finds_the_job(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    text = "if me == 'ps': tell('up')\nhear('up'); hear('seen')"
    process = launch(text, env={"XDG_RUNTIME_DIR": str(tmp_path)}, options=["--workers", 1])
    line = process.stderr.readline()
    found = re.match(r"\[launch\] ps:0 at (127.0.0.1:\d+), worker:0 at (127.0.0.1:\d+): told by", line)
    assert found, line
    folder = tmp_path / "penstock"
    (file,) = wait_until(lambda: list(folder.glob("*.json")))
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    # The process is gone, another process has its number now, or the file is not a launcher's.
    for name, pid in (("1.json", 2**22 + 1), ("2.json", os.getpid())):
        (folder / name).write_text(json.dumps({"pid": pid, "started": "7", "script": "old.py", "addresses": {}}))
    (folder / "3.json").write_text("[]")
    (job,) = running.running_jobs()
    assert (job.pid, Path(job.script).name) == (process.pid, "program.py")
    assert job.addresses == {"ps:0": found[1], "worker:0": found[2]}
    assert sorted(path.name for path in folder.glob("*.json")) == sorted(["3.json", file.name])
    (tmp_path / "seen.told").touch()
    assert finish(process)[0] == 0
    assert running.running_jobs() == [] and not file.exists()
    # A file that others may write to is not trusted.
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="not a directory of this user alone"), running.announced("a.py", {}):
        pass
