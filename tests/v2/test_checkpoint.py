"""Object checkpoints: TensorFlow's files in, variables in parts, slots, states, threads that write."""

from __future__ import annotations

import base64
import collections
import gc
import json
import threading
import types
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.compat.proto.trackable_object_graph_pb2 import TrackableObjectGraph

import penstock as tf
from penstock.checkpoint import bundle, files
from penstock.errors import DataLossError, InvalidArgumentError, NotFoundError, ResourceExhaustedError
from penstock.ops.lookup.mutable import MutableHashTable
from penstock.optim.adam import AdamOptimizer
from penstock.train import checkpoint_manager, checkpoint_writing
from penstock.train.object_graph import GRAPH_KEY
from penstock.variables.slices import SaveSliceInfo

_GOLDEN = Path(__file__).parent.parent / "golden"


def model() -> Any:
    """The objects that the golden checkpoint was written from, all zero."""
    found = tf.Module()
    found.kernel = tf.Variable(tf.zeros([3, 2]), name="kernel")
    found.bias = tf.Variable([0.0, 0.0], name="bias")
    found.step = tf.Variable(0, dtype=tf.int64, name="step")
    found.layers = [tf.Variable([0.0] * 3, name="l0"), tf.Variable([[0, 0]], name="l1")]
    found.table = {
        "alpha": tf.Variable("", name="alpha"),
        "x/y": tf.Variable(False, name="slashed"),
        "nested": {"half": tf.Variable(tf.zeros([1], tf.float16), name="half")},
    }
    return found


def optimizer(of: Any) -> Any:
    """An object like an optimizer, with slots in dicts of lists."""
    found = tf.Module()
    found.iterations = tf.Variable(0, dtype=tf.int64, name="iterations")
    targets = [of.kernel, of.bias]
    found.slots = {
        name: [tf.Variable(tf.zeros_like(v), name=f"{v.name[:-2]}/{name[0]}") for v in targets]
        for name in ("momentum", "velocity")
    }
    found.targets = targets
    return found


def graph_of(path: str) -> Any:
    """The object graph of a checkpoint."""
    return TrackableObjectGraph.FromString(tf.train.load_checkpoint(path).get_tensor(GRAPH_KEY))


def test_reads_the_checkpoint_of_tensorflow() -> None:
    golden = json.loads((_GOLDEN / "v2/files/checkpoint.json").read_text())
    m = model()
    checkpoint = tf.train.Checkpoint(model=m, optimizer=optimizer(m))
    checkpoint.restore(str(_GOLDEN / "v2/files/checkpoint/ckpt-1")).assert_consumed()
    expected = {key: row["value"] for key, row in golden["variables"].items()}
    graph = checkpoint._object_graph()
    for node in graph.nodes:
        for entry in graph.entries(node):
            value = entry.read().numpy()
            found = value.decode() if isinstance(value, bytes) else value.tolist()
            assert found == expected.pop(entry.key)
    assert not expected


def test_writes_the_object_graph_of_tensorflow(tmp_path: Path) -> None:
    golden = json.loads((_GOLDEN / "v2/files/checkpoint.json").read_text())
    m = model()
    path = tf.train.Checkpoint(model=m, optimizer=optimizer(m)).save(tmp_path / "ckpt")
    expected = TrackableObjectGraph.FromString(base64.b64decode(golden["object_graph_proto_base64"]))
    assert graph_of(path) == expected
    assert (tmp_path / "checkpoint").read_text() == golden["state_file"]


def test_namedtuples_ordered_dicts_and_roots_have_the_keys_of_tensorflow(tmp_path: Path) -> None:
    pair = collections.namedtuple("pair", "u w")
    m = tf.Module()
    m.p = pair(tf.Variable(1.0), 3)
    m.od = collections.OrderedDict(a=tf.Variable(1.0))
    graph = graph_of(tf.train.Checkpoint(m, e=tf.Variable(2.0)).save(tmp_path / "c"))
    children = [[(c.local_name, c.node_id) for c in node.children] for node in graph.nodes]
    assert children[0] == [("p", 1), ("od", 2), ("e", 3), ("root", 0), ("save_counter", 4)]
    assert children[1] == [("u", 5), ("0", 5)]
    assert isinstance(m.od, collections.OrderedDict) and isinstance(m.p, pair)


class Parts:
    """A variable in parts along its first axis, with one part per length."""

    def __init__(self, value: np.ndarray, lengths: list[int], name: str = "parts") -> None:
        self.name = name
        starts = np.cumsum([0, *lengths])
        self._shape = value.shape
        self.parts = [tf.Variable(value[a : a + n]) for a, n in zip(starts, lengths, strict=False)]
        self.starts = [int(a) for a in starts]

    def _save_slices(self) -> list[tuple[Any, SaveSliceInfo]]:
        return [
            (part, SaveSliceInfo(self.name, self._shape, [start, 0], part.shape.as_list()))
            for part, start in zip(self.parts, self.starts, strict=False)
        ]

    def numpy(self) -> np.ndarray:
        return np.concatenate([part.numpy() for part in self.parts])


@pytest.mark.parametrize("lengths", [[13], [3, 3, 3, 2, 2], [1, 12], [7, 6]])
def test_reads_a_sharded_variable_of_tensorflow_into_any_parts(lengths: list[int]) -> None:
    golden = json.loads((_GOLDEN / "distribute/checkpoint.json").read_text())
    table = Parts(np.zeros([13, 2], np.float32), lengths)
    bias, step = tf.Variable([0.0, 0.0]), tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(bias=bias, step=step, table=table)
    checkpoint.read(str(_GOLDEN / "distribute/ckpt/sharded")).assert_consumed()
    expected = golden["variables"]
    assert table.numpy().tolist() == expected["table/.ATTRIBUTES/VARIABLE_VALUE"]["value"]
    assert int(step) == 7 and bias.numpy().tolist() == [1.5, -2.0]


def test_a_variable_in_parts_is_one_tensor_to_others(tmp_path: Path) -> None:
    value = np.arange(26, dtype=np.float32).reshape(13, 2)
    written = Parts(value, [3, 3, 3, 2, 2], name="ShardedVariable")
    path = tf.train.Checkpoint(table=written).write(tmp_path / "c")
    golden = json.loads((_GOLDEN / "distribute/checkpoint.json").read_text())
    expected = {bytes.fromhex(e["key_hex"]) for e in golden["entries"] if "key_hex" in e}
    assert {key for key in bundle.BundleReader(path).entries if key.startswith(b"\0")} == expected
    whole = tf.Variable(tf.zeros([13, 2]))
    tf.train.Checkpoint(table=whole).read(path).assert_consumed()
    assert whole.numpy().tolist() == value.tolist()
    other = Parts(value * 0, [6, 7])
    tf.train.Checkpoint(table=other).read(tf.train.Checkpoint(table=whole).write(tmp_path / "whole")).assert_consumed()
    assert other.numpy().tolist() == value.tolist()
    with pytest.raises(InvalidArgumentError, match="incompatible"):
        tf.train.Checkpoint(table=Parts(value[:12], [12])).read(path)


class Position:
    """An object with a state of its own, like an iterator."""

    def __init__(self) -> None:
        self.at, self.seen = 0, [b"none"]

    def _saved_state(self) -> dict[str, Any]:
        return {"ITERATOR_STATE": np.int64(self.at), "seen-words": np.array(self.seen, object)}

    def _restore_state(self, state: dict[str, Any]) -> None:
        self.at, self.seen = int(state["ITERATOR_STATE"]), state["seen-words"].tolist()


def test_states_of_objects(tmp_path: Path) -> None:
    position = Position()
    position.at, position.seen = 7, [b"a", b"b"]
    path = tf.train.Checkpoint(it=position).write(tmp_path / "c")
    assert [k for k, _ in tf.train.list_variables(path)][1:] == [
        "it/.ATTRIBUTES/ITERATOR_STATE",
        "it/.ATTRIBUTES/seen-words",
    ]
    new = Position()
    checkpoint = tf.train.Checkpoint()
    status = checkpoint.read(path)
    checkpoint.it = new  # it comes later
    status.assert_consumed()
    assert (new.at, new.seen) == (7, [b"a", b"b"])


def test_a_later_restore_wins_and_what_is_gone_is_not_kept_alive(tmp_path: Path) -> None:
    first = tf.train.Checkpoint(v=tf.Variable(1.0)).write(tmp_path / "first")
    second = tf.train.Checkpoint(v=tf.Variable(2.0)).write(tmp_path / "second")
    root = tf.Module()
    checkpoint = tf.train.Checkpoint(root)
    checkpoint.read(first)
    status = checkpoint.read(second)
    root.v = tf.Variable(0.0)
    assert float(root.v) == 2.0
    gone = weakref.ref(root.v)
    root.v = None
    gc.collect()
    assert gone() is None
    status.assert_consumed()  # it was restored while it was there


def test_only_readings_that_have_more_to_give_are_remembered(tmp_path: Path) -> None:
    more = tf.train.Checkpoint(v=tf.Variable(1.0), late=tf.Variable(3.0)).write(tmp_path / "more")
    less = tf.train.Checkpoint(v=tf.Variable(2.0)).write(tmp_path / "less")
    root = tf.Module()
    root.v = tf.Variable(0.0)
    for path in (more, more, less, less, less):
        tf.train.Checkpoint(root).read(path)
    assert len(root._checkpoint_positions) == 2
    root.late = tf.Variable(0.0)
    assert (float(root.v), float(root.late)) == (2.0, 3.0)
    tf.train.Checkpoint(root).read(less)
    assert len(root._checkpoint_positions) == 1


def test_reads_the_checkpoint_of_a_saver_by_names(tmp_path: Path) -> None:
    with bundle.BundleWriter(str(tmp_path / "model")) as writer:
        writer.add("w", np.array([1.0, 2.0], np.float32))
        writer.add("other", np.array(3.0, np.float32))
    w = tf.Variable([0.0, 0.0], name="w")
    status = tf.train.Checkpoint(w=w).read(tmp_path / "model")
    assert w.numpy().tolist() == [1.0, 2.0]
    assert type(status).__name__ == "NameBasedSaverStatus"
    status.assert_existing_objects_matched()
    with pytest.raises(AssertionError, match="other"):
        status.assert_consumed()


def test_mutable_tables(tmp_path: Path) -> None:
    table = MutableHashTable(tf.string, tf.int64, -1)
    table.insert(["a", "b"], tf.constant([1, 2], tf.int64))
    path = tf.train.Checkpoint(table=table).write(tmp_path / "c")
    assert [k for k, _ in tf.train.list_variables(path)][1:] == [
        "table/.ATTRIBUTES/table-keys",
        "table/.ATTRIBUTES/table-values",
    ]
    assert [a.name for a in graph_of(path).nodes[1].attributes] == ["table"]
    other = MutableHashTable(tf.string, tf.int64, -1)
    other.insert(["z"], tf.constant([9], tf.int64))
    tf.train.Checkpoint(table=other).read(path).assert_consumed()
    assert other.lookup(tf.constant(["b", "z"])).numpy().tolist() == [2, -1]


def step(optimizer: Any, w: Any, b: Any) -> None:
    """One step of an optimizer."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * w) + b * b
    optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b], strict=True))


def test_slots_of_optimizers_have_the_keys_of_tensorflow(tmp_path: Path) -> None:
    w, b = tf.Variable([1.0, 2.0], name="w"), tf.Variable(1.0, name="b")
    adam = AdamOptimizer(0.1)
    step(adam, w, b)
    path = tf.train.Checkpoint(opt=adam, w=w, b=b).write(tmp_path / "c")
    end = ".ATTRIBUTES/VARIABLE_VALUE"
    assert sorted(k for k, _ in tf.train.list_variables(path))[1:] == sorted(
        [f"b/{end}", f"opt/beta1_power/{end}", f"opt/beta2_power/{end}", f"w/{end}"]
        + [f"{v}/.OPTIMIZER_SLOT/opt/{slot}/{end}" for v in "wb" for slot in "mv"]
    )
    graph = graph_of(path)
    names = [(s.original_variable_node_id, s.slot_name, s.slot_variable_node_id) for s in graph.nodes[1].slot_variables]
    assert names == [(2, "m", 6), (3, "m", 7), (2, "v", 8), (3, "v", 9)]
    step(adam, w, b)
    expected = w.numpy().tolist(), float(b)

    # Slots that are there, and slots that the first step makes.
    for is_made in (True, False):
        w2, b2, adam2 = tf.Variable([0.0, 0.0]), tf.Variable(0.0), AdamOptimizer(0.1)
        if is_made:
            step(adam2, w2, b2)
        status = tf.train.Checkpoint(opt=adam2, w=w2, b=b2).read(path)
        if is_made:
            status.assert_consumed()
        step(adam2, w2, b2)
        assert (w2.numpy().tolist(), float(b2)) == expected
        status.assert_consumed()


# Threads


def test_values_of_an_asynchronous_checkpoint_are_those_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    write = checkpoint_writing.write

    def late(*args: Any) -> None:
        assert go.wait(60)
        write(*args)

    monkeypatch.setattr(checkpoint_writing, "write", late)
    v = tf.Variable([1.0, 2.0])
    checkpoint = tf.train.Checkpoint(v=v)
    options = tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
    path = checkpoint.save(tmp_path / "c", options=options)
    v.assign([5.0, 5.0])
    assert tf.train.latest_checkpoint(tmp_path) is None
    go.set()
    checkpoint.sync()
    assert tf.train.latest_checkpoint(tmp_path) == path
    checkpoint.restore(path)
    assert v.numpy().tolist() == [1.0, 2.0]


def test_the_error_of_a_thread_is_raised_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise ResourceExhaustedError("no space")

    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    with monkeypatch.context() as patch:
        patch.setattr(files, "finish", full)
        checkpoint.save(tmp_path / "c", options=tf.train.CheckpointOptions(enable_async=True))
        with pytest.raises(ResourceExhaustedError):
            checkpoint.sync()
    checkpoint.sync()
    assert tf.train.latest_checkpoint(tmp_path) is None
    assert tf.train.latest_checkpoint(tmp_path) is None and not list(tmp_path.iterdir())
    assert checkpoint.save(tmp_path / "c").endswith("c-2")


def test_a_manager_lists_only_files_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    manager = tf.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=1)
    options = tf.train.CheckpointOptions(enable_async=True)
    manager.save(options=options)
    manager.save(options=options)
    manager.sync()
    assert [Path(p).name for p in manager.checkpoints] == ["ckpt-2"]
    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", lambda path: (_ for _ in ()).throw(ResourceExhaustedError(path)))
        with pytest.raises(ResourceExhaustedError):
            manager.save()
    state = tf.train.get_checkpoint_state(tmp_path)
    assert [Path(p).name for p in state.all_model_checkpoint_paths] == ["ckpt-3"]
    for path in state.all_model_checkpoint_paths:
        assert tf.train.load_checkpoint(path).has_tensor("v/.ATTRIBUTES/VARIABLE_VALUE")


def test_a_manager_keeps_one_checkpoint_per_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(checkpoint_manager, "time", types.SimpleNamespace(time=lambda: now[0]))
    checkpoint = tf.train.Checkpoint(v=tf.Variable(1.0))
    manager = tf.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=1, keep_checkpoint_every_n_hours=2)
    for _ in range(5):
        now[0] += 3600.0
        manager.save()
    kept = sorted(p.stem for p in tmp_path.glob("*.index"))
    assert kept == ["ckpt-2", "ckpt-4", "ckpt-5"]


# Files that are not what they should be


def test_damaged_object_graphs_are_refused(tmp_path: Path) -> None:
    graph = TrackableObjectGraph()
    graph.nodes.add().children.add(node_id=5, local_name="v")
    for number, content in enumerate((graph.SerializeToString(), b"\xff\xff", b"")):
        with bundle.BundleWriter(str(tmp_path / f"c{number}")) as writer:
            writer.add(GRAPH_KEY, np.array(content, object))
        with pytest.raises(DataLossError):
            tf.train.Checkpoint(v=tf.Variable(1.0)).read(tmp_path / f"c{number}")


def test_a_key_that_the_graph_names_must_be_there(tmp_path: Path) -> None:
    graph = TrackableObjectGraph()
    graph.nodes.add().children.add(node_id=1, local_name="v")
    graph.nodes.add().attributes.add(name="VARIABLE_VALUE", checkpoint_key="nowhere")
    with bundle.BundleWriter(str(tmp_path / "c")) as writer:
        writer.add(GRAPH_KEY, np.array(graph.SerializeToString(), object))
    with pytest.raises(NotFoundError):
        tf.train.Checkpoint(v=tf.Variable(1.0)).read(tmp_path / "c")


def test_positions_of_iterators(tmp_path: Path) -> None:
    def iterator() -> Any:
        return iter(tf.data.Dataset.range(10).shuffle(5, seed=3).batch(2))

    first = iterator()
    taken = [next(first).numpy().tolist() for _ in range(2)]
    path = tf.train.Checkpoint(it=first).write(tmp_path / "c")
    rest = [batch.numpy().tolist() for batch in first]
    other = iterator()
    tf.train.Checkpoint(it=other).read(path).assert_consumed()
    assert [batch.numpy().tolist() for batch in other] == rest
    assert sorted(n for batch in taken + rest for n in batch) == list(range(10))
