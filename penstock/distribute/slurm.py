"""SlurmClusterResolver: the tasks of a job step that Slurm has started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from penstock.distribute.resolvers import SimpleClusterResolver
from penstock.gpus import VISIBLE, visible_gpus
from penstock.master.cluster import ClusterSpec
from penstock.slurm_lists import counts_of, nodes_of


class SlurmClusterResolver(SimpleClusterResolver):
    """Finds the cluster in what `srun` tells each task of a job step.

    Tasks are dealt to the `jobs` in the order of the jobs' names. On each node they have the ports from `port_base` on.
    Unless `auto_set_gpu` is false, a task sees its part of the GPUs of its node only.

    >>> # srun --nodes 2 --ntasks-per-node 2 python train.py
    >>> tf.distribute.cluster_resolver.SlurmClusterResolver(jobs={"ps": 1, "worker": 3}).cluster_spec()
    ClusterSpec({'ps': ['n1:8888'], 'worker': ['n1:8889', 'n2:8888', 'n2:8889']})
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
    ) -> None:
        rank, count = _number("PROCID"), _number("STEP_NUM_TASKS")
        on_nodes = _tasks_on_nodes(tasks_per_node)
        jobs = {"worker": count} if jobs is None else dict(sorted(jobs.items()))
        places = [(node, place) for node, tasks in on_nodes.items() for place in range(tasks)]
        wanted = [(job, number) for job, tasks in jobs.items() for number in range(tasks)]
        if not len(places) == len(wanted) == count or rank >= count:
            raise RuntimeError(
                f"The jobs {jobs} have {len(wanted)} tasks and the nodes {on_nodes} have {len(places)}, but Slurm has "
                f"started {count}, of which this is number {rank}. Ask srun for as many tasks as the jobs have."
            )
        addresses = [f"{node}:{port_base + place}" for node, place in places]
        cluster = {job: [at for at, (of, _) in zip(addresses, wanted, strict=True) if of == job] for job in jobs}
        gpus = _own_gpus(places[rank][1], max(on_nodes.values()), gpus_per_node, gpus_per_task)
        if auto_set_gpu and gpus:
            os.environ[VISIBLE] = ",".join(gpus)
        accelerators = {"GPU": len(gpus)}
        super().__init__(
            ClusterSpec(cluster), addresses[rank], *wanted[rank], num_accelerators=accelerators, rpc_layer=rpc_layer
        )

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Returns the job of this task, and its number there."""
        return self.task_type, self.task_id


def _variable(name: str) -> str:
    """Returns a variable of the environment that Slurm sets."""
    full = f"SLURM_{name}"
    if full not in os.environ:
        raise RuntimeError(f"{full} is not set: this process is no task of a Slurm step. Start it with srun.")
    return os.environ[full]


def _number(name: str) -> int:
    text = _variable(name)
    if not text.isdecimal():
        raise ValueError(f"SLURM_{name} must be a number, received {text!r}.")
    return int(text)


def _tasks_on_nodes(given: int | Mapping[str, int] | None) -> dict[str, int]:
    """Returns the number of tasks on each node. Slurm numbers the tasks in this order."""
    if isinstance(given, Mapping):
        return dict(given)
    nodes = nodes_of(_variable("STEP_NODELIST"))
    counts = counts_of(_variable("STEP_TASKS_PER_NODE")) if given is None else [given] * len(nodes)
    if len(counts) != len(nodes):
        raise ValueError(f"Slurm names {len(nodes)} nodes, and numbers of tasks on {len(counts)}: {nodes}, {counts}.")
    return dict(zip(nodes, counts, strict=True))


def _own_gpus(place: int, tasks: int, per_node: int | None, per_task: int | None) -> list[str]:
    """Returns the GPUs of the task with this place on its node, where there are at most so many tasks."""
    if per_node is None or VISIBLE in os.environ:
        named = visible_gpus(os.environ)
    else:
        named = [str(number) for number in range(per_node)]
    per_task = len(named) // tasks if per_task is None else per_task
    if per_task * tasks > len(named):
        raise RuntimeError(
            f"{tasks} tasks on a node need {per_task * tasks} GPUs, {per_task} each, and it has {len(named)}. "
            f"Give fewer as gpus_per_task, or start fewer tasks there."
        )
    return named[place * per_task : (place + 1) * per_task]
