"""`tf.autograph`: Python control flow over tensors becomes nodes of the graph."""

from penstock.autograph.api import set_verbosity, to_code, to_graph, trace
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
