"""Accidental hits: sampled candidates that are among the true classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph.opdef import op
from penstock.graph.operation import Operation
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.ops.random.stateful import seeds


def _hits_shape(op: Operation) -> list[TensorShape]:
    columns = op.input_list[0].shape.with_rank(2).as_list()[1]
    if columns is not None and columns != op.attrs["num_true"]:
        raise ValueError(f"true_classes must have num_true = {op.attrs['num_true']} columns, received {columns}")
    op.input_list[1].shape.with_rank(1)
    return [TensorShape.of((None,))] * 3


@op(
    "ComputeAccidentalHits",
    "int64, int64 -> indices: int32, ids: int64, weights: float32",
    host=True,
    no_gradient=True,
    shape=_hits_shape,
)
def compute_accidental_hits_op(
    true_classes: np.ndarray, sampled_candidates: np.ndarray, *, num_true: int, seed: int = 0, seed2: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if true_classes.ndim != 2 or true_classes.shape[1] != num_true or sampled_candidates.ndim != 1:
        raise InvalidArgumentError(
            f"true_classes must have num_true = {num_true} columns and sampled_candidates be a vector, "
            f"received shapes {true_classes.shape} and {sampled_candidates.shape}"
        )
    place = {int(candidate): i for i, candidate in enumerate(sampled_candidates)}
    hits = [(b, place[c]) for b, row in enumerate(true_classes.tolist()) for c in row if c in place]
    pairs = np.array(hits, np.int64).reshape(-1, 2)
    weights = np.full(len(hits), np.finfo(np.float32).min, np.float32)
    return pairs[:, 0].astype(np.int32), pairs[:, 1], weights


class AccidentalHits(NamedTuple):
    """The result of `compute_accidental_hits`."""

    indices: Any
    ids: Any
    weights: Any


def compute_accidental_hits(
    true_classes: TensorLike,
    sampled_candidates: TensorLike,
    num_true: int,
    seed: int | None = None,
    name: str | None = None,
) -> AccidentalHits:
    """Candidates that are true classes: rows, positions in the sample, and weights that exclude them.

    >>> rows, positions, weights = tf.nn.compute_accidental_hits(labels, sampled, num_true=1)
    """
    return AccidentalHits(
        *compute_accidental_hits_op(true_classes, sampled_candidates, num_true=num_true, name=name, **seeds(seed))
    )
