"""The engine of a Slurm allocation: each task is a step of its own, started by srun on a node that is chosen here.

A task that joins later goes to a node of the allocation that has room, and so does a task on a node that dies. Slurm
itself takes minutes to see that a node is dead, so the program there gives a sign of life every few seconds
(`penstock.launch.remote`).
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.launch.cluster import Cluster, LaunchError, Size, Task
from penstock.launch.engine import Engine, Request
from penstock.launch.events import NOT_STARTED, Ended, Event, Events, Moved, Notice, Output
from penstock.launch.processes import Processes
from penstock.launch.remote import COMMAND, KILL, TERMINATE, Marks, job_credentials, letter
from penstock.launch.resources import Resources
from penstock.launch.slurm_nodes import Node, allocation, placed, require_commands, srun_environment, with_ports

_START_WITHIN = 60.0  # seconds, until the program on the node gives its first sign
_LOST_AFTER = 15.0  # seconds without a sign
_KILLED_WITHIN = 5.0
# What srun says if the node is at fault, and not what was asked for.
_UNREACHABLE = re.compile(
    r"failed on node|[Nn]ode failure|[Cc]ommunication|[Uu]nable to contact|timed out|not available"
)


@dataclass
class _Life:
    """One start of a task on a node."""

    node: str
    marks: Marks
    heard: float = field(default_factory=time.monotonic)
    said: bytes = b""  # the end of stderr, where srun says what is wrong
    lost: str = ""
    unwanted: bool = False  # it was asked to end


class SlurmEngine:
    """Runs tasks as steps of an allocation."""

    def __init__(self, job: str, nodes: Sequence[Node], request: Request, events: Events) -> None:
        self._job = job
        self._request = request
        self._events = events
        self._credentials = job_credentials()
        self._processes = Processes(events, self._heard)
        self._nodes = {node.name: node for node in nodes}  # those that are not lost
        self._places = placed(request.size.tasks, request.needs, nodes)
        self._addresses: dict[Task, str] = {}
        self.cluster = Cluster({})
        self._give_addresses(request.size.addressed)
        self.cluster = Cluster.at(request.size, self._addresses.values())
        self._lives: dict[Task, _Life] = {}
        on = {name: [str(task) for task, at in self._places.items() if at == name] for name in self._nodes}
        self.notices = [f"Slurm job {job}: " + "; ".join(f"{', '.join(on[n])} on {n}" for n in on if on[n])]

    def start(self, task: Task, attempt: int) -> None:
        """Starts a task as a step on its node."""
        if self._places[task] not in self._nodes:  # it was lost when no other had room; another may be there now
            try:
                self._move([task])
            except LaunchError as error:
                self._events.post(Ended(task, NOT_STARTED, f"cannot be started: {error}"))
                return
        self._launch(task)

    def resize(self, size: Size) -> float:
        """Places tasks that join on nodes with room. Tasks that have left keep their places until they end."""
        joining = [task for task in size.tasks if task not in self._places]
        before = dict(self._places)
        self._places = placed(joining, self._request.needs, [*self._nodes.values()], before)
        try:
            self._give_addresses(joining)
        except LaunchError:
            for task in joining:
                del self._places[task]
                self._addresses.pop(task, None)
            raise
        self._follow(size)
        if joining:
            told = [f"{task} on {self._places[task]}, at {self._addresses[task]}" for task in joining]
            self._events.post(Notice(f"Slurm job {self._job}: {'; '.join(told)}"))
        for task in before:
            self._forget(task)
        return 0.0

    def terminate(self, task: Task) -> None:
        """Has the program on the node send SIGTERM to the task."""
        if life := self._lives.get(task):
            life.unwanted = True
            self._processes.tell(task, TERMINATE)

    def kill(self, task: Task) -> None:
        """Has the program on the node send SIGKILL to the task; ends the step if it does not answer."""
        life = self._lives.get(task)
        if life is None:
            return
        life.unwanted = True
        self._processes.tell(task, KILL)

        def end() -> None:
            if self._lives.get(task) is life:
                self._processes.signal(task, signal.SIGKILL)

        self._events.later(_KILLED_WITHIN if life.marks.up else 0, end)

    def close(self) -> None:
        """Ends all steps: each ends when its srun does."""
        self._processes.close()

    def _launch(self, task: Task) -> None:
        node = self._places[task]
        life = self._lives[task] = _Life(node, Marks(task, self._events.post))
        command = srun(self._job, node, task, self._request.needs.of(task))
        told = letter(self._request.commands.of(task, self.cluster), self._credentials)
        self._processes.start(task, lambda _: command, srun_environment(), told)
        self._events.later(_LOST_AFTER, lambda: self._check(task, life))

    def _check(self, task: Task, life: _Life) -> None:
        """Looks for signs of life."""
        if self._lives.get(task) is not life or life.lost:
            return
        patience = _LOST_AFTER if life.marks.up else _START_WITHIN
        silent = time.monotonic() - life.heard
        if silent < patience:
            self._events.later(patience - silent, lambda: self._check(task, life))
        elif life.marks.up:
            self._lose(life.node, f"no sign of {task} for {silent:.0f} s")
        else:
            life.said = life.said or f"no answer to srun within {silent:.0f} s: timed out".encode()
            self._processes.signal(task, signal.SIGKILL)

    def _heard(self, event: Event) -> None:
        match event:
            case Output(task, stream, data):
                life = self._lives[task]
                life.heard = time.monotonic()
                if stream == "stderr":
                    self._heard_stderr(task, life, data)
                else:
                    self._events.post(event)
            case Ended(task, code, why):
                life = self._lives.pop(task)
                life.said = life.said or why.encode()
                self._ended(task, life, code)
                self._forget(task)

    def _heard_stderr(self, task: Task, life: _Life, data: bytes) -> None:
        shown = b""
        for piece in data.splitlines(keepends=True) or [b""]:  # a mark ends a line
            over = life.marks.code is not None
            text = life.marks.feed(piece)
            life.said = (life.said + text)[-2000:]
            # What comes after the end is srun's own account of it, as is what comes if nothing has begun.
            if life.marks.up and not over:
                shown += text
        if shown:
            self._events.post(Output(task, "stderr", shown))

    def _ended(self, task: Task, life: _Life, code: int) -> None:
        said = life.said.decode(errors="replace").strip().replace("\n", "; ")
        if life.marks.code is not None:
            self._events.post(Ended(task, life.marks.code))
        elif life.lost:
            self._events.post(Ended(task, -signal.SIGKILL, life.lost))
        elif code < 0 and (life.marks.up or life.unwanted):  # srun was ended, and the step with it
            self._events.post(Ended(task, code))
        elif code > 128 and life.marks.up:  # the node lives: it has told srun the signal that ended the step
            self._events.post(Ended(task, 128 - code))
        elif life.marks.up:
            self._lose(life.node, said)
            self._events.post(Ended(task, -signal.SIGKILL, f"was lost with node {life.node}"))
        else:
            if _UNREACHABLE.search(said):
                self._lose(life.node, said)
            if self._places[task] == life.node or life.unwanted:
                self._events.post(Ended(task, NOT_STARTED, f"cannot be started on node {life.node}: {said}"))
            else:
                self._launch(task)

    def _lose(self, node: str, why: str) -> None:
        """Ends all tasks of a node that does not answer, and finds other nodes for them."""
        if self._nodes.pop(node, None) is None:
            return
        tasks = [task for task, name in self._places.items() if name == node]
        for task in tasks:
            if life := self._lives.get(task):
                life.lost = f"was lost with node {node}"
                self._processes.signal(task, signal.SIGKILL)  # srun would wait until Slurm sees that the node is dead
        self._events.post(Notice(f"node {node} is lost: {why}"))
        try:
            self._move([task for task in tasks if task in self.cluster.tasks])
        except LaunchError as error:
            self._events.post(Notice(str(error)))

    def _move(self, tasks: Sequence[Task]) -> None:
        """Places tasks on the nodes that are left; all that know their addresses are told by `Moved`."""
        staying = {task: name for task, name in self._places.items() if task not in tasks}
        self._places = placed(tasks, self._request.needs, [*self._nodes.values()], staying)
        moved = [task for task in tasks if task in self._addresses]
        self._give_addresses(moved)
        self._follow(self.cluster.size)
        if moved:
            told = [f"{task} to {self._places[task]}, at {self._addresses[task]}" for task in moved]
            self._events.post(Notice(f"moving {'; '.join(told)}"))
            self._events.post(Moved(tuple(moved)))

    def _follow(self, size: Size) -> None:
        """Has the cluster of this size, at the addresses of now."""
        self.cluster = self.cluster.resized(size, [self._addresses[task] for task in size.addressed])

    def _forget(self, task: Task) -> None:
        """Frees the place of a task that has left and ended."""
        if task not in self.cluster.tasks and task not in self._lives:
            self._places.pop(task, None)
            self._addresses.pop(task, None)

    def _give_addresses(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            node = self._nodes[self._places[task]]
            self._addresses.pop(task, None)
            # Programs may still know the address of a parameter server that has left.
            taken = {*self._addresses.values(), *(self.cluster.first_ps or ())}
            address = next((each for each in node.addresses if each not in taken), None)
            if address is None:
                raise LaunchError(f"node {node.name} has no port left for {task}: {len(node.ports)} are in use.")
            self._addresses[task] = address


def srun(job: str, node: str, task: Task, need: Resources) -> list[str]:
    """The command that starts a task on a node.

    With resources given it has those for itself. Otherwise it shares what the allocation has there.

    >>> srun("12", "n1", Task("worker", 0), Resources(cpus=2))[7:10]
    ['--exact', '--cpus-per-task=2', '--mem=0']
    """
    command = ["srun", f"--jobid={job}", "--nodes=1", "--ntasks=1", f"--nodelist={node}", f"--job-name={task}"]
    command.append("--no-kill")
    if need == Resources():
        command.append("--overlap")
    else:
        command.append("--exact")
        command.append(f"--cpus-per-task={need.cpus or 1:g}")
    command.append("--mem=0" if need.memory is None else f"--mem={need.memory >> 20}M")
    if need.gpus is not None:
        command.append(f"--gpus-per-task={need.gpus:g}")
    return [*command, *COMMAND]


def _check_whole(needs: Mapping[str, Resources]) -> None:
    for kind, need in needs.items():
        for option, amount in (("--cpus", need.cpus), ("--gpus", need.gpus)):
            if amount is not None and amount != int(amount):
                raise LaunchError(f"Slurm gives whole CPUs and GPUs, received {option} {kind}={amount:g}.")


@contextmanager
def place(request: Request, events: Events) -> Iterator[Engine]:
    """Runs tasks in the Slurm allocation of this process inside the `with`; afterwards none of their steps is left."""
    require_commands("srun", "scontrol")
    _check_whole(request.needs.kinds)
    job, nodes = allocation()
    placed(request.size.tasks, request.needs, nodes)  # before the nodes are asked: it says at once if there is no room
    count = len(request.size.addressed)
    engine = SlurmEngine(job, with_ports(job, nodes, count, request.base_port), request, events)
    try:
        yield engine
    finally:
        engine.close()
