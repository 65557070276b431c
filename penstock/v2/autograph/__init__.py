"""AutoGraph: Python control flow over tensors as nodes of graphs."""

from penstock.autograph.api import set_verbosity, to_code, to_graph, trace
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
