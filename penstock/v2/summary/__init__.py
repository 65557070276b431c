"""Summaries for TensorBoard."""

from penstock.face.missing import guard as _guard
from penstock.summary.plugins import audio, histogram, image, scalar, text
from penstock.summary.recording import (
    SummaryWriter,
    create_file_writer,
    create_noop_writer,
    flush,
    graph,
    record_if,
    should_record_summaries,
    write,
)
from penstock.summary.tracing import trace_export, trace_off, trace_on

__getattr__ = _guard(__name__)
