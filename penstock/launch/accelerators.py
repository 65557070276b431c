"""Shares the GPUs of this machine out among the tasks of a cluster.

JAX takes most of the memory of every GPU that it sees, so two tasks that see the same one cannot both start. Each
worker gets GPUs of its own or, where there are more workers than GPUs, a part of the memory of one. A parameter server
sees none.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

from penstock.gpus import VISIBLE, visible_gpus
from penstock.launch.cluster import CHIEF, EVALUATOR, PS, WORKER, LaunchError, Task

FRACTION, OLD_FRACTION = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
SHARED = 0.9  # of a GPU's memory is divided among its tasks; each needs some more for its CUDA context
_TURNS = (WORKER, CHIEF, EVALUATOR)  # workers come first: a chief of its own may do nothing but coordinate


def shares(tasks: Sequence[Task], gpus: Sequence[str]) -> dict[Task, dict[str, str]]:
    """The settings by which each task sees its share of the GPUs; none where there are no GPUs.

    >>> shares([Task("ps", 0), Task("worker", 0), Task("worker", 1)], ["0", "1", "2"])[Task("worker", 0)]
    {'CUDA_VISIBLE_DEVICES': '0,2'}
    """
    if not gpus:
        return {}
    computing = sorted((task for task in tasks if task.job in _TURNS), key=lambda t: (_TURNS.index(t.job), t.index))
    own = {task: list(gpus[turn :: len(computing)]) or [gpus[turn % len(gpus)]] for turn, task in enumerate(computing)}
    users = Counter(gpu for found in own.values() for gpu in found)
    found = {task: {VISIBLE: ""} for task in tasks if task.job == PS}
    for task, its in own.items():
        found[task] = {VISIBLE: ",".join(its)}
        if users[its[0]] > 1:
            found[task][FRACTION] = f"{SHARED / users[its[0]]:.3f}"
    return found


def shared_out(tasks: Sequence[Task]) -> dict[Task, dict[str, str]]:
    """The settings for the tasks of a job on this machine. A fraction of the memory that the user has set is kept."""
    try:
        found = shares(tasks, visible_gpus(os.environ))
    except RuntimeError as error:
        raise LaunchError(str(error)) from error
    if FRACTION in os.environ or OLD_FRACTION in os.environ:
        for settings in found.values():
            settings.pop(FRACTION, None)
    return found


def described(found: Mapping[Task, Mapping[str, str]]) -> str:
    """A line for the user about what `shares` gave; empty if there was nothing to give.

    >>> described({Task("worker", 0): {"CUDA_VISIBLE_DEVICES": "1", "XLA_CLIENT_MEM_FRACTION": "0.450"}})
    'GPUs: worker:0 has 45% of 1'
    """
    texts = []
    for task, settings in found.items():
        if settings[VISIBLE]:
            part = f"{float(settings[FRACTION]):.0%} of " if FRACTION in settings else ""
            texts.append(f"{task} has {part}{settings[VISIBLE]}")
    return f"GPUs: {', '.join(texts)}" if texts else ""
