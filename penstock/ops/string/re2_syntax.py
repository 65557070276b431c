"""Translates RE2's regular expressions to Python's, with the same meaning, or raises ValueError.

RE2 is ASCII in `\\d`, `\\w`, `\\s` and `\\b`, ends `$` at the very end, has `\\pL`, `[[:alpha:]]` and `\\Q..\\E`, and
lacks lookaround and back references. A pattern for a character must not match a byte that is not UTF-8, which is a lone
surrogate here.

>>> to_python("^[[:digit:]]+$")
'(?:\\\\A)[0-9]+(?:\\\\Z)'
"""

from __future__ import annotations

import functools
import re
import unicodedata
from dataclasses import dataclass, field

from penstock.ops.string.scripts import ranges_of_script

Ranges = tuple[tuple[int, int], ...]

_LAST = 0x10FFFF
_MOST = 1000  # limit for repetitions, as in RE2
_PERL: dict[str, Ranges] = {
    "d": ((48, 57),),
    "s": ((9, 10), (12, 13), (32, 32)),
    "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
}
_POSIX: dict[str, Ranges] = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": ((48, 57),),
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": _PERL["w"],
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
# In groups, since Python does not repeat them without.
_START, _END, _BOUNDARY = r"(?:\A)", r"(?:\Z)", r"(?a:\b)"
_ESCAPED = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_REPEAT = re.compile(r"\{(\d+)(,(\d*))?\}")
_FLAGS = re.compile(r"\(\?([imsU]*)(-[imsU]+)?([:)])")
_NAMED = re.compile(r"\(\?P?<([A-Za-z_]\w*)>", re.ASCII)


def complement(ranges: Ranges) -> Ranges:
    """All characters that are not in `ranges`; surrogates are no characters."""
    found, start = [], 0
    for low, high in sorted((*ranges, (0xD800, 0xDFFF))):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return (*found, (start, _LAST)) if start <= _LAST else tuple(found)


def _class(ranges: Ranges) -> str:
    """A character class of Python's."""
    if not ranges:
        return r"(?!)"
    return "[" + "".join(_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in ranges) + "]"


def _char(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else re.escape(char) if code > 127 else f"\\x{code:02x}"


@functools.lru_cache(64)
def _property(name: str) -> Ranges:
    """The characters of a general category or a script."""
    if name == "Any":
        return complement(())
    if re.fullmatch("[CLMNPSZ][a-z]?", name):
        category, found, start = unicodedata.category, [], -1
        for code in range(_LAST + 2):
            inside = code <= _LAST and not 0xD800 <= code < 0xE000 and category(chr(code)).startswith(name)
            if inside and start < 0:
                start = code
            elif not inside and start >= 0:
                found.append((start, code - 1))
                start = -1
        return tuple(found)
    return ranges_of_script(name)


@dataclass
class _Flags:
    ignore_case: bool = False
    multi_line: bool = False
    dot_all: bool = False
    ungreedy: bool = False

    def changed(self, on: str, off: str) -> _Flags:
        names = {"i": "ignore_case", "m": "multi_line", "s": "dot_all", "U": "ungreedy"}
        values = dict(vars(self))
        values.update({names[f]: True for f in on})
        values.update({names[f]: False for f in off})
        return _Flags(**values)


@dataclass
class _Group:
    flags: _Flags  # flags to restore at the group's end
    opened: list[str] = field(default_factory=list)  # such as `(?i:`, closed at the group's end or at a `|`


class _Translator:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.out: list[str] = []
        self.flags = _Flags()
        self.groups = [_Group(self.flags)]
        self.repeatable = False
        self.repeated = False

    def run(self) -> str:
        while self.at < len(self.pattern):
            self._next()
        if len(self.groups) > 1:
            raise ValueError(f"missing ): {self.pattern}")
        self.out.append(")" * len(self.groups[0].opened))
        return "".join(self.out)

    def _next(self) -> None:
        char = self.pattern[self.at]
        if char in "*+?" or (char == "{" and _REPEAT.match(self.pattern, self.at)):
            self._repeat()
            return
        self.repeated = False
        match char:
            case "(":
                self._open()
            case ")":
                self._close()
            case "|":
                opened = self.groups[-1].opened
                self._emit(")" * len(opened) + "|" + "".join(opened), False, 1)
            case "[":
                self._emit(_class(self._bracket()), True, 0)
            case "\\":
                self._escape()
            case ".":
                self._emit(_class(complement(() if self.flags.dot_all else ((10, 10),))), True, 1)
            case "^":
                self._emit("(?m:^)" if self.flags.multi_line else _START, True, 1)
            case "$":
                self._emit("(?m:$)" if self.flags.multi_line else _END, True, 1)
            case _:
                self._emit(_char(ord(char)), True, 1)

    def _emit(self, text: str, repeatable: bool, advance: int) -> None:
        self.out.append(text)
        self.repeatable = repeatable
        self.at += advance

    def _repeat(self) -> None:
        start = self.at
        counted = _REPEAT.match(self.pattern, start)
        text = counted.group() if counted else self.pattern[start]
        if self.repeated:
            raise ValueError(f"bad repetition operator: {self.pattern[start - 1 : start + len(text)]}")
        if not self.repeatable:
            raise ValueError(f"no argument for repetition operator: {text}")
        if counted:
            low = int(counted[1])
            high = low if counted[2] is None else int(counted[3] or low)
            if low > _MOST or high > _MOST or high < low:
                raise ValueError(f"invalid repetition size: {text}")
        self.at += len(text)
        lazy = self.pattern.startswith("?", self.at)
        self.at += lazy
        self.out.append(text + ("?" if lazy != self.flags.ungreedy else ""))
        self.repeated = True

    def _open(self) -> None:
        pattern, at = self.pattern, self.at
        if not pattern.startswith("(?", at):
            self._enter("(", 1)
            return
        named, flags = _NAMED.match(pattern, at), _FLAGS.match(pattern, at)
        if named:
            self._enter("(", len(named.group()))
        elif flags:
            changed = self.flags.changed(flags[1], (flags[2] or "")[1:])
            case = "" if changed.ignore_case == self.flags.ignore_case else "i" if changed.ignore_case else "-i"
            if flags[3] == ":":
                self._enter(f"(?{case}:", len(flags.group()))
            else:
                self.at += len(flags.group())
                self.repeatable = False
                if case:
                    self.out.append(f"(?{case}:")
                    self.groups[-1].opened.append(f"(?{case}:")
            self.flags = changed
        else:
            raise ValueError(f"invalid perl operator: {pattern[at : at + 3]}")

    def _enter(self, text: str, advance: int) -> None:
        self.groups.append(_Group(self.flags))
        self._emit(text, False, advance)

    def _close(self) -> None:
        if len(self.groups) == 1:
            raise ValueError(f"unexpected ): {self.pattern}")
        group = self.groups.pop()
        self.flags = group.flags
        self._emit(")" * len(group.opened) + ")", True, 1)

    def _escape(self) -> None:
        pattern, at = self.pattern, self.at
        kind = pattern[at + 1 : at + 2]
        if kind == "Q":
            end = pattern.find("\\E", at)
            literal = pattern[at + 2 :] if end < 0 else pattern[at + 2 : end]
            self.out += [_char(ord(c)) for c in literal]
            self.repeatable = bool(literal)
            self.at = len(pattern) if end < 0 else end + 2
        elif kind in ("b", "B"):
            self._emit(_BOUNDARY if kind == "b" else f"(?!{_BOUNDARY})", True, 2)
        elif kind in ("A", "z"):
            self._emit(_START if kind == "A" else _END, True, 2)
        elif kind == "C":
            raise ValueError(r"\C, any byte, is not supported by penstock")
        else:
            ranges = self._escaped_class()
            self._emit(_char(self._escaped_char()) if ranges is None else _class(ranges), True, 0)

    def _escaped_class(self) -> Ranges | None:
        r"""Reads `\d`, `\pL` and similar at the current place; None if there is none."""
        kind = self.pattern[self.at + 1 : self.at + 2]
        if kind.lower() in _PERL and kind:
            self.at += 2
            ranges = _PERL[kind.lower()]
            return complement(ranges) if kind.isupper() else ranges
        if kind not in ("p", "P"):
            return None
        found = re.compile(r"\\[pP](?:\{(\^?)(\w+)\}|([A-Z]))").match(self.pattern, self.at)
        if not found:
            raise ValueError(f"invalid character class range: {self.pattern[self.at : self.at + 3]}")
        self.at = found.end()
        ranges = _property(found[2] or found[3])
        return complement(ranges) if (kind == "P") != bool(found[1]) else ranges

    def _escaped_char(self) -> int:
        """Reads an escape at the current place. Returns its character."""
        pattern, at = self.pattern, self.at
        found = re.compile(r"\\(?:x\{([0-9A-Fa-f]{1,6})\}|x([0-9A-Fa-f]{2})|(0[0-7]{0,2}|[1-7][0-7]{1,2}))").match(
            pattern, at
        )
        kind = pattern[at + 1 : at + 2]
        if found:
            self.at = found.end()
            code = int(found[3], 8) if found[3] else int(found[1] or found[2], 16)
            if code > _LAST:
                raise ValueError(f"invalid escape sequence: {found.group()}")
            return code
        if not kind:
            raise ValueError("trailing \\ at end of regexp")
        if kind in _ESCAPED:
            self.at += 2
            return _ESCAPED[kind]
        if kind.isascii() and not kind.isalnum():
            self.at += 2
            return ord(kind)
        raise ValueError(f"invalid escape sequence: \\{kind}")

    def _bracket(self) -> Ranges:
        """Reads a character class at the current place. Returns its characters."""
        pattern, start = self.pattern, self.at
        self.at += 1
        negated = pattern.startswith("^", self.at)
        self.at += negated
        found: list[tuple[int, int]] = []
        first = True
        while first or not pattern.startswith("]", self.at):
            first = False
            if self.at >= len(pattern):
                raise ValueError(f"missing ]: {pattern[start:]}")
            posix = re.compile(r"\[:(\^?)(\w+):\]").match(pattern, self.at)
            if posix:
                if posix[2] not in _POSIX:
                    raise ValueError(f"invalid character class range: {posix.group()}")
                self.at = posix.end()
                found += complement(_POSIX[posix[2]]) if posix[1] else _POSIX[posix[2]]
                continue
            ranges = self._escaped_class() if pattern[self.at] == "\\" else None
            if ranges is not None:
                found += ranges
                continue
            low = high = self._class_char()
            if pattern.startswith("-", self.at) and pattern[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self._class_char()
                if high < low:
                    raise ValueError(f"invalid character class range: {pattern[start : self.at]}")
            found.append((low, high))
        self.at += 1
        ranges = tuple(sorted(found))
        if negated and self.flags.ignore_case:
            ranges = _folded(ranges)
        return complement(ranges) if negated else ranges

    def _class_char(self) -> int:
        if self.at >= len(self.pattern):
            raise ValueError("missing ]")
        if self.pattern[self.at] == "\\":
            return self._escaped_char()
        self.at += 1
        return ord(self.pattern[self.at - 1])


def _folded(ranges: Ranges) -> Ranges:
    """The ranges with the other case of each ASCII letter, for `[^a]` under `(?i)`."""
    more = [
        (code ^ 32, code ^ 32) for low, high in ranges for code in range(low, min(high, 122) + 1) if chr(code).isalpha()
    ]
    return tuple(sorted((*ranges, *more)))


def to_python(pattern: str) -> str:
    """The pattern as Python's `re` takes it; ValueError for what RE2 does not have.

    >>> to_python("a.b")
    'a[\\\\x00-\\\\x09\\\\x0b-\\ud7ff\\ue000-\\U0010ffff]b'
    """
    return _Translator(pattern).run()
