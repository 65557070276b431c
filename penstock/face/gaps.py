"""Parts of TensorFlow that penstock does not have, with alternatives for programs. Data only."""

from __future__ import annotations

import re
from typing import Final

# The keys are names after `tf.`, or after `tensorflow.` in an import. They cover all names inside them.
_GAPS: Final[dict[str, str]] = {
    r"(python\.|contrib\.)?keras": (
        "penstock has no Keras yet. Build the model with tf.layers (tf.layers.dense, tf.layers.conv2d, ...) and train "
        "it in a tf.Session or a tf.train.MonitoredTrainingSession."
    ),
    r"(python\.|contrib\.)?estimator|contrib\.learn": (
        "penstock has no Estimators. Call the model function yourself and run its train_op in a "
        "tf.train.MonitoredTrainingSession, which writes checkpoints and summaries and goes on after failures."
    ),
    r"(python\.|contrib\.)?feature_column|contrib\.layers\.\w*_columns?(_\w*)?": (
        "penstock has no feature columns yet. Parse with tf.parse_example and use tf.strings.to_hash_bucket_fast, "
        "tf.one_hot and tf.nn.embedding_lookup_sparse on what it gives."
    ),
    r"(python\.|contrib\.)?saved_model": (
        "penstock has no SavedModel. Save variables with tf.train.Saver and the graph with tf.train.export_meta_graph, "
        "or freeze both with tf.graph_util.convert_variables_to_constants."
    ),
    r"(python\.)?debug": (
        "penstock has no debugger (tfdbg). Fetch the tensors in question, print them with tf.Print, or find the first "
        "NaN with tf.add_check_numerics_ops; an error of a step says where its op is defined."
    ),
    r"GradientTape|python\.eager\.backprop": (
        "penstock has no eager execution yet, so there is no tape. tf.gradients(ys, xs) adds the derivatives to the "
        "graph."
    ),
    r"function|autograph|contrib\.autograph|python\.eager\.def_function": (
        "penstock has no eager execution yet, so there are no functions to make graphs of. Ops are added to a graph "
        "already; session.make_callable gives a function that runs a part of it."
    ),
    r"contrib\.eager|python\.eager": (
        "penstock has no eager execution yet: ops are added to a graph, which a tf.Session runs."
    ),
    r"(python\.|contrib\.)?distribute": (
        "penstock has no distribution strategies yet. Place variables with tf.train.replica_device_setter and start "
        "the tasks with `penstock launch`; tf.train.SyncReplicasOptimizer makes the training synchronous."
    ),
    r"compat\.v2": "penstock has the API of TensorFlow 1.x only: use tf.compat.v1, which is `penstock.v1`.",
}
_ROOTS = re.compile(r"(penstock\.v1|tensorflow)\.(compat\.v1\.)?")


def gap(path: str) -> str | None:
    """The message for a missing name that belongs to a part of TensorFlow that is missing as a whole.

    >>> gap("tensorflow.keras.layers")
    'penstock has no Keras yet. Build the model with tf.layers ...'
    """
    name = _ROOTS.sub("", path, count=1)
    return next((told for names, told in _GAPS.items() if re.match(rf"({names})(\.|\Z)", name)), None)
