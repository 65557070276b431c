"""Functions that graphs, operations and op types call, and that modules above them define.

The module named beside each function sets it when it is imported; `penstock.ops` imports them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hooks:
    """The functions, by name."""

    build: Callable[..., Any]  # build.py: adds the node for a call of an op type
    build_node: Callable[..., Any]  # build.py: adds a node whose inputs are tensors already
    convert_to_tensor: Callable[..., Any]  # convert.py
    graph_def: Callable[..., Any]  # graphdef.py: a graph as a GraphDef
    node_def: Callable[..., Any]  # graphdef.py: an operation as a NodeDef
    attr_from_proto: Callable[..., Any]  # attrs.py: the value of an AttrValue


hooks = Hooks()
