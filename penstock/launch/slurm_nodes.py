"""The nodes of a Slurm allocation, and which task goes to which."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.launch.cluster import LaunchError, Task
from penstock.launch.remote import COMMAND
from penstock.launch.resources import Needs
from penstock.slurm_lists import counts_of, nodes_of

_ANSWER_WITHIN = 60.0  # seconds, for all nodes
_MORE_PORTS = 64  # of each node, for tasks that join later
_NODE = re.compile(r"^NodeName=(\S+).*? NodeAddr=(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Node:
    """A node, the part of it that is allocated, and ports that tasks may have there."""

    name: str
    address: str
    cpus: int
    memory: int | None = None  # bytes; None if the allocation does not say
    ports: tuple[int, ...] = ()

    @property
    def addresses(self) -> list[str]:
        """Addresses that tasks may have there."""
        return [f"{self.address}:{port}" for port in self.ports]


def srun_environment() -> dict[str, str]:
    """The environment for srun: without the options of the allocation, which srun would take for its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}


def require_commands(*names: str) -> None:
    """Raises LaunchError if there is no Slurm on this machine."""
    for name in names:
        if shutil.which(name) is None:
            raise LaunchError(
                f"--on slurm needs the command `{name}`, which is not on this machine. Run it where Slurm is installed "
                f"and in PATH, or use --on local."
            )


def allocation() -> tuple[str, list[Node]]:
    """The number of the allocation that this process runs in, and its nodes."""
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        raise LaunchError(
            "--on slurm was given outside of an allocation: SLURM_JOB_ID is not set. Do one of these: run it in one, "
            "as by `salloc --nodes=3 --no-kill penstock launch --on slurm train.py`; or have it submitted, as by "
            "`penstock launch --on slurm --submit='--nodes=3' train.py`."
        )
    try:
        names = nodes_of(os.environ["SLURM_JOB_NODELIST"])
        cpus = counts_of(os.environ["SLURM_JOB_CPUS_PER_NODE"])
        per_node, per_cpu = (int(os.environ.get(f"SLURM_MEM_PER_{what}", 0)) << 20 for what in ("NODE", "CPU"))
    except (KeyError, ValueError) as error:
        raise LaunchError(
            f"the environment does not describe the allocation {job}: {error}. Start penstock launch by sbatch or "
            f"salloc, not by srun."
        ) from error
    if len(names) != len(cpus):
        raise LaunchError(f"the allocation {job} has {len(names)} nodes {names}, but CPUs of {len(cpus)}: {cpus}.")
    addresses = dict(_NODE.findall(_asked(["scontrol", "show", "node", ",".join(names), "--oneliner"])))
    return job, [
        Node(name, addresses.get(name, name), count, per_node or per_cpu * count or None)
        for name, count in zip(names, cpus, strict=True)
    ]


def with_ports(job: str, nodes: Sequence[Node], count: int, first: int | None) -> list[Node]:
    """The nodes with that many ports each, from `first` on or free ones. Asks each node, which shows that it is there.

    There are some more for tasks that join later. LaunchError names a node that does not answer, or where penstock
    cannot be imported.
    """
    asked = ["srun", f"--jobid={job}", f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
    asked += ["--overlap", "--mem=0", f"--nodelist={','.join(node.name for node in nodes)}"]
    asked += ["--job-name=penstock-ports", *COMMAND[:2], "penstock.launch.free_ports"]
    # Of those from `first` on, the further ones need not be free yet.
    answer = _asked([*asked, *map(str, [count + _MORE_PORTS] if first is None else [count, first])])
    more = () if first is None else tuple(range(first + count, min(first + count + _MORE_PORTS, 1 << 16)))
    found = {name: tuple(map(int, ports)) for name, *ports in map(str.split, answer.splitlines()) if ports}
    if silent := [node.name for node in nodes if node.name not in found]:
        raise LaunchError(f"no answer from node {', '.join(silent)} of the allocation {job}. Leave it out: --exclude.")
    return [replace(node, ports=(*found[node.name], *more)) for node in nodes]


def _asked(command: Sequence[str]) -> str:
    """The output of a command of Slurm."""
    what = f"`{' '.join(command[:3])} ...`"
    try:
        done = subprocess.run(
            command, env=srun_environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_WITHIN
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace").strip()
        raise LaunchError(
            f"{what} did not end within {_ANSWER_WITHIN:g} s; it said: {said or 'nothing'}. See `sinfo -N` for the "
            f"state of the nodes."
        ) from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise LaunchError(f"{what} ended with code {done.returncode}. It said:\n{said}")
    return done.stdout.decode()


def placed(
    tasks: Iterable[Task], needs: Needs, nodes: Sequence[Node], before: Mapping[Task, str] | None = None
) -> dict[Task, str]:
    """The name of the node of each task: that with the fewest tasks among those with room.

    Tasks that are placed `before` keep their nodes, and take their part. LaunchError says for which task there is no
    room.

    >>> nodes = [Node("n1", "10.0.0.1", cpus=4), Node("n2", "10.0.0.2", cpus=2)]
    >>> workers = [Task("worker", index) for index in range(3)]
    >>> list(placed(workers, Needs.parse(cpus="2"), nodes).values())
    ['n1', 'n2', 'n1']
    """
    found = dict(before or {})
    for task in tasks:
        need = needs.of(task)
        free = {}
        for node in nodes:
            there = [needs.of(other) for other, name in found.items() if name == node.name]
            cpus = node.cpus - sum(each.cpus or 0 for each in there)
            memory = None if node.memory is None else node.memory - sum(each.memory or 0 for each in there)
            free[node.name] = (cpus, memory, len(there))
        fits = [
            name
            for name, (cpus, memory, _) in free.items()
            if (need.cpus or 0) <= cpus and (memory is None or (need.memory or 0) <= memory)
        ]
        if not fits:
            left = ", ".join(f"{name} has {cpus:g} CPUs{_room(memory)}" for name, (cpus, memory, _) in free.items())
            raise LaunchError(
                f"there is no room for {task}: it needs {need.cpus or 0:g} CPUs{_room(need.memory)}; besides the tasks "
                f"before it, {left or 'no node is left'}. Ask for fewer tasks, give them less, or get more nodes."
            )
        found[task] = min(fits, key=lambda name: (free[name][2], -free[name][0]))
    return found


def _room(memory: int | None) -> str:
    return "" if memory is None else f" and {memory >> 20} MiB of memory"
