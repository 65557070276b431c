"""Readers of checkpoints, initial values from them, and tables in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_programs import GOLDEN

import penstock.v1 as tf

PARTITIONED = GOLDEN / "checkpoints/partitioned"


def test_what_tensorflow_wrote() -> None:
    reader = tf.train.NewCheckpointReader(str(PARTITIONED / "model.ckpt-1"))
    assert reader.has_tensor("p/emb") and not reader.has_tensor("p/em")
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    assert shapes["p/emb"] == [13, 2] and dtypes["p/emb"] is tf.float32
    assert tf.train.list_variables(PARTITIONED) == sorted(shapes.items())
    whole = reader.get_tensor("p/emb")
    np.testing.assert_array_equal(tf.train.load_variable(PARTITIONED, "p/emb:0"), whole)
    lines = reader.debug_string().decode("latin-1").splitlines()
    assert sum("p/emb" in line and line.endswith("(DT_FLOAT) [3,2]") for line in lines) == 3
    with pytest.raises(tf.errors.NotFoundError, match="Key zz not found in checkpoint"):
        reader.get_tensor("zz")


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.NotFoundError, match="Failed to find any matching files"):
        tf.train.NewCheckpointReader(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="Couldn't find 'checkpoint' file"):
        tf.train.load_checkpoint(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("saved")
    with tf.Graph().as_default(), tf.Session() as session:
        a, b, c = _model()
        session.run([a.assign([1.0, 2.0]), *b.assign(np.arange(12.0).reshape(4, 3)), c.assign([7.0, 8.0, 9.0])])
        tf.train.Saver().save(session, str(folder / "m"), global_step=3)
    yield folder, {"a": [1.0, 2.0], "s/b": np.arange(12.0).reshape(4, 3).tolist(), "s/c": [7.0, 8.0, 9.0]}


def _model(scope: str = "", parts: int = 2) -> tuple[Any, Any, Any]:
    a = tf.get_variable(f"{scope}a", [2])
    b = tf.get_variable(f"{scope}s/b", [4, 3], partitioner=tf.fixed_size_partitioner(parts))
    return a, b, tf.get_variable(f"{scope}s/c", [3], use_resource=True)


@pytest.mark.parametrize(
    ("mapping", "restored", "nodes"),
    [
        (lambda a, b, c: {"a": "a"}, ["a"], ["checkpoint_initializer", "Assign"]),
        (lambda a, b, c: {"s/": "s/"}, ["s/b", "s/c"], ["checkpoint_initializer_2", "Assign_1", "AssignVariableOp"]),
        (lambda a, b, c: {"/": "/"}, ["a", "s/b", "s/c"], ["checkpoint_initializer_3", "Assign_2"]),
        (lambda a, b, c: {"s/b": list(b)}, ["s/b"], ["checkpoint_initializer_1"]),
        (lambda a, b, c: [("s/c", c), ("s/b", b)], ["s/b", "s/c"], []),
        (lambda a, b, c: {"s/": "nowhere/"}, [], []),
    ],
)
def test_initial_values(saved: Any, mapping: Callable[..., Any], restored: list[str], nodes: list[str]) -> None:
    folder, values = saved
    with tf.Graph().as_default() as graph, tf.Session() as session:
        model = dict(zip(("a", "s/b", "s/c"), _model(parts=4), strict=True))
        tf.train.init_from_checkpoint(folder, mapping(*model.values()))
        for node in nodes:
            graph.get_operation_by_name(node)
        session.run(tf.global_variables_initializer())
        for name, variable in model.items():
            same = np.array_equal(session.run(tf.convert_to_tensor(variable)), values[name])
            assert same == (name in restored), name


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"zz": "a"}, "Tensor zz is not found in .* checkpoint, which has a "),
        ({"s/c": "a"}, r"Shape of variable a:0 .* doesn't match with shape of tensor s/c \(\[3\]\)"),
        ({"s/c": "s/b"}, "Shape of variable s/b/part_0:0"),
        ({"x": "t/"}, "Assignment map with scope only name t should map to scope only x"),
    ],
)
def test_maps_that_do_not_fit(saved: Any, mapping: dict[str, str], message: str) -> None:
    with tf.Graph().as_default():
        _model()
        with pytest.raises(ValueError, match=message):
            tf.train.init_from_checkpoint(saved[0], mapping)


def test_into_another_scope(saved: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        a, _, c = _model("model/")
        tf.contrib.framework.init_from_checkpoint(saved[0], {"/": "model/"})
        session.run(tf.global_variables_initializer())
        assert session.run(a).tolist() == saved[1]["a"] and session.run(c).tolist() == saved[1]["s/c"]


def test_warm_start(saved: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        a, b, c = _model(parts=3)
        d = tf.get_variable("d", [2])
        tf.train.warm_start(str(saved[0]), "[bds]", var_name_to_prev_var_name={"d": "a"})
        session.run(tf.global_variables_initializer())
        assert session.run(d).tolist() == saved[1]["a"] != session.run(a).tolist()
        assert session.run(tf.convert_to_tensor(b)).tolist() == saved[1]["s/b"]
        assert session.run(c).tolist() == saved[1]["s/c"]
        with pytest.raises(ValueError, match="no variable to warm-start: \\['x'\\]"):
            tf.train.warm_start(saved[0], var_name_to_prev_var_name={"x": "a"})
        with pytest.raises(NotImplementedError, match="vocabularies"):
            tf.train.warm_start(saved[0], var_name_to_vocab_info={"a": None})


def test_tables(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.Variable(1.0, name="v")
        words = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1, name="words")
        dense = tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, -1.0, empty_key=-1, deleted_key=-2)
        saver = tf.train.Saver()
        graph.get_operation_by_name("save/words_table_restore/LookupTableImportV2")
        key, number = tf.constant(["a", "b"]), tf.constant([5, 6], tf.int64)
        put = [words.insert(key, number), dense.insert(number, [0.5, 1.5])]
        session.run(tf.global_variables_initializer())
        session.run(put)
        path = saver.save(session, str(tmp_path / "m"))
        assert [name for name, _ in tf.train.list_variables(path)] == [
            "MutableDenseHashTable-keys",
            "MutableDenseHashTable-values",
            "v",
            "words-keys",
            "words-values",
        ]
        session.run(words.insert(["a", "c"], tf.constant([9, 9], tf.int64)))
        saver.restore(session, path)
        found = session.run([words.lookup(tf.constant(["a", "b", "c"])), dense.lookup(number), words.size()])
        assert [f.tolist() for f in found] == [[5, 6, -1], [0.5, 1.5], 2]


def test_graphs_as_files(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="one")
        assert tf.train.write_graph(graph, tmp_path, "g.pbtxt") == str(tmp_path / "g.pbtxt")
        assert 'name: "one"' in (tmp_path / "g.pbtxt").read_text()
        path = tf.io.write_graph(graph.as_graph_def(), str(tmp_path / "sub"), "g.pb", as_text=False)
    read = tf.GraphDef.FromString(Path(path).read_bytes())
    assert [node.name for node in read.node] == ["one"]
