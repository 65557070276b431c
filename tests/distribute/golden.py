"""Runs golden programs of `tf.distribute` against loopback clusters whose servers are in this process.

Besides `tf`, `np`, `err` and `err_msg`, a program sees a fresh `resolver`, `strategy`, `coordinator`, `tmpdir`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from leaks import leak_check
from loopback import free_addresses
from v2_golden import cases, check, skip_beside_a_gpu

import penstock as tf
import penstock.server
from penstock.eager.cluster import disconnect
from penstock.master.cluster import ClusterSpec

_NAMES_DEVICES = frozenset(
    (
        "basic/logical_devices",
        "basic/properties",
        "placement/read_device",
        "placement/scope_reentered",
        "shards/outside_scope",
    )
)


class Clusters:
    """Loopback clusters by their numbers of workers and parameter servers, each started when a program needs it."""

    def __init__(self) -> None:
        self._specs: dict[tuple[int, int], ClusterSpec] = {}

    def spec(self, workers: int, servers: int) -> ClusterSpec:
        """The cluster of so many tasks; its servers are running."""
        found = self._specs.get((workers, servers))
        if found is None:
            addresses = free_addresses(workers + servers)
            found = ClusterSpec({"worker": addresses[:workers], "ps": addresses[workers:]})
            for job in found.jobs:
                for number in found.task_indices(job):
                    penstock.server.Server(found, job, number)
            self._specs[workers, servers] = found
        return found


@contextlib.contextmanager
def clusters() -> Iterator[Clusters]:
    """Clusters for the tests of a module. Afterwards all is as before, and nothing of them is left."""
    with leak_check():
        yield Clusters()
        disconnect()
        for server in list(penstock.server._in_process.values()):
            server.stop()


def namespace(row: dict[str, Any], known: Clusters, folder: Path) -> dict[str, Any]:
    """The names that a program sees besides `tf` and `np`."""
    spec = known.spec(row.get("workers", 2), row.get("ps", 3))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    names = vars(tf.distribute.experimental.partitioners)
    partitioner = row.get("partitioner")
    strategy = tf.distribute.ParameterServerStrategy(
        resolver, variable_partitioner=None if partitioner is None else _made(partitioner, names)
    )
    found = {"resolver": resolver, "strategy": strategy, "tmpdir": str(folder)}
    if row.get("coordinator") != "none":
        found["coordinator"] = tf.distribute.coordinator.ClusterCoordinator(strategy)
    return found


def _made(expression: str, names: dict[str, Any]) -> Any:
    """The partitioner of an expression such as `FixedShardsPartitioner(5)`."""
    name, _, arguments = expression.partition("(")
    positional, keywords = [], {}
    for argument in arguments.rstrip(")").split(","):
        key, equals, value = argument.strip().rpartition("=")
        if equals:
            keywords[key] = int(value)
        else:
            positional.append(int(value))
    return names[name](*positional, **keywords)


def run_row(row: dict[str, Any], known: Clusters, folder: Path, different: dict[str, str]) -> None:
    """Checks a program. One that is listed as different must differ, or it does not belong there."""
    skip_beside_a_gpu(row["id"], _NAMES_DEVICES)
    if row["id"] in different:
        with pytest.raises(Exception):  # noqa: B017  any difference will do
            check(row, folder, namespace(row, known, folder))
        return
    check(row, folder, namespace(row, known, folder))


def rows(path: str) -> list[Any]:
    """The programs of a file as parameters."""
    return [pytest.param(row, id=row["id"]) for row in cases(path)]
