"""Bytes and text, through `tf.compat`."""

import pathlib

import pytest

import penstock.v1 as tf


def test_conversions():
    assert tf.compat.as_bytes("fluß") == "fluß".encode()
    assert tf.compat.as_bytes(bytearray(b"x")) == b"x"
    assert tf.compat.as_text(b"x") == tf.compat.as_text("x") == tf.compat.as_str(b"x") == "x"
    assert tf.compat.as_str_any(3) == "3"
    assert tf.compat.as_str_any(b"x") == "x"
    assert tf.compat.path_to_str(pathlib.PurePosixPath("a/b")) == "a/b"
    assert tf.compat.path_to_str(7) == 7


@pytest.mark.parametrize("convert", [tf.compat.as_bytes, tf.compat.as_text])
def test_other_types_are_refused(convert):
    with pytest.raises(TypeError, match="received 3 of type int"):
        convert(3)


def test_compat_holds_the_faces():
    assert tf.compat.v1 is tf
