"""A cluster of real processes on this machine: tests start, kill, freeze and restart them, and read their output."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cluster.gates import gate_queues
from loopback import free_addresses

import penstock.v1 as tf

TRAINER = Path(__file__).with_name("trainer.py")
DEADLINE = 60.0  # seconds for anything that should happen
# Seconds of silence after which a task is lost, where tests freeze one: a busy machine may stop others for a while.
KEEPALIVE = 6
LOST = {"PENSTOCK_KEEPALIVE_SECS": str(KEEPALIVE)}
LOST_SOON = {"PENSTOCK_KEEPALIVE_SECS": "2"}  # where a session is made again if a task was lost by mistake
LOST_LATE = {"PENSTOCK_KEEPALIVE_SECS": "15"}  # for tasks whose peer is the test's own process, which may pause


T = TypeVar("T")


def when_back(step: Callable[[], T]) -> T:
    """Returns what a step returns, once tasks that were frozen are connected again: some notice late that they were."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            return step()
        except tf.errors.UnavailableError:
            if time.monotonic() > end:
                raise


class Process:
    """A child process whose lines are kept."""

    def __init__(self, name: str, command: list[str], log: Path, **settings: str) -> None:
        self.name = name
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1", **settings}
        self._child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, env=env
        )
        self._reader = threading.Thread(target=self._read, args=(log,), name=f"lines of {name}")
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def has_ended(self) -> bool:
        return self._child.poll() is not None

    def _read(self, log: Path) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as lines, log.open("a") as file:
            for line in lines:
                file.write(line)
                file.flush()
                with self._changed:
                    self.lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def find(self, pattern: str) -> list[re.Match[str]]:
        """The lines so far in which a pattern occurs."""
        return [match for line in list(self.lines) for match in re.finditer(pattern, line)]

    def wait_for(self, pattern: str, count: int = 1, deadline: float = DEADLINE) -> re.Match[str]:
        """Waits until a pattern has occurred `count` times, and returns the last match."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self.find(pattern)) >= count, deadline)
        found = self.find(pattern)
        assert len(found) >= count, f"{self.name} did not print '{pattern}' {count} times:\n{self.tail()}"
        return found[-1]

    def wait_for_more(self, pattern: str, more: int = 1, after: Callable[[], Any] = lambda: None) -> re.Match[str]:
        """Waits until a pattern has occurred `more` times more than before `after` was called."""
        seen = len(self.find(pattern))
        after()
        return self.wait_for(pattern, seen + more)

    def tail(self) -> str:
        """Its last lines."""
        return "\n".join(self.lines[-40:])

    def signal(self, number: int) -> None:
        """Sends a signal; one that kills or stops is waited for."""
        self._child.send_signal(number)
        if number == signal.SIGSTOP:  # on a busy machine its threads may continue for a while
            os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if number == signal.SIGKILL:
            self._child.wait(DEADLINE)
            self._reader.join(DEADLINE)

    def end(self, deadline: float = DEADLINE) -> int:
        """Waits until it has ended by itself. Returns its exit status."""
        try:
            status = self._child.wait(deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} has not ended:\n{self.tail()}") from None
        self._reader.join(DEADLINE)
        return status

    def close(self) -> None:
        """Ends the process in any state."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait(DEADLINE)
        self._reader.join(DEADLINE)


class Cluster:
    """Tasks `ps0`, `worker0`, ... of one job, all running one program: the trainer, if no other is given.

    >>> with Cluster(tmp_path, workers=2) as cluster:
    ...     cluster.start("ps0", "worker0", "worker1", mode="monitored")
    ...     cluster["worker0"].wait_for("step 5")
    """

    def __init__(self, folder: Path, ps: int = 1, workers: int = 2, program: Path = TRAINER, **settings: Any) -> None:
        self.folder = folder
        self.program = program
        self.addresses = free_addresses(ps + workers)
        jobs = {"ps": self.addresses[:ps], "worker": self.addresses[ps:]}
        self.spec = {job: addresses for job, addresses in jobs.items() if addresses}
        self.settings = settings
        self._tasks: dict[str, Process] = {}
        self._all: list[Process] = []
        self._flags: list[str] = []

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        for process in self._all:
            process.close()
        if kind is not None:
            self.show()

    def show(self) -> None:
        """Prints the last lines of all processes, for a test that has failed."""
        for process in self._all:
            print(f"---- {process.name}\n{process.tail()}")

    def __getitem__(self, name: str) -> Process:
        return self._tasks[name]

    def of(self, name: str) -> list[Process]:
        """All processes that a task has had."""
        return [process for process in self._all if process.name == name]

    def run(self, name: str, *flags: str) -> Process:
        """Starts a process: a task if the name is that of a task."""
        command = [sys.executable, str(self.program), f"--cluster={json.dumps(self.spec)}", f"--folder={self.folder}"]
        task = re.fullmatch(r"(ps|worker)(\d+)", name)
        if task:
            command += [f"--job={task[1]}", f"--task={task[2]}"]
        process = Process(name, [*command, *flags], self.folder / f"{name}.log", **self.settings)
        self._tasks[name] = process
        self._all.append(process)
        return process

    def start(self, *names: str, **flags: Any) -> None:
        """Starts tasks, with the same flags as those before if none are given."""
        if flags:
            self._flags = [f"--{key}={value}" for key, value in flags.items()]
        for name in names:
            self.run(name, *self._flags)

    def kill(self, name: str) -> None:
        """Kills a task."""
        self[name].signal(signal.SIGKILL)

    def freeze(self, name: str) -> None:
        """Stops a task (SIGSTOP) until `thaw`."""
        self[name].signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Lets a frozen task continue."""
        self[name].signal(signal.SIGCONT)

    def bring_back(self) -> None:
        """Starts tasks again that have ended, and thaws the others."""
        for name, process in list(self._tasks.items()):
            if process.has_ended:
                self.start(name)
            else:
                self.thaw(name)

    def write(self, name: str, text: str = "") -> None:
        """Leaves a file for the trainers."""
        path = self.folder / name
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    def target(self, name: str) -> str:
        """The target for a session on a task."""
        task = re.fullmatch(r"(ps|worker)(\d+)", name)
        assert task is not None
        return f"grpc://{self.spec[task[1]][int(task[2])]}"

    def probe(self, build: Callable[[], Any], name: str = "ps0", timeout: float = DEADLINE) -> Any:
        """Runs the tensors that `build` adds to a new graph, in a session of this process."""
        with tf.Graph().as_default(), tf.device(f"/job:{name[:-1]}/task:{name[-1]}"):
            fetches = build()
            with tf.Session(self.target(name)) as session:
                return session.run(fetches, options=tf.RunOptions(timeout_in_ms=int(timeout * 1000)))

    def until(self, build: Callable[[], Any], good: Callable[[Any], bool], name: str = "ps0") -> Any:
        """Probes until the answer is good."""
        end = time.monotonic() + DEADLINE
        while True:
            value = self.probe(build, name)
            if good(value):
                return value
            assert time.monotonic() < end, f"still {value}"
            time.sleep(0.01)

    def at_gate(self, moment: str) -> None:
        """Waits until a step is at a gate of the parameter server."""
        self.probe(lambda: gate_queues(moment)[0].dequeue())

    def open_gate(self, moment: str) -> None:
        """Lets one step through."""
        self.probe(lambda: gate_queues(moment)[1].enqueue(True))
