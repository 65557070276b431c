"""Functions that extract and freeze parts of graphs."""

from penstock.face.missing import guard as _guard
from penstock.graph.freezing import convert_variables_to_constants
from penstock.graph.graph_util import (
    extract_sub_graph,
    must_run_on_cpu,
    remove_training_nodes,
    tensor_shape_from_node_def_name,
)
from penstock.graph.importer import import_graph_def

__getattr__ = _guard(__name__)
