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
from penstock.kernel import shapes
from penstock.ops.array.passthrough import refuse_gradient

_T = Types(dt.float16, dt.float32, default=dt.float32)
_LOWEST = float("-inf")


# The algorithm.


def _invalid(message: str) -> InvalidArgumentError:
    return InvalidArgumentError(message)


def _size(value: Any) -> int:
    if np.ndim(value) != 0:
        raise _invalid(f"max_output_size must be 0-D, got shape {list(np.shape(value))}")
    if int(value) < 0:
        raise _invalid(f"max_output_size must be non-negative, got {int(value)}")
    return int(value)


def _threshold(value: Any, name: str = "iou_threshold") -> float:
    if np.ndim(value) != 0:
        raise _invalid(f"{name} must be 0-D, got shape {list(np.shape(value))}")
    if name != "score_threshold" and not 0 <= float(value) <= 1:
        raise _invalid(f"{name} must be in [0, 1], got {float(value)}")
    return float(value)


def _check(boxes: np.ndarray, scores: np.ndarray) -> None:
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise _invalid(f"boxes must have 4 columns, got shape {list(boxes.shape)}")
    if scores.shape != boxes.shape[:1]:
        raise _invalid(f"scores has incompatible shape {list(scores.shape)} with {len(boxes)} boxes")


def _overlap_of(boxes: np.ndarray) -> Callable[[int, list[int]], np.ndarray]:
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


def _select(
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
    found, _ = _select(_overlap_of(boxes), scores, _size(max_output_size), _threshold(iou_threshold), _LOWEST)
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
    found, _ = _select(_overlap_of(boxes), scores, _size(max_output_size), _threshold(iou_threshold), _LOWEST)
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
    least = _threshold(score_threshold, "score_threshold")
    found, _ = _select(_overlap_of(boxes), scores, _size(max_output_size), _threshold(iou_threshold), least)
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
    size, least = _size(max_output_size), _threshold(score_threshold, "score_threshold")
    found, _ = _select(_overlap_of(boxes), scores, size, _threshold(iou_threshold), least)
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
    size, least = _size(max_output_size), _threshold(score_threshold, "score_threshold")
    sigma = float(soft_nms_sigma)
    if sigma < 0:
        raise _invalid(f"soft_nms_sigma must be >= 0, got {sigma}")
    found, kept = _select(_overlap_of(boxes), scores, size, _threshold(iou_threshold), least, sigma)
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
        raise _invalid(f"overlaps must be square, got shape {list(overlaps.shape)}")
    if scores.shape != overlaps.shape[:1]:
        raise _invalid(f"scores has incompatible shape {list(scores.shape)} with {len(overlaps)} boxes")
    least = _threshold(score_threshold, "score_threshold")
    # As in TensorFlow, the range is not checked: overlaps may be measured in any way.
    limit = float(overlap_threshold)
    found, _ = _select(lambda box, others: overlaps[box, others], scores, _size(max_output_size), limit, least)
    return np.array(found, np.int32)


def _combined_shapes(op: Operation) -> list[TensorShape]:
    boxes, scores = op.input_list[0].shape, op.input_list[1].shape
    batch, _, _, four = shapes.require_rank(boxes, 4).as_list()
    other, _, classes = shapes.require_rank(scores, 3).as_list()
    if four not in (None, 4):
        raise ValueError(f"Dimension must be 4 but is {four}")
    if batch is not None and other is not None and batch != other:
        raise ValueError(f"Dimensions must be equal, but are {batch} and {other}")
    batch = other if batch is None else batch
    per_class, total = (constant_value(t) for t in op.input_list[2:4])
    size = None if total is None else int(total)
    if size is not None and op.attrs["pad_per_class"]:
        size = None if per_class is None or classes is None else min(size, int(per_class) * classes)
    return [TensorShape.of(dims) for dims in ((batch, size, 4), (batch, size), (batch, size), (batch,))]


@op(
    "CombinedNonMaxSuppression",
    "float, float, int32, int32, float, float -> "
    "nmsed_boxes: float, nmsed_scores: float, nmsed_classes: float, valid_detections: int32",
    host=True,
    grad=refuse_gradient,
    shape=_combined_shapes,
)
def combined_non_max_suppression_op(
    boxes: Any,
    scores: Any,
    max_output_size_per_class: Any,
    max_total_size: Any,
    iou_threshold: Any,
    score_threshold: Any,
    *,
    pad_per_class: bool = False,
    clip_boxes: bool = True,
) -> Any:
    if boxes.ndim != 4 or boxes.shape[3] != 4 or scores.ndim != 3 or scores.shape[:2] != boxes.shape[:2]:
        raise _invalid(f"boxes of shape {list(boxes.shape)} do not fit scores of shape {list(scores.shape)}")
    classes = scores.shape[2]
    if boxes.shape[2] not in (1, classes):
        raise _invalid(f"third dimension of boxes must be either 1 or num classes, got {boxes.shape[2]}")
    per_class, total = _size(max_output_size_per_class), int(max_total_size)
    if total <= 0:
        raise _invalid(f"max_total_size must be > 0, got {total}")
    limit, least = _threshold(iou_threshold), _threshold(score_threshold, "score_threshold")
    size = min(total, per_class * classes) if pad_per_class else total
    batch = len(boxes)
    out_boxes = np.zeros((batch, size, 4), np.float32)
    out_scores, out_classes = np.zeros((batch, size), np.float32), np.zeros((batch, size), np.float32)
    valid = np.zeros(batch, np.int32)
    for i in range(batch):
        found: list[tuple[float, int, np.ndarray]] = []
        for c in range(classes):
            own = boxes[i, :, min(c, boxes.shape[2] - 1)]
            chosen, kept = _select(_overlap_of(own), scores[i, :, c], per_class, limit, least)
            found += [(float(score), c, own[box]) for box, score in zip(chosen, kept, strict=True)]
        found.sort(key=lambda item: -item[0])
        valid[i] = len(found[:size])
        for k, (score, c, box) in enumerate(found[:size]):
            out_boxes[i, k] = np.clip(box, 0, 1) if clip_boxes else box
            out_scores[i, k], out_classes[i, k] = score, c
    return out_boxes, out_scores, out_classes, valid


# Public functions.


def non_max_suppression(
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = _LOWEST,
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
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = _LOWEST,
    soft_nms_sigma: Any = 0.0,
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
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = _LOWEST,
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
    overlaps: Any,
    scores: Any,
    max_output_size: Any,
    overlap_threshold: Any = 0.5,
    score_threshold: Any = _LOWEST,
    name: str | None = None,
) -> Tensor:
    """As `non_max_suppression`, for overlaps that are known already: a matrix.

    >>> tf.image.non_max_suppression_overlaps(overlaps, scores, max_output_size=10)
    """
    with name_scope(name, "non_max_suppression_overlaps"):
        limit = convert_to_tensor(overlap_threshold, name="overlap_threshold")
        indices: Tensor = non_max_suppression_with_overlaps(overlaps, scores, max_output_size, limit, score_threshold)
        return indices


class Combined(NamedTuple):
    """The result of `combined_non_max_suppression`."""

    nmsed_boxes: Tensor
    nmsed_scores: Tensor
    nmsed_classes: Tensor
    valid_detections: Tensor


def combined_non_max_suppression(
    boxes: Any,
    scores: Any,
    max_output_size_per_class: Any,
    max_total_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = _LOWEST,
    pad_per_class: bool = False,
    clip_boxes: bool = True,
    name: str | None = None,
) -> Combined:
    """Non-maximum suppression for each class of each image, and the best of all classes together.

    >>> tf.image.combined_non_max_suppression(boxes, scores, 10, max_total_size=100)
    """
    with name_scope(name, "combined_non_max_suppression"):
        iou = convert_to_tensor(iou_threshold, dtype=dt.float32, name="iou_threshold")
        least = convert_to_tensor(score_threshold, dtype=dt.float32, name="score_threshold")
        total = convert_to_tensor(max_total_size)
        return Combined(
            *combined_non_max_suppression_op(
                boxes,
                scores,
                max_output_size_per_class,
                total,
                iou,
                least,
                pad_per_class=pad_per_class,
                clip_boxes=clip_boxes,
            )
        )
