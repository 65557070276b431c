"""Threads."""

from penstock.eager.config import (
    get_inter_op_parallelism_threads,
    get_intra_op_parallelism_threads,
    set_inter_op_parallelism_threads,
    set_intra_op_parallelism_threads,
)
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
