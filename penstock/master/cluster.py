"""A ClusterSpec says which tasks a cluster has, and where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorboard.compat.proto import cluster_pb2

from penstock.cores import cores
from penstock.errors import InvalidArgumentError

MAX_PORT = 65535


class ClusterSpec:
    """Lists the tasks of a cluster: jobs, each with addresses by task number.

    >>> cluster = tf.train.ClusterSpec({"ps": ["ps0:2222"], "worker": ["worker0:2222", "worker1:2222"]})
    >>> cluster.task_address("worker", 1)
    'worker1:2222'
    """

    def __init__(self, cluster: Any) -> None:
        if isinstance(cluster, ClusterSpec):
            jobs: dict[Any, Any] = {job: dict(tasks) for job, tasks in cluster._jobs.items()}
        elif isinstance(cluster, cluster_pb2.ClusterDef):
            jobs = {job.name: dict(job.tasks) for job in cluster.job}
        elif isinstance(cluster, Mapping):
            jobs = {name: _numbered(name, tasks) for name, tasks in cluster.items()}
        else:
            raise TypeError(
                "`cluster` must be a dictionary mapping one or more job names to lists of network addresses, or a "
                "`ClusterDef` protocol buffer"
            )
        self._jobs: dict[str, dict[int, str]] = {
            _text(name, "Job name"): {number: _text(at, "Task address") for number, at in sorted(tasks.items())}
            for name, tasks in jobs.items()
        }

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and self._jobs == other._jobs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        jobs = self.as_dict()
        return "ClusterSpec({" + ", ".join(f"{job!r}: {jobs[job]!r}" for job in sorted(jobs)) + "})"

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._jobs)

    def as_dict(self) -> dict[str, Any]:
        """Returns jobs with lists of addresses, or with dicts where task numbers are missing."""
        result: dict[str, Any] = {}
        for job, tasks in self._jobs.items():
            dense = bool(tasks) and list(tasks) == list(range(len(tasks)))
            result[job] = list(tasks.values()) if dense else dict(tasks)
        return result

    def num_tasks(self, job_name: str) -> int:
        """Returns how many tasks a job has."""
        return len(self._tasks(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Returns the numbers of a job's tasks."""
        return sorted(self._tasks(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Returns the address of a task."""
        tasks = self._tasks(job_name)
        if task_index not in tasks:
            raise ValueError(f"No task with index {task_index!r} in job {job_name!r}")
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Returns the addresses of a job's tasks, None where a number is missing."""
        tasks = self._tasks(job_name)
        return [tasks.get(number) for number in range(max(tasks, default=-1) + 1)]

    def share_of_cores(self, address: str) -> int:
        """Returns how many cores a task gets when the tasks that compute on its host share the cores.

        Parameter servers do not count: they work while workers wait for them.
        """
        computing = len(self._on_host_of(address, servers=False))
        return max(1, min(cores() // max(1, computing), len(self.part_of_cores(address, range(cores())))))

    def part_of_cores(self, address: str, every: Sequence[int]) -> Sequence[int]:
        """Returns those of a host's cores that a task may use: parameter servers of one host get different ones.

        >>> ClusterSpec({"ps": ["localhost:2222", "localhost:2223"]}).part_of_cores("localhost:2223", [0, 1, 2, 3])
        [2, 3]
        """
        servers = self._on_host_of(address, servers=True)
        if address not in servers:
            return every
        place, count, size = servers.index(address), len(servers), len(every)
        if count > size:
            return every[place % size : place % size + 1]
        return every[place * size // count : (place + 1) * size // count]

    def _on_host_of(self, address: str, servers: bool) -> list[str]:
        """Returns the addresses of the parameter servers, or of all other tasks, on the host of an address."""
        host = address.rpartition(":")[0]
        jobs = [tasks for job, tasks in self._jobs.items() if (job.lower() == "ps") == servers]
        every = [at for tasks in jobs for _, at in sorted(tasks.items())]
        return [at for at in every if at.rpartition(":")[0] == host]

    def as_cluster_def(self) -> Any:
        """Returns the cluster as a ClusterDef message."""
        definition = cluster_pb2.ClusterDef()
        for name in sorted(self._jobs):
            job = definition.job.add(name=name)
            for number, address in sorted(self._jobs[name].items()):
                job.tasks[number] = address
        return definition

    def _tasks(self, job_name: str) -> dict[int, str]:
        if job_name not in self._jobs:
            raise ValueError(f"No such job in cluster: {job_name!r}")
        return self._jobs[job_name]


def require_port(address: str, whose: str) -> None:
    """Refuses an address without a port; `whose` says where it was given.

    >>> require_port("localhost", "Task 0 of job 'ps'")
    InvalidArgumentError: Task 0 of job 'ps' has the address 'localhost', which is no host and port. ...
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise InvalidArgumentError(
            f"{whose} has the address '{address}', which is no host and port. Write it as 'localhost:2222'."
        )


def require_tasks(cluster: ClusterSpec, where: str = "") -> None:
    """Refuses a cluster with a task that no server can be; `where` comes before the name of that task.

    >>> require_tasks(ClusterSpec({"ps": ["localhost"]}), "TF_CONFIG: ")
    InvalidArgumentError: TF_CONFIG: Task 0 of job 'ps' has the address 'localhost', which is no host and port. ...
    """
    for job in cluster.jobs:
        for number in cluster.task_indices(job):
            if number < 0:
                raise InvalidArgumentError(f"{where}Task {number} of job '{job}' must have a number from 0 on.")
            require_port(cluster.task_address(job, number), f"{where}Task {number} of job '{job}'")


def _numbered(name: Any, tasks: Any) -> dict[int, Any]:
    if isinstance(tasks, (list, tuple)):
        return dict(enumerate(tasks))
    if isinstance(tasks, Mapping):
        return {int(number): address for number, address in tasks.items()}
    shown = name.decode() if isinstance(name, bytes) else name
    raise TypeError(f"The tasks for job {shown!r} must be a list or a dictionary from integers to strings.")


def _text(value: Any, what: str) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError(f"{what} {value!r} must be bytes or unicode")
    return value
