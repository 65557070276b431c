"""A partition that is sent as a GraphDef arrives unchanged, runs the same, and is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from golden_programs import check, load
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.graph_pb2 import GraphDef

import penstock.v1 as tf
from penstock.errors import InvalidArgumentError, NotFoundError
from penstock.graph.function import Call, Function
from penstock.graph.import_nodes import MAX_NAME
from penstock.passes.ir import Subgraph
from penstock.passes.optimize import optimize
from penstock.passes.partition import partition
from penstock.passes.place import place
from penstock.passes.portable import from_graph_def, to_graph_def
from penstock.passes.prune import body_of, prune
from penstock.passes.sparse_lookups import gather_before_segments
from penstock.worker.worker import Worker

TASKS = [f"/job:{job}/replica:0/task:0/device:CPU:0" for job in ("ps", "worker")]


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def there_and_back(subgraph: Subgraph) -> Subgraph:
    """A partition after it was encoded and decoded."""
    return from_graph_def(GraphDef.FromString(to_graph_def(subgraph).SerializeToString()))


@pytest.fixture
def travelling(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Encodes and decodes every partition before it is registered; counts the nodes."""
    register = Worker.register_graph
    counted: list[int] = []

    def registered(self: Worker, subgraph: Subgraph, *args: Any) -> Any:
        counted.append(len(subgraph.nodes))
        return register(self, there_and_back(subgraph), *args)

    monkeypatch.setattr(Worker, "register_graph", registered)
    return counted


# Programs have the same results if their partitions were sent


def results(fetches: Any, steps: int = 3, feed: dict[Any, Any] | None = None) -> list[Any]:
    """The fetches of a few steps."""
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()])
        return [session.run(fetches, feed) for _ in range(steps)]


def mlp_with_adam(folder: str) -> Any:
    x = tf.placeholder(tf.float32, [None, 4], name="x")
    y = tf.layers.dense(tf.nn.dropout(tf.layers.dense(x, 8, tf.nn.leaky_relu), 0.5, seed=2), 1)
    loss = tf.reduce_mean(tf.erf(y) ** 2)
    train = tf.train.AdamOptimizer(0.1).minimize(loss)
    return results([loss, train], feed={x: np.linspace(-1, 1, 12, dtype="f").reshape(3, 4)})


def branches(folder: str) -> Any:
    v = tf.get_variable("v", initializer=[1.0, -2.0], use_resource=True)
    w = tf.get_variable("w", initializer=[1.0, 2.0], use_resource=False)
    y = tf.cond(v[0] > 0, lambda: tf.nn.dropout(v * w, 0.5), lambda: v + tf.cond(w[0] > 0, lambda: w, lambda: v))
    grads = tf.gradients(y, [v, w])
    change = tf.cond(v[0] > 0, lambda: tf.assign_sub(w, [1.0, 1.0]), lambda: tf.identity(w))
    with tf.control_dependencies([*grads, y]):
        change = tf.group(change, tf.assign_sub(v, [0.5, 0.5]))
    return results([y, grads, change])


def loop_with_gradients(folder: str) -> Any:
    v = tf.get_variable("v", initializer=[1.5, 0.5])
    kept = tf.TensorArray(tf.float32, 3)
    _, y, kept = tf.while_loop(
        lambda i, y, kept: i < 3,
        lambda i, y, kept: (i + 1, y * v + tf.random_normal([2]), kept.write(i, y)),
        [0, v * 1.0, kept],
    )
    loss = tf.reduce_sum(y * y) + tf.reduce_sum(kept.stack())
    hidden = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(3), tf.ones([2, 4, 3]), dtype=tf.float32)[0]
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss + tf.reduce_mean(hidden))
    return results([loss, train])


def sparse_adagrad(folder: str) -> Any:
    table = tf.get_variable("table", [20, 3])
    ids = tf.SparseTensor([[0, 0], [0, 1], [2, 0]], [3, 4, 4], [3, 2])
    rows = tf.nn.embedding_lookup_sparse(table, ids, None, combiner="mean")
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [1, 1, 5]) ** 2) + tf.reduce_sum(rows * rows)
    train = tf.train.AdagradOptimizer(0.1).minimize(loss)
    return results([loss, train])


def partitioned(folder: str) -> Any:
    parts = tf.fixed_size_partitioner(3)
    with tf.variable_scope("s", partitioner=parts):
        table = tf.get_variable("table", [7, 2])
    loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [0, 3, 6]) ** 2)
    return results([loss, tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss), tf.convert_to_tensor(table)])


def dataset(folder: str) -> Any:
    offset = tf.constant(np.arange(100, dtype=np.int64))[7]
    numbers = tf.data.Dataset.range(20).map(lambda x: x * 2 + offset).filter(lambda x: x % 3 > 0).batch(2)
    words = tf.data.Dataset.from_tensor_slices([b"a", b"\xff\x00", b""]).repeat()
    return results(tf.data.make_one_shot_iterator(tf.data.Dataset.zip((numbers, words))).get_next())


def strings_and_tables(folder: str) -> Any:
    keys = tf.constant(["a", "b"])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, tf.constant([1, 2], tf.int64)), -1)
    text = tf.string_join([keys, tf.as_string(table.lookup(keys))], "\udcff-")
    return results([text, tf.size(tf.strings.regex_replace(text, "[a-z]", r"\\0"))])


def saver(folder: str) -> Any:
    v = tf.get_variable("v", initializer=[1.0, 2.0])
    write = tf.assign(v, [5.0, 6.0])
    keep = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = keep.save(session, f"{folder}/model")
        session.run(write)
        keep.restore(session, path)
        return session.run(v)


def many_types(folder: str) -> Any:
    types = (np.float16, np.float64, np.int8, np.uint64, np.bool_, np.complex64, np.complex128)
    constants = [tf.constant(np.array([0, 1, 0, 2]).astype(t)) for t in types]
    constants += [tf.cast(constants[1], tf.bfloat16), tf.constant([], tf.string), tf.constant([[b"x"], [b"\xff"]])]
    constants += [tf.zeros([300, 400]), tf.fill([2, 0], 1), tf.constant(np.random.rand(500, 40)), tf.constant(np.nan)]
    return results([tf.identity(c) for c in constants], steps=1)


PROGRAMS = (
    mlp_with_adam,
    branches,
    loop_with_gradients,
    sparse_adagrad,
    partitioned,
    dataset,
    strings_and_tables,
    saver,
    many_types,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_programs_run_the_same(program: Callable[[str], Any], tmp_path: Any, request: Any) -> None:
    given = []
    for _ in range(2):
        np.random.seed(1)
        with tf.Graph().as_default():
            tf.set_random_seed(1)
            given.append(program(str(tmp_path)))
        travelled = request.getfixturevalue("travelling")
    assert travelled
    assert_same(*given)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, (list, tuple)):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        np.testing.assert_array_equal(one, other)


GOLDEN = {
    "queues": ("fifo_many", "padding_fifo", "priority_queue", "batch_and_allow_smaller", "barrier_and_stage"),
    "accumulators": ("average_and_counts", "stale_dropped", "sparse_average"),
    "partition_programs": ("embedding_lookup_mod_vs_div",),
}


@pytest.mark.parametrize(("file", "name"), [(file, name) for file, names in GOLDEN.items() for name in names])
def test_golden_programs(file: str, name: str, travelling: list[int]) -> None:
    check(next(row for row in load(f"semantics/{file}.json")["cases"] if row["id"] == name), tf)
    assert travelling


# Contents


def described(value: Any) -> Any:
    """Subgraphs, functions and attrs as plain data that can be compared."""
    if isinstance(value, Subgraph):
        number = {id(n): i for i, n in enumerate(value.nodes)}
        nodes = [
            (
                n.name if n.op.name != "_Arg" else "",
                n.op.name,
                described(n.attrs),
                n.dtypes,
                [(number[id(s)], i) for s, i in n.inputs],
                [number[id(s)] for s in n.controls],
                n.device,
                n.order,
            )
            for n in value.nodes
        ]
        lists = [number[id(n)] for n in value.feeds], [number[id(n)] for n in value.targets]
        return nodes, *lists, [(number[id(n)], i) for n, i in value.fetches]
    if isinstance(value, Function):
        return described(body_of(value))
    if isinstance(value, Call):
        return value.op, described(value.attrs)
    if isinstance(value, dict):
        return {k: described(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tolist()
    return [described(v) for v in value] if isinstance(value, (list, tuple)) else (type(value), str(value))


def parts_of(fetches: list[Any], feeds: list[Any]) -> list[Subgraph]:
    """The partitions of the default graph over two tasks."""
    return [p.subgraph for p in partition(place(optimize(prune(feeds, fetches, [])), TASKS))]


def training_on_two_tasks() -> list[Subgraph]:
    """Partitions with parts that are hard to encode: functions, gradients, references, invalid names."""
    x = tf.placeholder(tf.float32, [2], name="x")
    with tf.device("/job:ps"):
        v = tf.get_variable("v", initializer=[1.0, 2.0])
        table = tf.get_variable("table", [5, 2])
        rows = tf.nn.embedding_lookup_sparse(table, tf.SparseTensor([[0, 0]], [3], [1, 1]), None, combiner="sum")
    with tf.device("/job:worker"):
        y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * v + tf.random_normal([2])), [0, v * x])[1]
        y = tf.cond(y[0] > 0, lambda: y * y, lambda: tf.nn.dropout(y, 0.25))
        loss = tf.reduce_sum(tf.erf(y)) + tf.reduce_sum(rows) + tf.to_float(tf.size(tf.constant(["a", "\u00e9"])))
    train = tf.train.AdagradOptimizer(0.5).minimize(loss)
    with tf.control_dependencies([train]):
        return parts_of([tf.identity(loss), v._ref()], [x])


def test_everything_arrives() -> None:
    parts = [gather_before_segments(part) for part in training_on_two_tasks()]  # makes two nodes of one name
    assert len(parts) == 2
    for part in parts:
        assert described(there_and_back(part)) == described(part)
    nodes = [n for part in parts for n in part.nodes]
    assert {"Vjp", "While", "If", "IterationMemory", "_Send", "_Recv", "_Arg"} <= {n.op.name for n in nodes}
    assert any(len({n.name for n in p.nodes}) < len(p.nodes) for p in parts)


def test_a_repeated_value_is_written_once() -> None:
    (part,) = parts_of([tf.fill([1000, 1000], 1.5), tf.zeros([1000, 1000])], [])
    assert to_graph_def(part).ByteSize() < 2000


# Python functions stay where they are


def test_python_functions_do_not_travel() -> None:
    with tf.device("/job:ps"):
        here = tf.py_func(lambda: 1.0, [], tf.float32, name="call")
        inside = tf.cond(tf.identity(True), lambda: tf.py_func(lambda: 1.0, [], tf.float32, name="call"), lambda: 2.0)
    for fetch in (here, inside):
        with pytest.raises(InvalidArgumentError, match=r"'call'.* only in the process that made them.*'/job:ps/.*CPU"):
            to_graph_def(parts_of([fetch], [])[0])
    sent = to_graph_def(parts_of([tf.constant(1.0)], [])[0])
    sent.node[1].op = "PyFunc"
    with pytest.raises(InvalidArgumentError, match="Python function"):
        from_graph_def(sent)


def test_what_cannot_be_written_names_its_node() -> None:
    (part,) = parts_of([tf.constant(1.0, name="c")], [])
    part.nodes[0].attrs["_own"] = object()
    with pytest.raises(InvalidArgumentError, match=r"Node 'c'.*cannot hold"):
        to_graph_def(part)


# Input from the wire is checked


def _set(path: str, **values: Any) -> Callable[[GraphDef], None]:
    """An edit of the fields of the node called `path`, or of its attr for 'path.attr'."""
    name, _, attr = path.partition(".")

    def edit(proto: GraphDef) -> None:
        node = next(n for n in proto.node if n.name == name)
        target = node.attr[attr] if attr else node
        for key, value in values.items():
            if isinstance(value, (list, tuple)):
                target.ClearField(key)
                getattr(target, key).extend(value)
            else:
                setattr(target, key, value)

    return edit


def _header(key: str, numbers: list[int]) -> Callable[[GraphDef], None]:
    def edit(proto: GraphDef) -> None:
        proto.node[0].attr[key].list.i[:] = numbers

    return edit


def _tensor(**values: Any) -> Callable[[GraphDef], None]:
    def edit(proto: GraphDef) -> None:
        tensor = next(n for n in proto.node if n.name == "c").attr["value"].tensor
        tensor.ClearField("tensor_content")
        for key, value in values.items():
            getattr(tensor, key).extend(value)
        tensor.tensor_shape.dim[0].size = 2**28

    return edit


def _nested(proto: GraphDef) -> None:
    """Each function contains the next one twice: little data, but 2 ** 30 nodes if it is expanded."""
    del proto.library.function[:]
    loop = next(n for n in proto.node if n.op == "While")
    for depth in range(31):
        function = proto.library.function.add()
        function.signature.name = f"f{depth}"
        function.node_def.add(op="_Partition").attr["orders"].list.i.extend([1, 2])
        for i in range(2):
            node = function.node_def.add(name=f"n{i}", op="NoOp" if depth == 30 else "While")
            for key in ("cond", "body") if depth < 30 else ():
                node.attr[key].func.name = f"f{depth + 1}"
            node.attr["T"].list.SetInParent()
    loop.attr["body"].func.name = loop.attr["cond"].func.name = "f0"


def _itself(proto: GraphDef) -> None:
    for function in proto.library.function:
        for node in function.node_def[1:]:
            node.attr["_again"].func.name = function.signature.name


REFUSED = {
    "no header": (lambda g: g.node.pop(0), "must begin with"),
    "no nodes": (lambda g: g.ClearField("node"), "must begin with"),
    "orders": (_header("orders", [1]), "order of 1"),
    "fed number": (_header("feeds", [99]), "Node 99 is to be fed"),
    "negative": (_header("targets", [-1]), "Node -1 is to be run"),
    "fed twice": (_header("feeds", [0, 0]), "fed twice"),
    "not fed": (_header("feeds", []), "must be the nodes of type _Arg"),
    "output": (_header("fetches", [0, 7]), "Output 7"),
    "half a fetch": (_header("fetches", [0]), "not pairs"),
    "op type": (_set("sum", op="Nothing"), "Node 'sum': there is no op type 'Nothing'"),
    "name": (_set("sum", name="x" * 3 * MAX_NAME), "characters"),
    "input form": (_set("sum", input=["0:0", "x:y"]), "Node 'sum'.*'x:y' is not an input"),
    "input sign": (_set("sum", input=["0:0", "-1:0"]), "'-1:0' is not an input"),
    "input number": (_set("sum", input=["0:0", "99:0"]), "'99:0' is no node before it"),
    "input output": (_set("sum", input=["0:0", "0:5"]), "too few outputs"),
    "input order": (_set("sum", input=["^0", "0:0"]), "after a control input"),
    "input count": (_set("sum", input=["0:0"]), "takes 2 inputs, received 1"),
    "input type": (_set("sum.T", type=3), "input 0 must be int32, received float32"),
    "type": (_set("sum.T", type=10), "must be one of"),
    "kind of attr": (_set("sum.T", i=1), "must be of kind 'type'"),
    "outputs": (_set("split.num_split", i=10**6), "between 0 and"),
    "values missing": (_tensor(float_val=[1.0, 2.0]), "gives 2 of them"),
    "values too many": (_tensor(string_val=[b"a"] * 9, float_val=[1.0]), "gives 9 of them"),
    "functions grow": (_nested, "more than 200000 nodes"),
    "function calls itself": (_itself, "calls itself"),
    "function gone": (lambda g: g.ClearField("library"), "neither in the library nor an op type"),
    "function twice": (lambda g: g.library.function.append(g.library.function[0]), "twice"),
}


def small_partition() -> Subgraph:
    x = tf.placeholder(tf.float32, [2], name="x")
    y = tf.add(x, tf.constant([1.0, 2.0], name="c"), name="sum")
    y = tf.while_loop(lambda y: y[0] < 3, lambda y: y + x, [y])
    parts = tf.split(y, 2, name="split")
    (part,) = parts_of([*parts, tf.constant(["a", "b"])], [x])
    return part


@pytest.mark.parametrize(("edit", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_refused(edit: Callable[[GraphDef], Any], message: str) -> None:
    sent = to_graph_def(small_partition())
    from_graph_def(sent)
    edit(sent)
    with pytest.raises(NotFoundError if "no op type '" in message else InvalidArgumentError, match=message):
        from_graph_def(sent)


def test_outputs_of_all_nodes_are_bounded() -> None:
    sent = to_graph_def(small_partition())
    split = next(n for n in sent.node if n.name == "split")
    split.attr["num_split"].i = 65536
    from_graph_def(sent)
    sent.node.extend([split] * 70)
    sent.node[0].attr["orders"].list.i.extend([0] * 70)
    with pytest.raises(InvalidArgumentError, match=r"'split'.*too many"):
        from_graph_def(sent)


SENT: list[bytes] = []


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    if not SENT:
        with tf.Graph().as_default():
            SENT.extend(to_graph_def(p).SerializeToString() for p in (small_partition(), *training_on_two_tasks()))
    damaged = bytearray(data.draw(st.sampled_from(SENT)))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.sampled_from([0, 1, 255, damaged[place] ^ 1, damaged[place] ^ 128]))
    try:
        from_graph_def(GraphDef.FromString(bytes(damaged)))
    except (InvalidArgumentError, NotFoundError, DecodeError):
        return
