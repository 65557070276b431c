"""Says what each task asks of a Ray cluster, and why a cluster has no place for some task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.launch.cluster import LaunchError, Task
from penstock.launch.resources import Needs

Amounts = Mapping[str, float]
_LISTED = 8  # nodes in a message


def bundles(tasks: Iterable[Task], needs: Needs) -> dict[Task, dict[str, float]]:
    """The bundle of each task. One that asks for nothing gets 1 CPU, so that Ray spreads the tasks.

    >>> bundles([Task("ps", 0), Task("worker", 0)], Needs.parse(gpus="worker=1", memory="worker=2G"))[Task("worker", 0)]
    {'CPU': 1.0, 'GPU': 1.0, 'memory': 2147483648.0}
    """
    found = {}
    for task in tasks:
        need = needs.of(task)
        if need.gpus is not None and need.gpus > 1 and need.gpus % 1:
            raise LaunchError(f"Ray gives whole GPUs, or a part of one: --gpus for {task} cannot be {need.gpus:g}.")
        amounts = {"CPU": 1.0 if need.cpus is None else need.cpus, "GPU": need.gpus or 0, "memory": need.memory or 0}
        # Ray knows no empty bundles.
        found[task] = {name: float(amount) for name, amount in amounts.items() if amount} or {"CPU": 0.001}
    return found


def misfit(wanted: Mapping[Task, Amounts], nodes: Mapping[str, Amounts]) -> str:
    """Says which task does not fit on the nodes, or that others use what would be enough.

    >>> misfit({Task("worker", 0): {"GPU": 1}}, {"10.0.0.7": {"CPU": 4}})
    'worker:0 needs 1 GPU, and no node has that. The nodes have: 4 CPU (10.0.0.7)'
    """
    have = f"The nodes have: {_described(nodes)}"
    for task, bundle in wanted.items():
        if not any(_fits(bundle, node) for node in nodes.values()):
            return f"{task} needs {amounts(bundle)}, and no node has that. {have}"
    left = {name: dict(node) for name, node in nodes.items()}
    # The large ones first, as Ray does.
    for task, bundle in sorted(wanted.items(), key=lambda item: [-item[1].get(kind, 0) for kind in ("GPU", "CPU")]):
        node = next((node for node in left.values() if _fits(bundle, node)), None)
        if node is None:
            return f"{task} needs {amounts(bundle)}, and there is no room for it beside the other tasks. {have}"
        for kind, amount in bundle.items():
            node[kind] -= amount
    return f"the nodes are large enough, but other jobs use them. {have}"


def amounts(bundle: Amounts) -> str:
    """A bundle as text.

    >>> amounts({"CPU": 2.0, "memory": 1.5 * 2**30, "object_store_memory": 7})
    '2 CPU, 1.5 GiB memory'
    """
    texts = [f"{bundle[kind]:g} {kind}" for kind in ("CPU", "GPU") if bundle.get(kind)]
    if memory := bundle.get("memory"):
        texts.append(f"{memory / 2**30:.3g} GiB memory")
    return ", ".join(texts) or "nothing"


def _fits(bundle: Amounts, node: Amounts) -> bool:
    return all(node.get(kind, 0) >= amount for kind, amount in bundle.items())


def _described(nodes: Mapping[str, Amounts]) -> str:
    texts = [f"{amounts(node)} ({name})" for name, node in nodes.items()]
    more = [f"and {len(texts) - _LISTED} more nodes"] if len(texts) > _LISTED else []
    return "; ".join([*texts[:_LISTED], *more]) or "nothing: there are none"
