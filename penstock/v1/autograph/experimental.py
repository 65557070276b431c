"""`tf.autograph.experimental`: what is converted, and how loops are made."""

from penstock.autograph.api import Feature, do_not_convert, set_loop_options
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
