"""Versions."""

from penstock.face.missing import guard as _guard
from penstock.graph.graph import MIN_CONSUMER as GRAPH_DEF_VERSION_MIN_CONSUMER
from penstock.graph.graph import MIN_PRODUCER as GRAPH_DEF_VERSION_MIN_PRODUCER
from penstock.graph.graph import PRODUCER as GRAPH_DEF_VERSION
from penstock.v1 import COMPILER_VERSION, GIT_VERSION, VERSION

__getattr__ = _guard(__name__)
