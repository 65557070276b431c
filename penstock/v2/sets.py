"""Operations on sets."""

from penstock.face.missing import guard as _guard
from penstock.ops.sparse.sets import set_difference as difference
from penstock.ops.sparse.sets import set_intersection as intersection
from penstock.ops.sparse.sets import set_size as size
from penstock.ops.sparse.sets import set_union as union

__getattr__ = _guard(__name__)
