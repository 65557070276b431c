"""The scripts of characters, by ICU's numbers: Latin is 25, Greek 14."""

from __future__ import annotations

import functools
from importlib import resources

import numpy as np

# Names of common scripts, for patterns.
_NAMES = {
    "Common": 0,
    "Inherited": 1,
    "Arabic": 2,
    "Armenian": 3,
    "Bengali": 4,
    "Bopomofo": 5,
    "Cherokee": 6,
    "Coptic": 7,
    "Cyrillic": 8,
    "Deseret": 9,
    "Devanagari": 10,
    "Ethiopic": 11,
    "Georgian": 12,
    "Gothic": 13,
    "Greek": 14,
    "Gujarati": 15,
    "Gurmukhi": 16,
    "Han": 17,
    "Hangul": 18,
    "Hebrew": 19,
    "Hiragana": 20,
    "Kannada": 21,
    "Katakana": 22,
    "Khmer": 23,
    "Lao": 24,
    "Latin": 25,
    "Malayalam": 26,
    "Mongolian": 27,
    "Myanmar": 28,
    "Ogham": 29,
    "Oriya": 31,
    "Runic": 32,
    "Sinhala": 33,
    "Syriac": 34,
    "Tamil": 35,
    "Telugu": 36,
    "Thaana": 37,
    "Thai": 38,
    "Tibetan": 39,
    "Yi": 41,
}


@functools.cache
def _table() -> tuple[np.ndarray, np.ndarray]:
    """The first character of each run of one script, in order, and the scripts."""
    with resources.files("penstock.data_files").joinpath("unicode_scripts.npz").open("rb") as file:
        stored = np.load(file)
        return stored["starts"], stored["scripts"]


def script_of(codes: np.ndarray) -> np.ndarray:
    """The script of each character, -1 for invalid numbers.

    >>> script_of(np.array([65, 0x416]))
    array([25,  8], dtype=int32)
    """
    starts, scripts = _table()
    inside = (codes >= 0) & (codes <= 0x10FFFF)
    runs = np.searchsorted(starts, np.where(inside, codes, 0), side="right") - 1
    return np.where(inside, scripts[runs], -1).astype(np.int32)


def ranges_of_script(name: str) -> tuple[tuple[int, int], ...]:
    """The characters of a script as pairs of first and last; raises ValueError for an unknown name."""
    if name not in _NAMES:
        raise ValueError(f"invalid character class range: unknown script or category {name!r}")
    starts, scripts = _table()
    ends = np.append(starts[1:], 0x110000) - 1
    chosen = scripts == _NAMES[name]
    return tuple(zip(starts[chosen].tolist(), ends[chosen].tolist(), strict=True))
