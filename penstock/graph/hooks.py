"""Functions that graphs, operations and op types call, and that modules above them define.

The module named beside each function sets it when it is imported; `penstock.ops` imports those of this folder, and
faces import the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class NotDense(ValueError):
    """A ragged tensor was given where only a dense one will do. `hooks.ragged` may know what to do instead."""


class Hooks:
    """The functions, by name."""

    build: Callable[..., Any]  # build.py: adds the node for a call of an op type
    build_node: Callable[..., Any]  # build.py: adds a node whose inputs are tensors already
    ragged: Callable[..., Any]  # ops/__init__.py: calls an op type with ragged tensors
    convert_to_tensor: Callable[..., Any]  # convert.py
    graph_def: Callable[..., Any]  # graphdef.py: a graph as a GraphDef
    node_def: Callable[..., Any]  # graphdef.py: an operation as a NodeDef
    attr_from_proto: Callable[..., Any]  # attrs.py: the value of an AttrValue
    order_effects: Callable[..., None]  # effects.py: makes effects in a body happen in the order of the program
    converted: Callable[..., Any]  # autograph/wrapper.py: a function with control flow over tensors as nodes


hooks = Hooks()
hooks.converted = lambda function: function  # until a face is loaded


class EagerHooks:
    """Likewise, the functions that graphs of eager execution have: `eager/graph.py` sets them."""

    run_op: Callable[..., Any]  # runs an operation whose inputs are tensors already
    with_gradient: Callable[..., Any]  # gives results a gradient of their own


eager_hooks = EagerHooks()
