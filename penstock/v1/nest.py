"""Nested structures."""

from penstock.face.missing import guard as _guard
from penstock.graph.nest import assert_same_structure, flatten, is_nested, map_structure, pack_sequence_as

__getattr__ = _guard(__name__)
