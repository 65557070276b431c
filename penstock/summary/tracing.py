"""trace_on and trace_export: the graphs of functions that are traced in between, for TensorBoard."""

from __future__ import annotations

import threading
from typing import Any

from tensorboard.compat.proto.config_pb2 import RunMetadata
from tensorboard.compat.proto.summary_pb2 import SummaryMetadata

from penstock import logging
from penstock.eager.graph import the_graph
from penstock.graph.graph import Graph, get_default_graph
from penstock.summary.recording import summary_scope, write


class _Trace:
    """The functions that were there when a trace began."""

    known: frozenset[str] | None = None
    lock = threading.Lock()


def trace_on(graph: bool = True, profiler: bool = False, profiler_outdir: Any = None) -> None:
    """Begins to collect the graphs of functions that are traced.

    >>> tf.summary.trace_on()
    >>> step(x)
    >>> with writer.as_default():
    ...     tf.summary.trace_export("step", step=0)
    """
    if profiler:
        raise NotImplementedError(
            "tf.summary.trace_on: penstock has no profiler of its own. jax.profiler.trace(directory) writes profiles "
            "that TensorBoard shows; tf.summary.trace_on(graph=True) collects graphs."
        )
    with _Trace.lock:
        if _Trace.known is not None:
            logging.warning("Trace already enabled")
        elif graph:
            _Trace.known = frozenset(the_graph().bodies)


def trace_export(name: str, step: Any = None, profiler_outdir: Any = None) -> None:
    """Writes the graphs that were collected to the default writer, and ends the trace."""
    if not get_default_graph().is_eager:
        logging.warning("Cannot export trace inside a tf.function.")
        return
    with _Trace.lock:
        known = _Trace.known
    if known is None:
        raise ValueError("Must enable trace before export through tf.summary.trace_on.")
    collected = RunMetadata()
    for function, body in sorted(the_graph().bodies.items()):
        if function not in known and isinstance(body, Graph) and body.outer_graph is the_graph():
            graphs = collected.function_graphs.add()
            graphs.pre_optimization_graph.CopyFrom(body.as_graph_def(add_shapes=True))
            graphs.post_optimization_graph.CopyFrom(graphs.pre_optimization_graph)
            graphs.partition_graphs.add().CopyFrom(graphs.pre_optimization_graph)
    metadata = SummaryMetadata()
    metadata.plugin_data.plugin_name, metadata.plugin_data.content = "graph_run_metadata_graph", b"1"
    with summary_scope(name, "graph_run_metadata_graph_summary") as (tag, _):
        write(tag, collected.SerializeToString(), step, metadata)
    trace_off()


def trace_off() -> None:
    """Ends a trace and forgets its graphs."""
    with _Trace.lock:
        _Trace.known = None
