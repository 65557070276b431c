"""Summaries and event files are TensorFlow's."""

from __future__ import annotations

import io
import json
import threading
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_programs import GOLDEN, check, load
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import penstock.v1 as tf

EVENTS = json.loads((GOLDEN / "events/events.json").read_text())["events"]
INPUTS = np.load(GOLDEN / "events/inputs.npz")


@pytest.mark.parametrize("row", load("events/programs.json")["cases"], ids=lambda row: row["id"])
def test_as_tensorflow(row: dict[str, Any]) -> None:
    check(row, tf)


def test_reads_tensorflows_events() -> None:
    found = list(tf.train.summary_iterator(GOLDEN / "events/events.out.tfevents.golden"))
    assert [event.WhichOneof("what") for event in found] == [row["what"] for row in EVENTS]
    assert [event.step for event in found] == [row["step"] for row in EVENTS]
    for event, row in zip(found, EVENTS, strict=True):
        assert [value.tag for value in event.summary.value] == [value["tag"] for value in row.get("values", [])]


def _graph() -> tuple[Any, dict[str, Any]]:
    x, img, img8 = (
        tf.placeholder(tf.float32, [20], "x"),
        tf.placeholder(tf.float32, [2, 4, 5, 3], "img"),
        tf.placeholder(tf.uint8, [1, 3, 3, 1], "img8"),
    )
    with tf.name_scope("train"):
        tf.summary.scalar("loss", tf.reduce_mean(x))
    tf.summary.scalar("sum 1", tf.reduce_sum(x))
    tf.summary.histogram("hist", x)
    tf.summary.image("pic", img, max_outputs=2)
    tf.summary.image("gray", img8)
    tf.summary.text("note", tf.constant(["hello", "wörld"]))
    tf.summary.audio("snd", tf.reshape(tf.sin(tf.range(64.0) / 5.0), [1, 64, 1]), 8000.0)
    tf.summary.tensor_summary("ts", tf.constant([[1, 2], [3, 4]]))
    return tf.summary.merge_all(), {"x": x, "img": img, "img8": img8}


def test_values_as_tensorflow() -> None:
    (row,) = (r for r in EVENTS if r["step"] == 0 and r["what"] == "summary")
    with tf.Graph().as_default(), tf.Session() as session:
        merged, fed = _graph()
        feeds = {fed["x"]: INPUTS["x"][0], fed["img"]: INPUTS["img"], fed["img8"]: INPUTS["img8"]}
        values = tf.Summary.FromString(session.run(merged, feeds)).value
    assert [v.tag for v in values] == [v["tag"] for v in row["values"]]
    for value, wanted in zip(values, row["values"], strict=True):
        kind = wanted["kind"]
        assert value.WhichOneof("value") == kind
        if kind == "simple_value":
            assert value.simple_value == pytest.approx(wanted["simple_value"], rel=1e-5)
        elif kind == "histo":
            for field, number in wanted["histo"].items():
                np.testing.assert_allclose(getattr(value.histo, field), number, rtol=1e-6, err_msg=field)
        elif kind == "audio":
            for field in ("sample_rate", "num_channels", "length_frames", "content_type"):
                assert getattr(value.audio, field) == wanted["audio"][field]
            assert len(value.audio.encoded_audio_string) == wanted["audio"]["bytes"]
            with wave.open(io.BytesIO(value.audio.encoded_audio_string)) as sound:
                assert (sound.getnframes(), sound.getframerate()) == (64, 8000)
    images = [np.asarray(Image.open(io.BytesIO(v.image.encoded_image_string))) for v in values if v.HasField("image")]
    np.testing.assert_array_equal(images[:2], INPUTS["img_pixels_expected"])
    np.testing.assert_array_equal(images[2][None, ..., None], INPUTS["gray_pixels_expected"])
    assert values[6].metadata.plugin_data.plugin_name == "text"
    assert list(values[6].tensor.string_val) == [b"hello", "wörld".encode()]


@pytest.mark.parametrize("name", ["hist_zeros", "hist_negatives", "hist_mixed", "hist_single"])
def test_histograms_as_tensorflow(name: str) -> None:
    (wanted,) = (v["histo"] for row in EVENTS for v in row.get("values", []) if v["tag"] == name)
    with tf.Graph().as_default(), tf.Session() as session:
        found = tf.Summary.FromString(session.run(tf.summary.histogram(name, INPUTS[name]))).value[0].histo
    for field, number in wanted.items():
        np.testing.assert_allclose(getattr(found, field), number, rtol=1e-6, err_msg=field)


def test_images_that_are_not_finite_or_not_images() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        image = np.full((1, 2, 2, 3), 0.5, np.float32)
        image[0, 1, 1, 2] = np.nan
        (value,) = tf.Summary.FromString(session.run(tf.summary.image("x", image, max_outputs=1))).value
        pixels = np.asarray(Image.open(io.BytesIO(value.image.encoded_image_string)))
        assert value.tag == "x/image" and pixels[1, 1].tolist() == [255, 0, 0] and pixels[0, 0].tolist() == [255] * 3
        bad = tf.summary.image("y", tf.placeholder_with_default(np.zeros((2, 2), np.float32), None))
        with pytest.raises(tf.errors.InvalidArgumentError, match="4-D"):
            session.run(bad)


def test_files(tmp_path: Path) -> None:
    threads = threading.active_count()
    with tf.Graph().as_default() as graph, tf.Session() as session:
        loss = tf.summary.scalar("loss", tf.constant(2.5))
        note = tf.summary.text("note", tf.constant("x"))
        with tf.summary.FileWriter(tmp_path, graph, filename_suffix=".test") as writer:
            for step in range(3):
                writer.add_summary(session.run(loss), step)
                writer.add_summary(session.run(note), step)
            writer.add_run_metadata(tf.RunMetadata(), "step0", 0)
            with pytest.raises(ValueError, match="already used"):
                writer.add_run_metadata(tf.RunMetadata(), "step0", 1)
            writer.flush()
            (path,) = tmp_path.iterdir()
            assert len(list(tf.train.summary_iterator(path))) == 3 + 6 + 1
        writer.reopen()
        writer.add_summary(session.run(loss), 9)
        writer.close()
    assert path.name.startswith("events.out.tfevents.") and path.name.endswith(".test")
    events = list(tf.train.summary_iterator(path))
    assert events[0].file_version == "brain.Event:2" and tf.GraphDef.FromString(events[1].graph_def).node
    described = [v.HasField("metadata") for e in events for v in e.summary.value if v.tag == "note"]
    assert described == [True, False, False]
    assert len(list(tmp_path.iterdir())) == 2 and threading.active_count() == threads


def test_a_disk_that_fails_is_heard_of(tmp_path: Path, monkeypatch: Any) -> None:
    writer = tf.summary.FileWriter(tmp_path)

    def full(*_: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr("penstock.checkpoint.files.write", full)
    writer.add_summary(tf.Summary(value=[tf.Summary.Value(tag="x", simple_value=1.0)]), 0)
    with pytest.raises(tf.errors.ResourceExhaustedError, match="No space"):
        writer.flush()
    monkeypatch.undo()
    writer.close()


def test_tensorboard_shows_it(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        merged, fed = _graph()
        feeds = {fed["x"]: INPUTS["x"][0], fed["img"]: INPUTS["img"], fed["img8"]: INPUTS["img8"]}
        with tf.summary.FileWriter(tmp_path, graph) as writer:
            for step in range(2):
                writer.add_summary(session.run(merged, feeds), step)
    shown = EventAccumulator(str(tmp_path)).Reload()
    tags = shown.Tags()
    assert tags["scalars"] == ["train/loss", "sum_1"] and tags["histograms"] == ["hist"] and tags["graph"]
    assert tags["images"] == ["pic/image/0", "pic/image/1", "gray/image/0"] and tags["audio"] == ["snd/audio/0"]
    assert [event.step for event in shown.Scalars("train/loss")] == [0, 1]
    assert {node.name for node in shown.Graph().node} >= {"x", "train/Mean", "hist"}
