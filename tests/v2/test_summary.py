"""Summaries of the 2.x API: the records that TensorFlow writes, steps, conditions, functions."""

from __future__ import annotations

import io
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboard.compat.proto import event_pb2
from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.summary_pb2 import Summary

import penstock as tf
from penstock.errors import FailedPreconditionError
from penstock.records import read

_GOLDEN = Path(__file__).parent.parent / "golden" / "v2" / "files"


def events(folder: Path) -> list[Any]:
    """All events of the only event file in a folder."""
    (path,) = folder.glob("events.out.tfevents.*")
    return [event_pb2.Event.FromString(record) for record in read(path)]


def view(event: Any) -> dict[str, Any]:
    """An event without its time; pictures as pixels, as files of one picture may differ."""
    if event.WhichOneof("what") == "file_version":
        return {"file_version": event.file_version, "writer": event.source_metadata.writer}
    (value,) = event.summary.value
    array = tf.make_ndarray(value.tensor)
    found = array.tolist()
    if value.metadata.plugin_data.plugin_name == "images":
        found = found[:2] + [np.asarray(Image.open(io.BytesIO(png))).tolist() for png in found[2:]]
    return {
        "step": event.step,
        "tag": value.tag,
        "metadata": value.metadata.SerializeToString(),
        "dtype": value.tensor.dtype,
        "shape": array.shape,
        "value": found,
    }


def test_the_records_of_tensorflow(tmp_path: Path) -> None:
    golden = json.loads((_GOLDEN / "events.json").read_text())
    expected = [event_pb2.Event.FromString(r) for r in read(_GOLDEN / "events.out.tfevents.golden.v2")]
    writer = tf.summary.create_file_writer(tmp_path)
    with writer.as_default():
        for step in range(3):
            tf.summary.scalar("loss", 1.0 / (step + 1), step=step, description="a loss")
        with tf.name_scope("scope"):
            tf.summary.scalar("inner", 7.0, step=5)
        tf.summary.histogram("weights", tf.constant(golden["histogram_input"]), step=1, buckets=4)
        tf.summary.histogram("constant", tf.constant([2.0, 2.0, 2.0]), step=1, buckets=4)
        tf.summary.histogram("empty", tf.constant([], tf.float32), step=1, buckets=2)
        tf.summary.text("note", ["first", "second"], step=2)
        tf.summary.image("pic", tf.constant(golden["image_input"], tf.uint8), step=2)
        tf.summary.write("raw", tf.constant([[1, 2]]), step=9)
    writer.close()
    assert [view(e) for e in events(tmp_path)] == [view(e) for e in expected]
    (path,) = tmp_path.iterdir()
    assert path.name.endswith(".v2") and len(path.name.split(".")) == golden["parts_in_name"]
    # The same bytes but for times: what is read back is written in the same form.
    lengths = [len(r) for r in read(path)]
    pictures = [r["value"]["plugin"] == "images" if r["kind"] == "summary" else False for r in golden["records"]]
    for found, row, is_picture in zip(lengths, golden["records"], pictures, strict=True):
        assert is_picture or found == row["length"]


def test_functions_write_when_they_run(tmp_path: Path) -> None:
    writer = tf.summary.create_file_writer(tmp_path)
    step = tf.Variable(0, dtype=tf.int64)
    tf.summary.experimental.set_step(step)

    @tf.function
    def train(x: Any) -> Any:
        with writer.as_default():
            tf.summary.scalar("x", x)
            tf.summary.histogram("h", tf.stack([x, x + 1.0]), buckets=2)
        return x

    try:
        for i in range(3):
            step.assign(i)
            train(tf.constant(float(i)))
    finally:
        tf.summary.experimental.set_step(None)
    writer.flush()
    found = [view(e) for e in events(tmp_path)[1:]]
    assert [(f["step"], f["tag"]) for f in found] == [(i, t) for i in range(3) for t in ("x", "h")]
    assert [f["value"] for f in found[::2]] == [0.0, 1.0, 2.0]
    assert found[3]["value"] == [[1.0, 1.5, 1.0], [1.5, 2.0, 1.0]]


def test_conditions(tmp_path: Path) -> None:
    writer = tf.summary.create_file_writer(tmp_path)
    step = tf.Variable(0, dtype=tf.int64)
    assert not bool(tf.summary.should_record_summaries())

    @tf.function
    def train() -> Any:
        with tf.summary.record_if(lambda: tf.equal(step % 2, 0)):
            return tf.summary.scalar("in_function", 1.0, step=step)

    with writer.as_default():
        assert bool(tf.summary.should_record_summaries())
        with tf.summary.record_if(False):
            assert not bool(tf.summary.scalar("never", 1.0, step=0))
        recorded = []
        for i in range(4):
            step.assign(i)
            with tf.summary.record_if(tf.equal(step, 1)):
                tf.summary.scalar("once", float(i), step=step)
            recorded.append(bool(train()))
    assert recorded == [True, False, True, False]
    assert [(e.summary.value[0].tag, e.step) for e in events(tmp_path)[1:]] == [
        ("in_function", 0),
        ("once", 1),
        ("in_function", 2),
    ]


def test_steps_and_writers(tmp_path: Path) -> None:
    assert not bool(tf.summary.scalar("nowhere", 1.0, step=1))
    writer = tf.summary.create_file_writer(tmp_path, max_queue=100)
    with writer.as_default(step=4):
        assert tf.summary.experimental.get_step() == 4
        tf.summary.scalar("a", 1)
        with tf.summary.create_noop_writer().as_default():
            assert not bool(tf.summary.scalar("b", 1.0))
    assert tf.summary.experimental.get_step() is None
    with writer.as_default():
        with pytest.raises(ValueError, match="No step set"):
            tf.summary.scalar("c", 1.0)
        raw = Summary(value=[Summary.Value(tag="raw", simple_value=2.0)])
        tf.summary.experimental.write_raw_pb(raw.SerializeToString(), step=3)
        tf.summary.graph(tf.function(lambda: tf.constant(1)).get_concrete_function().graph)
    writer.close()
    writer.close()
    with pytest.raises(RuntimeError, match="closed"), writer.as_default():
        pass
    found = events(tmp_path)[1:]
    assert [e.WhichOneof("what") for e in found] == ["summary", "summary", "graph_def"]
    assert [e.step for e in found] == [4, 3, 0]


def test_a_function_that_writes_to_a_closed_writer(tmp_path: Path) -> None:
    writer = tf.summary.create_file_writer(tmp_path)

    @tf.function
    def log() -> None:
        with writer.as_default():
            tf.summary.scalar("a", 1.0, step=1)

    log()
    writer.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        log()


def test_pictures_of_numbers_with_a_point(tmp_path: Path) -> None:
    with tf.summary.create_file_writer(tmp_path).as_default(step=0):
        tf.summary.image("p", tf.constant([[[[0.0], [0.5], [2.0]]]] * 3), max_outputs=2)
    found = view(events(tmp_path)[1])
    assert found["value"] == [b"3", b"1", [[0, 127, 255]], [[0, 127, 255]]]


def test_sounds(tmp_path: Path) -> None:
    clip = np.linspace(-1.0, 1.0, 8, dtype=np.float32).reshape(1, 8, 1)
    with tf.summary.create_file_writer(tmp_path).as_default(step=0):
        tf.summary.audio("s", np.concatenate([clip, clip]), 8000, max_outputs=1)
        with pytest.raises(ValueError, match="wav"):
            tf.summary.audio("s", clip, 8000, encoding="mp3")
    (value,) = events(tmp_path)[1].summary.value
    assert value.metadata.plugin_data.plugin_name == "audio" and value.metadata.plugin_data.content == b"\x10\x0b"
    ((file, label),) = tf.make_ndarray(value.tensor).tolist()
    assert label == b""
    with wave.open(io.BytesIO(file)) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getnframes()) == (8000, 1, 8)


def test_graphs_of_functions_that_are_traced(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="trace_on"):
        tf.summary.trace_export("early", step=0)
    before = tf.function(lambda x: x - 1.0)
    before(tf.constant(1.0))
    tf.summary.trace_on()
    during = tf.function(lambda x: tf.math.sin(x))
    during(tf.constant(1.0))
    with tf.summary.create_file_writer(tmp_path).as_default():
        tf.summary.trace_export("step", step=3)
    (value,) = events(tmp_path)[1].summary.value
    assert value.metadata.plugin_data.plugin_name == "graph_run_metadata_graph"
    (graphs,) = RunMetadata.FromString(tf.make_ndarray(value.tensor).item()).function_graphs
    assert "Sin" in [node.op for node in graphs.pre_optimization_graph.node]
