"""Meta graphs: TensorFlow's are read, and those written here have the same contents as TensorFlow's."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from golden_programs import GOLDEN
from tensorboard.compat.proto import meta_graph_pb2

import penstock.v1 as tf
from penstock.checkpoint.messages import QueueRunnerDef
from penstock.graph.collections import register_proto_function

FOLDER = GOLDEN / "graphdef"


@pytest.fixture(params=["ref", "resource"])
def golden(request: Any) -> tuple[Any, dict[str, Any]]:
    meta = meta_graph_pb2.MetaGraphDef.FromString((FOLDER / f"metagraph_{request.param}.pb").read_bytes())
    return meta, json.loads((FOLDER / f"metagraph_{request.param}.json").read_text())


def _saver_def(proto: Any) -> dict[str, Any]:
    fields = {field.name: value for field, value in proto.ListFields()}
    return {**fields, "version": tf.train.SaverDef.CheckpointFormatVersion.Name(proto.version)}


def test_there_and_back(golden: Any) -> None:
    meta, expected = golden
    with tf.Graph().as_default() as graph:
        saver = tf.train.import_meta_graph(meta)
        for key, names in expected["collections_after_import"].items():
            assert [item.name for item in graph.get_collection(key)] == names
        assert graph.get_collection("global_step")[0] is graph.get_collection("variables")[0]
        written = tf.train.export_meta_graph(saver_def=saver.saver_def)
    kinds = {key: value.WhichOneof("kind") for key, value in written.collection_def.items()}
    assert kinds == expected["collection_def_kinds"]
    assert [op.name for op in written.meta_info_def.stripped_op_list.op] == expected["stripped_op_list_ops"]
    assert written.saver_def == meta.saver_def
    assert [n.name for n in written.graph_def.node] == [n.name for n in meta.graph_def.node]
    for key, definition in meta.collection_def.items():
        assert written.collection_def[key] == definition, key


def test_below_a_scope(golden: Any) -> None:
    meta, expected = golden
    wanted = expected["import_with_scope_imp"]
    with tf.Graph().as_default() as graph:
        saver = tf.train.import_meta_graph(meta, import_scope="imp")
        assert [op.name for op in graph.get_operations()][: len(wanted["first_ops"])] == wanted["first_ops"]
        assert [v.op.name for v in graph.get_collection("variables")] == wanted["vars"]
        classes = {c.decode() for op in graph.get_operations() for c in op.colocation_groups()}
        assert set(wanted["class_attrs"]) <= classes
        assert _saver_def(saver.saver_def) == expected["saver_def"]
        lower = tf.train.export_meta_graph(export_scope="imp", graph=graph)
    assert [n.name for n in lower.graph_def.node] == [n.name for n in meta.graph_def.node]


def test_without_devices_and_defaults(golden: Any, request: Any) -> None:
    kind = request.node.callspec.params["golden"]
    stripped = meta_graph_pb2.MetaGraphDef.FromString((FOLDER / f"metagraph_{kind}_stripped.pb").read_bytes())
    with tf.Graph().as_default():
        tf.train.import_meta_graph(golden[0])
        written = tf.train.export_meta_graph(clear_devices=True, strip_default_attrs=True)
    assert not any(node.device for node in written.graph_def.node)
    ours = {node.name: set(node.attr) - {"_output_shapes"} for node in written.graph_def.node}
    theirs = {node.name: set(node.attr) - {"_output_shapes"} for node in stripped.graph_def.node}
    assert ours == theirs


def test_queue_runners_and_savers(tmp_path: Path) -> None:
    path = str(tmp_path / "m.meta")
    with tf.Graph().as_default() as graph:
        tf.Variable(1.0, name="v")
        item = tf.train.range_input_producer(4, num_epochs=2, shuffle=False).dequeue(name="item")
        tf.add_to_collection(tf.GraphKeys.SAVERS, tf.train.Saver())
        (runner,) = graph.get_collection(tf.GraphKeys.QUEUE_RUNNERS)
        proto = runner.to_proto()
        assert runner.to_proto(export_scope="elsewhere") is None
        tf.train.export_meta_graph(path)
    assert QueueRunnerDef.FromString(proto.SerializeToString()) == proto
    before = threading.active_count()
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.train.import_meta_graph(path, import_scope="imp")
        (again,), (saver,) = (graph.get_collection(k) for k in (tf.GraphKeys.QUEUE_RUNNERS, tf.GraphKeys.SAVERS))
        assert isinstance(saver, tf.train.Saver) and saver.saver_def.restore_op_name == "imp/save/restore_all"
        assert again.to_proto(export_scope="imp") == proto
        assert again.queue_closed_exception_types == runner.queue_closed_exception_types
        session.run(tf.local_variables_initializer())
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coord)
        assert [int(session.run(f"imp/{item.name}")) for _ in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(f"imp/{item.name}")
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=10)
    assert threading.active_count() == before


def test_queue_runners_that_cannot_be(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        queue = tf.FIFOQueue(2, tf.int32)
        runner = tf.train.QueueRunner(queue, [queue.enqueue(1)], queue_closed_exception_types=(KeyError,))
        with pytest.raises(ValueError, match="KeyError is not the exception of a status code"):
            runner.to_proto()
        with pytest.raises(TypeError, match="must be a QueueRunnerDef"):
            tf.train.QueueRunner(queue_runner_def="x")
        good = tf.train.QueueRunner(queue, [queue.enqueue(1)]).to_proto()
        good.queue_closed_exception_types.append(99)
        with pytest.raises(ValueError, match="unknown status code: 99"):
            tf.train.QueueRunner.from_proto(good)


@pytest.mark.parametrize("use_resource", [False, True])
def test_variables_in_collections_of_any_name(use_resource: bool) -> None:
    with tf.Graph().as_default():
        v = tf.get_variable("v", initializer=3.0, use_resource=use_resource)
        tf.add_to_collection("mine", v)
        tf.add_to_collection(tf.GraphKeys.WEIGHTS, v)
        meta = tf.train.export_meta_graph()
    assert list(meta.collection_def["mine"].node_list.value) == ["v:0"]
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.import_meta_graph(meta, import_scope="in")
        (v,) = tf.global_variables()
        assert tf.get_collection("mine") == tf.get_collection(tf.GraphKeys.WEIGHTS) == [v]
        session.run(v.initializer)
        assert session.run(tf.get_collection("mine")) == [3.0]


def test_collections_with_functions_of_their_own() -> None:
    register_proto_function(
        "numbers",
        tf.train.Int64List,
        to_proto=lambda number, export_scope: tf.train.Int64List(value=[number]),
        from_proto=lambda proto, import_scope: proto.value[0] + 1,
    )
    with tf.Graph().as_default():
        tf.no_op()
        tf.add_to_collection("numbers", 7)
        meta = tf.train.export_meta_graph()
    with tf.Graph().as_default():
        tf.train.import_meta_graph(meta)
        assert tf.get_collection("numbers") == [8]
    with pytest.raises(KeyError, match="already"):
        register_proto_function("numbers", tf.train.Int64List)
    with pytest.raises(TypeError, match="takes functions"):
        register_proto_function("other numbers", tf.train.Int64List, to_proto="no function")  # type: ignore[arg-type]
