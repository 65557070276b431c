"""Every pass of the list: random graphs have the same results with and without it, and it changes nothing in place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from loopback import free_addresses
from random_graphs import STEPS, WIDTH, Steps, few, graphs

import penstock.v1 as tf
from penstock.passes import pipeline
from penstock.passes.ir import Subgraph
from penstock.passes.pipeline import Pass

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"
SIZES = (5, 2)
ON_CPU = tf.ConfigProto(device_count={"GPU": 0})  # some passes are for segments of CPUs only
NEEDED = ("place", "put_on", "split", "take_summed_rows")  # passes that every step over tasks needs
EVERY = (
    *pipeline.GRAPH,
    *pipeline.placement([], False),
    *pipeline.PLACED,
    *pipeline.over_tasks([], False, iter(())),
    *pipeline.body(""),
    *pipeline.callable_body("", in_numpy=True),
)

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")]


def name_of(each: Pass) -> str:
    found: str = getattr(each, "func", each).__name__
    return found


OPTIONAL = sorted({name_of(each) for each in EVERY} - set(NEEDED))


def test_the_list_names_each_pass() -> None:
    assert OPTIONAL == [
        "ask_once",
        "deal_ids",
        "fuse_sparse_updates",
        "gather_before_segments",
        "gather_once",
        "join_transfers",
        "join_variables",
        "kernels_on_host",
        "lists_on_host",
        "move_barriers",
        "optimize",
        "plan_lookups",
        "read_late",
        "rows_on_host",
        "sum_before_sending",
    ]


# Graphs with nodes for each pass


def variable(rows: int) -> Any:
    name = tf.get_default_graph().unique_name("table")
    with tf.device(PS):
        return tf.get_variable(name, [rows, WIDTH], initializer=tf.random_uniform_initializer(-1.0, 1.0, seed=rows))


def ids(x: Any) -> Any:
    return tf.range(tf.shape(x)[0]) * 2 % 7


def summed_rows(x: Any, tables: int = 1) -> Any:
    """Sums two rows of a table for every two rows of x. The table may be split."""
    numbers = tf.range(tf.shape(x)[0])
    places = tf.cast(tf.stack([numbers // 2, numbers % 2], 1), tf.int64)
    shape = tf.cast(tf.stack([(tf.shape(x)[0] + 1) // 2, 2]), tf.int64)
    parts = [variable(4), variable(3)] if tables == 2 else [variable(7)]
    return tf.nn.embedding_lookup_sparse(parts, tf.SparseTensor(places, ids(x), shape), None, combiner="sum")


def counted(x: Any, y: Any) -> Any:
    """A conditional whose branch changes a variable of another task."""
    total = variable(1)
    return tf.cond(tf.reduce_sum(y) > 0, lambda: x + tf.assign_add(total, tf.ones([1, WIDTH])), lambda: x - total)


def joined(x: Any) -> Any:
    """A value of the parameter server that waits there for a group, which the worker has joined."""
    total = variable(1)
    with tf.device(PS):
        first, second = tf.assign_add(total, tf.ones([1, WIDTH])), tf.identity(x)
    with tf.device(WORKER), tf.control_dependencies([first, second]):
        both = tf.no_op()
    with tf.device(PS), tf.control_dependencies([both]):
        return x + tf.identity(second)


def from_dataset() -> Any:
    data = tf.data.Dataset.range(4).map(lambda i: tf.ones([WIDTH]) * tf.cast(i, tf.float32)).batch(2).repeat()
    return data.make_one_shot_iterator().get_next()


MORE: dict[str, Callable[[Any, Any], Any]] = {
    "branch": counted,
    "constants": lambda x, y: x + tf.reduce_sum(tf.constant([1.0, 2.0]) * 3.0),
    "dataset": lambda x, y: x + tf.reduce_sum(from_dataset(), 0),
    "far lookup": lambda x, y: x + tf.nn.embedding_lookup(variable(7), ids(x)),
    "list": lambda x, y: tf.map_fn(lambda row: tf.gather(row, tf.unique(tf.range(WIDTH))[0]) * 2.0, x),
    "lookup": lambda x, y: x + tf.gather(variable(7), ids(x)),
    "split lookup": lambda x, y: x + tf.nn.embedding_lookup([variable(4), variable(3)], ids(x)),
    "split sums": lambda x, y: tf.concat([summed_rows(x, 2), y], 0),
    "sums": lambda x, y: tf.concat([summed_rows(x), y], 0),
    "variable": lambda x, y: x + variable(1),
}
RARE: dict[str, Callable[[Any, Any], Any]] = {"joined": lambda x, y: joined(x)}


def results(steps: Steps, target: str) -> list[Any]:
    """The results of two training steps, and then the variables; or the type of an error."""
    found: list[Any] = []
    with tf.Graph().as_default(), ExitStack() as stack:
        if not target:  # there are no tasks
            stack.enter_context(pytest.MonkeyPatch.context()).setattr(tf, "device", lambda name: ExitStack())
        tf.set_random_seed(5)
        x = tf.placeholder(tf.float32, [None, WIDTH])
        tensors = [x]
        for name, first, second in steps:
            with tf.device(WORKER if first % 2 else PS):
                step = {**STEPS, **MORE, **RARE}[name]
                tensors.append(step(tensors[first % len(tensors)], tensors[second % len(tensors)]))
        with tf.device(WORKER):
            loss = tf.reduce_mean((tensors[-1] + tf.gather(variable(7), tf.range(5) % 3)[0]) ** 2)
        train = tf.train.AdagradOptimizer(0.1).minimize(loss)
        if target:
            tf.Session.reset(target)  # variables of other graphs have the same names
        session = stack.enter_context(tf.Session(target, config=ON_CPU))
        session.run(tf.global_variables_initializer())
        for size in SIZES:
            rows = np.random.RandomState(size).randn(size, WIDTH).astype(np.float32)
            try:
                found.append(session.run([tensors[-1], loss, train], {x: rows})[:2])
            except tf.errors.OpError as error:
                found.append(type(error))
        return [*found, session.run(tf.global_variables())]


def check_same(these: list[Any], those: list[Any]) -> None:
    for one, other in zip(these, those, strict=True):
        if isinstance(one, type) or isinstance(other, type):
            assert one is other
            continue
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5 * float(np.abs(b).max(initial=1)))


# Running them


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """A session over a parameter server and a worker."""
    with ExitStack() as stack:
        addresses = free_addresses(2)
        cluster = tf.train.ClusterSpec({"ps": addresses[:1], "worker": addresses[1:]})
        stack.enter_context(tf.train.Server(cluster, "ps", 0, config=ON_CPU))
        yield stack.enter_context(tf.train.Server(cluster, "worker", 0, config=ON_CPU)).target


class Watch:
    """Replaces `pipeline.applied`: leaves passes out, and checks the others."""

    def __init__(self, left_out: Collection[str]) -> None:
        self.left_out = left_out
        self.changed: set[str] = set()

    def applied(self, passes: Iterable[Pass], subgraph: Subgraph) -> Subgraph:
        for each in passes:
            before = written_out(subgraph)
            result = each(subgraph)
            assert written_out(subgraph) == before, f"{name_of(each)} changes what it is given"
            if result is not subgraph:
                self.changed.add(name_of(each))
            if name_of(each) not in self.left_out:
                subgraph = result
        return subgraph

    def results(self, steps: Steps, target: str) -> list[Any]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipeline, "applied", self.applied)
            return results(steps, target)


def written_out(subgraph: Subgraph) -> Any:
    """A subgraph with all fields of its nodes."""
    nodes = [
        (
            n,
            n.name,
            n.op,
            {k: id(v) for k, v in n.attrs.items()},
            n.dtypes,
            [*n.inputs],
            [*n.controls],
            n.device,
            n.order,
            n.on_host,
        )
        for n in subgraph.nodes
    ]
    return nodes, [*subgraph.feeds], [*subgraph.fetches], [*subgraph.targets]


@functools.cache
def expected(steps: tuple[tuple[str, int, int], ...]) -> list[Any]:
    """The results in one process, with only the passes that are always needed."""
    return Watch(OPTIONAL).results(list(steps), "")


@pytest.mark.parametrize("left_out", ["", *OPTIONAL])
def test_graphs_give_the_same_without_a_pass(target: str, left_out: str) -> None:
    watch = Watch([left_out])

    @few(12)
    @given(graphs([*MORE, *MORE, *STEPS]))
    @example([("branch", 1, 0), ("sums", 0, 0)])
    @example([("list", 1, 0), ("dataset", 0, 1)])
    @example([("split sums", 1, 0), ("joined", 0, 1)])
    @example([("split lookup", 1, 0), ("far lookup", 1, 0)])
    @example([("variable", 1, 0), ("variable", 1, 1)])
    @example([("variable", 1, 0), ("variable", 1, 1), ("branch", 1, 0)])
    @example([("branch", 5, 1), ("far lookup", 3, 1), ("lookup", 3, 0), ("variable", 5, 2)])
    def check(steps: Steps) -> None:
        check_same(watch.results(steps, target), expected(tuple(steps)))

    check()
    assert ({left_out} if left_out else set(NEEDED)) <= watch.changed, "no graph has something for the pass"
