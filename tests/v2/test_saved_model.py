"""SavedModels: TensorFlow's files in, files out and in again, files that are not what they should be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as tf
from penstock.checkpoint import files
from penstock.distribute.sharded_variable import ShardedVariable
from penstock.errors import DataLossError, ResourceExhaustedError
from penstock.saved_model.messages import SavedModel

_GOLDEN = Path(__file__).parent.parent / "golden" / "v2" / "files"
_CALLS = json.loads((_GOLDEN / "saved_model.json").read_text())["calls"]


def values(structure: Any) -> Any:
    """A structure of tensors as plain values."""

    def plain(tensor: Any) -> Any:
        return tf.nest.map_structure(lambda v: v.decode() if isinstance(v, bytes) else v, np.asarray(tensor).tolist())

    return tf.nest.map_structure(plain, structure)


@pytest.mark.parametrize("row", _CALLS, ids=lambda row: f"{row['call']} {row['inputs']}")
def test_functions_of_tensorflow(row: dict[str, Any]) -> None:
    loaded = tf.saved_model.load(_GOLDEN / "saved_model")
    signature = row["call"].removeprefix("signatures['").removesuffix("']")
    called = loaded.signatures[signature] if signature != row["call"] else getattr(loaded, row["call"])
    found = called(**{name: tf.constant(value) for name, value in row["inputs"].items()})
    assert values(found) == row["output"]
    assert loaded.scale.numpy().tolist() == [2.0, -1.0]


def test_gradients_through_a_loaded_function() -> None:
    loaded = tf.saved_model.load(_GOLDEN / "saved_model")
    x = tf.constant([[1.0, 2.0], [3.0, 0.5]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        score = tf.reduce_sum(loaded.score(x)["score"])
    assert tape.gradient(score, [x, loaded.scale])[1].shape == [2]


# Files that are not what they should be


def damaged(tmp_path: Path, change: Any) -> Path:
    """A copy of the golden model whose message was changed."""
    target = tmp_path / "damaged"
    shutil.copytree(_GOLDEN / "saved_model", target)
    model = SavedModel.FromString((target / "saved_model.pb").read_bytes())
    change(model.meta_graphs[0], model)
    (target / "saved_model.pb").write_bytes(model.SerializeToString())
    return target


def _child(meta: Any, model: Any) -> None:
    meta.object_graph_def.nodes[0].children[0].node_id = 99


def _bound(meta: Any, model: Any) -> None:
    next(iter(meta.object_graph_def.concrete_functions.values())).bound_inputs.append(99)


def _asset(meta: Any, model: Any) -> None:
    meta.asset_file_def[0].filename = "../../etc/passwd"


def _asset_number(meta: Any, model: Any) -> None:
    meta.object_graph_def.nodes[2].asset.asset_file_def_index = 7


def _parameters(meta: Any, model: Any) -> None:
    meta.object_graph_def.nodes[3].function.function_spec.fullargspec.named_tuple_value.values[0].value.int64_value = 3


def _schema(meta: Any, model: Any) -> None:
    model.saved_model_schema_version = 7


def _more_variables(meta: Any, model: Any) -> None:
    meta.object_graph_def.nodes[0].children.add(node_id=len(meta.object_graph_def.nodes), local_name="more")
    meta.object_graph_def.nodes.add().variable.dtype = 1


def _huge(meta: Any, model: Any) -> None:
    meta.object_graph_def.nodes[1].variable.shape.dim[0].size = 1 << 50


@pytest.mark.parametrize(
    "change",
    [_huge, _child, _bound, _asset, _asset_number, _parameters, _schema, _more_variables],
    ids=lambda f: f.__name__,
)
def test_damaged_models_are_refused(change: Any, tmp_path: Path) -> None:
    with pytest.raises(DataLossError):
        tf.saved_model.load(damaged(tmp_path, change))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(DataLossError):
        tf.saved_model.load(tmp_path)


def test_options(tmp_path: Path) -> None:
    skip = tf.saved_model.LoadOptions(experimental_skip_checkpoint=True)
    assert tf.saved_model.load(_GOLDEN / "saved_model", options=skip).scale.numpy().tolist() == [0.0, 0.0]
    partial = tf.saved_model.LoadOptions(allow_partial_checkpoint=True)
    found = tf.saved_model.load(damaged(tmp_path, _more_variables), options=partial)
    assert found.scale.numpy().tolist() == [2.0, -1.0] and float(found.more) == 0.0
    tf.saved_model.save(tf.Module(), tmp_path / "m", options=tf.saved_model.SaveOptions(extra_tags=["gpu"]))
    assert len(tf.saved_model.load(tmp_path / "m", tags=["gpu", "serve"]).signatures) == 0


def test_tags() -> None:
    assert tf.saved_model.load(_GOLDEN / "saved_model", tags="serve").scale.shape == [2]
    with pytest.raises(ValueError, match="serve"):
        tf.saved_model.load(_GOLDEN / "saved_model", tags=["train"])


# Files out and in again


def model(folder: Path) -> Any:
    """A module with everything that can be saved."""
    m = tf.Module()
    m.v = tf.Variable([2.0, -1.0], name="scale")
    m.count = tf.Variable(0, dtype=tf.int64, trainable=False, name="count")
    m.lst = [tf.Variable(1.5), {"k": tf.Variable([1, 2])}]
    m.tup = (tf.Variable(9.0), 3)
    (folder / "words.txt").write_text("x\ny\nz\n")
    m.asset = tf.saved_model.Asset(folder / "words.txt")
    m.table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([1, 2], tf.int64)), -1
    )
    captured = tf.constant([10.0, 20.0])

    def score(x: Any) -> Any:
        m.count.assign_add(1)
        s = tf.reduce_sum(x * m.v, axis=1) + captured[0]
        return {"score": s, "positive": s > 0.0}

    def grow(n: Any, start: Any) -> Any:
        def body(i: Any, a: Any) -> Any:
            return i + 1, tf.cond(a > 5.0, lambda: a - 1.0, lambda: a * m.v[0] + 2.0)

        return tf.while_loop(lambda i, a: i < n, body, [tf.constant(0), start])[1]

    def branch(x: Any) -> Any:
        return tf.cond(x > 0, lambda: m.count.assign_add(100), lambda: m.count.assign_add(1000))

    def keywords(a: Any, b: Any = 3, *, z: Any, c: bool = True, d: Any) -> Any:
        return a * b + (z - d if c else z + d)

    m.score = tf.function(score, input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    m.grow = tf.function(grow, input_signature=[tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.float32)])
    m.words = tf.function(lambda: tf.io.read_file(m.asset.asset_path), input_signature=[])
    m.look = tf.function(lambda x: m.table.lookup(x), input_signature=[tf.TensorSpec([None], tf.string)])
    m.branch = tf.function(branch, input_signature=[tf.TensorSpec([], tf.int32)])
    m.keywords = tf.function(keywords)
    m.keywords(tf.constant(2.0), z=tf.constant(5.0), d=tf.constant(1.0))
    m.keywords(tf.constant([2.0]), 4, z=tf.constant([5.0]), c=False, d=tf.constant(1.0))
    return m


def check_model(m: Any) -> None:
    """Asserts that a model, or what was saved of it, does what it should."""
    x = tf.constant([[1.0, 2.0], [3.0, 0.5]])
    assert values(m.score(x)) == {"positive": [True, True], "score": [10.0, 15.5]}
    assert int(m.count) == 1
    assert values(m.branch(tf.constant(1))) == 101 and values(m.branch(tf.constant(-1))) == 1101
    assert [values(m.grow(tf.constant(n), tf.constant(a))) for n, a in [(0, 1.0), (5, 1.5), (9, 0.25)]] == [
        1.0,
        9.0,
        8.0,
    ]
    assert values(m.words()) == "x\ny\nz\n"
    assert values(m.look(tf.constant(["a", "?", "b"]))) == [1, -1, 2]
    assert values(m.keywords(tf.constant(2.0), z=tf.constant(5.0), d=tf.constant(1.0))) == 10.0
    assert values(m.keywords(tf.constant([2.0]), 4, z=tf.constant([5.0]), c=False, d=tf.constant(1.0))) == [14.0]
    assert float(m.lst[0]) == 1.5 and m.lst[1]["k"].numpy().tolist() == [1, 2] and float(m.tup[0]) == 9.0


def test_what_is_saved_does_the_same_when_it_is_loaded(tmp_path: Path) -> None:
    tf.saved_model.save(model(tmp_path), tmp_path / "one", signatures=None)
    (tmp_path / "words.txt").unlink()  # the model has a copy
    loaded = tf.saved_model.load(tmp_path / "one")
    tf.saved_model.save(loaded, tmp_path / "two")  # before it is used, so that its count is 0
    check_model(loaded)
    shutil.rmtree(tmp_path / "one")
    check_model(tf.saved_model.load(tmp_path / "two"))


def test_what_is_saved_has_nodes_for_loaders_without_objects(tmp_path: Path) -> None:
    m = model(tmp_path)
    tf.saved_model.save(m, tmp_path / "m", signatures={"serving_default": m.score, "grow": m.grow})
    meta = SavedModel.FromString((tmp_path / "m" / "saved_model.pb").read_bytes()).meta_graphs[0]
    nodes = {node.name: node for node in meta.graph_def.node}
    signature = meta.signature_def["serving_default"]
    assert nodes[signature.inputs["x"].name.partition(":")[0]].op == "Placeholder"
    call = nodes[signature.outputs["score"].name.partition(":")[0]]
    assert call.op == "StatefulPartitionedCall"
    functions = {f.signature.name: f for f in meta.graph_def.library.function}
    assert [a.type for a in functions[call.attr["f"].func.name].signature.input_arg] == list(call.attr["Tin"].list.type)
    for name in (meta.saver_def.filename_tensor_name, meta.saver_def.save_tensor_name, meta.saver_def.restore_op_name):
        assert name.partition(":")[0] in nodes
    assert [f.filename for f in meta.asset_file_def] == ["words.txt"]
    assert nodes[meta.collection_def["saved_model_main_op"].node_list.value[0]].op == "NoOp"
    assert not any(node.device for f in functions.values() for node in f.node_def)


def test_a_checkpoint_restores_the_variables_of_a_saved_model(tmp_path: Path) -> None:
    m = tf.Module()
    m.v = tf.Variable([1.0, 2.0])
    tf.saved_model.save(m, tmp_path / "m")
    other = tf.Module()
    other.v = tf.Variable([0.0, 0.0])
    tf.train.Checkpoint(other).restore(tmp_path / "m").expect_partial()
    assert other.v.numpy().tolist() == [1.0, 2.0]


def test_untracked_variables_of_functions_are_an_error(tmp_path: Path) -> None:
    m = tf.Module()
    outside = tf.Variable(1.0, name="outside")
    m.f = tf.function(lambda x: x * outside, input_signature=[tf.TensorSpec([], tf.float32)])
    with pytest.raises(AssertionError, match="outside"):
        tf.saved_model.save(m, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise ResourceExhaustedError("no space")

    m = tf.Module()
    m.v = tf.Variable(1.0)
    monkeypatch.setattr(files, "finish", full)
    with pytest.raises(ResourceExhaustedError):
        tf.saved_model.save(m, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_variables_in_parts_are_saved_whole(tmp_path: Path) -> None:
    table = ShardedVariable([tf.Variable([[1.0], [2.0]]), tf.Variable([[3.0]])], name="table")
    m = tf.Module()
    m.table = table

    def rows(ids: Any) -> Any:
        return tf.nn.embedding_lookup(table, ids), tf.reduce_sum(tf.convert_to_tensor(table))

    m.rows = tf.function(rows, input_signature=[tf.TensorSpec([None], tf.int32)])
    expected = values(m.rows(tf.constant([2, 0])))
    assert expected == ([[3.0], [1.0]], 6.0)
    tf.saved_model.save(m, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    assert loaded.table.numpy().tolist() == [[1.0], [2.0], [3.0]]
    assert values(loaded.rows(tf.constant([2, 0]))) == expected
    loaded.table.assign([[0.0], [0.0], [5.0]])
    assert values(loaded.rows(tf.constant([2, 0]))) == ([[5.0], [0.0]], 5.0)

    m.write = tf.function(lambda: table.variables[0].assign([[0.0], [0.0]]), input_signature=[])
    with pytest.raises(ValueError, match="part of a variable"):
        tf.saved_model.save(m, tmp_path / "n", signatures=m.write)


def test_functions_with_ops_that_tensorflow_lacks_are_left_out(tmp_path: Path) -> None:
    m = tf.Module()
    m.v = tf.Variable(3.0)

    def train(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.math.atan(m.v) * x
        m.v.assign_sub(tape.gradient(loss, m.v))
        return loss

    m.train = tf.function(train, input_signature=[tf.TensorSpec([], tf.float32)])
    m.predict = tf.function(lambda x: m.v * x, input_signature=[tf.TensorSpec([], tf.float32)])
    tf.saved_model.save(m, tmp_path / "m", signatures=m.predict)
    loaded = tf.saved_model.load(tmp_path / "m")
    assert float(loaded.predict(tf.constant(2.0))) == 6.0
    with pytest.raises(ValueError, match="0 traces"):
        loaded.train(tf.constant(1.0))
    with pytest.raises(ValueError, match="Vjp"):
        tf.saved_model.save(m, tmp_path / "n", signatures=m.train)
