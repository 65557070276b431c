"""Operations on the bits of integers."""

from penstock.face.missing import guard as _guard
from penstock.ops.math.bitwise import bitwise_and, bitwise_or, bitwise_xor, invert, left_shift, right_shift

__getattr__ = _guard(__name__)
