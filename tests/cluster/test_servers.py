"""Servers without a program of their own: clients share their state, vanish, clear it, count, and wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.gates import gate_queues
from cluster.processes import DEADLINE, KEEPALIVE, LOST, Cluster, when_back
from leaks import leak_check

import penstock.v1 as tf
from penstock.wire.control import ControlClient

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A parameter server and two workers that do nothing by themselves."""
    with leak_check(), Cluster(tmp_path_factory.mktemp("servers"), **LOST) as cluster:
        cluster.start("ps0", "worker0", "worker1", mode="join")
        for name in ("ps0", "worker0", "worker1"):
            cluster[name].wait_for("serves")
        yield cluster


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    with leak_check(), tf.Graph().as_default():
        yield


def test_an_error_of_another_task_says_where_the_op_was_defined(servers: Cluster) -> None:
    def picked(i: Any) -> Any:
        return tf.gather([1.0, 2.0], i + 5, name="picked")

    number = tf.placeholder(tf.int32, [])
    with tf.device("/job:ps/task:0"):
        outside = picked(number)
        inside = tf.while_loop(lambda i, _: i < 2, lambda i, _: (i + 1, picked(i)), [number, 0.0])
    with tf.Session(servers.target("worker0")) as session:
        for fetch in (outside, inside):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"not in \[0, 2\)") as caught:
                session.run(fetch, {number: 0})
            assert "The op 'picked' is defined at" in str(caught.value)
            assert f"test_servers.py:{picked.__code__.co_firstlineno + 1}, in picked" in str(caught.value)
            assert ("in <lambda>" in str(caught.value)) == (fetch is inside)


def test_sessions_share_variables_and_workers_have_their_own(servers: Cluster) -> None:
    with tf.device("/job:ps/task:0"):
        shared = tf.get_variable("shared", initializer=1.0)
        with tf.container("other"):
            aside = tf.get_variable("aside", initializer=2.0)
    own = tf.get_variable("own", initializer=0, collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    sessions = [tf.Session(servers.target(name)) for name in ("worker0", "worker1")]
    first, second = sessions
    first.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    second.run(tf.local_variables_initializer())
    assert first.run(tf.assign_add(shared, 4.0)) == second.run(shared) == 5.0
    assert (first.run(tf.assign_add(own, 7)), second.run(own)) == (7, 0)
    first.close()
    # The state of a server outlives sessions, until it is cleared.
    assert second.run([shared, aside]) == [5.0, 2.0]
    tf.Session.reset(servers.target("ps0"), ["other"])
    with pytest.raises(tf.errors.AbortedError, match="was closed or reset"):
        second.run(shared)
    second.close()
    with tf.Session(servers.target("worker0")) as third:
        assert third.run(shared) == 5.0
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value aside"):
            third.run(aside)
    tf.Session.reset(servers.target("worker1"))
    with tf.Session(servers.target("worker1")) as fourth:
        assert set(fourth.run(tf.report_uninitialized_variables([shared, aside, own]))) == {b"shared", b"aside", b"own"}


def test_a_server_can_be_one_device_among_others(servers: Cluster) -> None:
    parts = []
    for task in ("ps/task:0", "worker/task:0", "worker/task:1"):
        with tf.device(f"/job:{task}"):
            parts.append(tf.reduce_sum(tf.ones([1000]) * (parts[-1] if parts else 1.0)))
    with tf.Session(servers.target("worker1")) as session:
        assert session.run(parts) == [1e3, 1e6, 1e9]
        assert len({d.name.partition("/device")[0] for d in session.list_devices()}) == 3


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_a_client_vanishes_while_it_waits_in_a_queue(servers: Cluster, fault: str) -> None:
    client = servers.run("client")
    servers.at_gate("client")
    _wait_for_sessions(servers, 1)  # that of the probe ends by itself
    getattr(servers, fault)("client")
    _wait_for_sessions(servers, 0)
    servers.open_gate("client")
    # No other session has taken it.
    assert servers.probe(lambda: gate_queues("client")[1].dequeue())
    held = servers.probe(lambda: tf.get_variable("held", [1 << 16])._ref())
    np.testing.assert_array_equal(held, np.zeros(1 << 16))
    if fault == "freeze":
        # It may wait again, but in a new session.
        servers.thaw("client")
        assert client.end() == 1
        assert client.find("UnavailableError.*(Lost the connection|No connection)")


def test_a_task_is_frozen_while_it_takes_a_graph(servers: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_KEEPALIVE_SECS", str(KEEPALIVE))
    with tf.Session(servers.target("ps0")) as session:
        assert session.run(tf.constant(1.0) + 1.0) == 2.0
        servers.freeze("ps0")
        try:
            with pytest.raises(tf.errors.UnavailableError, match=r"task:0 while it took a graph: .*no sign of life"):
                session.run(tf.constant(2.0) + 2.0)
        finally:
            servers.thaw("ps0")
        assert when_back(lambda: session.run(tf.constant(3.0) + 3.0)) == 6.0


def _wait_for_sessions(servers: Cluster, count: int) -> None:
    """Waits until the parameter server has `count` sessions."""
    control = ControlClient(servers.spec["ps"][0])
    end = time.monotonic() + DEADLINE
    try:
        while len(found := control.get_status(details=True).sessions) != count:
            assert time.monotonic() < end, f"still {found}"
            time.sleep(0.01)
    finally:
        control.close()


def test_every_acknowledged_update_counts(tmp_path: Path) -> None:
    def counter() -> int:
        return int(cluster.probe(lambda: tf.get_variable("counter", [], tf.int64, use_resource=True).read_value()))

    def said(what: str) -> int:
        return sum(len(p.find(what)) for worker in ("worker0", "worker1") for p in cluster.of(worker))

    with Cluster(tmp_path, **LOST) as cluster:
        cluster.start("ps0", "worker0", "worker1", mode="count")
        for worker in ("worker0", "worker1"):
            cluster[worker].wait_for("^ack", 100)
        for worker in ("worker0", "worker1"):
            cluster[worker].wait_for_more("held at step", after=partial(cluster.write, f"hold.{worker}.step"))
        assert counter() == said("^ack") == said("^try")
        for worker in ("worker0", "worker1"):
            (tmp_path / f"hold.{worker}.step").unlink()
        cluster["worker1"].wait_for_more("^ack", 50)
        cluster.kill("worker1")
        cluster.start("worker1")
        cluster["worker1"].wait_for("^ack", 50)
        cluster.freeze("worker1")
        cluster["ps0"].wait_for("link to /job:worker/.*1 has ended: .*no sign of life")
        cluster.thaw("worker1")
        cluster["worker1"].wait_for_more("^ack", 10)
        cluster.write("finish", "0")
        assert [cluster[worker].end() for worker in ("worker0", "worker1")] == [0, 0]
        assert said("^ack") <= counter() <= said("^try")
        assert said("^lost") <= 1  # it may have been frozen between two steps


@pytest.mark.long
def test_what_does_not_come_is_named_and_given_up(tmp_path: Path) -> None:
    with Cluster(tmp_path, workers=1, PENSTOCK_START_TIMEOUT_SECS="15") as cluster:
        where = f"/job:ps/replica:0/task:0 at {cluster.spec['ps'][0]}"
        cluster.start("worker0", mode="monitored")
        cluster["worker0"].wait_for(f"Waiting for {where}: .* refused .for 1\\d s; gives up after 15 s")
        assert cluster["worker0"].end() == 1
        assert "UnavailableError" in cluster["worker0"].tail() and "Is the task running" in cluster["worker0"].tail()
        cluster.settings["PENSTOCK_START_TIMEOUT_SECS"] = "3"
        cluster.start("ps0", mode="supervised")
        cluster["ps0"].wait_for("serves")
        cluster.start("worker0")
        cluster["worker0"].wait_for("^ack", 5)
        cluster.kill("ps0")
        assert cluster["worker0"].end() == 1
        assert "UnavailableError" in cluster["worker0"].tail() and "Is the task running" in cluster["worker0"].tail()
