"""Tables that change."""

from penstock.face.missing import guard as _guard
from penstock.ops.lookup.mutable import DenseHashTable, MutableHashTable

__getattr__ = _guard(__name__)
