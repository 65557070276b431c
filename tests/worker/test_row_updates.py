"""Sparse updates on the host: neighbours by one rule run as one, and change what each would change alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from loopback import free_addresses

import penstock.v1 as tf
from penstock import cores
from penstock.cores import in_parts
from penstock.jaxprs.numpy_program import NumpyProgram
from penstock.worker import row_updates
from penstock.worker.row_updates import RowUpdateCall

ROWS = 20
BATCHES = ([3, 1, 3], [0], [12, 0], [5, 6, 17, 8, 6])
RULES = {
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.1),
}


class Model:
    """Lookups in tables of two shards each, with rows of some dimensions. Their losses are independent."""

    def __init__(self, dims: list[int], use_resource: bool = True) -> None:
        self.ids = tf.sparse_placeholder(tf.int64)
        self.tables: list[Any] = []
        self.losses: list[Any] = []
        for i, dim in enumerate(dims):
            table = tf.get_variable(
                f"table{i}",
                [ROWS, dim],
                initializer=tf.random_uniform_initializer(1.0, 2.0, seed=i),
                partitioner=tf.fixed_size_partitioner(2),
                use_resource=use_resource,
            )
            found = tf.nn.embedding_lookup_sparse(table, self.ids, None, partition_strategy="div", combiner="sum")
            self.tables.append(table)
            self.losses.append(tf.reduce_sum(tf.square(found - i)))

    def feed(self, ids: list[int]) -> dict[Any, Any]:
        """The ids of one example."""
        places = np.array([[0, i] for i in range(len(ids))], np.int64)
        return {self.ids: tf.SparseTensorValue(places, np.array(ids, np.int64), np.array([1, len(ids)], np.int64))}


class Cluster:
    """A session on a worker whose variables are on a parameter server, both in this process."""

    def __init__(self, server: Any, session: Any) -> None:
        self._server = server
        self.run = session.run

    def joined(self) -> list[int]:
        """The number of updates that each instruction for row updates stands for, of the newest graph that has any."""
        for graph in reversed(self._server.worker._graphs.values()):
            found = [len(i.each) for i in graph.executable.instructions if isinstance(i, RowUpdateCall)]
            if found:
                return found
        return []

    def values(self, model: Model) -> list[np.ndarray]:
        """The parts of all tables."""
        return self.run([part for table in model.tables for part in table])


@contextmanager
def cluster() -> Iterator[Cluster]:
    addresses = free_addresses(2)
    spec = tf.train.ClusterSpec({"ps": addresses[:1], "worker": addresses[1:]})
    with (
        # As `penstock launch` starts them: a parameter server has no GPU, and updates rows on the host.
        tf.train.Server(spec, "ps", 0, config=tf.ConfigProto(device_count={"GPU": 0})) as ps,
        tf.train.Server(spec, "worker", 0) as worker,
        tf.Graph().as_default(),
        tf.device(tf.train.replica_device_setter(cluster=spec)),
        tf.Session(worker.target) as session,
    ):
        yield Cluster(ps, session)


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_updates_that_run_as_one_change_what_each_changes_alone(rule: str, use_resource: bool) -> None:
    found = []
    for as_one in (True, False):
        with cluster() as session:
            model, trainer = Model([4, 4, 4], use_resource), RULES[rule]()
            losses = [tf.add_n(model.losses)] if as_one else model.losses
            trains = [trainer.minimize(loss) for loss in losses]
            session.run(tf.global_variables_initializer())
            for batch in BATCHES:
                for train in trains:
                    session.run(train, model.feed(batch))
            assert session.joined() == [6 if as_one else 2]
            found.append(session.values(model))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture
def in_small_parts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Cuts updates into up to four parts of two threads. Returns the parts."""
    found: list[tuple[int, int]] = []

    def noted(work: Callable[[int, int], object], length: int, parts: int) -> None:
        def noting(begin: int, end: int) -> None:
            found.append((begin, end))
            work(begin, end)

        in_parts(noting, length, parts)

    monkeypatch.setattr(cores, "cores", lambda: 2)
    monkeypatch.setattr(row_updates, "AT_ONCE", 32)
    monkeypatch.setattr(row_updates, "in_parts", noted)
    return found


@pytest.mark.parametrize("rule", RULES)
def test_parts_of_two_threads_change_what_one_changes(rule: str, in_small_parts: list[tuple[int, int]]) -> None:
    found = []
    for at_once in (32, 1 << 20):
        row_updates.AT_ONCE = at_once
        with cluster() as session:
            model = Model([4, 4, 4])
            train = RULES[rule]().minimize(tf.add_n(model.losses))
            session.run(tf.global_variables_initializer())
            for batch in (*BATCHES, list(range(ROWS))):
                session.run(train, model.feed(batch))
            found.append(session.values(model))
    assert (0, 15) in in_small_parts  # a fourth of three tables with 20 rows
    assert (0, 60) in in_small_parts
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_an_error_in_one_part_changes_no_table(
    in_small_parts: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_last(self: NumpyProgram, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        if len(in_small_parts) > 3:
            raise ValueError("the last part")
        return run(self, arguments)

    run = NumpyProgram.__call__
    with cluster() as session:
        model = Model([4, 4])
        train = tf.train.AdagradOptimizer(0.1).minimize(tf.add_n(model.losses))
        session.run(tf.global_variables_initializer())
        session.run(train, model.feed([1]))
        before = session.values(model)
        in_small_parts.clear()
        with monkeypatch.context() as patch:
            patch.setattr(NumpyProgram, "__call__", fails_last)
            with pytest.raises(tf.errors.InvalidArgumentError, match="the last part"):
                session.run(train, model.feed(list(range(ROWS))))
        assert len(in_small_parts) == 4
        for ours, theirs in zip(session.values(model), before, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        session.run(train, model.feed([3]))
        assert any((old != new).any() for old, new in zip(before, session.values(model), strict=True))


def test_rows_of_other_forms_are_updated_by_themselves() -> None:
    with cluster() as session:
        model = Model([4, 2])
        train = tf.train.AdagradOptimizer(0.1).minimize(tf.add_n(model.losses))
        session.run(tf.global_variables_initializer())
        before = session.values(model)
        session.run(train, model.feed([3, 15]))
        assert session.joined() == [2, 2]
        assert all((old != new).any() for old, new in zip(before, session.values(model), strict=True))


def test_an_error_in_one_of_them_changes_no_table() -> None:
    with cluster() as session:
        model, rule = Model([4, 4]), tf.train.AdagradOptimizer(0.1)
        train = rule.minimize(tf.add_n(model.losses))
        last = rule.get_slot(list(model.tables[1])[1], "accumulator")
        session.run(tf.variables_initializer([v for v in tf.global_variables() if v is not last]))
        before = session.values(model)
        with pytest.raises(tf.errors.FailedPreconditionError, match="table1/part_1/Adagrad"):
            session.run(train, model.feed([3, 15]))
        assert session.joined() == [4]
        for ours, theirs in zip(session.values(model), before, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_two_updates_of_one_variable_run_one_after_the_other() -> None:
    with cluster() as session:
        model = Model([4])
        trainer = tf.train.MomentumOptimizer(1.0, 0.0)
        gradients = trainer.compute_gradients(tf.add_n(model.losses))
        twice = tf.group(trainer.apply_gradients(gradients), trainer.apply_gradients(gradients))
        session.run(tf.global_variables_initializer())
        before = session.values(model)[0][3]
        session.run(twice, model.feed([3]))
        # The gradient of the square is twice the row, which both updates subtract.
        np.testing.assert_allclose(session.values(model)[0][3], before - 4 * before, rtol=1e-6)
