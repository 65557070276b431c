"""`penstock status`: the view of two samples, and the command on tasks of this process."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import penstock.v1 as tf
from penstock.launch import watch
from penstock.launch.cli import app
from penstock.launch.cluster import Size, Task
from penstock.launch.cluster_screen import duration, screen, size_of
from penstock.launch.cluster_view import bars, view_of
from penstock.launch.local import reserve
from penstock.launch.running import announced
from penstock.ops.queue.staging import StagingArea
from penstock.wire.control import messages

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60
PS, WORKER = Task("ps", 0), Task("worker", 0)
ADDRESSES = {PS: "ps0:2222", WORKER: "worker0:2222"}


def sample(clock, steps=0, busy=0.0, peers=(), incarnation=7, **kwargs):
    made = messages["Status"](clock=clock, steps=steps, busy=busy, incarnation=incarnation, **kwargs)
    for name, sent, received in peers:
        made.peers.add(name=name, bytes_sent=sent, bytes_received=received)
    return made


def rates(before, after):
    (task,) = view_of({PS: "ps0:2222"}, {} if before is None else {PS: before}, {PS: after}).tasks
    return (
        task.steps_per_second,
        task.bytes_sent_per_second,
        task.bytes_received_per_second,
        task.milliseconds_per_step,
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (sample(10, 100, 1.0, [("w", 50, 5)]), sample(12, 300, 1.5, [("w", 250, 25)]), (100, 100, 10, 2.5)),
        # No task worked, so the time per step is that of all steps.
        (sample(10, 100, 1.0), sample(12, 100, 1.0), (0, 0, 0, 10)),
        (sample(10), sample(12), (0, 0, 0, None)),
        # Connections that have ended, begun, and begun again.
        (sample(10, peers=[("gone", 900, 900)]), sample(11, peers=[("new", 30, 3)]), (0, 30, 3, None)),
        (sample(10, peers=[("w", 900, 900)]), sample(11, peers=[("w", 40, 4)]), (0, 40, 4, None)),
        # Nothing to compare with: the first sample, no answer before, another life, a clock that stands still.
        (None, sample(12, 100, 1.0), (None, None, None, 10)),
        ("no answer", sample(12, 100, 1.0), (None, None, None, 10)),
        (sample(10, 500, 9.0, incarnation=6), sample(12, 100, 1.0), (None, None, None, 10)),
        (sample(12, 100, 1.0), sample(12, 100, 1.0), (None, None, None, 10)),
    ],
)
def test_rates_come_from_two_samples(before, after, expected):
    assert rates(before, after) == expected


def full_sample():
    status = sample(1.0, uptime=4000.0, failed_steps=2)
    device = "/job:ps/replica:0/task:0/device:CPU:0"
    status.devices.add(name=device)
    status.sessions.add(name="a", graphs=2)
    status.sessions.add(name="b", graphs=1)
    for name, shape in (("small", [10]), ("[bold]large\x1b[2J", [1000, 10]), ("unset", [-1, 10])):
        size = 0 if name == "unset" else 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        status.variables.add(name=name, device=device, dtype="float32", shape=shape, bytes=size)
    status.resources.add(name="input", kind="FIFOQueue", size=10, capacity=10)
    status.resources.add(name="sums", kind="ConditionalAccumulator", size=3, capacity=-1)
    status.resources.add(name="rows", kind="Iterator", size=-1, capacity=-1)
    status.compiled.count, status.compiled.seconds, status.loaded_programs = 12, 6.5, 3
    status.compiled_last_minute.count, status.compiled_last_minute.seconds = 4, 1.25
    for segment, count, seconds in (("fc/\x1bMatMul", 9, 6.0), ("init", 3, 0.5)):
        status.compiled_segments.add(segment=segment, count=count, seconds=seconds)
    for updates, count in ((0, 90), (2, 10)):
        status.staleness.add(updates=updates, count=count)
    return status


def test_what_a_task_holds():
    view = view_of(ADDRESSES, {}, {PS: full_sample(), WORKER: "connection refused"})
    ps, worker = view.tasks
    assert (worker.task, worker.problem, worker.steps_per_second) == ("worker:0", "connection refused", None)
    assert [(v.device, v.shape, v.bytes) for v in ps.variables] == [
        ("CPU:0", (1000, 10), 40000),
        ("CPU:0", (10,), 40),
        ("CPU:0", (None, 10), 0),
    ]
    assert [(r.kind, r.size, r.capacity) for r in ps.resources] == [
        ("ConditionalAccumulator", 3, None),
        ("FIFOQueue", 10, 10),
        ("Iterator", None, None),
    ]
    assert (ps.graphs, ps.sessions, ps.staleness) == (3, ("a", "b"), ((0, 90), (2, 10)))
    assert (ps.compilations, ps.compile_seconds, ps.loaded_programs) == (12, 6.5, 3)
    assert (ps.compilations_last_minute, ps.compile_seconds_last_minute) == (4, 1.25)
    as_json = json.loads(json.dumps(view.as_dict()))
    assert as_json["variable_bytes"] == as_json["tasks"][0]["variable_bytes"] == 40040
    assert as_json["tasks"][0]["staleness"][1] == {"updates": 2, "count": 10}
    assert as_json["tasks"][0]["compiled_segments"][1] == {"segment": "init", "count": 3, "seconds": 0.5}
    assert as_json["tasks"][1]["problem"] == "connection refused"


def rendered(view, **kwargs):
    console = Console(width=80, file=io.StringIO())
    console.print(screen(view, **kwargs))
    return console.file.getvalue()


def test_the_screen_fits_a_terminal_and_is_not_steered_by_names():
    text = rendered(view_of(ADDRESSES, {}, {PS: full_sample(), WORKER: "connection refused"}), limit=2)
    lines = [line.split() for line in text.splitlines()]
    assert ["ps:0", "ps0:2222", "00000000", "1h", "6m", "CPU:0", "2", "3"] in lines
    assert "worker:0 does not answer: connection refused" in text
    assert ["ps:0", "CPU:0", "[bold]large?[2J", "float32", "[1000,", "10]", "40", "kB"] in lines
    assert "unset" not in text and "and 1 more (--limit); 3 variables, 40 kB (ps:0 40 kB)" in text
    assert ["ps:0", "FIFOQueue", "input", "10", "10"] in lines
    assert ["ps:0", "12", "6.5", "s", "4", "1.2", "s", "3"] in lines
    assert ["ps:0", "fc/?MatMul", "9", "6.0", "s"] in lines
    assert ["0", "90", "90.0%", "█" * 40] in lines and ["2", "10", "10.0%", "█" * 4] in lines
    assert "…" not in text


def test_no_answers_and_nothing_held_is_shown_too():
    assert "no answer within 3 s" in rendered(view_of(ADDRESSES, {}, dict.fromkeys(ADDRESSES, "no answer within 3 s")))
    assert "-" in rendered(view_of({PS: "ps0:2222"}, {}, {PS: sample(1.0)}))


def test_wide_staleness_gets_wide_bars():
    assert bars(tuple((n, 1) for n in range(40))) == [
        *((str(n), 1) for n in range(9)),
        ("9-16", 8),
        ("17-32", 16),
        ("33-64", 7),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (999.9, "1 kB"), (12_345, "12.3 kB"), (123_456, "123 kB"), (5e15, "5000 TB")],
)
def test_sizes(value, text):
    assert size_of(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (61, "1m 1s"), (86400, "1d 0h")])
def test_durations(seconds, text):
    assert duration(seconds) == text


# The command


@pytest.fixture(scope="module")
def cluster():
    """A parameter server and a worker in this process, a missing worker, and a session that trains."""
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("PENSTOCK_TIER", "exact")  # so that code is compiled
        spec = {job: list(at) for job, at in stack.enter_context(reserve(Size(ps=1, workers=2))).addresses.items()}
        stack.enter_context(tf.Graph().as_default())
        stack.enter_context(tf.train.Server(spec, "ps", 0))
        server = stack.enter_context(tf.train.Server(spec, "worker", 0))
        with tf.device("/job:ps/task:0"):
            weights = tf.get_variable("layer/weights", [100, 50])
            tf.Variable(tf.zeros([3]), name="unset")
            queue = tf.FIFOQueue(10, [tf.float32], [[]], name="input")
            shuffled = tf.RandomShuffleQueue(20, 0, [tf.float32], [[]], name="shuffled")
            sums = tf.ConditionalAccumulator(tf.float32, [], name="sums")
            words = tf.contrib.lookup.MutableHashTable(tf.string, tf.int64, -1, name="words")
            area = StagingArea([tf.float32], shared_name="area")
            filled = [
                queue.enqueue_many([[1.0, 2.0, 3.0]]),
                shuffled.enqueue([1.0]),
                sums.apply_grad(1.0),
                sums.apply_grad(2.0),
                words.insert(["a", "b"], tf.constant([1, 2], tf.int64)),
                area.put([1.0]),
            ]
        with tf.device("/job:worker/task:0"):
            train = weights.assign_sub(0.1 * tf.tanh(weights))
        with tf.Session(server.target) as session:
            session.run([weights.initializer, filled])
            for _ in range(3):  # so that the code is compiled
                session.run(train.op)
            stop = threading.Event()

            def steps():
                while not stop.is_set():
                    session.run(train.op)
                    time.sleep(0.005)

            thread = threading.Thread(target=steps)
            thread.start()
            try:
                yield spec
            finally:
                stop.set()
                thread.join()


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Waits for the answers of tasks, though this process, in which they run, may pause."""
    monkeypatch.setattr(watch, "DEADLINE", DEADLINE)


def status(*args):
    return CliRunner().invoke(app, ["status", *args], obj=[], env={"COLUMNS": "100"})


def tasks_that_train(cluster):
    """The tasks, of a moment in which those that run have made steps."""
    end = time.monotonic() + DEADLINE
    while True:
        done = status(cluster["worker"][0], "--json", "--interval", "0.3")
        assert done.exit_code == 0, done.output
        found = {task["task"]: task for task in json.loads(done.stdout)["tasks"]}
        if found["ps:0"]["steps_per_second"] and found["worker:0"]["steps_per_second"]:
            return found
        assert time.monotonic() < end, found


def test_json_tells_all(cluster):
    found = tasks_that_train(cluster)
    assert list(found) == ["ps:0", "worker:0", "worker:1"]
    for name, address in (("ps:0", cluster["ps"][0]), ("worker:0", cluster["worker"][0])):
        task = found[name]
        assert (task["address"], task["problem"], task["failed_steps"]) == (address, "", 0)
        assert task["steps_per_second"] > 0 and task["milliseconds_per_step"] > 0
        assert task["incarnation"] and task["uptime"] > 0 and len(task["sessions"]) == 1
    assert "refused" in found["worker:1"]["problem"]
    ps = found["ps:0"]
    assert [(v["name"], v["dtype"], v["shape"], v["bytes"]) for v in ps["variables"]] == [
        ("layer/weights", "float32", [100, 50], 20000)
    ]
    assert {r["name"]: (r["kind"], r["size"], r["capacity"]) for r in ps["resources"]} == {
        "input": ("FIFOQueue", 3, 10),
        "shuffled": ("RandomShuffleQueue", 1, 20),
        "sums": ("ConditionalAccumulator", 2, None),
        "words": ("MutableHashTable", 2, None),
        "area": ("StagingArea", 1, None),
    }
    assert ps["staleness"][0]["updates"] == 0 and ps["staleness"][0]["count"] > 1
    for name in ("ps:0", "worker:0"):
        task = found[name]
        assert task["compilations"] + task["loaded_programs"] > 0
        assert task["compilations"] >= task["compilations_last_minute"] >= 0
        assert sum(c["count"] for c in task["compiled_segments"]) <= task["compilations"]
    assert found["worker:0"]["staleness"] == [] and found["worker:0"]["variables"] == []


def test_tables_from_any_task(cluster):
    done = status(f"grpc://{cluster['ps'][0]}", "--interval", "0.1")
    assert done.exit_code == 0, done.output
    for said in ("ps:0", "layer/weights", "20 kB", "ConditionalAccumulator", "Staleness", "worker:1 does not answer"):
        assert said in done.stdout


def test_without_an_address_the_running_job_is_found(cluster, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    nothing = status()
    assert nothing.exit_code == 2 and "no job of `penstock launch` is running" in nothing.stderr
    # The second worker is missing: a task that runs answers for all.
    with announced("train.py", {"worker:1": cluster["worker"][1], "ps:0": cluster["ps"][0]}):
        done = status("--json", "--interval", "0.1")
        assert done.exit_code == 0, done.output
        assert [task["task"] for task in json.loads(done.stdout)["tasks"]] == ["ps:0", "worker:0", "worker:1"]
        (file,) = (tmp_path / "penstock").iterdir()
        (tmp_path / "penstock" / "other.json").write_text(file.read_text().replace("train.py", "other.py"))
        several = status()
    assert several.exit_code == 2 and "2 jobs are running" in several.stderr
    assert "other.py" in several.stderr and "train.py" in several.stderr


def test_watch_goes_on_until_interrupted(cluster):
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "penstock", "status", cluster["ps"][0], "--watch", "--json", "--interval", "0.1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as watching:
        try:
            steps, end = [], time.monotonic() + DEADLINE
            while len(steps) < 3 or steps[0] == steps[-1]:  # a view may come while the training or a task pauses
                assert time.monotonic() < end, steps
                view = json.loads(watching.stdout.readline())
                steps += [task["steps"] for task in view["tasks"][:1] if not task["problem"]]
            watching.send_signal(signal.SIGINT)
            _, complaints = watching.communicate(timeout=DEADLINE)
        finally:
            watching.kill()
    assert (watching.returncode, complaints) == (0, "")
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("address", "code", "says"),
    [
        ("127.0.0.1:1", 1, "Is a task running there?"),
        ("127.0.0.1:1", 1, "set PENSTOCK_CREDENTIALS"),
        ("localhost", 2, "HOST:PORT"),
        ("localhost:0", 2, "HOST:PORT"),
    ],
)
def test_what_cannot_be_asked(address, code, says, monkeypatch):
    monkeypatch.delenv("PENSTOCK_CREDENTIALS", raising=False)
    done = status(address)
    assert (done.exit_code, done.stdout) == (code, "")
    assert says in done.stderr and "Traceback" not in done.stderr


def test_credentials_that_are_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", str(tmp_path / "none"))
    done = status("127.0.0.1:1")
    assert done.exit_code == 1 and "There are no credentials in" in done.stderr


def test_a_task_with_credentials(monkeypatch, tmp_path):
    from penstock.wire.credentials import create_credentials

    made = create_credentials(tmp_path / "job")
    with tf.train.Server({"alone": ["localhost:0"]}, credentials=made) as server:
        monkeypatch.delenv("PENSTOCK_CREDENTIALS", raising=False)
        refused = status(server.address)
        assert refused.exit_code == 1 and "set PENSTOCK_CREDENTIALS" in refused.stderr
        create_credentials(tmp_path / "other")
        monkeypatch.setenv("PENSTOCK_CREDENTIALS", str(tmp_path / "other"))
        assert status(server.address).exit_code == 1
        monkeypatch.setenv("PENSTOCK_CREDENTIALS", str(tmp_path / "job"))
        done = status(server.address, "--json", "--interval", "0.1")
        assert done.exit_code == 0, done.output
        (task,) = json.loads(done.stdout)["tasks"]
        assert (task["task"], task["address"], task["problem"]) == ("alone:0", server.address, "")
