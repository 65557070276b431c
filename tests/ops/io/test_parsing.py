"""Parsing of examples, records, tensors and files."""

from __future__ import annotations

import functools
import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.v1 as tf

F = tf.train.Feature


def floats(*values: float) -> Any:
    return F(float_list=tf.train.FloatList(value=values))


def ints(*values: int) -> Any:
    return F(int64_list=tf.train.Int64List(value=values))


def strings(*values: bytes) -> Any:
    return F(bytes_list=tf.train.BytesList(value=values))


def example(**features: Any) -> bytes:
    return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def sequence(context: dict[str, Any], **lists: Any) -> bytes:
    found = {key: tf.train.FeatureList(feature=steps) for key, steps in lists.items()}
    message = tf.train.SequenceExample(
        context=tf.train.Features(feature=context), feature_lists=tf.train.FeatureLists(feature_list=found)
    )
    return bytes(message.SerializeToString())


def value(make: Any) -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        return plain(session.run(make()))


def plain(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: plain(v) for key, v in found.items()}
    if isinstance(found, (list, tuple)):
        return [plain(v) for v in found]
    return found.tolist() if isinstance(found, (np.ndarray, np.generic)) else found


def test_messages_have_tensorflows_wire_format() -> None:
    wire = b"\n\x0f\n\r\n\x01a\x12\x08\x12\x06\n\x04\x00\x00\xc0?"
    assert example(a=floats(1.5)) == wire
    assert tf.train.Example.FromString(wire).features.feature["a"].float_list.value == [1.5]


X = {"x": tf.FixedLenFeature([2], tf.float32)}


@pytest.mark.parametrize(
    "make, wanted",
    [
        (lambda: tf.parse_example([example(x=floats(1, 2)), example(x=floats(3, 4))], X), {"x": [[1, 2], [3, 4]]}),
        (
            lambda: tf.parse_example([example(), example(x=F())], {"x": tf.FixedLenFeature([2], tf.float32, [7, 8])}),
            {"x": [[7, 8], [7, 8]]},
        ),
        (
            lambda: tf.parse_example(
                [example(x=ints(1, -2)), example(), example(x=ints(5))], {"x": tf.VarLenFeature(tf.int64)}
            ),
            {"x": [[[0, 0], [0, 1], [2, 0]], [1, -2, 5], [3, 2]]},
        ),
        (
            lambda: tf.parse_example(
                [example(x=ints(1, 2, 3, 4)), example(), example(x=ints(5, 6))],
                {"x": tf.FixedLenSequenceFeature([2], tf.int64, True, -1)},
            ),
            {"x": [[[1, 2], [3, 4]], [[-1, -1], [-1, -1]], [[5, 6], [-1, -1]]]},
        ),
        (
            lambda: tf.parse_example(
                [example(i=ints(9, 3), v=floats(5, 6))], {"s": tf.SparseFeature("i", "v", tf.float32, 10)}
            ),
            {"s": [[[0, 3], [0, 9]], [6, 5], [1, 10]]},
        ),
        (
            lambda: tf.parse_example(tf.constant([], tf.string), {**X, "y": tf.VarLenFeature(tf.string)}),
            {"x": [], "y": [[], [], [0, 0]]},
        ),
        (
            lambda: tf.parse_single_example(
                example(x=floats(1, 2), y=strings(b"a", b"b")), {**X, "y": tf.VarLenFeature(tf.string)}
            ),
            {"x": [1, 2], "y": [[[0], [1]], [b"a", b"b"], [2]]},
        ),
        (
            lambda: tf.parse_single_sequence_example(
                sequence({"c": ints(7)}, t=[ints(1), ints(2, 3)], d=[floats(1, 2)]),
                {"c": tf.FixedLenFeature([], tf.int64)},
                {"t": tf.VarLenFeature(tf.int64), "d": tf.FixedLenSequenceFeature([2], tf.float32)},
            ),
            [{"c": 7}, {"t": [[[0, 0], [1, 0], [1, 1]], [1, 2, 3], [2, 2]], "d": [[1, 2]]}],
        ),
        (
            lambda: tf.io.parse_sequence_example(
                [sequence({}, d=[floats(1), floats(2)]), sequence({}, d=[])],
                None,
                {"d": tf.FixedLenSequenceFeature([1], tf.float32)},
            ),
            [{}, {"d": [[[1], [2]], [[0], [0]]]}, {"d": [2, 0]}],
        ),
        (
            lambda: tf.decode_csv(['1,"a,b""c",3', "NA,,"], [[7], ["d"], [0.5]], na_value="NA"),
            [[1, 7], [b'a,b"c', b"d"], [3.0, 0.5]],
        ),
        (lambda: tf.decode_csv(["1,2,3"], [[0], [""]], select_cols=[0, 2]), [[1], [b"3"]]),
        (lambda: tf.decode_compressed([gzip.compress(b"hello")], "GZIP"), [b"hello"]),
        (lambda: tf.decode_compressed([zlib.compress(b"hello")], "ZLIB"), [b"hello"]),
        (
            lambda: tf.parse_single_example(
                tf.decode_json_example('{"features":{"feature":{"x":{"floatList":{"value":[1,2]}}}}}'), X
            ),
            {"x": [1, 2]},
        ),
        (lambda: tf.parse_tensor(tf.serialize_tensor(["a", "b"]), tf.string), [b"a", b"b"]),
        (lambda: tf.parse_tensor(tf.serialize_tensor(tf.zeros([0, 3])), tf.float32), []),
        (
            lambda: tf.deserialize_many_sparse(
                tf.serialize_many_sparse(tf.SparseTensor([[0, 1], [1, 0]], ["a", "b"], [3, 2])), tf.string
            ),
            [[[0, 1], [1, 0]], [b"a", b"b"], [3, 2]],
        ),
    ],
)
def test_values(make: Any, wanted: Any) -> None:
    assert value(make) == wanted


@pytest.mark.parametrize(
    "make, message",
    [
        (
            lambda: tf.parse_example([example(x=floats(1, 2)), b"\xff"], X, example_names=["one", "two"]),
            "Name: two, Index: 1. Could not parse example",
        ),
        (lambda: tf.parse_example([example()], X), "Feature: x .* is required but could not be found"),
        (lambda: tf.parse_example([example(x=floats(1))], X), "Number of float32 values != expected"),
        (lambda: tf.parse_example([example(x=ints(1, 2))], X), "Data types don't match"),
        (
            lambda: tf.parse_example([example(x=floats(1))], {"x": tf.FixedLenSequenceFeature([2], tf.float32, True)}),
            "multiple of stride",
        ),
        (
            lambda: tf.parse_single_sequence_example(
                sequence({}), None, {"d": tf.FixedLenSequenceFeature([2], tf.float32)}
            )[1],
            "'d' is required",
        ),
        (lambda: tf.decode_csv(["1,2"], [[0]]), "Expect 1 fields but have 2"),
        (lambda: tf.decode_csv(["a"], [[0]]), "Field 0 in record 0 is not a valid int32: a"),
        (lambda: tf.decode_csv([",1"], [tf.constant([], tf.int32), [0]]), "Field 0 is required but missing"),
        (lambda: tf.decode_csv(['"a'], [[""]]), "has to end with quote"),
        (lambda: tf.parse_tensor("garbage", tf.float32), "TensorProto"),
        (lambda: tf.parse_tensor(tf.serialize_tensor([1, 2]), tf.float32), "Type mismatch"),
        (lambda: tf.decode_json_example("{nope"), "JSON"),
        (lambda: tf.decode_raw([b"abc"], tf.int16), "multiple of"),
    ],
)
def test_what_does_not_fit_is_an_invalid_argument(make: Any, message: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        value(make)


def test_damaged_data_is_data_loss() -> None:
    for data, kind in ((b"xx", "GZIP"), (zlib.compress(b"hello")[:-2], "ZLIB")):
        with pytest.raises(tf.errors.DataLossError):
            value(lambda data=data, kind=kind: tf.decode_compressed([data], kind))


@pytest.mark.parametrize(
    "features, error",
    [
        ({}, ValueError),
        ({"x": 3}, ValueError),
        ({"x": tf.FixedLenFeature([None], tf.float32)}, ValueError),
        ({"x": tf.FixedLenSequenceFeature([], tf.float32)}, ValueError),
        ({"x": tf.FixedLenFeature([], tf.int32)}, TypeError),
    ],
)
def test_features_that_do_not_fit_fail_when_built(features: Any, error: Any) -> None:
    with tf.Graph().as_default(), pytest.raises(error):
        tf.parse_example([b""], features)


def test_files(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "file")
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.write_file(path, b"\x00\xff"))
        assert session.run(tf.read_file(path)) == b"\x00\xff"
        assert session.run(tf.matching_files(f"{tmp_path}/*/f*")).tolist() == [path.encode()]
        assert session.run(tf.matching_files(f"{tmp_path}/none*")).tolist() == []
        with pytest.raises(tf.errors.NotFoundError, match="none"):
            session.run(tf.read_file(str(tmp_path / "none")))


@functools.cache
def parsers() -> tuple[Any, Any, list[Any]]:
    with tf.Graph().as_default():
        fed = tf.placeholder(tf.string, [])
        features = {"x": tf.VarLenFeature(tf.float32), "y": tf.FixedLenFeature([], tf.string)}
        lists = {"x": tf.VarLenFeature(tf.float32)}
        outputs = [
            tf.parse_single_example(fed, features),
            tf.parse_tensor(fed, tf.float32),
            tf.parse_single_sequence_example(fed, None, lists)[1],
        ]
        return tf.Session(), fed, outputs


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 200), st.binary(max_size=6))
def test_any_bytes_parse_or_are_refused(place: int, junk: bytes) -> None:
    """Messages with some bytes replaced: a value or InvalidArgumentError, nothing else."""
    session, fed, outputs = parsers()
    message = example(x=floats(1, 2), y=strings(b"abc"))
    tensor = bytes(tf.make_tensor_proto([[1.0, 2.0]]).SerializeToString())
    for data in (message, tensor):
        start = place % len(data)
        for output in outputs:
            try:
                session.run(output, {fed: data[:start] + junk + data[start + len(junk) :]})
            except tf.errors.InvalidArgumentError:
                pass
