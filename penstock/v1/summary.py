"""Summaries for TensorBoard."""

from tensorboard.compat.proto.event_pb2 import Event, SessionLog, TaggedRunMetadata
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.summary_pb2 import SummaryDescription as SummaryDescription

from penstock.face.missing import guard as _guard
from penstock.ops.io.summary import histogram, merge, merge_all, scalar
from penstock.ops.io.summary_media import audio, image, tensor_summary, text
from penstock.summary.writer import FileWriter, FileWriterCache

__getattr__ = _guard(__name__)
