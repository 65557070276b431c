"""Nested structures."""

from penstock.face.missing import guard as _guard
from penstock.graph.nest import assert_same_structure, flatten, map_structure, pack_sequence_as
from penstock.graph.nest import is_nested_v2 as is_nested

__getattr__ = _guard(__name__)
