"""Non-maximum suppression, on the host: of boxes that overlap much, only the one with the best score stays."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import Types, op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes

_T = Types(dt.float16, dt.float32, default=dt.float32)
LOWEST = float("-inf")


# The algorithm.


def invalid(message: str) -> InvalidArgumentError:
    return InvalidArgumentError(message)


def checked_size(value: Any) -> int:
    if np.ndim(value) != 0:
        raise invalid(f"max_output_size must be 0-D, got shape {list(np.shape(value))}")
    if int(value) < 0:
        raise invalid(f"max_output_size must be non-negative, got {int(value)}")
    return int(value)


def checked_threshold(value: Any, name: str = "iou_threshold") -> float:
    if np.ndim(value) != 0:
        raise invalid(f"{name} must be 0-D, got shape {list(np.shape(value))}")
    if name != "score_threshold" and not 0 <= float(value) <= 1:
        raise invalid(f"{name} must be in [0, 1], got {float(value)}")
    return float(value)


def _check(boxes: np.ndarray, scores: np.ndarray) -> None:
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise invalid(f"boxes must have 4 columns, got shape {list(boxes.shape)}")
    if scores.shape != boxes.shape[:1]:
        raise invalid(f"scores has incompatible shape {list(scores.shape)} with {len(boxes)} boxes")


def overlap_of(boxes: np.ndarray) -> Callable[[int, list[int]], np.ndarray]:
    """A function that returns the overlap of a box with each of a list of boxes: intersection over union."""
    boxes = boxes.astype(np.float32)
    low = np.minimum(boxes[:, :2], boxes[:, 2:])
    high = np.maximum(boxes[:, :2], boxes[:, 2:])
    areas = (high - low).prod(1)

    def overlap(box: int, others: list[int]) -> np.ndarray:
        common = np.minimum(high[box], high[others]) - np.maximum(low[box], low[others])
        shared = np.maximum(common, 0).prod(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = shared / (areas[box] + areas[others] - shared)
        result: np.ndarray = np.where((areas[box] <= 0) | (areas[others] <= 0), np.float32(0), ratio)
        return result

    return overlap


def select_boxes(
    overlap: Callable[[int, list[int]], np.ndarray],
    scores: np.ndarray,
    count: int,
    iou_threshold: float,
    score_threshold: float,
    sigma: float = 0.0,
) -> tuple[list[int], list[Any]]:
    """The boxes that stay, best first, and their scores; with `sigma` any overlap lowers a score instead."""
    kind = scores.dtype.type
    # (score, box, number of selected boxes it was compared with)
    queue = [(-score, i, 0) for i, score in enumerate(scores.tolist()) if score > score_threshold]
    heapq.heapify(queue)
    selected: list[int] = []
    kept: list[Any] = []
    while queue and len(selected) < count:
        negative, box, seen = heapq.heappop(queue)
        score = kind(-negative)
        before = score
        suppressed = False
        if seen < len(selected):
            ratios = overlap(box, selected[seen:])
            if not sigma:
                suppressed = bool((ratios > iou_threshold).any())
            else:
                for ratio in ratios[::-1].tolist():
                    score = kind(score * kind(np.exp(-0.5 / sigma * ratio * ratio)))
                    if score <= score_threshold:
                        break
        if suppressed:
            continue
        if score == before:
            selected.append(box)
            kept.append(score)
        elif score > score_threshold:
            heapq.heappush(queue, (-float(score), box, len(selected)))
    return selected, kept


def _padded(values: list[Any], size: int, dtype: Any) -> np.ndarray:
    result = np.zeros(size, dtype)
    result[: len(values)] = values
    return result


# Ops.


def _selected_shapes(op: Operation) -> list[TensorShape]:
    """Shape rule: [selected boxes] for each list, a scalar for the number of valid ones."""
    boxes = op.input_list[0].shape
    scores = shapes.require_rank(op.input_list[1].shape, 1).as_list()[0]
    count, four = shapes.require_rank(boxes, 2).as_list()
    if count is not None and scores is not None and count != scores:
        raise ValueError(f"Dimensions must be equal, but are {count} and {scores}")
    if op.type != "NonMaxSuppressionWithOverlaps" and four not in (None, 4):
        raise ValueError(f"Dimension must be 4 but is {four}")
    for tensor in op.input_list[2:]:
        shapes.require_rank(tensor.shape, 0)
    size = constant_value(op.input_list[2]) if op.attrs.get("pad_to_max_output_size") else None
    many = TensorShape.of((None if size is None else int(size),))
    return [TensorShape.of(()) if arg.name == "valid_outputs" else many for arg in op.op_def.outputs]


@op(
    "NonMaxSuppression",
    "float, float, int32 -> selected_indices: int32",
    host=True,
    no_gradient=True,
    shape=_selected_shapes,
)
def non_max_suppression_v1(boxes: Any, scores: Any, max_output_size: Any, *, iou_threshold: float = 0.5) -> Any:
    _check(boxes, scores)
    found, _ = select_boxes(
        overlap_of(boxes), scores, checked_size(max_output_size), checked_threshold(iou_threshold), LOWEST
    )
    return np.array(found, np.int32)


@op(
    "NonMaxSuppressionV2",
    "T, T, int32, T_threshold -> selected_indices: int32",
    host=True,
    no_gradient=True,
    shape=_selected_shapes,
    T=_T,
    T_threshold=_T,
)
def non_max_suppression_v2(boxes: Any, scores: Any, max_output_size: Any, iou_threshold: Any) -> Any:
    _check(boxes, scores)
    found, _ = select_boxes(
        overlap_of(boxes), scores, checked_size(max_output_size), checked_threshold(iou_threshold), LOWEST
    )
    return np.array(found, np.int32)


@op(
    "NonMaxSuppressionV3",
    "T, T, int32, T_threshold, T_threshold -> selected_indices: int32",
    host=True,
    no_gradient=True,
    shape=_selected_shapes,
    T=_T,
    T_threshold=_T,
)
def non_max_suppression_v3(
    boxes: Any, scores: Any, max_output_size: Any, iou_threshold: Any, score_threshold: Any
) -> Any:
    _check(boxes, scores)
    least = checked_threshold(score_threshold, "score_threshold")
    found, _ = select_boxes(
        overlap_of(boxes), scores, checked_size(max_output_size), checked_threshold(iou_threshold), least
    )
    return np.array(found, np.int32)


@op(
    "NonMaxSuppressionV4",
    "T, T, int32, T_threshold, T_threshold -> selected_indices: int32, valid_outputs: int32",
    host=True,
    no_gradient=True,
    shape=_selected_shapes,
    T=_T,
    T_threshold=_T,
)
def non_max_suppression_v4(
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any,
    score_threshold: Any,
    *,
    pad_to_max_output_size: bool = False,
) -> Any:
    _check(boxes, scores)
    size, least = checked_size(max_output_size), checked_threshold(score_threshold, "score_threshold")
    found, _ = select_boxes(overlap_of(boxes), scores, size, checked_threshold(iou_threshold), least)
    return _padded(found, size if pad_to_max_output_size else len(found), np.int32), np.int32(len(found))


@op(
    "NonMaxSuppressionV5",
    "T, T, int32, T, T, T -> selected_indices: int32, selected_scores: T, valid_outputs: int32",
    host=True,
    no_gradient=True,
    shape=_selected_shapes,
    T=_T,
)
def non_max_suppression_v5(
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any,
    score_threshold: Any,
    soft_nms_sigma: Any,
    *,
    pad_to_max_output_size: bool = False,
) -> Any:
    _check(boxes, scores)
    size, least = checked_size(max_output_size), checked_threshold(score_threshold, "score_threshold")
    sigma = float(soft_nms_sigma)
    if sigma < 0:
        raise invalid(f"soft_nms_sigma must be >= 0, got {sigma}")
    found, kept = select_boxes(overlap_of(boxes), scores, size, checked_threshold(iou_threshold), least, sigma)
    length = size if pad_to_max_output_size else len(found)
    return _padded(found, length, np.int32), _padded(kept, length, scores.dtype), np.int32(len(found))


@op(
    "NonMaxSuppressionWithOverlaps",
    "float, float, int32, float, float -> selected_indices: int32",
    host=True,
    no_gradient=True,
    shape=_selected_shapes,
)
def non_max_suppression_with_overlaps(
    overlaps: Any, scores: Any, max_output_size: Any, overlap_threshold: Any, score_threshold: Any
) -> Any:
    if overlaps.ndim != 2 or overlaps.shape[0] != overlaps.shape[1]:
        raise invalid(f"overlaps must be square, got shape {list(overlaps.shape)}")
    if scores.shape != overlaps.shape[:1]:
        raise invalid(f"scores has incompatible shape {list(scores.shape)} with {len(overlaps)} boxes")
    least = checked_threshold(score_threshold, "score_threshold")
    # As in TensorFlow, the range is not checked: overlaps may be measured in any way.
    limit = float(overlap_threshold)
    found, _ = select_boxes(
        lambda box, others: overlaps[box, others], scores, checked_size(max_output_size), limit, least
    )
    return np.array(found, np.int32)


# Public functions.


def non_max_suppression(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: TensorLike,
    iou_threshold: TensorLike = 0.5,
    score_threshold: TensorLike = LOWEST,
    name: str | None = None,
) -> Tensor:
    """The indices of up to `max_output_size` boxes, best first; none overlaps a better one too much.

    >>> tf.image.non_max_suppression(boxes, scores, max_output_size=10)
    """
    with name_scope(name, "non_max_suppression"):
        iou = convert_to_tensor(iou_threshold, name="iou_threshold")
        least = convert_to_tensor(score_threshold, name="score_threshold")
        indices: Tensor = non_max_suppression_v3(boxes, scores, max_output_size, iou, least)
        return indices


def non_max_suppression_with_scores(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: TensorLike,
    iou_threshold: TensorLike = 0.5,
    score_threshold: TensorLike = LOWEST,
    soft_nms_sigma: TensorLike = 0.0,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """As `non_max_suppression`, with the scores; where `soft_nms_sigma` is not 0, overlaps lower scores instead.

    >>> indices, kept = tf.image.non_max_suppression_with_scores(boxes, scores, 10, soft_nms_sigma=0.5)
    """
    with name_scope(name, "non_max_suppression_with_scores"):
        iou = convert_to_tensor(iou_threshold, name="iou_threshold")
        least = convert_to_tensor(score_threshold, name="score_threshold")
        sigma = convert_to_tensor(soft_nms_sigma, name="soft_nms_sigma")
        indices, kept, _ = non_max_suppression_v5(boxes, scores, max_output_size, iou, least, sigma)
        return indices, kept


class Padded(NamedTuple):
    """The result of `non_max_suppression_padded`."""

    selected_indices: Tensor
    valid_outputs: Tensor


def non_max_suppression_padded(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size: TensorLike,
    iou_threshold: TensorLike = 0.5,
    score_threshold: TensorLike = LOWEST,
    pad_to_max_output_size: bool = False,
    name: str | None = None,
) -> Padded:
    """As `non_max_suppression`, optionally padded with zeros; also returns the number of valid indices.

    >>> indices, count = tf.image.non_max_suppression_padded(boxes, scores, 10, pad_to_max_output_size=True)
    """
    with name_scope(name, "non_max_suppression_padded"):
        iou = convert_to_tensor(iou_threshold, name="iou_threshold")
        least = convert_to_tensor(score_threshold, name="score_threshold")
        return Padded(
            *non_max_suppression_v4(
                boxes, scores, max_output_size, iou, least, pad_to_max_output_size=pad_to_max_output_size
            )
        )


def non_max_suppression_overlaps(
    overlaps: TensorLike,
    scores: TensorLike,
    max_output_size: TensorLike,
    overlap_threshold: TensorLike = 0.5,
    score_threshold: TensorLike = LOWEST,
    name: str | None = None,
) -> Tensor:
    """As `non_max_suppression`, for overlaps that are known already: a matrix.

    >>> tf.image.non_max_suppression_overlaps(overlaps, scores, max_output_size=10)
    """
    with name_scope(name, "non_max_suppression_overlaps"):
        limit = convert_to_tensor(overlap_threshold, name="overlap_threshold")
        indices: Tensor = non_max_suppression_with_overlaps(overlaps, scores, max_output_size, limit, score_threshold)
        return indices
