"""Tasks are killed or frozen in the middle of training and come back: training continues and ends as it should."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster.processes import LOST_SOON, Cluster
from leaks import leak_check

import penstock.v1 as tf

FAULTS = ("kill", "freeze")
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    with leak_check():
        yield


def strike(cluster: Cluster, victim: str, fault: str, worker: str = "worker1") -> None:
    """Kills or freezes a task; brings it back once another, `worker` or the parameter server, has noticed."""
    if fault == "kill":
        cluster.kill(victim)
        cluster.start(victim)
        return
    # Not only that a link has ended: those of an earlier process of the task may end late.
    witness, sign = "ps0", f"the link to /job:worker/.*{victim[-1]} has ended: .*no sign of life"
    if victim.startswith("ps"):
        witness, sign = worker, "is lost"
    cluster[witness].wait_for_more(sign, after=partial(cluster.freeze, victim))
    cluster.thaw(victim)


def makes_progress(cluster: Cluster, *workers: str) -> None:
    """Waits until the workers have had more steps acknowledged."""
    for worker in workers:
        cluster[worker].wait_for_more("^ack", 5)


def ends(cluster: Cluster, steps: int = 10) -> list[float]:
    """Lets the training end some steps later. Returns the last global step, total and weight."""
    step = cluster.probe(lambda: _shared("global_step"))
    cluster.write("finish", str(step + steps))
    for worker in ("worker0", "worker1"):
        assert cluster[worker].end() == 0, cluster[worker].tail()
    last = cluster["worker0"].wait_for(r"end step (\d+) total (\d+) w -([\d.]+)")
    assert int(last[1]) >= step + steps
    return [float(value) for value in last.groups()]


def _shared(name: str) -> Any:
    """The value of a variable of the parameter server, read in a session of the test."""
    variable = tf.get_variable(name, [], tf.int64, trainable=False)
    return variable._ref() if hasattr(variable, "_ref") else variable


def counted(cluster: Cluster, pattern: str) -> int:
    """How often all processes of all workers have printed something."""
    return sum(len(p.find(pattern)) for name in ("worker0", "worker1") for p in cluster.of(name))


def variants(*strikes: str, mode: str = "", long: bool = False) -> Any:
    """Parameters of a test: what happens at which moment, or to whom, such as "kill push"."""
    pairs = [tuple(strike.split()) for strike in strikes]
    marks = [pytest.mark.long] if long else []
    return pytest.param(*([mode] if mode else []), pairs, marks=marks, id=" ".join([mode, *strikes]).strip())


def gated(cluster: Cluster, worker: str, moment: str, victim: str, fault: str) -> None:
    """A fault while a step of `worker` is at a gate; the step is retried unless the worker itself was killed."""
    cluster.write(f"{worker}.moment", moment)
    cluster.at_gate(moment)
    strike(cluster, victim, fault, worker)
    if (victim, fault) != (worker, "kill"):
        cluster.at_gate(moment)
        cluster.open_gate(moment)


@pytest.mark.parametrize(
    "strikes", [variants("kill push", "freeze pull"), variants("kill pull", "freeze push", long=True)]
)
def test_a_worker_rejoins(tmp_path: Path, strikes: list[tuple[str, str]]) -> None:
    """Killed or frozen while it waits for the chief, in a pull and in a push: no update is lost."""
    with Cluster(tmp_path, **LOST_SOON) as cluster:
        cluster.write("hold.worker0.start")
        cluster.start("ps0", "worker0", "worker1", mode="monitored")
        waits = "Waiting until the chief has initialised the model .*not initialized: global_step"
        for fault in FAULTS:
            cluster["worker1"].wait_for(waits)
            strike(cluster, "worker1", fault)
        (tmp_path / "hold.worker0.start").unlink()
        makes_progress(cluster, "worker0", "worker1")
        for fault, moment in strikes:
            gated(cluster, "worker1", moment, "worker1", fault)
            makes_progress(cluster, "worker0", "worker1")
        step, total, w = ends(cluster)
        assert step == total == w
        assert counted(cluster, "^ack") <= step <= counted(cluster, "^try") + counted(cluster, "is lost")


@pytest.mark.parametrize(
    "strikes",
    [variants("kill push", "kill save", "freeze save"), variants("kill pull", "freeze pull", "freeze push", long=True)],
)
def test_the_chief_comes_back(tmp_path: Path, strikes: list[tuple[str, str]]) -> None:
    """Killed or frozen while it initialises, in a pull, a push and a save: the others continue, no update is lost."""
    with Cluster(tmp_path, **LOST_SOON) as cluster:
        cluster.write("hold.worker0.init")
        cluster.start("ps0", "worker0", mode="monitored")
        for fault in FAULTS:
            cluster["worker0"].wait_for("held at init")
            strike(cluster, "worker0", fault)
        (tmp_path / "hold.worker0.init").unlink()
        cluster.start("worker1")
        makes_progress(cluster, "worker0", "worker1")
        for fault, moment in strikes:
            gated(cluster, "worker0", moment, "worker0", fault)
            makes_progress(cluster, "worker0", "worker1")
        step, total, w = ends(cluster)
        assert step == total == w
        assert counted(cluster, "^ack") <= step <= counted(cluster, "^try") + counted(cluster, "is lost")
        # A chief that ended by itself leaves no mark: the next one starts from the checkpoint.
        cluster.start("worker0")
        # The other worker may have made its last step between the chief's last checkpoint and its last look.
        assert step - int(cluster["worker0"].wait_for(r"session at step (\d+)")[1]) in (0, 1)
        assert not cluster["worker0"].find("is kept")


@pytest.mark.parametrize(
    ("mode", "strikes"),
    [
        variants("kill save", "kill push", "freeze push", mode="monitored"),
        variants("kill pull", "freeze pull", "freeze save", mode="monitored", long=True),
        variants("kill pull", "kill save", "kill push", mode="supervised", long=True),
        variants("freeze pull", "freeze save", "freeze push", mode="supervised", long=True),
    ],
)
def test_the_parameter_server_comes_back_empty(tmp_path: Path, mode: str, strikes: list[tuple[str, str]]) -> None:
    """Killed or frozen at the start, in a pull, a push and a save: no worker restarts, and training does not either."""
    with Cluster(tmp_path, **LOST_SOON) as cluster:
        cluster.write("hold.worker0.start")
        cluster.start("ps0", "worker0", "worker1", mode=mode)
        waits = "Waiting until the chief has initialised the model"
        cluster["worker1"].wait_for(waits)
        for fault in reversed(FAULTS):  # a worker that still waits tells of another loss only after 10 s
            cluster["worker1"].wait_for_more(waits, after=partial(strike, cluster, "ps0", fault))
        (tmp_path / "hold.worker0.start").unlink()
        makes_progress(cluster, "worker0", "worker1")
        for fault, moment in strikes:
            worker = "worker0" if moment == "save" else "worker1"
            cluster["worker0"].wait_for_more("Saving checkpoint", 2)  # when a second begins, one is complete
            before = int(re.findall(r"\d+$", tf.train.latest_checkpoint(tmp_path / "train"))[0])
            gated(cluster, worker, moment, "ps0", fault)
            assert cluster.probe(lambda: _shared("global_step")) >= before > 0
            makes_progress(cluster, "worker0", "worker1")
        ends(cluster)
        assert len(cluster.of("worker0")) == len(cluster.of("worker1")) == 1


@pytest.mark.long
def test_a_parameter_server_is_frozen_while_the_chief_prepares_graphs(tmp_path: Path) -> None:
    with Cluster(tmp_path, **LOST_SOON) as cluster:
        cluster.write("hold.worker0.init")
        cluster.start("ps0", "worker0", "worker1", mode="monitored")
        cluster["worker0"].wait_for("held at init")
        cluster.freeze("ps0")
        (tmp_path / "hold.worker0.init").unlink()  # it next runs a graph that the server does not have
        cluster["worker0"].wait_for("is lost")
        cluster.thaw("ps0")
        makes_progress(cluster, "worker0", "worker1")
        ends(cluster)


@pytest.mark.parametrize("mode", ["monitored", pytest.param("supervised", marks=pytest.mark.long)])
def test_what_is_lost_without_checkpoints_is_told(tmp_path: Path, mode: str) -> None:
    with Cluster(tmp_path, **LOST_SOON) as cluster:
        cluster.start("ps0", "worker0", "worker1", mode=mode, checkpoints=0)
        makes_progress(cluster, "worker0", "worker1")
        cluster.kill("ps0")
        cluster.start("ps0")
        cluster["worker0"].wait_for("ALL TRAINING SO FAR IS LOST: at least [1-9][0-9]* steps")
        cluster["worker0"].wait_for("no checkpoint directory to restore .* begins anew at step 0")
        makes_progress(cluster, "worker0", "worker1")
        ends(cluster)


@pytest.mark.parametrize(
    ("mode", "strikes"),
    [
        variants("kill worker1", "freeze worker0", "kill ps0", mode="monitored"),
        variants("freeze worker1", "kill worker0", "freeze ps0", mode="monitored", long=True),
        variants("kill worker0", "freeze worker0", "kill ps0", "freeze ps0", mode="supervised", long=True),
    ],
)
def test_synchronous_training_goes_on(tmp_path: Path, mode: str, strikes: list[tuple[str, str]]) -> None:
    """Killed or frozen while a replica waits for a token: the replica logs that, and continues when all are back."""
    killed = {"worker0", *(victim for fault, victim in strikes if fault == "kill")}
    with Cluster(tmp_path, **LOST_SOON) as cluster:
        cluster.start("ps0", "worker0", "worker1", mode=mode, sync=1)
        makes_progress(cluster, "worker0", "worker1")
        for fault, victim in strikes:
            # One replica does not take part, the other waits for it.
            idle, waiting = ("worker0", "worker1") if victim == "worker1" else ("worker1", "worker0")
            cluster[idle].wait_for_more("held at step", after=partial(cluster.write, f"hold.{idle}.step"))
            cluster.until(lambda: _accumulator().num_accumulated(), lambda count: count == 1)
            strike(cluster, victim, fault, waiting)
            (tmp_path / f"hold.{idle}.step").unlink()
            makes_progress(cluster, "worker0", "worker1")
        cluster["worker1"].wait_for_more("A step has been waiting", after=partial(cluster.kill, "worker0"))
        cluster.start("worker0")
        makes_progress(cluster, "worker0", "worker1")
        ends(cluster)
        assert all(len(cluster.of(w)) == 1 for w in ("worker0", "worker1") if w not in killed)


@pytest.mark.long
def test_a_parameter_server_without_the_tokens_comes_back(tmp_path: Path) -> None:
    """The chief waits for a token of the first server: only its updating thread notices the loss of the second."""
    with Cluster(tmp_path, ps=2, **LOST_SOON) as cluster:
        # Without an input queue, whose threads would close the session and so wake the chief.
        cluster.start("ps0", "ps1", "worker0", "worker1", mode="monitored", sync=1, input=0)
        makes_progress(cluster, "worker0", "worker1")
        for fault in FAULTS:
            cluster["worker1"].wait_for_more("held at step", after=partial(cluster.write, "hold.worker1.step"))
            cluster.until(lambda: _accumulator().num_accumulated(), lambda count: count == 1, "ps1")
            strike(cluster, "ps1", fault, "worker0")
            (tmp_path / "hold.worker1.step").unlink()
            makes_progress(cluster, "worker0", "worker1")
        ends(cluster)
        assert not cluster["worker0"].find("An error occurred")  # recovery from an error is not logged as one


@pytest.mark.long
def test_synchronous_training_ends_with_the_data(tmp_path: Path) -> None:
    """Either replica may run out of data first: the others do its share, or end with the chief."""
    with Cluster(tmp_path, **LOST_SOON) as cluster:
        # A step takes two gradients and makes at most one of the other replica too old: it uses up to three of the
        # chief's records. How many depends on which replica is slower.
        for records, least in (("24,6", 8), ("6,24", 2)):
            cluster.start(
                *(["worker0", "worker1"] if cluster.of("ps0") else ["ps0", "worker0", "worker1"]),
                mode="monitored",
                sync=1,
                records=records,
            )
            assert [cluster[w].end() for w in ("worker0", "worker1")] == [0, 0]
            assert least <= int(cluster["worker0"].wait_for(r"end step (\d+)")[1]) <= 18
            tf.Session.reset(cluster.target("ps0"), config=tf.ConfigProto(device_filters=["/job:ps"]))
            shutil.rmtree(tmp_path / "train")


def _accumulator() -> Any:
    return tf.ConditionalAccumulator(tf.float32, shape=[1 << 16], shared_name="w:0/grad_accum")
