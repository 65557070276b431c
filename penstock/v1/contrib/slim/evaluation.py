"""Metrics over checkpoints."""

from penstock.contrib.evaluation import checkpoints_iterator, evaluate_once, evaluation_loop, wait_for_new_checkpoint
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
