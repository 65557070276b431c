"""Strings: edge cases beyond the golden cases, as in TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock.v1 as tf
from penstock.ops.string import hashing


def value(make: Any) -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        found = session.run(make())
    if isinstance(found, tf.SparseTensorValue):
        return [np.asarray(part).tolist() for part in found]
    return found.tolist() if isinstance(found, np.ndarray) else found


@pytest.mark.parametrize(
    "make, wanted",
    [
        (lambda: tf.as_string([1.5, float("inf"), float("nan"), -0.0]), [b"1.500000", b"inf", b"nan", b"-0.000000"]),
        (lambda: tf.as_string([1.5, -1e20], scientific=True), [b"1.500000e+00", b"-1.000000e+20"]),
        (lambda: tf.as_string([1.5, 1e-10], shortest=True), [b"1.5", b"1e-10"]),
        (lambda: tf.as_string([7], width=8, fill="+"), [b"      +7"]),
        (lambda: tf.as_string([1 + 2j]), [b"(1.000000,2.000000)"]),
        (lambda: tf.as_string(["a"], width=3), [b"  a"]),
        (lambda: tf.string_to_number([" 1.5", "2 ", "0x10", "-inf"]), [1.5, 2.0, 16.0, -np.inf]),
        (lambda: tf.string_to_number(["-2147483648", "+2"], tf.int32), [-(2**31), 2]),
        (lambda: tf.substr(["hello"], -3, 2), [b"ll"]),
        (lambda: tf.substr(["hello", "world"], [[1], [2]], [[2], [1]]), [[b"el", b"or"], [b"l", b"r"]]),
        (lambda: tf.strings.substr(["héllo"], 1, 2, unit="UTF8_CHAR"), ["él".encode()]),
        (lambda: tf.strings.length([b"a\xff\x80b", b"\x80"], unit="UTF8_CHAR"), [3, 0]),
        (lambda: tf.strings.upper(["äßA"], encoding="utf-8"), ["ÄSSA".encode()]),
        (lambda: tf.string_strip([b" \t\v a\x00 ", b"\xc2\xa0a"]), [b"a\x00", b"\xc2\xa0a"]),
        (lambda: tf.decode_base64(["YQ==", "YQ", "_-8", ""]), [b"a", b"a", b"\xff\xef", b""]),
        (lambda: tf.string_join(["a", ["b", "c"]], "-"), [b"a-b", b"a-c"]),
        (lambda: tf.reduce_join([["a", "b"], ["c", "d"]], [0, 1], separator="."), b"a.c.b.d"),
        (lambda: tf.reduce_join(tf.zeros([0, 2], tf.string), 0), [b"", b""]),
        (lambda: tf.strings.unsorted_segment_join(["a", "b", "c"], [1, 0, 1], 3, ":"), [b"b", b"a:c", b""]),
        (lambda: tf.strings.format("{} {}", ([1.5, 2.0], ["a", 'b"'])), b'[1.5 2] ["a" "b\\""]'),
        (
            lambda: tf.strings.format("{}", np.arange(100).reshape(10, 10), summarize=1),
            b"[[0 ... 9]\n ...\n [90 ... 99]]",
        ),
        (
            lambda: tf.string_split(["a,b c;d", " x"], delimiter=", ;"),
            [[[0, 0], [0, 1], [0, 2], [0, 3], [1, 0]], [b"a", b"b", b"c", b"d", b"x"], [2, 4]],
        ),
        (lambda: tf.string_split(tf.constant([], tf.string)), [[], [], [0, 0]]),
        (
            lambda: tf.strings.split(["a<>b<>", "x"], sep="<>"),
            [[[0, 0], [0, 1], [0, 2], [1, 0]], [b"a", b"b", b"", b"x"], [2, 3]],
        ),
        (lambda: tf.strings.split(["  a b  c  "], maxsplit=1), [[[0, 0], [0, 1]], [b"a", b"b  c  "], [1, 2]]),
        (
            lambda: tf.strings.split([["a b"], ["c"]]),
            [[[0, 0, 0], [0, 0, 1], [1, 0, 0]], [b"a", b"b", b"c"], [2, 1, 2]],
        ),
        (lambda: tf.strings.ngrams(["a", "b"], 2, pad_values=("L", "R")), [b"L a", b"a b", b"b R"]),
        (
            lambda: tf.strings.unicode_transcode(
                [b"h\xff\x01"], "UTF-8", "UTF-16-BE", replacement_char=33, replace_control_characters=True
            ),
            ["h!!".encode("utf-16-be")],
        ),
        (lambda: tf.strings.unicode_decode_with_offsets("hél", "UTF-8")[1], [0, 1, 3]),
        (
            lambda: tf.strings.unicode_encode([[104, 0xD800], [0x4E2D, 97]], "UTF-8"),
            ["h\ufffd".encode(), "中a".encode()],
        ),
        (lambda: tf.strings.unicode_split("hé", "UTF-8"), [b"h", "é".encode()]),
        (lambda: tf.map_fn(lambda x: tf.string_join([x, "!"]), tf.constant(["a", "b"])), [b"a!", b"b!"]),
        (lambda: tf.string_to_hash_bucket_fast(tf.zeros([0, 2], tf.string), 7), []),
    ],
)
def test_values(make: Any, wanted: Any) -> None:
    assert value(make) == wanted


@pytest.mark.parametrize(
    "text, pattern, rewrite, wanted",
    [
        ("baaac", "a*", "x", "xbxcx"),
        ("hé", "", "-", "-h-é-"),
        ("hello world", r"(\w+) (\w+)", r"\2 \1 \\", "world hello \\"),
        ("hello", r"(\w+)", r"\2", "hello"),  # no such group: nothing is replaced
        ("a\n", "a$", "x", "a\n"),
        ("a\nb", "(?m)a$", "x", "x\nb"),
        ("aXbx", "a(?i)x|B", "y", "yyx"),
        ("a1 \u0663", r"\d", "D", "aD \u0663"),
        ("ab12", "[^[:digit:]]+", "_", "_12"),
        ("a.b", r"\Qa.b\E", "_", "_"),
        ("ab\u0416", r"\p{Cyrillic}|[\pN]", "_", "ab_"),
        ("aXX", "(?U)X+", "_", "a__"),
        ("a{,2}aa", "a{,2}", "_", "_aa"),
        ("aAbB", "[a-z--b]", "_", "____"),
    ],
)
def test_regular_expressions(text: str, pattern: str, rewrite: str, wanted: str) -> None:
    assert value(lambda: tf.strings.regex_replace([text], pattern, rewrite)) == [wanted.encode()]
    assert value(lambda: tf.strings.regex_replace([text], tf.constant(pattern), rewrite)) == [wanted.encode()]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tf.as_string([7], precision=3), "precision"),
        (lambda: tf.as_string([7], width=4, fill="x"), "fill"),
        (lambda: tf.string_to_number(["1_0"]), "1_0"),
        (lambda: tf.string_to_number(["2147483648"], tf.int32), "2147483648"),
        (lambda: tf.substr(["hello"], 6, 2), "pos 6 out of range"),
        (lambda: tf.decode_base64(["Y"]), "Base64"),
        (lambda: tf.strings.regex_replace(["a"], "(?=h)", ""), "invalid perl operator"),
        (lambda: tf.strings.regex_replace(["a"], r"(h)\1", ""), "invalid escape"),
        (lambda: tf.strings.regex_replace(["a"], "a**", ""), "bad repetition"),
        (lambda: tf.strings.regex_replace(["a"], "a{2000}", ""), "repetition size"),
        (lambda: tf.strings.regex_full_match(["a"], "["), "missing ]"),
        (lambda: tf.strings.unicode_transcode([b"\xff"], "UTF-8", "UTF-8", errors="strict"), "formatting"),
        (lambda: tf.strings.unicode_transcode(["a"], "FOO", "UTF-8"), "FOO"),
        (lambda: tf.string_join([tf.placeholder_with_default(["a", "b"], [None]), ["c"] * 3]), "one shape"),
        (lambda: tf.string_to_hash_bucket_strong(["a"], 10, [1]), "two numbers"),
    ],
)
def test_what_fails_when_run_names_the_node(make: Any, message: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        tensor = make()
        with pytest.raises(tf.errors.InvalidArgumentError, match=message) as caught:
            session.run(tensor)
        assert f"'{tensor.op.name}'" in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tf.strings.length(["a"], unit="FOO"),
        lambda: tf.string_to_hash_bucket_fast(["a"], 0),
        lambda: tf.string_split("a b"),
        lambda: tf.substr("hello", [1, 2], 2),
        lambda: tf.strings.format("{} {}", [1]),
        lambda: tf.string_join([["a", "b"], ["c"] * 3]),
    ],
)
def test_what_does_not_fit_fails_when_built(make: Any) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError):
        make()


def test_hashes_at_every_size_class() -> None:
    texts = [bytes((i * 7 + n) % 256 for i in range(n)) for n in (0, 1, 3, 4, 7, 8, 16, 17, 32, 33, 64, 65, 128, 200)]
    single = [int(hashing.fingerprint64([t])[0]) for t in texts]
    assert hashing.fingerprint64(texts).tolist() == single
    assert [h % 1000 for h in single] == FAST
    assert [int(h) % 1000 for h in hashing.siphash(texts, [1, -2])] == STRONG
    assert [int(h) % 1000 for h in hashing.murmur64(texts)] == LEGACY


# TensorFlow's results for the texts above.
FAST = [263, 686, 492, 104, 304, 728, 712, 727, 9, 405, 92, 533, 233, 351]
STRONG = [606, 506, 820, 381, 500, 444, 200, 217, 311, 512, 110, 883, 135, 739]
LEGACY = [899, 882, 779, 281, 691, 487, 182, 872, 748, 661, 61, 469, 791, 859]
