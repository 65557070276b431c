"""Lists as Slurm writes them: names of nodes, and numbers for each of them."""

from __future__ import annotations

import itertools
import re

_PARTS = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")  # of a list of nodes: commas in brackets do not part them
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def nodes_of(text: str) -> list[str]:
    """Returns the names in a list of nodes as Slurm writes it, in its order.

    >>> nodes_of("login,n[08-10,12]")
    ['login', 'n08', 'n09', 'n10', 'n12']
    """
    parts = _PARTS.findall(text)
    if not parts or ",".join(parts) != text:
        raise ValueError(f"A list of Slurm nodes looks like 'n[1-3],m7', received {text!r}.")
    return [name for part in parts for name in _expanded(part)]


def _expanded(part: str) -> list[str]:
    pieces = re.split(r"\[([^\]]*)\]", part)  # text, range, text, range ...
    choices = [_numbers(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _numbers(text: str) -> list[str]:
    """Returns the numbers of a list of ranges, with as many digits as the first of each has."""
    found = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"Numbers of Slurm nodes look like '1-3,7', received {text!r}.")
        first, last = match[1], match[2] or match[1]
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def counts_of(text: str) -> list[int]:
    """Returns the number of tasks on each node, as Slurm writes them.

    >>> counts_of("2,1(x3)")
    [2, 1, 1, 1]
    """
    found = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            raise ValueError(f"Slurm's numbers of tasks on nodes look like '2,1(x3)', received {text!r}.")
        found += [int(match[1])] * int(match[2] or 1)
    return found
