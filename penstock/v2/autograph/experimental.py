"""AutoGraph: what is converted, and options of loops."""

from penstock.autograph.api import Feature, do_not_convert, set_loop_options
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
