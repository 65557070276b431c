"""The functions of this room under the parameters of TensorFlow 2, where these differ."""

from penstock.graph.adapted import adapted
from penstock.ops.math import argmax as extremes
from penstock.ops.math import compare, histogram, reduce

argmax = adapted(extremes.argmax, "input, axis=None, output_type='int64', name=None")
argmin = adapted(extremes.argmin, "input, axis=None, output_type='int64', name=None")
bincount = adapted(
    histogram.bincount,
    "arr, weights=None, minlength=None, maxlength=None, dtype='int32', name=None, axis: _ = None, "
    "binary_output: _ = False",
)
count_nonzero = adapted(reduce.count_nonzero, "input, axis=None, keepdims=None, dtype='int64', name=None")
equal = adapted(compare.equal, "x, y, name=None")
not_equal = adapted(compare.not_equal, "x, y, name=None")
confusion_matrix = adapted(
    histogram.confusion_matrix, "labels, predictions, num_classes=None, weights=None, dtype='int32', name=None"
)
