"""Metrics with predictions before labels."""

from penstock.contrib.metrics import (
    accuracy,
    aggregate_metric_map,
    aggregate_metrics,
    streaming_accuracy,
    streaming_auc,
    streaming_false_negatives,
    streaming_false_positives,
    streaming_mean,
    streaming_mean_absolute_error,
    streaming_mean_iou,
    streaming_mean_squared_error,
    streaming_mean_tensor,
    streaming_percentage_less,
    streaming_precision,
    streaming_recall,
    streaming_root_mean_squared_error,
    streaming_true_negatives,
    streaming_true_positives,
)
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
