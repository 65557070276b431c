"""Rearranging tensors."""

from penstock.face.missing import guard as _guard
from penstock.ops.array.arranging import reverse, roll
from penstock.ops.array.gathering import gather_nd, scatter_nd
from penstock.ops.array.joining import tile
from penstock.ops.array.reshaping import reshape
from penstock.ops.conv.batch_space import batch_to_space_nd, space_to_batch_nd

__getattr__ = _guard(__name__)
