"""Nested structures of lists, tuples, namedtuples and dicts, flattened and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def is_nested(structure: Any) -> bool:
    """Whether `structure` is a list, tuple, namedtuple or dict."""
    return isinstance(structure, (list, tuple, Mapping))


is_sequence = is_nested


def flatten(structure: Any) -> list[Any]:
    """The leaves, in order; dicts by sorted key.

    >>> flatten({"b": [1, (2, 3)], "a": 0})
    [0, 1, 2, 3]
    """
    if isinstance(structure, Mapping):
        return [leaf for key in sorted(structure) for leaf in flatten(structure[key])]
    if isinstance(structure, (list, tuple)):
        return [leaf for item in structure for leaf in flatten(item)]
    return [structure]


def pack_sequence_as(structure: Any, flat_sequence: Any) -> Any:
    """The leaves `flat_sequence` in the form of `structure`.

    >>> pack_sequence_as((0, [0]), [1, 2])
    (1, [2])
    """
    leaves = list(flat_sequence)
    if len(leaves) != len(flatten(structure)):
        raise ValueError(f"The structure has {len(flatten(structure))} leaves, but {len(leaves)} were given.")
    return _pack(structure, iter(leaves))


def _pack(structure: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(structure, Mapping):
        packed = {key: _pack(structure[key], leaves) for key in sorted(structure)}
        ordered = {key: packed[key] for key in structure}
        return ordered if type(structure) is dict else type(structure)(ordered)  # type: ignore[call-arg]
    if isinstance(structure, (list, tuple)):
        items = [_pack(item, leaves) for item in structure]
        if hasattr(structure, "_make"):
            return structure._make(items)
        return items if type(structure) is list else type(structure)(items)
    return next(leaves)


def map_structure(func: Callable[..., Any], *structures: Any, **_: Any) -> Any:
    """`func` of the corresponding leaves, in the form of the first structure.

    >>> map_structure(lambda x: x + 1, [1, (2, 3)])
    [2, (3, 4)]
    """
    for other in structures[1:]:
        assert_same_structure(structures[0], other)
    return pack_sequence_as(structures[0], [func(*leaves) for leaves in zip(*map(flatten, structures), strict=True)])


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True, **_: Any) -> None:
    """Raises ValueError or TypeError unless both have one form."""
    if is_nested(nest1) != is_nested(nest2):
        raise ValueError(f"The structures are not nested alike: {nest1!r:.200} against {nest2!r:.200}.")
    if not is_nested(nest1):
        return
    if check_types and type(nest1) is not type(nest2):
        raise TypeError(f"The two structures are of different types: {type(nest1).__name__}, {type(nest2).__name__}.")
    if len(nest1) != len(nest2) or (isinstance(nest1, Mapping) and set(nest1) != set(nest2)):
        raise ValueError(f"The structures are not nested alike: {nest1!r:.200} against {nest2!r:.200}.")
    keys = sorted(nest1) if isinstance(nest1, Mapping) else range(len(nest1))
    for key in keys:
        assert_same_structure(nest1[key], nest2[key], check_types)
