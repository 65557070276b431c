"""Rearranging tensors."""

from penstock.face.missing import guard as _guard
from penstock.ops.arranging import reverse, roll
from penstock.ops.batch_space import batch_to_space_nd, space_to_batch_nd
from penstock.ops.gathering import gather_nd, scatter_nd
from penstock.ops.joining import tile
from penstock.ops.reshaping import reshape

__getattr__ = _guard(__name__)
