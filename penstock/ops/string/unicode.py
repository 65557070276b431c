"""Ops on strings as Unicode characters: decoding, encoding, transcoding, splitting, scripts."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import DType
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.kernel.types import INDEX64
from penstock.ops.array.creation import constant
from penstock.ops.array.ranges import range as range_of
from penstock.ops.array.reshaping import reshape, shape, size
from penstock.ops.array.slicing import slice as slice_of
from penstock.ops.math.arithmetic import add, multiply
from penstock.ops.math.reduce import reduce_prod
from penstock.ops.string.each import of_each
from penstock.ops.string.forms import invalid, listed, require_one_of, texts
from penstock.ops.string.scripts import script_of

_ERRORS = ("strict", "replace", "ignore")
_OUTPUTS = ("UTF-8", "UTF-16-BE", "UTF-32-BE")
_REPLACEMENT = 65533


def _codec(name: str) -> str:
    try:
        found = codecs.lookup(name)
    except (LookupError, ValueError) as error:
        raise invalid(f"Could not create converter for input encoding: {name}") from error
    if not getattr(found, "_is_text_encoding", True):
        raise invalid(f"Could not create converter for input encoding: {name}")
    return found.name


def _decoded(text: bytes, encoding: str) -> Iterator[tuple[int, int, bool]]:
    """For each character of `text`: the character, the offset of its first byte, and True if it is valid."""
    start = 0
    while start < len(text):
        try:
            good, bad = text[start:].decode(encoding), 0
            end = len(text)
        except UnicodeDecodeError as error:
            good, bad = text[start : start + error.start].decode(encoding), max(error.end - error.start, 1)
            end = start + error.start
        if len(good) == end - start:
            yield from ((ord(char), start + i, True) for i, char in enumerate(good))
        else:
            place = start
            for char in good:
                yield ord(char), place, True
                place += len(char.encode(encoding))
        if bad:
            yield _REPLACEMENT, end, False
        start = end + bad


def _chars(
    text: bytes, encoding: str, errors: str, replacement: int, replace_control: bool
) -> tuple[list[int], list[int]]:
    """The characters of `text` and their offsets; malformed ones are handled as `errors` says."""
    chars, offsets = [], []
    for char, offset, valid in _decoded(text, encoding):
        if not valid or (replace_control and char <= 0x1F):
            if errors == "strict":
                raise invalid("Invalid formatting on input string")
            if errors == "ignore":
                continue
            char = replacement
        chars.append(char)
        offsets.append(offset)
    return chars, offsets


def _encoded(chars: list[int], encoding: str) -> bytes:
    return "".join(map(chr, chars)).encode(encoding)


def _require_replacement(char: int) -> int:
    if not _is_char(char):
        raise invalid(f"replacement_char must be a Unicode character, received {char}.")
    return char


def _is_char(code: int) -> bool:
    outside = not 0 <= code <= 0x10FFFF or 0xD800 <= code < 0xE000
    return not (outside or 0xFDD0 <= code < 0xFDF0 or code & 0xFFFE == 0xFFFE)


def _transcode_shape(op: Operation) -> list[TensorShape]:
    require_one_of(op, "output_encoding", _OUTPUTS)
    require_one_of(op, "errors", _ERRORS)
    return shapes.unchanged(op)


@op("UnicodeTranscode", "string -> output: string", host=True, no_gradient=True, shape=_transcode_shape)
def unicode_transcode(
    input: Any,
    *,
    input_encoding: str,
    output_encoding: str,
    errors: str = "replace",
    replacement_char: int = _REPLACEMENT,
    replace_control_characters: bool = False,
) -> Any:
    """Strings in another encoding: `tf.strings.unicode_transcode(x, "ISO-8859-1", "UTF-8")`."""
    source, target = _codec(input_encoding), _codec(output_encoding)
    char = _require_replacement(replacement_char)
    found = [
        _encoded(_chars(text, source, errors, char, replace_control_characters)[0], target) for text in listed(input)
    ]
    return texts(found, np.shape(input))


def _decode_shapes(op: Operation) -> list[TensorShape]:
    require_one_of(op, "errors", _ERRORS)
    strings = op.input_list[0].shape
    count = strings.num_elements()
    return [TensorShape.of((None if count is None else count + 1,)), *(TensorShape.of((None,)) for _ in op.outputs[1:])]


def _decode_all(
    strings: Any, encoding: str, errors: str, replacement: int, replace_control: bool, splits: DType
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    codec, char = _codec(encoding), _require_replacement(replacement)
    chars: list[int] = []
    offsets: list[int] = []
    ends = [0]
    for text in listed(strings):
        some, places = _chars(text, codec, errors, char, replace_control)
        chars += some
        offsets += places
        ends.append(len(chars))
    return np.array(ends, splits.as_numpy_dtype), np.array(chars, np.int32), np.array(offsets, np.int64)


@op(
    "UnicodeDecode",
    "string -> row_splits: Tsplits, char_values: int32",
    host=True,
    no_gradient=True,
    shape=_decode_shapes,
    Tsplits=INDEX64,
)
def unicode_decode_op(
    input: Any,
    *,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = _REPLACEMENT,
    replace_control_characters: bool = False,
    Tsplits: DType = dt.int64,
) -> Any:
    return _decode_all(input, input_encoding, errors, replacement_char, replace_control_characters, Tsplits)[:2]


@op(
    "UnicodeDecodeWithOffsets",
    "string -> row_splits: Tsplits, char_values: int32, char_to_byte_starts: int64",
    host=True,
    no_gradient=True,
    shape=_decode_shapes,
    Tsplits=INDEX64,
)
def unicode_decode_with_offsets_op(
    input: Any,
    *,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = _REPLACEMENT,
    replace_control_characters: bool = False,
    Tsplits: DType = dt.int64,
) -> Any:
    return _decode_all(input, input_encoding, errors, replacement_char, replace_control_characters, Tsplits)


def _encode_shape(op: Operation) -> list[TensorShape]:
    require_one_of(op, "output_encoding", _OUTPUTS)
    require_one_of(op, "errors", _ERRORS)
    splits = shapes.require_rank(op.input_list[1].shape, 1).as_list()[0]
    return [TensorShape.of((None if splits is None else splits - 1,))]


@op(
    "UnicodeEncode",
    "int32, Tsplits -> output: string",
    host=True,
    no_gradient=True,
    shape=_encode_shape,
    Tsplits=INDEX64,
)
def unicode_encode_op(
    input_values: Any,
    input_splits: Any,
    *,
    errors: str = "replace",
    output_encoding: str,
    replacement_char: int = _REPLACEMENT,
) -> Any:
    chars, splits = np.asarray(input_values).tolist(), np.asarray(input_splits).tolist()
    if not splits or splits[0] != 0 or splits[-1] != len(chars) or sorted(splits) != splits:
        raise invalid(f"UnicodeEncode: splits must rise from 0 to {len(chars)}, received {splits[:8]}.")
    codec, replacement = _codec(output_encoding), _require_replacement(replacement_char)
    if errors == "strict" and not all(map(_is_char, chars)):
        raise invalid("Code point is out of range for Unicode, or a noncharacter.")
    found = []
    for start, end in itertools.pairwise(splits):
        row = [c if _is_char(c) else replacement for c in chars[start:end] if errors != "ignore" or _is_char(c)]
        found.append(_encoded(row, codec))
    return texts(found)


@op("UnicodeScript", "int32 -> output: int32", host=True, no_gradient=True, shape=shapes.unchanged)
def unicode_script(input: Any) -> Any:
    """The script of each character by ICU's numbers: `tf.strings.unicode_script([65])  # [25], Latin`."""
    return script_of(np.asarray(input))


def unicode_decode(
    input: TensorLike,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = _REPLACEMENT,
    replace_control_characters: bool = False,
    name: str | None = None,
) -> Any:
    """The characters of strings as numbers: `tf.strings.unicode_decode("hé", "UTF-8")  # [104, 233]`."""
    options: dict[str, Any] = {
        "input_encoding": input_encoding,
        "errors": errors,
        "replacement_char": replacement_char,
        "replace_control_characters": replace_control_characters,
    }
    with name_scope(name, "UnicodeDecode", [input]):
        return of_each(input, lambda strings: unicode_decode_op(strings, **options))[0]


def unicode_decode_with_offsets(
    input: TensorLike,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = _REPLACEMENT,
    replace_control_characters: bool = False,
    name: str | None = None,
) -> tuple[Any, Any]:
    """The characters of strings as numbers, and the offsets of their first bytes."""
    options: dict[str, Any] = {
        "input_encoding": input_encoding,
        "errors": errors,
        "replacement_char": replacement_char,
        "replace_control_characters": replace_control_characters,
    }
    with name_scope(name, "UnicodeDecodeWithOffsets", [input]):
        chars, offsets = of_each(input, lambda strings: unicode_decode_with_offsets_op(strings, **options))
        return chars, offsets


def unicode_encode(
    input: TensorLike,
    output_encoding: str,
    errors: str = "replace",
    replacement_char: int = _REPLACEMENT,
    name: str | None = None,
) -> Any:
    """Strings of the characters along the last axis: `tf.strings.unicode_encode([104, 233], "UTF-8")`."""
    with name_scope(name, "UnicodeEncode", [input]):
        if isinstance(input, Ragged):
            return _encoded_rows(input, output_encoding, errors, replacement_char)
        chars = convert_to_tensor(input, dtype=dt.int32, name="input")
        rank = chars.shape.rank
        if not rank:
            raise ValueError(f"unicode_encode: input must have a known rank of at least 1, received {chars.shape}.")
        dims = shape(chars, out_type=dt.int64)
        width = reshape(slice_of(dims, [rank - 1], [1]), [])
        if rank == 1:
            splits: Any = multiply(range_of(constant(2, dt.int64)), width)
            outer: Any = []
        else:
            outer = slice_of(dims, [0], [rank - 1])
            # Not a range with steps of `width`, which may be 0.
            splits = multiply(range_of(add(reduce_prod(outer), 1)), width)
        encoded = unicode_encode_op(
            reshape(chars, [-1]),
            splits,
            output_encoding=output_encoding,
            errors=errors,
            replacement_char=replacement_char,
        )
        return reshape(encoded, outer)


def _encoded_rows(chars: Ragged, encoding: str, errors: str, replacement: int) -> Any:
    """A string of the characters of each innermost row."""
    values = chars.values
    if isinstance(values, Ragged):
        return chars.with_values(_encoded_rows(values, encoding, errors, replacement))
    if values.shape.rank != 1:
        return chars.with_values(unicode_encode(values, encoding, errors, replacement))
    return unicode_encode_op(
        values, chars.row_splits, output_encoding=encoding, errors=errors, replacement_char=replacement
    )


def _split_chars(chars: Tensor, encoding: str, errors: str, replacement: int) -> Tensor:
    found: Tensor = unicode_encode_op(
        chars,
        range_of(add(size(chars, out_type=dt.int64), 1)),
        output_encoding=encoding,
        errors=errors,
        replacement_char=replacement,
    )
    return found


def unicode_split(
    input: TensorLike,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = _REPLACEMENT,
    name: str | None = None,
) -> Any:
    """Strings as strings of one character each: `tf.strings.unicode_split("hé", "UTF-8")`."""
    with name_scope(name, "UnicodeSplit", [input]):
        chars = unicode_decode(input, input_encoding, errors, replacement_char)
        return _split_all(chars, input_encoding, errors, replacement_char)


def unicode_split_with_offsets(
    input: TensorLike,
    input_encoding: str,
    errors: str = "replace",
    replacement_char: int = _REPLACEMENT,
    name: str | None = None,
) -> tuple[Any, Any]:
    """Strings as strings of one character each, and the offsets of their first bytes."""
    with name_scope(name, "UnicodeSplitWithOffsets", [input]):
        chars, offsets = unicode_decode_with_offsets(input, input_encoding, errors, replacement_char)
        return _split_all(chars, input_encoding, errors, replacement_char), offsets


def _split_all(chars: Any, encoding: str, errors: str, replacement: int) -> Any:
    if isinstance(chars, Ragged):
        return chars.with_flat_values(_split_chars(chars.flat_values, encoding, errors, replacement))
    return _split_chars(chars, encoding, errors, replacement)
