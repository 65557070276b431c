"""The program that runs a task on another machine: the letter that it gets, its marks, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from launch.launching import DEADLINE, PATHS

from penstock.launch.cluster import Cluster, Task
from penstock.launch.engine import Commands
from penstock.launch.events import UnderWay
from penstock.launch.program import Program
from penstock.launch.remote import COMMAND, Marks, job_credentials, letter, unpacked
from penstock.wire.credentials import Credentials, create_credentials

WORKER = Task("worker", 0)


@pytest.fixture
def start(script, tmp_path):
    started = []

    def run(text, credentials=(), record=()):
        commands = Commands(Program(script("import os, signal, sys, time\n" + text), ("--steps=1",)))
        commands.record.update(record)
        environment = {**os.environ, "PYTHONPATH": PATHS, "TMPDIR": str(tmp_path)}
        pipe = subprocess.PIPE
        process = subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
        started.append(process)
        process.stdin.write(letter(commands.of(WORKER, Cluster({"worker": ("10.0.0.7:2222",)})), dict(credentials)))
        process.stdin.flush()
        return process

    yield run
    for process in started:
        process.kill()
        process.wait(DEADLINE)
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def ended(process):
    """What the task printed, and what its marks say."""
    process.stdin.flush()  # it stays open: closing it would stop the task
    out, err = process.stdout.read(), process.stderr.read()
    marks = Marks(WORKER)
    return process.wait(DEADLINE), out, marks.feed(err) + marks.feed(b""), marks


def test_a_task_has_its_settings_and_credentials_and_leaves_none_of_them(start, tmp_path):
    text = """
folder = os.environ["PENSTOCK_CREDENTIALS"]
print([folder, sorted(os.listdir(folder)), os.stat(folder).st_mode, os.environ["TF_CONFIG"], sys.argv[1:]])
assert not any("BEGIN" in value for value in os.environ.values())
from penstock.wire.credentials import Credentials
Credentials.from_environment()
from penstock import progress
print("partial", end="", file=sys.stderr)
progress.under_way()
"""
    made = job_credentials()
    process = start(text, made)
    secret = made["token"].strip()
    assert secret not in Path(f"/proc/{process.pid}/cmdline").read_text()
    code, out, err, marks = ended(process)
    assert (code, err, marks.code, marks.under_way) == (0, b"partial", 0, UnderWay(WORKER))
    folder, names, mode, config, args = eval(out)
    assert stat.S_IMODE(mode) == 0o700 and names == ["ca.pem", "task.key", "task.pem", "token"]
    assert json.loads(config)["task"] == {"type": "worker", "index": 0} and args == ["--steps=1"]
    assert not os.path.exists(folder)
    assert os.listdir(tmp_path) == ["program.py"]


def test_a_task_finds_the_membership_record_of_its_job(start, tmp_path):
    text = """
from penstock.master.membership import load
print([load().version, load().address("/job:worker/task:0"), len(load().homes), os.environ["PENSTOCK_MEMBERSHIP"]])
"""
    homes = [["/job:ps/task:0", "", f"layer_{n}/weights", "/job:ps/task:1"] for n in range(20000)]
    record = {"version": 3, "tasks": {"worker": {"0": "moved"}}, "homes": homes, "left": []}
    code, out, err, _ = ended(start(text, record=record))
    assert code == 0, err
    *found, path = eval(out)
    assert found == [3, "10.0.0.7:2222", 20000] and not os.path.exists(path)


@pytest.mark.parametrize(
    ("text", "code", "exact"),
    [("sys.exit(3)", 3, 3), ("sys.exit(137)", 137, 137), ("os.kill(os.getpid(), signal.SIGKILL)", 137, -9)],
)
def test_exit_codes_and_signals_are_told_apart(start, text, code, exact):
    process = start(text)
    assert (process.wait(DEADLINE), ended(process)[3].code) == (code, exact)


@pytest.mark.parametrize("stop", ["the engine is gone", signal.SIGTERM])
def test_a_task_is_stopped_with_its_children(start, tmp_path, stop):
    text = "import subprocess\nsubprocess.Popen(['sleep', '600'])\nprint('up', flush=True)\ntime.sleep(600)"
    process = start(text, job_credentials())
    assert process.stdout.readline() == b"up\n"
    process.stdin.close() if stop == "the engine is gone" else process.send_signal(stop)
    assert process.stdout.read() == b""  # the child held it open
    marks = Marks(WORKER)
    marks.feed(process.stderr.read())
    assert (process.wait(DEADLINE), marks.code) == (128 + signal.SIGTERM, -signal.SIGTERM)
    assert os.listdir(tmp_path) == ["program.py"]


@pytest.mark.parametrize("is_killed", [True, False])
def test_what_a_killed_process_has_left_is_removed_by_the_next(start, tmp_path, monkeypatch, is_killed):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # as the process has it
    text = "print(os.environ['PENSTOCK_CREDENTIALS'], flush=True)\ntime.sleep(600)"
    process = start(text, job_credentials())
    folder = process.stdout.readline().decode().strip()
    if is_killed:
        process.kill()
        process.wait(DEADLINE)
    with unpacked({"token": "1"}):
        assert os.path.exists(folder)  # it is too new to tell if somebody is about to use it
    os.utime(folder, (0, 0))
    with unpacked({"token": "2"}):
        assert os.path.exists(folder) != is_killed
    process.stdin.close()  # it removes its own
    process.wait(DEADLINE)
    assert not os.path.exists(folder)


def test_without_a_letter_nothing_starts():
    environment = {**os.environ, "PYTHONPATH": PATHS}
    done = subprocess.run(COMMAND, input=b'{"scr', capture_output=True, timeout=DEADLINE, env=environment)
    assert done.returncode == 1 and b"gone before it said what to run" in done.stderr


def test_marks_are_found_in_any_pieces():
    text = b"a\x1b[1mb\x1b]penstock s\x07\nc\x1b]other\x07\n\x1b]penstock -15\x07\n\x1b]pen"
    for size in range(1, len(text) + 1):
        marks = Marks(WORKER)
        shown = b"".join(marks.feed(text[at : at + size]) for at in range(0, len(text), size)) + marks.feed(b"")
        assert shown == b"a\x1b[1mbc\x1b]other\x07\n\x1b]pen"
        assert (marks.under_way, marks.code) == (UnderWay(WORKER, serves=True), -15)


def test_credentials_of_the_launcher_are_those_of_the_job(tmp_path, monkeypatch):
    made = create_credentials(tmp_path / "mine")
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", str(tmp_path / "mine"))
    with unpacked(job_credentials()) as found:
        assert Credentials.load(found["PENSTOCK_CREDENTIALS"]).token == made.token
    monkeypatch.delenv("PENSTOCK_CREDENTIALS")
    assert job_credentials()["token"] != job_credentials()["token"]
