"""Batches made ahead of the step that needs them."""

from penstock.contrib.prefetch_queue import prefetch_queue
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
