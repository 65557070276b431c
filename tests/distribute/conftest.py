"""A cluster of processes for the tests of a module: they kill and freeze its tasks, and find all of them back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster.processes import KEEPALIVE, LOST_LATE, Cluster
from leaks import leak_check

from penstock.eager.cluster import disconnect


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two parameter servers and two workers, each a process."""
    with leak_check(), Cluster(tmp_path_factory.mktemp("cluster"), ps=2, **LOST_LATE) as found:
        found.start("ps0", "ps1", "worker0", "worker1", mode="join")
        yield found


@pytest.fixture
def cluster(tasks: Cluster) -> Iterator[Cluster]:
    """These tasks, all of which are running or about to."""
    tasks.bring_back()
    yield tasks
    disconnect()
    tasks.show()


@pytest.fixture
def silent_tasks_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has this process count a frozen task as lost soon. Others may keep it waiting for longer."""
    monkeypatch.setenv("PENSTOCK_KEEPALIVE_SECS", str(KEEPALIVE))
