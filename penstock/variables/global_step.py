"""The global step: the variable that counts training steps, by convention one per graph."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.keys import GraphKeys
from penstock.variables.initializers import Zeros
from penstock.variables.scope import get_variable


def global_step(sess: Any, global_step_tensor: Any) -> int:
    """The value of the global step in a session, as a Python int.

    >>> tf.train.global_step(sess, tf.train.get_global_step())
    """
    return int(sess.run(global_step_tensor))


def get_global_step(graph: Graph | None = None) -> Any:
    """The global step of `graph` (or the default one), or None."""
    graph = graph or get_default_graph()
    found = graph.get_collection(GraphKeys.GLOBAL_STEP)
    if len(found) > 1:
        raise RuntimeError(f'Multiple items found in collection "global_step" (which should be a singleton): {found}')
    if found:
        step = found[0]
    else:
        try:
            step = graph.get_tensor_by_name("global_step:0")
        except (KeyError, ValueError):
            return None
    assert_global_step(step)
    return step


def create_global_step(graph: Graph | None = None) -> Any:
    """Creates the global step of `graph`; ValueError if it has one.

    >>> step = tf.train.create_global_step()
    """
    graph = graph or get_default_graph()
    if get_global_step(graph) is not None:
        raise ValueError('"global_step" already exists.')
    with graph.as_default(), graph.name_scope(None):
        return get_variable(
            GraphKeys.GLOBAL_STEP,
            shape=[],
            dtype=dt.int64,
            initializer=Zeros(),
            trainable=False,
            collections=[GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP],
        )


def get_or_create_global_step(graph: Graph | None = None) -> Any:
    """The global step, created if there is none."""
    graph = graph or get_default_graph()
    found = get_global_step(graph)
    return create_global_step(graph) if found is None else found


def assert_global_step(global_step_tensor: Any) -> None:
    """Raises TypeError if the variable or tensor cannot count steps."""
    if not (hasattr(global_step_tensor, "dtype") and hasattr(global_step_tensor, "shape")):
        raise TypeError(f'Existing "global_step" must be a Variable or Tensor: {global_step_tensor!r}.')
    if not global_step_tensor.dtype.base_dtype.is_integer:
        raise TypeError(f'Existing "global_step" does not have integer type: {global_step_tensor.dtype!r}')
    shape = global_step_tensor.shape
    if shape.rank not in (0, None):
        raise TypeError(f'Existing "global_step" is not scalar: {shape}')
