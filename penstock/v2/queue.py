"""Queues."""

from penstock.face.missing import guard as _guard
from penstock.ops.queue.queues import FIFOQueue, PaddingFIFOQueue, PriorityQueue, QueueBase, RandomShuffleQueue

__getattr__ = _guard(__name__)
