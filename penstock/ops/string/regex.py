"""Regular expressions on strings, in RE2's syntax as TensorFlow takes it.

They run on Python's `re`, which backtracks: unlike in RE2, nested repetitions such as `(a*)*b` may take very long.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.ops.string.forms import each, invalid, listed
from penstock.ops.string.re2_syntax import to_python


@functools.lru_cache(256)
def _compiled(pattern: bytes) -> re.Pattern[str]:
    try:
        return re.compile(to_python(pattern.decode()))
    except (ValueError, re.error, RecursionError, OverflowError) as error:
        shown = pattern[:200].decode("utf-8", "backslashreplace")
        raise invalid(f"Invalid pattern: {shown}, error: {error}") from error


def _text(string: bytes) -> str:
    # Bytes that are not UTF-8 become lone surrogates, which `.` and `[^x]` of a translated pattern do not match.
    return string.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _replaced(strings: Any, pattern: bytes, rewrite: bytes, everywhere: bool) -> np.ndarray:
    regex, template = _compiled(pattern), _text(rewrite)
    if max((int(d) for d in re.findall(r"\\(?:\\|(\d))", template) if d), default=0) > regex.groups:
        return each(bytes, strings)  # RE2 does not change the strings then
    return each(lambda string: _bytes(_replace(_text(string), regex, template, everywhere)), strings)


def _replace(text: str, regex: re.Pattern[str], template: str, everywhere: bool) -> str:
    parts: list[str] = []
    start, last_end = 0, -1
    while start <= len(text):
        match = regex.search(text, start)
        if match is None:
            break
        parts.append(text[start : match.start()])
        if match.end() == match.start() == last_end:
            # An empty match directly after another is skipped: go one character further.
            parts.append(text[match.end() : match.end() + 1])
            start = match.end() + 1
            continue
        parts.append(_rewritten(match, template))
        start = last_end = match.end()
        if not everywhere:
            break
    parts.append(text[start:])
    return "".join(parts)


def _rewritten(match: re.Match[str], template: str) -> str:
    parts: list[str] = []
    pieces = iter(re.split(r"(\\.?)", template, flags=re.DOTALL))
    for piece in pieces:
        if not piece.startswith("\\"):
            parts.append(piece)
        elif piece == "\\\\":
            parts.append("\\")
        elif piece[1:].isascii() and piece[1:].isdigit():
            parts.append(match.group(int(piece[1:])) or "")
        else:
            break  # RE2 drops the rest of the rewrite
    return "".join(parts)


def _scalar_pattern(op: Operation) -> list[TensorShape]:
    for tensor in op.input_list[1:]:
        shapes.require_rank(tensor.shape, 0)
    return shapes.unchanged(op)


def _only(value: Any, what: str) -> bytes:
    if np.ndim(value):
        raise invalid(f"{what} must be a scalar, received shape {np.shape(value)}.")
    return listed(value)[0]


@op("RegexReplace", "string, string, string -> output: string", host=True, no_gradient=True, shape=_scalar_pattern)
def regex_replace_op(input: Any, pattern: Any, rewrite: Any, *, replace_global: bool = True) -> Any:
    return _replaced(input, _only(pattern, "pattern"), _only(rewrite, "rewrite"), replace_global)


@op("StaticRegexReplace", "string -> output: string", host=True, no_gradient=True, shape=shapes.unchanged)
def static_regex_replace(input: Any, *, pattern: str, rewrite: str, replace_global: bool = True) -> Any:
    return _replaced(input, _bytes(pattern), _bytes(rewrite), replace_global)


def regex_replace(
    input: TensorLike, pattern: TensorLike, rewrite: TensorLike, replace_global: bool = True, name: str | None = None
) -> Tensor:
    """Strings in which `rewrite` replaces the matches of `pattern`; `\\\\1` in it stands for the first group.

    >>> tf.strings.regex_replace(["a1b22"], "[0-9]+", "#")  # ["a#b#"]
    """
    found: Tensor
    if isinstance(pattern, (str, bytes)) and isinstance(rewrite, (str, bytes)):
        found = static_regex_replace(input, pattern=pattern, rewrite=rewrite, replace_global=replace_global, name=name)
    else:
        found = regex_replace_op(input, pattern, rewrite, replace_global=replace_global, name=name)
    return found


def _matches(strings: Any, pattern: bytes) -> np.ndarray:
    regex = _compiled(pattern)
    found = [regex.fullmatch(_text(string)) is not None for string in listed(strings)]
    return np.array(found, np.bool_).reshape(np.shape(strings))


@op("RegexFullMatch", "string, string -> output: bool", host=True, no_gradient=True, shape=_scalar_pattern)
def regex_full_match_op(input: Any, pattern: Any) -> Any:
    return _matches(input, _only(pattern, "pattern"))


@op("StaticRegexFullMatch", "string -> output: bool", host=True, no_gradient=True, shape=shapes.unchanged)
def static_regex_full_match(input: Any, *, pattern: str) -> Any:
    return _matches(input, _bytes(pattern))


def regex_full_match(input: TensorLike, pattern: TensorLike, name: str | None = None) -> Tensor:
    """True if all of a string matches: `tf.strings.regex_full_match(["abc", "ab1"], "[a-z]+")`."""
    found: Tensor
    if isinstance(pattern, (str, bytes)):
        found = static_regex_full_match(input, pattern=pattern, name=name)
    else:
        found = regex_full_match_op(input, pattern, name=name)
    return found
