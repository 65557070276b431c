"""Tasks are killed while resources move between parameter servers: the change happens, or nothing of it."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.processes import DEADLINE, Process
from leaks import leak_check
from loopback import free_addresses

from penstock.errors import OpError
from penstock.master.cluster import ClusterSpec
from penstock.master.membership import Membership
from penstock.wire.control import ControlClient

PROGRAM = Path(__file__).with_name("elastic.py")
pytestmark = pytest.mark.timeout(180)


class Job:
    """A training with one or two parameter servers at first, as processes."""

    def __init__(self, folder: Path, servers: int, sync: bool) -> None:
        self._folder = folder
        self._settings = {"folder": str(folder), "sync": sync, "megabytes": 1, "tokens": -1}
        self._addresses = free_addresses(5)
        self._first = servers
        self.tasks: dict[str, Process] = {}
        self._all: list[Process] = []
        for name in [*(f"ps{n}" for n in range(servers)), "worker0", "worker1"]:
            self.start(name)

    def spec(self, servers: int) -> dict[str, list[str]]:
        return {"ps": self._addresses[:servers], "worker": self._addresses[3:]}

    def start(self, name: str, stops_before: str = "") -> Process:
        """Starts a task. A server may stop itself, like a frozen one, when it is first asked for an act of a move."""
        job, number = name[:-1], int(name[-1])
        told = self.spec(max(self._first, number + 1) if job == "ps" else self._first)
        settings = {
            "TF_CONFIG": json.dumps({"cluster": told, "task": {"type": job, "index": number}}),
            "ELASTIC": json.dumps({**self._settings, "stops_before": stops_before}),
            "PENSTOCK_MEMBERSHIP": str(self._folder / "membership"),
            "PENSTOCK_KEEPALIVE_SECS": "60",  # tests freeze tasks, which are not to count as lost
        }
        process = Process(name, [sys.executable, str(PROGRAM)], self._folder / f"{name}.log", **settings)
        self.tasks[name] = process
        self._all.append(process)
        return process

    def __getitem__(self, name: str) -> Process:
        return self.tasks[name]

    def resizing(self, servers: int) -> Resizing:
        return Resizing(self._addresses[0], self.spec(servers), self._folder / "membership")

    @property
    def version(self) -> int:
        path = self._folder / "membership"
        return Membership.from_json(path.read_text()).version if path.exists() else 0

    def goes_on(self, count: int = 5) -> None:
        """Waits until both workers have made more steps."""
        for name in ("worker0", "worker1"):
            self[name].wait_for_more("^step", count)

    def ends(self) -> None:
        """Lets the training end, and looks for steps that were lost or made twice."""
        (self._folder / "aside").write_text("0")
        (self._folder / "aside").rename(self._folder / "finish")
        for name in ("worker0", "worker1"):
            assert self[name].end() == 0, self[name].tail()

    def close(self) -> None:
        for process in self._all:
            process.close()


class Resizing(threading.Thread):
    """A change of the membership, in a thread. Like a launcher it keeps the record for tasks that start later."""

    def __init__(self, address: str, spec: dict[str, list[str]], record: Path) -> None:
        super().__init__()
        self._address, self._spec, self._record = address, spec, record
        self.outcome: Any = None
        self.start()

    def run(self) -> None:
        client = ControlClient(self._address)
        try:
            self.outcome = client.resize(ClusterSpec(self._spec).as_cluster_def(), DEADLINE)
            self._record.write_text(self.outcome.membership)
        except OpError as error:
            self.outcome = error
        finally:
            client.close()

    def result(self) -> Any:
        self.join(DEADLINE)
        assert not self.is_alive()
        return self.outcome


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    with leak_check():
        yield


@pytest.fixture
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path, *request.param)
    try:
        made.goes_on()
        yield made
    finally:
        made.close()


def held(job: Job) -> None:
    """Waits until no worker makes steps: a move has begun, and the frozen server keeps it from ending."""
    seen = -1
    while seen != (now := len(job["worker0"].find("^step"))):
        seen = now
        threading.Event().wait(2.0)


# Asynchronous, so that steps end without the server that is frozen; in synchronous training it has a part in that.
@pytest.mark.long
@pytest.mark.parametrize("job", [(1, False)], indirect=True)
def test_the_chief_and_then_a_server_that_joins_are_killed_in_the_middle(job: Job) -> None:
    joining = job.start("ps1", stops_before="list")
    joining.wait_for("serves")
    resizing = job.resizing(2)
    held(job)
    job["worker0"].signal(signal.SIGKILL)
    joining.signal(signal.SIGCONT)
    done = resizing.result()
    assert not isinstance(done, OpError) and done.version == job.version == 1 and done.bytes > 0
    job.start("worker0")
    job.goes_on()
    # What is there is kept, and found: the chief restores nothing.
    assert job["worker0"].find("is kept")
    joining = job.start("ps2", stops_before="list")
    joining.wait_for("serves")
    resizing = job.resizing(3)
    held(job)
    joining.signal(signal.SIGKILL)
    assert isinstance(resizing.result(), OpError)
    assert job.version == 1
    job.goes_on()
    job.ends()


@pytest.mark.long
@pytest.mark.parametrize("job", [(1, False)], indirect=True)
def test_a_worker_that_is_frozen_holds_nobody_up_and_is_named(job: Job) -> None:
    job.start("ps1").wait_for("serves")
    job["worker1"].signal(signal.SIGSTOP)
    resizing = job.resizing(2)
    job["worker0"].wait_for_more("^step", 50)
    error = resizing.result()
    assert isinstance(error, OpError) and "Sessions had not answered" in error.message
    assert "/job:worker/replica:0/task:1" in error.message, error.message
    job["worker1"].signal(signal.SIGCONT)
    job.goes_on()
    assert job.resizing(2).result().version == 1
    job.goes_on()
    job.ends()


@pytest.mark.long
@pytest.mark.parametrize("job", [(1, False)], indirect=True)
def test_a_server_that_is_frozen_when_it_is_to_join_holds_nobody_up(job: Job) -> None:
    joining = job.start("ps1")
    joining.wait_for("serves")
    joining.signal(signal.SIGSTOP)
    resizing = job.resizing(2)
    job.goes_on(50)
    assert resizing.is_alive()
    joining.signal(signal.SIGCONT)
    assert resizing.result().version == 1
    job.goes_on()
    job.ends()


@pytest.mark.long
@pytest.mark.parametrize("job", [(2, True)], indirect=True)
def test_a_server_that_leaves_is_killed_in_the_middle(job: Job) -> None:
    """Nothing has changed but that its state is lost, as ever: the chief restores it when the server is back."""
    job["ps1"].signal(signal.SIGSTOP)
    resizing = job.resizing(1)
    held(job)
    job["ps1"].signal(signal.SIGKILL)
    assert isinstance(resizing.result(), OpError)
    assert job.version == 0
    job.start("ps1")
    job.goes_on()
    assert job.resizing(1).result().version == 1
    job["ps1"].close()
    job.goes_on()
    job.ends()


@pytest.mark.long
@pytest.mark.parametrize("job", [(2, True)], indirect=True)
def test_the_holder_is_killed_in_the_middle(job: Job) -> None:
    """The other server hears nothing more, and lets steps go on once the holder is back, with the old record."""
    joining = job.start("ps2", stops_before="list")
    joining.wait_for("serves")
    resizing = job.resizing(3)
    held(job)
    job["ps0"].signal(signal.SIGKILL)
    assert isinstance(resizing.result(), OpError)
    joining.signal(signal.SIGKILL)
    job.start("ps0")
    job["ps1"].wait_for("it is given up")
    job.goes_on()
    assert job.version == 0
    job.start("ps2").wait_for("serves")
    assert job.resizing(3).result().version == 1
    job.goes_on()
    job.ends()
