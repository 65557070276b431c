"""Settings of the compiler."""

from penstock.eager.config import get_jit
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
