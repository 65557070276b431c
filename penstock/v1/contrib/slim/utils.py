"""Names for the outputs of layers."""

from penstock.contrib.layers.outputs import (
    append_tensor_alias,
    collect_named_outputs,
    convert_collection_to_dict,
    get_tensor_aliases,
    get_variable_collections,
)
from penstock.face.missing import guard as _guard
from penstock.graph.constant import constant_value
from penstock.ops.control.flow import smart_cond

__getattr__ = _guard(__name__)
