"""Small updates of variables as one kernel.

XLA for CPUs makes a kernel of each array that an update computes, and has a pool of threads run them. To wake a thread
and to wait for it takes longer than a small update does, most of all if other tasks want the cores.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import jaxpr_as_fun

from penstock.jaxprs.errors import NoRule
from penstock.jaxprs.flat import FlatJaxpr, Node

MOST_BYTES = 1 << 22  # of what goes in and comes out: for more, other threads are worth waking
MANY_NODES = 500  # a segment of more is no small update, and tracing it takes long
_MARKS = {"xla_cpu_small_call": "true", "inlineable": "false"}  # XLA makes one kernel of a call that has these
# Other primitives may become calls of libraries, which cannot be part of such a kernel. Or XLA may find that an operand
# is not needed, such as y in max(x, min(x, y)) or an integer times zero: it aborts where a call has such an operand.
_MOVES = frozenset(("broadcast_in_dim", "copy", "expand_dims", "reshape", "squeeze"))
_COMPUTES = _MOVES | {"add", "convert_element_type", "div", "mul", "neg", "rsqrt", "sqrt", "square", "sub"}
_FLOATS = frozenset((np.dtype(np.float32), np.dtype(np.float64)))
_INTEGERS = frozenset((np.dtype(np.int32), np.dtype(np.int64)))


def as_one_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function for `jax.jit` on the CPU: one kernel, if `function` computes small arrays element by element.

    >>> step = jax.jit(as_one_kernel(lambda weights, gradient: weights - 0.1 * gradient))
    """

    @functools.wraps(function)
    def whole(*arguments: Any) -> Any:
        closed, outcome = jax.make_jaxpr(function, return_shape=True)(*arguments)
        computed = jaxpr_as_fun(closed)
        leaves, structure = jax.tree.leaves(arguments), jax.tree.structure(outcome)
        wanted = os.environ.get("PENSTOCK_ONE_KERNEL", "1") != "0"
        if not (wanted and _is_small(closed) and _is_elementwise(closed)):
            return jax.tree.unflatten(structure, computed(*leaves))
        with set_xla_metadata(**_MARKS):
            return jax.tree.unflatten(structure, jax.jit(computed)(*leaves))

    return whole


def _is_small(closed: Any) -> bool:
    sizes = [v.aval.size * v.aval.dtype.itemsize for v in (*closed.jaxpr.invars, *closed.jaxpr.outvars)]
    return all(sizes) and sum(sizes) <= MOST_BYTES


def _is_elementwise(closed: Any) -> bool:
    try:
        flat = FlatJaxpr(closed)
    except NoRule:  # it holds something else than arrays
        return False
    used = {id(value) for value in (*(v for node in flat.nodes for v in node.inputs), *flat.outputs)}
    return used.issuperset(map(id, flat.inputs)) and all(map(_is_plain, flat.nodes))


def _is_plain(node: Node) -> bool:
    """Tells if XLA computes a node element by element from all its operands, whatever their values."""
    values = (*node.inputs, *node.outputs)
    if any(value.dtype not in _FLOATS for value in values):
        counts = node.primitive == "add" and all(value.shape == () for value in values)  # as of steps
        return (counts or node.primitive in _MOVES) and all(value.dtype in _INTEGERS for value in values)
    return node.primitive in _COMPUTES
