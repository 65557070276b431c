"""Flattens and rebuilds nested structures of lists, tuples, namedtuples, dicts and the like.

With `expand_composites`, SparseTensors, RaggedTensors and IndexedSlices are structures of tensors instead of leaves.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping, MappingView, Sequence
from typing import Any

from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.sparse_tensor import SparseTensor

_LEAVES = (str, bytes, bytearray, memoryview)  # sequences that count as values
_COMPOSITES = (SparseTensor, IndexedSlices, Ragged)


def is_nested(structure: Any, expand_composites: bool = False) -> bool:
    """Tells if `structure` is a list, tuple, namedtuple, dict, view of a dict, or another sequence except text.

    >>> tf.nest.is_nested((1, 2)), tf.nest.is_nested("ab")
    (True, False)
    """
    if isinstance(structure, (list, tuple, Mapping)):
        return True
    if expand_composites and isinstance(structure, _COMPOSITES):
        return True
    is_sequence = isinstance(structure, (Sequence, MappingView)) and not isinstance(structure, _LEAVES)
    return is_sequence or hasattr(type(structure), "__attrs_attrs__")


is_sequence = is_nested


def _children(structure: Any) -> list[Any]:
    if isinstance(structure, Mapping):
        try:
            return [structure[key] for key in sorted(structure)]
        except TypeError as error:
            raise TypeError(f"The keys of a dict in a structure must have an order: {list(structure)}.") from error
    if isinstance(structure, SparseTensor):
        return [structure.indices, structure.values, structure.dense_shape]
    if isinstance(structure, IndexedSlices):
        parts = [structure.values, structure.indices]
        return parts if structure.dense_shape is None else [*parts, structure.dense_shape]
    if isinstance(structure, Ragged):
        return list(structure.parts)
    attrs = getattr(type(structure), "__attrs_attrs__", None)
    return list(structure) if attrs is None else [getattr(structure, attr.name) for attr in attrs]


def flatten(structure: Any, expand_composites: bool = False) -> list[Any]:
    """The leaves, in order; dicts by sorted key.

    >>> tf.nest.flatten({"b": [1, (2, 3)], "a": 0})
    [0, 1, 2, 3]
    """
    if not is_nested(structure, expand_composites):
        return [structure]
    return [leaf for item in _children(structure) for leaf in flatten(item, expand_composites)]


def pack_sequence_as(structure: Any, flat_sequence: Any, expand_composites: bool = False) -> Any:
    """Puts the leaves `flat_sequence` into the form of `structure`.

    >>> tf.nest.pack_sequence_as((0, [0]), [1, 2])
    (1, [2])
    """
    if not is_nested(flat_sequence):
        raise TypeError(f"pack_sequence_as takes a flat sequence, received {flat_sequence!r:.200}.")
    leaves = list(flat_sequence)
    count = len(flatten(structure, expand_composites))
    if len(leaves) != count:
        raise ValueError(
            f"The structure has {count} leaves, but {len(leaves)} were given: {structure!r:.200} and {leaves!r:.200}."
        )
    return _pack(structure, iter(leaves), expand_composites)


def _pack(structure: Any, leaves: Iterator[Any], expand_composites: bool) -> Any:
    if not is_nested(structure, expand_composites):
        return next(leaves)
    items = [_pack(item, leaves, expand_composites) for item in _children(structure)]
    kind = type(structure)
    if isinstance(structure, Mapping):
        packed = dict(zip(sorted(structure), items, strict=True))
        ordered = {key: packed[key] for key in structure}
        if isinstance(structure, collections.defaultdict):
            return kind(structure.default_factory, ordered)
        return ordered if kind is dict else kind(ordered)
    if isinstance(structure, (range, MappingView)):
        return items
    if hasattr(structure, "_make"):
        return structure._make(items)
    if isinstance(structure, Ragged):
        return structure.with_parts(items)
    if isinstance(structure, _COMPOSITES) or hasattr(kind, "__attrs_attrs__"):
        return kind(*items)
    return items if kind is list else kind(items)


def map_structure(func: Callable[..., Any], *structures: Any, **options: Any) -> Any:
    """Applies `func` to the corresponding leaves and returns the results in the form of the first structure.

    >>> tf.nest.map_structure(lambda x: x + 1, [1, (2, 3)])
    [2, (3, 4)]
    """
    if not callable(func):
        raise TypeError(f"map_structure takes a function, received {func!r}.")
    if not structures:
        raise ValueError("map_structure needs at least one structure.")
    check_types, expand_composites = options.pop("check_types", True), options.pop("expand_composites", False)
    if options:
        raise ValueError(f"map_structure has no arguments {list(options)}, only check_types and expand_composites.")
    for other in structures[1:]:
        assert_same_structure(structures[0], other, check_types, expand_composites)
    columns = zip(*[flatten(s, expand_composites) for s in structures], strict=True)
    return pack_sequence_as(structures[0], [func(*leaves) for leaves in columns], expand_composites)


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True, expand_composites: bool = False) -> None:
    """Raises ValueError unless both have one form, and TypeError unless they are of the same types.

    >>> tf.nest.assert_same_structure({"a": (1, 2)}, {"a": ("x", "y")})
    """
    nested = is_nested(nest1, expand_composites)
    if nested != is_nested(nest2, expand_composites):
        raise ValueError(f"The structures are not nested alike: {nest1!r:.200} against {nest2!r:.200}.")
    if not nested:
        return
    if check_types:
        if not _same_type(nest1, nest2):
            kinds = type(nest1).__name__, type(nest2).__name__
            raise TypeError(f"The two structures are of different types: {kinds[0]} against {kinds[1]}.")
        if isinstance(nest1, Mapping) and set(nest1) != set(nest2):
            raise ValueError(f"The structures are not nested alike: keys {list(nest1)} against {list(nest2)}.")
    items1, items2 = _children(nest1), _children(nest2)
    if len(items1) != len(items2):
        raise ValueError(f"The structures are not nested alike: {nest1!r:.200} against {nest2!r:.200}.")
    for item1, item2 in zip(items1, items2, strict=True):
        assert_same_structure(item1, item2, check_types, expand_composites)


def _same_type(one: Any, other: Any) -> bool:
    if type(one) is type(other) or (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return True
    # Two namedtuples with the same name and fields are the same type, even if they were made in different places.
    fields = getattr(one, "_fields", None)
    return fields is not None and fields == getattr(other, "_fields", ()) and _name(one) == _name(other)


def _name(structure: Any) -> str:
    return type(structure).__name__


def is_nested_v2(seq: Any) -> bool:
    """Tells if a value nests others: a list, a tuple, a dict or the like: `tf.nest.is_nested([1, 2])`."""
    return is_nested(seq)
