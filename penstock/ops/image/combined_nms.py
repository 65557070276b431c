"""Non-maximum suppression of the boxes of many classes and images at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.image.nms import LOWEST, checked_size, checked_threshold, invalid, overlap_of, select_boxes


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
        raise invalid(f"boxes of shape {list(boxes.shape)} do not fit scores of shape {list(scores.shape)}")
    classes = scores.shape[2]
    if boxes.shape[2] not in (1, classes):
        raise invalid(f"third dimension of boxes must be either 1 or num classes, got {boxes.shape[2]}")
    per_class, total = checked_size(max_output_size_per_class), int(max_total_size)
    if total <= 0:
        raise invalid(f"max_total_size must be > 0, got {total}")
    limit, least = checked_threshold(iou_threshold), checked_threshold(score_threshold, "score_threshold")
    size = min(total, per_class * classes) if pad_per_class else total
    batch = len(boxes)
    out_boxes = np.zeros((batch, size, 4), np.float32)
    out_scores, out_classes = np.zeros((batch, size), np.float32), np.zeros((batch, size), np.float32)
    valid = np.zeros(batch, np.int32)
    for i in range(batch):
        found: list[tuple[float, int, np.ndarray]] = []
        for c in range(classes):
            own = boxes[i, :, min(c, boxes.shape[2] - 1)]
            chosen, kept = select_boxes(overlap_of(own), scores[i, :, c], per_class, limit, least)
            found += [(float(score), c, own[box]) for box, score in zip(chosen, kept, strict=True)]
        found.sort(key=lambda item: -item[0])
        valid[i] = len(found[:size])
        for k, (score, c, box) in enumerate(found[:size]):
            out_boxes[i, k] = np.clip(box, 0, 1) if clip_boxes else box
            out_scores[i, k], out_classes[i, k] = score, c
    return out_boxes, out_scores, out_classes, valid


class Combined(NamedTuple):
    """The result of `combined_non_max_suppression`."""

    nmsed_boxes: Tensor
    nmsed_scores: Tensor
    nmsed_classes: Tensor
    valid_detections: Tensor


def combined_non_max_suppression(
    boxes: TensorLike,
    scores: TensorLike,
    max_output_size_per_class: TensorLike,
    max_total_size: TensorLike,
    iou_threshold: TensorLike = 0.5,
    score_threshold: TensorLike = LOWEST,
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
