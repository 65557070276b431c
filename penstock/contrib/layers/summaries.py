"""Summaries of tensors, chosen by their shape."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from penstock.graph.graph import get_default_graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.keys import GraphKeys
from penstock.graph.scopes import get_collection
from penstock.graph.typing import TensorLike
from penstock.ops.io import summary
from penstock.ops.math import compare
from penstock.ops.math.clip import global_norm
from penstock.ops.nn import layer_parts
from penstock.variables.variable import Variable


def _tag(tensor: Any, tag: str | None = None) -> str:
    given = tag or (tensor.op.name if hasattr(tensor, "op") else str(tensor))
    scope = get_default_graph().get_name_scope()
    # The name of the summary already includes the scope.
    return given.removeprefix(f"{scope}/") if scope else given


def summarize_tensor(tensor: TensorLike, tag: str | None = None) -> Any:
    """A scalar summary of a scalar, a histogram of anything else."""
    if tensor.shape.rank == 0:
        return summary.scalar(_tag(tensor, tag), tensor)
    return summary.histogram(_tag(tensor, tag), tensor)


def summarize_activation(op: Any) -> Any:
    """A histogram of an activation, and for relu and sigmoid the share of dead or saturated units."""
    if op.op.type in ("Relu", "Softplus", "Relu6"):
        summary.scalar(f"{_tag(op)}/zeros", layer_parts.zero_fraction(op))
    if op.op.type == "Relu6":
        summary.scalar(f"{_tag(op)}/sixes", layer_parts.zero_fraction(compare.less(op, 6.0)))
    return summary.histogram(f"{_tag(op)}/activation", op)


def summarize_tensors(tensors: Iterable[Any], summarizer: Any = summarize_tensor) -> list[Any]:
    """A summary of each tensor."""
    return [summarizer(tensor) for tensor in tensors]


def summarize_collection(collection: Any, name_filter: str | None = None, summarizer: Any = summarize_tensor) -> Any:
    """A summary of each tensor of a collection whose name matches."""
    found = get_collection(collection)
    return summarize_tensors([t for t in found if name_filter is None or re.match(name_filter, t.op.name)], summarizer)


def summarize_variables(name_filter: str | None = None, summarizer: Any = summarize_tensor) -> Any:
    """A summary of each global variable whose name matches."""
    return summarize_collection(GraphKeys.GLOBAL_VARIABLES, name_filter, summarizer)


def summarize_weights(name_filter: str | None = None, summarizer: Any = summarize_tensor) -> Any:
    """A summary of the tensors in the collection WEIGHTS."""
    return summarize_collection(GraphKeys.WEIGHTS, name_filter, summarizer)


def summarize_biases(name_filter: str | None = None, summarizer: Any = summarize_tensor) -> Any:
    """A summary of the tensors in the collection BIASES."""
    return summarize_collection(GraphKeys.BIASES, name_filter, summarizer)


def summarize_activations(name_filter: str | None = None, summarizer: Any = summarize_activation) -> Any:
    """A summary of the tensors in the collection ACTIVATIONS."""
    return summarize_collection(GraphKeys.ACTIVATIONS, name_filter, summarizer)


def add_gradients_summaries(grads_and_vars: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Histogram and norm of each gradient."""
    made = []
    for gradient, variable in grads_and_vars:
        if gradient is not None:
            values = gradient.values if isinstance(gradient, IndexedSlices) else gradient
            name = variable.op.name if isinstance(variable, Variable) else variable.name
            made.append(summary.histogram(f"{name}/gradient", values))
            made.append(summary.scalar(f"{name}/gradient_norm", global_norm([values])))
    return made
