"""Summaries for TensorBoard."""

from penstock.face.missing import guard as _guard
from penstock.ops.summary import histogram, merge, merge_all, scalar

__getattr__ = _guard(__name__)
