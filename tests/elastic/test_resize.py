"""Parameter servers join and leave a cluster of this process: what they hold moves over, and sessions go on."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from leaks import leak_check
from loopback import free_addresses

import penstock.v1 as tf
from penstock.elastic import resize as resizing
from penstock.errors import AbortedError, OpError
from penstock.launch.cluster import Cluster
from penstock.launch.scaling import newer_record
from penstock.master.cluster import ClusterSpec
from penstock.master.membership import Membership
from penstock.passes.prune import prune
from penstock.wire.control import ControlClient
from penstock.wire.messages import RunGraph

DEADLINE = 60.0


class Job:
    """Servers of a job, which begins with one parameter server and one worker."""

    def __init__(self, servers: int = 1) -> None:
        self._ps, self._worker = free_addresses(3), free_addresses(1)
        self.first = servers
        self.servers = {f"ps{n}": self.server("ps", n) for n in range(servers)} | {"worker0": self.server("worker", 0)}

    def spec(self, ps: int) -> dict[str, list[str]]:
        return {"ps": self._ps[:ps], "worker": self._worker}

    def server(self, job: str, number: int) -> Any:
        told = max(self.first, number + 1) if job == "ps" else self.first
        return tf.train.Server(self.spec(told), job_name=job, task_index=number)

    def resize(self, ps: int) -> Any:
        """Starts those that join, changes the membership, and stops those that leave."""
        for number in range(ps):
            if f"ps{number}" not in self.servers:
                self.servers[f"ps{number}"] = self.server("ps", number)
        done = self.ask(ps)
        for name in [name for name in self.servers if name.startswith("ps") and int(name[2:]) >= ps]:
            self.servers.pop(name).stop()
        return done

    def ask(self, ps: int) -> Any:
        client = ControlClient(self._ps[0])
        try:
            return client.resize(ClusterSpec(self.spec(ps)).as_cluster_def(), DEADLINE)
        finally:
            client.close()

    def holds(self, name: str) -> set[str]:
        """The names of the resources of a parameter server."""
        found = [item for device in self.servers[name].worker.devices for item in device.resources.items()]
        return {key for (container, key), _ in found if not container.startswith("session")}

    def close(self) -> None:
        for server in self.servers.values():
            server.stop()


@pytest.fixture
def make() -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def one(servers: int = 1) -> Job:
        made.append(Job(servers))
        return made[-1]

    with leak_check(), tf.Graph().as_default():
        yield one
        for job in made:
            job.close()


def variables() -> dict[str, Any]:
    with tf.device("/job:ps/task:0"):
        return {name: tf.get_variable(name, initializer=tf.fill([100], i)) for i, name in enumerate(("a", "b"), 1)}


def test_variables_move_there_and_back(make: Callable[..., Job]) -> None:
    job = make()
    w = variables()
    adds = [tf.assign_add(v, tf.ones([100], tf.int32)) for v in w.values()]
    with tf.Session(job.servers["worker0"].target) as session:
        session.run(tf.global_variables_initializer())
        session.run(adds)
        assert job.holds("ps0") == {"a", "b"}
        done = job.resize(2)
        assert (done.version, done.resources, done.bytes) == (1, 1, 400)
        assert sorted([*job.holds("ps0"), *job.holds("ps1")]) == ["a", "b"] and len(job.holds("ps1")) == 1
        session.run(adds)
        a, b = session.run(list(w.values()))
        assert (a == 3).all() and (b == 4).all()
        done = job.resize(1)
        assert job.holds("ps0") == {"a", "b"}
        session.run(adds)
        a, b = session.run(list(w.values()))
        assert (a == 4).all() and (b == 5).all()
        record = Membership.from_json(done.membership)
        assert (record.version, record.names("ps")) == (2, ["/job:ps/replica:0/task:0"])


def test_new_sessions_know_where_resources_are(make: Callable[..., Job]) -> None:
    job = make()
    w = variables()
    with tf.Session(job.servers["worker0"].target) as session:
        session.run(tf.global_variables_initializer())
    job.resize(3)
    for name in ("worker0", "ps0", "ps1"):
        with tf.Session(job.servers[name].target) as session:
            assert [int(v[0]) for v in session.run(list(w.values()))] == [1, 2]


def test_a_server_of_the_program_leaves(make: Callable[..., Job]) -> None:
    """The program names a server that is not there any more, also inside a conditional, and for new variables."""
    job = make(2)
    with tf.device("/job:ps/task:1"):
        v = tf.get_variable("v", initializer=1.0)
        queue = tf.FIFOQueue(10, tf.int64, [[]], shared_name="q")
        table = tf.contrib.lookup.MutableHashTable(tf.string, tf.int64, -1, shared_name="t")
        accumulator = tf.ConditionalAccumulator(tf.float32, [], shared_name="acc")
        later = tf.get_variable("later", initializer=5.0)
    more = tf.placeholder(tf.bool, [])
    with tf.device("/job:ps/task:1"):
        changed = tf.cond(more, lambda: tf.assign_add(v, 1.0) + 0.0, lambda: tf.assign_sub(v, 1.0) + 0.0)
    put, take = queue.enqueue_many([np.int64([7, 8, 9])]), queue.dequeue()
    with tf.Session(job.servers["worker0"].target) as session:
        session.run(v.initializer)
        session.run([put, table.insert(["k"], [3]), accumulator.apply_grad(2.0)])
        assert session.run(take) == 7
        assert session.run(changed, {more: True}) == 2.0
        assert job.holds("ps1") == {"v", "q", "t", "acc"}
        job.resize(1)
        assert job.holds("ps0") == {"v", "q", "t", "acc"}
        assert session.run(take) == 8
        assert session.run([accumulator.take_grad(1), table.lookup(tf.constant(["k"]))])[1].tolist() == [3]
        assert [session.run(changed, {more: each}) for each in (True, True, False)] == [3.0, 4.0, 3.0]
        session.run(later.initializer)
        assert session.run(later) == 5.0
        job.resize(2)
        assert session.run([later, v]) == [5.0, 3.0]
        assert session.run(take) == 9


def test_a_step_that_waits_is_let_out(make: Callable[..., Job]) -> None:
    """A step in flight waits in a queue for one that would be held: that one is admitted."""
    job = make()
    with tf.device("/job:ps/task:0"):
        w = tf.get_variable("w", initializer=tf.zeros([100]))
        queue = tf.FIFOQueue(10, tf.int64, [[]], shared_name="q")
    put, take = queue.enqueue(np.int64(7)), queue.dequeue()
    got: list[Any] = []
    with tf.Session(job.servers["worker0"].target) as session:
        session.run(w.initializer)
        session.run(put)
        assert session.run(take) == 7

        def puts() -> None:
            while len(got) < 3:
                session.run(put)
                stop.wait(0.05)

        stop = threading.Event()
        taker = threading.Thread(target=lambda: [got.append(session.run(take)) for _ in range(3)])
        putter = threading.Thread(target=puts)
        taker.start()
        putter.start()
        job.resize(2)
        taker.join(DEADLINE)
        stop.set()
        putter.join(DEADLINE)
        assert got == [7, 7, 7]


def test_a_step_that_waits_in_vain_gives_the_change_up(
    make: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resizing, "IDLE_SECS", 0.2)
    job = make()
    with tf.device("/job:ps/task:0"):
        queue = tf.FIFOQueue(10, tf.int64, [[]], shared_name="q")
    put, take = queue.enqueue(np.int64(7)), queue.dequeue()
    with tf.Session(job.servers["worker0"].target) as session:
        session.run(put)
        assert session.run(take) == 7
        waiting = threading.Thread(target=session.run, args=(take,))
        waiting.start()
        end = time.monotonic() + DEADLINE
        while not session._master.running:
            assert time.monotonic() < end
            time.sleep(0.01)
        with pytest.raises(OpError, match=r"Steps were still in flight after 0\.2 s"):
            job.resize(2)
        assert job.servers["worker0"].mover.membership.version == 0
        session.run(put)
        waiting.join(DEADLINE)
        assert not waiting.is_alive()


def test_a_server_that_is_not_there_changes_nothing(make: Callable[..., Job]) -> None:
    job = make()
    w = variables()
    with tf.Session(job.servers["worker0"].target) as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(OpError, match="No answer from"):
            job.ask(2)
        assert job.servers["ps0"].mover.membership.version == 0
        assert job.holds("ps0") == {"a", "b"}
        assert int(session.run(w["a"])[0]) == 1
        assert job.resize(2).version == 1  # it can be tried again


def test_what_cannot_move_is_named(make: Callable[..., Job]) -> None:
    job = make(2)
    with tf.device("/job:ps/task:1"):
        iterator = tf.data.make_initializable_iterator(tf.data.Dataset.range(3), shared_name="numbers")
    with tf.Session(job.servers["worker0"].target) as session:
        session.run(iterator.initializer)
        with pytest.raises(OpError, match=r"task:1 cannot leave: it holds the .* 'numbers', which cannot move"):
            job.ask(1)
        assert session.run(iterator.get_next()) == 0


def test_what_belongs_together_is_known_where_it_has_moved(make: Callable[..., Job]) -> None:
    """So that another change does not part it, though no step has run in between."""
    job = make()
    w = variables()
    with tf.device("/job:ps/task:0"):
        weights = tf.get_variable("weights", initializer=tf.ones([100]))
    train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_sum(weights), var_list=[weights])
    with tf.Session(job.servers["worker0"].target) as session:
        session.run(tf.global_variables_initializer())
        session.run([train, *w.values()])
        job.resize(2)
        pair = {("", "weights"), ("", "weights/Momentum")}
        assert job.holds("ps1") == {name for _, name in pair}
        assert job.servers["ps1"].worker.bonds == dict.fromkeys(pair, pair)
        session.run(train)


def test_a_function_of_a_coordinator_that_comes_late_is_refused(make: Callable[..., Job]) -> None:
    """Another worker may have run it before the change, and servers that have joined do not know of that."""
    job = make()
    w = variables()
    adds = prune([], [tf.assign_add(v, tf.ones([100], tf.int32)) for v in w.values()], [])
    driver = job.servers["worker0"].worker.make_function_driver()
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ran(function: Any, number: int) -> Any:
        request = RunGraph(number, 0, writer=1, number=number, settled=number)
        driver.start(function, request, lambda values, error, step: done.put(error or [int(v[0]) for v in values]))
        return done.get(timeout=DEADLINE)

    with tf.Session(job.servers["worker0"].target) as session:
        session.run(tf.global_variables_initializer())
        function = driver.add(adds)
        assert ran(function, 1) == [2, 3]
        job.resize(2)
        late = ran(function, 2)
        assert isinstance(late, AbortedError) and "servers have changed since the coordinator" in late.message
        assert ran(driver.add(adds), 3) == [3, 4]
    driver.close()


def test_the_launcher_finds_a_change_whose_answer_was_lost(make: Callable[..., Job]) -> None:
    job = make()
    before = Cluster({name: tuple(found) for name, found in job.spec(1).items()})
    assert newer_record(before, 0, None) == ""
    done = job.resize(2)
    job.servers.pop("ps0").stop()
    after = Cluster({name: tuple(found) for name, found in job.spec(2).items()})
    assert newer_record(after, 0, None) == done.membership
    assert newer_record(after, 1, None) == ""


def test_only_the_first_server_changes_the_membership(make: Callable[..., Job]) -> None:
    job = make(2)
    client = ControlClient(job._ps[1])
    with pytest.raises(OpError, match="task:0 changes the membership of a job"):
        client.resize(ClusterSpec(job.spec(1)).as_cluster_def(), DEADLINE)
    client.close()
