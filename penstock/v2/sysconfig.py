"""Facts about how the library was built. There are no headers and no libraries to link with."""

from penstock.eager.config import get_build_info
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
