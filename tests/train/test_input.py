"""Input pipelines of queues: files are read, examples batched, epochs counted; threads end with the input."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_programs import GOLDEN

import penstock.v1 as tf
from penstock import records


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Checks that every thread of a test has ended when the test is over."""
    before = set(threading.enumerate())
    with tf.Graph().as_default():
        yield
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread.name


def _all(*fetches: Any, limit: int = 1000) -> list[Any]:
    """The results of steps until the end of the input."""
    found = []
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coord)
        try:
            for _ in range(limit):
                found.append(session.run(list(fetches)))
        except tf.errors.OutOfRangeError:
            pass
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=60)
    return found


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_records(tmp_path: Path, compression: str) -> None:
    name = {"": "plain", "GZIP": "gzip", "ZLIB": "zlib"}[compression]
    golden = json.loads((GOLDEN / "events/tfrecord.json").read_text())
    source = GOLDEN / f"events/examples_{name}.tfrecord"
    wanted = [base64.b64decode(r) for r in golden["records_base64"]]
    options = tf.python_io.TFRecordOptions(compression)
    assert list(tf.python_io.tf_record_iterator(source, options)) == wanted
    copy = tmp_path / "copy.tfrecord"
    with tf.python_io.TFRecordWriter(copy, options) as writer:
        for record in wanted:
            writer.write(record)
    if not compression:
        assert copy.read_bytes() == source.read_bytes()
    queue = tf.train.string_input_producer([str(copy), str(source)], num_epochs=2, shuffle=False)
    key, value = tf.TFRecordReader(options=options).read(queue)
    found = _all(key, value)
    assert [v for _, v in found] == wanted * 4
    assert found[0][0] == f"{copy}:0".encode()


def test_damaged_records(tmp_path: Path) -> None:
    data = (GOLDEN / "events/examples_plain.tfrecord").read_bytes()
    path = tmp_path / "x.tfrecord"
    for damaged in (data[:-3], data[:20], bytes([data[0] ^ 1]) + data[1:], data[:14] + b"\xff" + data[15:]):
        path.write_bytes(damaged)
        with pytest.raises(tf.errors.DataLossError, match=r"x\.tfrecord' is damaged at"):
            list(records.read(path))
    path.write_bytes(b"not gzip")
    with pytest.raises(tf.errors.DataLossError):
        list(records.read(path, "GZIP"))
    with pytest.raises(tf.errors.NotFoundError):
        list(records.read(tmp_path / "none"))


def test_readers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"head\none\r\ntwo\n")
    (tmp_path / "b.txt").write_bytes(b"head\nthree")
    names = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]

    def read(reader: Any) -> list[Any]:
        queue = tf.train.string_input_producer(names, num_epochs=1, shuffle=False)
        return [v for _, v in _all(*reader.read(queue))]

    assert read(tf.TextLineReader(skip_header_lines=1)) == [b"one", b"two", b"three"]
    assert read(tf.WholeFileReader()) == [b"head\none\r\ntwo\n", b"head\nthree"]
    assert read(tf.IdentityReader()) == [n.encode() for n in names]
    assert read(tf.FixedLengthRecordReader(4, header_bytes=5)) == [b"one\r", b"\ntwo", b"thre"]
    reader = tf.TextLineReader()
    queue = tf.train.string_input_producer(names, num_epochs=1, shuffle=False)
    several = reader.read_up_to(queue, 2)
    counts = reader.num_records_produced(), reader.num_work_units_completed()
    with tf.Session() as session:
        session.run(tf.local_variables_initializer())
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coord)
        assert session.run(several[1]).tolist() == [b"head", b"one"]
        assert session.run(several[1]).tolist() == [b"two"]
        assert session.run(several[1]).tolist() == [b"head", b"three"]
        assert session.run(counts) == (5, 2) or session.run(counts) == (5, 1)
        coord.request_stop()
        coord.join(threads)


def test_batches_in_order_and_what_is_left() -> None:
    x, y = tf.train.slice_input_producer([np.arange(10), np.arange(10) * 2.0], num_epochs=1, shuffle=False)
    batch = tf.train.batch({"x": x, "y": y}, 4, allow_smaller_final_batch=True)
    found = [b[0] for b in _all(batch)]
    assert [b["x"].tolist() for b in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert np.concatenate([b["y"] for b in found]).tolist() == [i * 2.0 for i in range(10)]


def test_shuffled_batches_hold_everything_once() -> None:
    index = tf.train.range_input_producer(50, num_epochs=2, shuffle=True, seed=1).dequeue()
    batch = tf.train.shuffle_batch([index], 10, capacity=30, min_after_dequeue=10, num_threads=3, seed=2)
    found = np.concatenate([b[0] for b in _all(batch)])
    assert sorted(found.tolist()) == sorted([*range(50)] * 2)
    assert found.tolist() != sorted(found.tolist())


def test_padded_joined_and_kept() -> None:
    n = tf.train.range_input_producer(6, num_epochs=1, shuffle=False).dequeue()
    padded = tf.train.batch([tf.range(n)], 3, dynamic_pad=True, shapes=[[None]])
    assert [b[0].tolist() for b in _all(padded)] == [
        [[0, 0], [0, 0], [0, 1]],
        [[0, 1, 2, 0, 0], [0, 1, 2, 3, 0], [0, 1, 2, 3, 4]],
    ]
    with tf.Graph().as_default():
        sources = [[tf.train.range_input_producer(4, num_epochs=1, shuffle=False).dequeue()] for _ in range(2)]
        joined = _all(tf.train.batch_join(sources, 2))
        assert sorted(np.concatenate([b[0] for b in joined]).tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    with tf.Graph().as_default():
        n = tf.train.range_input_producer(8, num_epochs=1, shuffle=False).dequeue()
        kept = tf.train.maybe_batch([n], tf.equal(n % 2, 0), 2)
        assert np.concatenate([b[0] for b in _all(kept)]).tolist() == [0, 2, 4, 6]


def test_what_is_refused() -> None:
    for call, message in (
        (lambda: tf.train.string_input_producer([]), "non-null"),
        (lambda: tf.train.limit_epochs(tf.constant(1), 0), "must be > 0"),
        (lambda: tf.train.shuffle_batch([tf.constant(1)], 2, 5, 5), "must be bigger"),
        (lambda: tf.train.slice_input_producer([]), "at least one"),
        (lambda: tf.train.batch([], 2), "at least one"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
