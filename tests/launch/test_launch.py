"""`penstock launch`: its decisions, and real clusters of small scripts that need no server."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch.launching import DEADLINE, ROOT, TASK, finish

from penstock.launch import local
from penstock.launch.cluster import Cluster, Size, Task
from penstock.launch.engine import Commands, Request
from penstock.launch.events import Events
from penstock.launch.flags import ClusterFlags, flags_of, look
from penstock.launch.job import Finish, Job, Kill, Policy, Say, Start, Terminate
from penstock.launch.launcher import Launcher
from penstock.launch.output import LONGEST_LINE, Display, LineBuffer
from penstock.launch.program import Program

# ---------------------------------------------------------------------------------------------- what a job does next

PS, CHIEF, W0, W1, EVALUATOR = (
    Task("ps", 0),
    Task("chief", 0),
    Task("worker", 0),
    Task("worker", 1),
    Task("evaluator", 0),
)


def drive(tasks, events, **policy):
    """The actions of a job after each event `(time, what, ...)`, without its messages."""
    job = Job(tasks, Policy(**policy))
    assert job.start() == [Start(task, 0) for task in tasks]
    for task in tasks:
        job.under_way(task)
    asked = []
    for now, what, *rest in events:
        found = job.due(now) if what == "time" else getattr(job, what)(*rest, now=now)
        asked.append([each for each in found if not isinstance(each, Say)])
    return asked


DECISIONS = {
    "all workers end, then the ps is stopped": (
        [PS, W0, W1],
        {},
        [
            ((1, "ended", W1, 0), []),
            ((2, "ended", W0, 0), [Terminate(PS)]),
            ((3, "ended", PS, -signal.SIGTERM), [Finish(0)]),
        ],
    ),
    "a worker is restarted later each time, then the job fails with its code": (
        [PS, W0, W1],
        {"max_restarts": 2},
        [
            ((10, "ended", W1, 3), []),
            ((10.9, "time"), []),
            ((11, "time"), [Start(W1, 1)]),
            ((20, "ended", W1, 4), []),
            ((21.9, "time"), []),
            ((22, "time"), [Start(W1, 2)]),
            ((30, "ended", W1, 5), [Terminate(PS), Terminate(W0)]),
            ((31, "ended", W0, 1), []),
            ((31, "ended", PS, 0), [Finish(5)]),
        ],
    ),
    "a signal gives 128 + its number": (
        [W0],
        {"max_restarts": 0},
        [((1, "ended", W0, -signal.SIGKILL), [Finish(137)])],
    ),
    "a ps that dies is restarted, one that ends is not": (
        [PS, W0],
        {},
        [
            ((1, "ended", PS, -signal.SIGKILL), []),
            ((2, "time"), [Start(PS, 1)]),
            ((3, "ended", PS, 0), []),
            ((100, "time"), []),
            ((101, "ended", W0, 0), [Finish(0)]),
        ],
    ),
    "the others have some time when the chief is done": (
        [PS, W0, W1],
        {"grace": 5},
        [
            ((1, "ended", W0, 0), []),
            ((5.9, "time"), []),
            ((6, "time"), [Terminate(PS), Terminate(W1)]),
            ((7, "ended", W1, -signal.SIGTERM), []),
            ((7, "ended", PS, -signal.SIGTERM), [Finish(0)]),
        ],
    ),
    "a chief of its own is waited for, worker 0 is none then": (
        [PS, CHIEF, W0],
        {"grace": 5},
        [((1, "ended", W0, 0), []), ((1000, "time"), []), ((1001, "ended", CHIEF, 0), [Terminate(PS)])],
    ),
    "an evaluator's time begins when training is over": (
        [CHIEF, W0, EVALUATOR],
        {"grace": 5},
        [
            ((1, "ended", CHIEF, 0), []),
            ((4, "ended", W0, 0), []),
            ((6, "time"), []),
            ((9, "time"), [Terminate(EVALUATOR)]),
            ((10, "ended", EVALUATOR, -signal.SIGTERM), [Finish(0)]),
        ],
    ),
    "an evaluator that ends by itself ends the job": (
        [W0, EVALUATOR],
        {},
        [((1, "ended", W0, 0), []), ((2, "ended", EVALUATOR, 0), [Finish(0)])],
    ),
    "what does not end is killed": (
        [PS, W0],
        {"kill_after": 4},
        [
            ((1, "ended", W0, 0), [Terminate(PS)]),
            ((4.9, "time"), []),
            ((5, "time"), [Kill(PS)]),
            ((6, "time"), []),
            ((7, "ended", PS, -signal.SIGKILL), [Finish(0)]),
        ],
    ),
    "an interrupt stops all, a second one at once; the same one twice is one": (
        [PS, W0],
        {},
        [
            ((1, "interrupted", signal.SIGINT), [Terminate(PS), Terminate(W0)]),
            ((1.1, "interrupted", signal.SIGINT), []),
            ((3, "ended", W0, -signal.SIGTERM), []),
            ((3, "interrupted", signal.SIGINT), [Kill(PS)]),
            ((4, "interrupted", signal.SIGTERM), []),
            ((4, "ended", PS, -signal.SIGKILL), [Finish(130)]),
        ],
    ),
    "a task that waits for its restart is not started when the job stops": (
        [PS, W0],
        {},
        [
            ((1, "ended", W0, 1), []),
            ((1.5, "interrupted", signal.SIGTERM), [Terminate(PS)]),
            ((2, "time"), []),
            ((2, "ended", PS, -signal.SIGTERM), [Finish(143)]),
        ],
    ),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_decisions(name):
    tasks, policy, steps = DECISIONS[name]
    assert drive(tasks, [event for event, _ in steps], **policy) == [asked for _, asked in steps]


def test_tasks_that_only_serve_are_not_waited_for_without_the_chief():
    job = Job([PS, CHIEF, W0, W1, EVALUATOR], Policy(grace=5))
    job.start()
    for task in (PS, W0, W1):
        job.under_way(task, serves=True)
    assert job.ended(CHIEF, 0, now=1) == [Say("chief:0 is done")]
    assert job.deadline == 6  # for the evaluator
    (_, *asked) = job.ended(EVALUATOR, 0, now=2)
    assert asked == [Terminate(PS), Terminate(W0), Terminate(W1)]


def test_a_task_that_serves_after_the_chief_is_done_is_not_waited_for():
    job = Job([CHIEF, W0], Policy(grace=5))
    job.start()
    job.ended(CHIEF, 0, now=1)
    assert job.due(now=2) == []
    job.under_way(W0, serves=True)
    assert job.due(now=3) == [Terminate(W0)]


def test_workers_that_serve_end_with_the_chief(launch):
    text = """
import penstock as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if me == "chief":
    for other in ("ps", "worker"): hear(other)
else:
    server = tf.distribute.Server(resolver.cluster_spec(), job_name=me, task_index=index)
    tell(me)
    server.join()
"""
    code, _, err = finish(launch(text, options=["--chief", "--workers", 1, "--grace", DEADLINE * 2]))
    assert code == 0 and "chief:0 is done" in err and "did not end" not in err


def test_a_coordinator_that_fails_after_its_first_steps_is_restarted(launch):
    text = """
import penstock as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if me != "chief":
    tf.distribute.Server(resolver.cluster_spec(), job_name=me, task_index=index).join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
value = coordinator.schedule(tf.function(lambda: tf.constant(3) + 4))
coordinator.join()
print("found", value.fetch(), flush=True)
if tell("failed"): raise ValueError("once")
"""
    code, lines, err = finish(launch(text, options=["--chief", "--workers", 1]))
    assert code == 0, err
    assert lines.count("[chief:0] found 7") == 2
    assert "chief:0 failed once" in err


def test_delays_double_up_to_a_bound():
    assert [Policy().delay(n) for n in (1, 2, 3, 5, 6, 7, 2000)] == [1, 2, 4, 16, 30, 30, 30]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_happens_a_job_ends_once_with_nothing_running(data):
    tasks = [PS, *data.draw(st.sampled_from([[W0], [W0, W1], [CHIEF, W0], [W0, W1, EVALUATOR]]))]
    job = Job(tasks, Policy(max_restarts=data.draw(st.integers(0, 2)), grace=5, kill_after=3))
    running, killed, now, finished = set(), set(), 0.0, None
    pending = job.start()
    for _ in range(1000):
        for each in pending:
            assert finished is None
            match each:
                case Start(task):
                    assert not job.stopping and task not in running
                    running.add(task)
                case Terminate(task) | Kill(task):
                    assert job.stopping and task in running
                    killed |= {task} if isinstance(each, Kill) else set()
                case Finish(code):
                    assert not running
                    finished = code
        if finished is not None:
            break
        events = ["end"] * bool(running) + ["time"] * (job.deadline is not None) + ["signal"]
        match data.draw(st.sampled_from(events)):
            case "end":
                task = data.draw(st.sampled_from(sorted(running)))
                running.remove(task)
                if data.draw(st.booleans()):
                    job.under_way(task)
                pending = job.ended(task, -9 if task in killed else data.draw(st.sampled_from([0, 1, -15])), now)
            case "time":
                now = max(now, job.deadline)
                pending = job.due(now)
            case "signal":
                now += 0.7
                pending = job.interrupted(signal.SIGINT, now)
    assert finished is not None and job.deadline is None


# ------------------------------------------------------------------------------------------------- flags of a script

REPLICA = """
flags = tf.app.flags
flags.DEFINE_integer("task_index", None, "Worker task index, should be >= 0. task_index=0 is the master.")
flags.DEFINE_string("ps_hosts", "localhost:2222", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("worker_hosts", "localhost:2223", "Comma-separated list of hostname:port pairs")
flags.DEFINE_string("job_name", None, "job name: worker or ps")
if FLAGS.job_name is None or FLAGS.job_name == "":
    raise ValueError("Must specify an explicit `job_name`")
cluster = tf.train.ClusterSpec({"ps": ps_spec, "worker": worker_spec})
if FLAGS.job_name == "ps":
    server.join()
"""
ALL = ["--ps_hosts=a:1", "--worker_hosts=b:1,b:2", "--job_name=ps", "--task_index=0"]
SCRIPTS = {
    "flags": (REPLICA, ALL),
    "job names as the script compares them": (
        REPLICA.replace('"ps"', '"PS"'),
        [*ALL[:2], "--job_name=PS", "--task_index=0"],
    ),
    "job names as the cluster is spelled": (
        'add_argument("--job_name"); add_argument("--task_index")\ncluster = {"Ps": p, "worker": w}',
        ["--job_name=Ps", "--task_index=0"],
    ),
    "any of several spellings": (
        'DEFINE_string("job_name"); DEFINE_integer("task_index")\nif FLAGS.job_name in ("PS", "ps"): pass',
        ["--job_name=ps", "--task_index=0"],
    ),
    "argparse, with dashes": (
        'parser.add_argument("--job-name", "-j")\nparser.add_argument("--task-index")\nargs["job_name"] == "PS"',
        ["--job-name=PS", "--task-index=0"],
    ),
    "read by hand": ('for a in argv:\n  a.startswith("--job_name="); a.startswith("--task_index=")', ALL[2:]),
    "the older name of the index": (
        'DEFINE_string("job_name"); DEFINE_integer("task_id")',
        ["--job_name=ps", "--task_id=0"],
    ),
    "one name proves nothing": ('DEFINE_string("job_name", "my experiment")', []),
    "names that are not flags": ('config["job_name"], config.get("task_index")\n"""--job_name --task_index"""', []),
    "none": ("import tensorflow as tf", []),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_which_flags_a_script_has(name, script):
    text, expected = SCRIPTS[name]
    flags = flags_of(script(text), [], wanted=None, chief=False)
    cluster = Cluster({"ps": ("a:1",), "worker": ("b:1", "b:2")})
    assert flags.arguments(cluster, PS) == expected


def test_flags_that_are_given_wanted_unwanted_or_defined_elsewhere(script):
    path = script(REPLICA)
    assert list(flags_of(path, ["--ps_hosts=x", "-task_index", "3"], wanted=None, chief=False).options) == [
        "worker_hosts",
        "job_name",
    ]
    # After `--` nothing is an option.
    assert len(flags_of(path, ["--", "--ps_hosts=x"], wanted=None, chief=False).options) == 4
    assert flags_of(path, [], wanted=False, chief=False).options == {}
    assert list(flags_of(script("pass", "bare.py"), [], wanted=True, chief=True).options) == [
        "ps_hosts",
        "worker_hosts",
        "job_name",
        "task_index",
        "chief_hosts",
    ]
    script("from . import place", "settings/__init__.py")
    script(REPLICA, "settings/place.py")
    assert len(flags_of(script("import settings", "far.py"), [], wanted=None, chief=False).options) == 4


def test_looking_at_code_runs_nothing():
    assert look(iter([ast.parse("raise SystemExit")])) == ClusterFlags(
        {}, {"ps": "ps", "chief": "chief", "worker": "worker"}
    )


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b\nc"], [b"ab", b"c"]),
        ([b"a\r\n\n"], [b"a", b""]),
        ([b" 10%\r 20%", b"\r100%\n"], [b"100%"]),
        (["ä".encode()[:1], "ä".encode()[1:]], ["ä".encode()]),
        ([b"x" * (LONGEST_LINE + 1), b"y\n"], [b"x" * (LONGEST_LINE + 1), b"y"]),
    ],
)
def test_lines(pieces, lines):
    buffer = LineBuffer()
    assert [line for piece in pieces for line in buffer.feed(piece)] + buffer.rest() == lines


# ------------------------------------------------------------------------------------------------------ real clusters


def test_each_task_is_told_its_place_by_tf_config(launch):
    text = """
print(os.environ["TF_CONFIG"], sys.argv[1:], os.environ["PENSTOCK_LAUNCHED"], os.environ.get("PENSTOCK_CREDENTIALS"))
print("tensorflow" in sys.modules, os.getpgid(0) == os.getpid(), "jax" in sys.modules)
tell(f"{me} {index}")
if me in ("ps", "evaluator"): wait()
for other in ("ps 0", "ps 1", "chief 0", "worker 0", "worker 1", "evaluator 0"): hear(other)
"""
    environment = {"PENSTOCK_CREDENTIALS": "/some/where"}
    options = ["--ps", 2, "--workers", 2, "--chief", "--evaluator", "--grace", 0.3]
    code, lines, err = finish(launch(text, "--steps=3", "--", "-x", options=options, env=environment))
    assert code == 0, err
    told = {}
    for line in lines:
        if found := re.fullmatch(r"\[(\w+:\d)\] (\{.*\}) \['--steps=3', '--', '-x'\] 1 /some/where", line):
            told[found[1]] = json.loads(found[2])
    names = ["chief:0", "evaluator:0", "ps:0", "ps:1", "worker:0", "worker:1"]
    assert list(told) == names
    assert [f"{each['task']['type']}:{each['task']['index']}" for each in told.values()] == names
    (cluster,) = {json.dumps(each["cluster"]) for each in told.values()}
    cluster = json.loads(cluster)
    assert {job: len(found) for job, found in cluster.items()} == {"ps": 2, "chief": 1, "worker": 2}
    addresses = [address for found in cluster.values() for address in found]
    assert len(set(addresses)) == 5 and all(re.fullmatch(r"127\.0\.0\.1:\d+", each) for each in addresses)
    assert sum(line.endswith("] False True False") for line in lines) == 6


def test_flags_go_to_scripts_that_have_them(launch):
    text = """
import argparse
parser = argparse.ArgumentParser()
for flag in ("--ps_hosts", "--worker_hosts", "--job_name", "--task_index", "--steps"):
    parser.add_argument(flag)
args = parser.parse_args()
ports = lambda hosts: len(hosts.split(","))
print(args.job_name, args.task_index, ports(args.ps_hosts), ports(args.worker_hosts), args.steps)
if args.job_name == "PS": tell("ready"); wait()
hear("ready")
"""
    code, lines, err = finish(launch(text, "--steps=3", "--worker_hosts=x,y,z"))
    expected = {"[ps:0] PS 0 1 3 3", "[worker:0] worker 0 1 3 3", "[worker:1] worker 1 1 3 3"}
    assert (code, {*lines} - {"[ps:0] waiting"}) == (0, expected), err
    assert "--ps_hosts --job_name --task_index" in err


END = "if me == 'ps': wait()\nif index == 1: {}\nwait()"


@pytest.mark.parametrize(
    ("text", "options", "expected", "said"),
    [
        (END.format("sys.exit(3)"), ["--max-restarts", 0], 3, "worker:1 exited with code 3: stopping the job"),
        (END.format("raise ValueError('no data')"), ["--max-restarts", 0], 1, "ValueError: no data"),
        (END.format("os.kill(os.getpid(), 9)"), ["--max-restarts", 0], 137, "worker:1 was ended by SIGKILL"),
        # The second life of worker 1 listens at its address: the port was kept for it.
        (
            "if me == 'ps': wait()\n"
            "if index == 1 and tell('first life'): begin(); raise ValueError('once')\n"
            "import socket\n"
            "host, port = json.loads(os.environ['TF_CONFIG'])['cluster']['worker'][index].split(':')\n"
            "socket.create_server((host, int(port))).close()\n",
            [],
            0,
            "worker:1 exited with code 1 (ValueError: once): restart 1 of 3 in 1 s",
        ),
        (
            "if me == 'ps' and tell('first life'): os.kill(os.getpid(), 9)\n"
            "if me == 'ps': tell('back'); wait()\n"
            "hear('back')",
            [],
            0,
            "ps:0 was ended by SIGKILL: restart 1 of 3",
        ),
        # Worker 0 is done, worker 1 never is.
        ("if me == 'ps' or index == 1: wait()", ["--grace", 0.3], 0, "worker:1 did not end within 0.3 s"),
        # A ps that does not listen, with a child that does not either.
        (
            "if me == 'ps':\n"
            "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "    subprocess.Popen(['sleep', '600'])\n"
            "    tell('ready'); wait()\n"
            "hear('ready')",
            ["--kill-after", 0.3],
            0,
            "still running after 0.3 s: ps:0",
        ),
        # Workers leave children that keep their output open.
        ("if me == 'ps': wait()\nsubprocess.Popen(['sleep', '600'])", [], 0, "worker:1 is done"),
    ],
    ids=["exit", "error", "signal", "restart", "ps restart", "grace", "stubborn ps", "children left"],
)
def test_how_a_job_ends(launch, text, options, expected, said):
    code, _, err = finish(launch(text, options=options))
    assert (code, said in err) == (expected, True), err
    *_, last = re.split(r"\[launch\] (?:worker:[01] is done|.*stopp.*)\n", err)
    named = re.findall(r"\[launch\] (\S+) failed once: (.*)\n", last)
    assert bool(named) == ("restart 1" in said or expected != 0), err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_to_the_launcher_ends_all(launch, number):
    process = launch("print('ready', flush=True)\nwait()", options=["--ps", 1, "--workers", 1])
    seen = [process.stdout.readline() for _ in range(4)]
    assert sorted(seen) == ["[ps:0] ready\n", "[ps:0] waiting\n", "[worker:0] ready\n", "[worker:0] waiting\n"]
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == (-number if number == signal.SIGKILL else 128 + number), err


def test_output_comes_live_in_whole_lines_and_is_logged(launch, tmp_path):
    text = """
if me == "ps": wait()
for step in range(20):
    for piece in (f"step {step} ", "x" * 10000, "\\n"):
        sys.stdout.write(piece); sys.stdout.flush()
sys.stderr.write("to stderr \\xe4\\n")
sys.stdout.write("no end of line")
"""
    code, lines, err = finish(launch(text, options=["--log-dir", tmp_path / "logs"]))
    assert code == 0, err
    for worker in ("worker:0", "worker:1"):
        mine = {line for line in lines if line.startswith(f"[{worker}]")}
        assert mine == {f"[{worker}] step {step} {'x' * 10000}" for step in range(20)} | {f"[{worker}] no end of line"}
        assert f"[{worker}] to stderr ä\n" in err
        log = (tmp_path / "logs" / f"{worker.replace(':', '-')}.log").read_text()
        assert log.count("x" * 10000 + "\n") == 20 and "to stderr ä\n" in log and "no end of line" in log
    assert (tmp_path / "logs" / "ps-0.log").is_file()
    assert f"logs in {tmp_path / 'logs'}" in err
    assert "\x1b" not in err + "".join(lines)


def test_a_reader_that_goes_away_ends_the_job(launch):
    process = launch("while True: print('line', flush=True); time.sleep(0.05)", options=["--workers", 1])
    assert process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    assert process.wait(DEADLINE) == 128 + signal.SIGPIPE
    assert "Exception ignored" not in process.stderr.read()


def test_a_terminal_gets_colours(launch):
    leader, follower = os.openpty()
    environment = {"NO_COLOR": "", "TERM": "xterm"}
    with open(leader, "rb", buffering=0) as terminal:
        process = launch("print('hello')", options=["--ps", 0, "--workers", 1], stdout=follower, env=environment)
        os.close(follower)
        shown = b""
        while b"hello" not in shown:
            shown += terminal.read(1000)
        assert process.wait(DEADLINE) == 0
    assert re.search(rb"\x1b\[\d+m\[worker:0\]\x1b\[0m hello", shown), shown


def test_a_terminal_shows_progress_bars_as_they_go(launch, tmp_path):
    """Below other lines, within the width, in one line at the end; escape codes that move the cursor are removed."""
    text = """
if index == 0:
    print("columns", os.environ["PENSTOCK_TERMINAL_COLUMNS"])
    for step in range(3):
        sys.stdout.write(f"\\r\\x1b[2K{step} of 3 " + "x" * 200); sys.stdout.flush(); hear(f"shown {step}")
    sys.stdout.write("\\r\\x1b[2Kall of 3\\n"); sys.stdout.flush()
"""
    leader, follower = os.openpty()
    environment = {"NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "60"}
    with open(leader, "rb", buffering=0) as terminal:
        process = launch(text, options=["--ps", 0, "--workers", 1], stdout=follower, env=environment)
        os.close(follower)
        shown = b""
        for wanted in (b"0 of 3", b"1 of 3", b"2 of 3", b"all of 3"):
            while wanted not in shown:
                shown += terminal.read(1000)
            (tmp_path / f"shown {wanted.split()[0].decode()}.told").touch()
        assert process.wait(DEADLINE) == 0
    lines = shown.decode().split("\r\n")
    assert lines[0] == "[worker:0] columns 48"
    bars = [f"[worker:0] {step} of 3 {'x' * 40}…" for step in range(3)]
    assert lines[1].split("\r\x1b[J") == [*bars, "[worker:0] all of 3"]


def test_what_a_bar_showed_before_is_not_kept():
    lines = LineBuffer()
    for step in range(3000):
        assert lines.feed(b"\r%d%% " % step + b"=" * 100) == []
    assert lines.state == b"2999% " + b"=" * 100 and lines.feed(b"\r") == []
    assert lines.feed(b"\nnext") == [b"2999% " + b"=" * 100] and lines.state == b""


@pytest.mark.parametrize(
    ("options", "name", "says"),
    [
        ([], "none.py", "the script 'none.py' does not exist. Give the path"),
        (
            ["--no-flags"],
            "broken.py",
            "the script 'broken.py' cannot be read: '(' was never closed (broken.py, line 1)",
        ),
        (["--ps", "-1"], "program.py", "--ps must not be negative, received -1"),
        (["--workers", "0"], "program.py", "--workers must be at least 1, received 0"),
        (["--max-restarts", "-2"], "program.py", "--max-restarts must not be negative, received -2"),
        (["--grace", "nan"], "program.py", "--grace must not be negative, received nan"),
        (["--base-port", "TAKEN"], "program.py", "for ps:0 cannot be had: Address already in use. Give another"),
        (["--base-port", "65534"], "program.py", "must leave room for 3 ports between 1 and 65535, received 65534"),
        (["--log-dir", "program.py"], "program.py", "cannot write logs to 'program.py': File exists"),
        (["--chief", "--flags"], "replica.py", "Leave --chief out"),
    ],
)
def test_what_cannot_be_launched(script, tmp_path, options, name, says):
    script("print('ran')")
    script(REPLICA, "replica.py")
    script("print(", "broken.py")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = [str(taken.getsockname()[1]) if option == "TAKEN" else option for option in options]
        command = [sys.executable, "-m", "penstock", "launch", *options, name]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr and "Traceback" not in done.stderr


def test_without_pidfd_a_thread_waits(monkeypatch, script, tmp_path, capfd):
    def refused(pid):
        raise OSError

    monkeypatch.setattr(os, "pidfd_open", refused)
    path = script(TASK + "if me == 'ps': wait()\nprint('hello')")
    request = Request(Size(1, 1), Commands(Program(path, ())))
    with Events() as events, local.place(request, events) as engine:
        display = Display(engine.cluster.tasks, tmp_path / "logs")
        try:
            assert Launcher(engine, events, Policy(), display).run() == 0
        finally:
            display.close()
    assert "[worker:0] hello\n" in capfd.readouterr().out


def test_an_error_of_the_launcher_itself_leaves_nothing_running(monkeypatch, script, tmp_path):
    class Broken(Display):
        def show(self, task, stream, lines):
            raise ZeroDivisionError

    path = script(TASK + "wait()")
    request = Request(Size(1, 1), Commands(Program(path, ())))
    with Events() as events, local.place(request, events) as engine:
        display = Broken(engine.cluster.tasks, tmp_path / "logs")
        with pytest.raises(ZeroDivisionError):
            Launcher(engine, events, Policy(), display).run()
        display.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
