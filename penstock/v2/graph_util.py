"""GraphDefs."""

from penstock.face.missing import guard as _guard
from penstock.graph.importer import import_graph_def

__getattr__ = _guard(__name__)
