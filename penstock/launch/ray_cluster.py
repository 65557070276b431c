"""The connection to a Ray cluster, its nodes, and the error for tasks that have no place there."""

from __future__ import annotations

import importlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.cores import cores
from penstock.launch.cluster import LaunchError, Task
from penstock.launch.ray_bundles import Amounts, misfit

_ANSWERS_WITHIN = 5.0  # seconds, for a first connection
_OBJECT_STORE = 100_000_000  # bytes: jobs keep little there


def load_ray(address: str | None) -> Any:
    """The module `ray`, if it is installed. Without an address it is to start a cluster on this machine."""
    if address is None and "RAY_AUTH_MODE" not in os.environ:
        # A cluster of its own has a token of its own. Ray would store one in the home directory, and later clusters of
        # this user would ask for it. It reads these variables when it is imported.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise LaunchError(
            f"--on ray needs Ray, which cannot be imported ({error}). Install it on all nodes: pip install "
            f"'penstock[ray]'."
        ) from error


@contextmanager
def connected(ray: Any, address: str | None, cpus: int, said: Callable[[str], object]) -> Iterator[None]:
    """Connects to the cluster at an address, or starts one with so many CPUs on this machine, inside the `with`.

    What Ray has to say is `said`.
    """
    options: dict[str, Any] = {"address": address}
    problem = f"the Ray cluster at '{address}' cannot be used, or asks for a token (set RAY_AUTH_MODE=token then)"
    if address is None:
        options = {"address": "local", "num_cpus": cpus, "object_store_memory": _OBJECT_STORE}
        options["include_dashboard"] = False
        problem = "no Ray cluster can be started on this machine"
    # Ray would print to stdout, which is for the lines of tasks, and has no public way to ask for anything else.
    ray._private.worker.print_to_stdstream = lambda data, *_, **__: said(" ".join(map(str.strip, data["lines"])))
    try:
        ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises errors of many kinds
        raise LaunchError(f"{problem}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def require_answer(address: str) -> None:
    """Raises an error if nothing listens at an address: Ray itself would wait for long."""
    if address.startswith("ray://"):
        raise LaunchError(
            f"--address '{address}' is that of Ray's client server. Run `penstock launch` on a node of the cluster, "
            f"with --address auto."
        )
    host, colon, port = address.rpartition(":")
    if not colon:  # "auto"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_WITHIN).close()
    except (OSError, ValueError, OverflowError) as error:
        raise LaunchError(
            f"no Ray cluster answers at '{address}': {error}. Give the address that `ray start --head` printed, such "
            f"as 10.0.0.7:6379, or leave --address out and unset RAY_ADDRESS to start one on this machine."
        ) from error


def cpus_here(tasks: int, given: bool) -> int:
    """The CPUs of a cluster on this machine. If the tasks have not asked for any number, all fit."""
    return cores() if given else max(cores(), tasks)


def nodes(ray: Any) -> dict[str, tuple[str, Amounts]]:
    """The host and the resources of each node that is alive, by its id."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return {node["NodeID"]: (node["NodeManagerAddress"], node["Resources"]) for node in alive}


def no_place(
    ray: Any,
    wanted: Mapping[Task, Amounts],
    before: Mapping[str, tuple[str, Amounts]],
    wait: float,
    tasks: Sequence[Task],
) -> LaunchError:
    """The error for tasks that have found no place. It names the nodes that were there before, and are not now."""
    now = nodes(ray)
    gone = {host for host, _ in before.values()} - {host for host, _ in now.values()}
    vanished = f"node {', '.join(sorted(gone))} vanished; " if gone else ""
    placed_first = {task: wanted[task] for task in sorted(wanted, key=lambda task: task in tasks)}
    why = misfit(placed_first, dict(now.values()))
    who = "the tasks" if len(tasks) == len(wanted) else ", ".join(map(str, tasks))
    return LaunchError(
        f"{who} found no place on the Ray cluster within {wait:g} s: {vanished}{why}. Ask for "
        f"less with --cpus, --gpus and --memory, add nodes, or wait longer with --wait."
    )
