"""Parts of TensorFlow that penstock does not have, with alternatives for programs. Data only."""

from __future__ import annotations

import re
from typing import Final

# The keys are names after `tf.`, or after `tensorflow.` in an import. They cover all names inside them.
_GAPS: Final[dict[str, str]] = {
    r"(python\.|contrib\.)?keras": (
        "penstock has no Keras in the 1.x API. Build the model with tf.layers (tf.layers.dense, tf.layers.conv2d, ...) "
        "and train it in a tf.train.MonitoredTrainingSession; Keras models are part of the 2.x API, penstock.keras, "
        "with pip install penstock[keras]."
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
        "penstock has no SavedModel in the 1.x API. Save variables with tf.train.Saver and the graph with "
        "tf.train.export_meta_graph, or freeze both with tf.graph_util.convert_variables_to_constants; the 2.x API "
        "(import penstock as tf) has saved models."
    ),
    r"(python\.)?debug": (
        "penstock has no debugger (tfdbg). Fetch the tensors in question, print them with tf.Print, or find the first "
        "NaN with tf.add_check_numerics_ops; an error of a step says where its op is defined."
    ),
    r"contrib\.autograph": (
        "penstock has no AutoGraph in contrib: tf.autograph.to_graph and tf.autograph.to_code are what it became."
    ),
    r"contrib\.eager|python\.eager": (
        "penstock has no contrib.eager: it became tf.enable_eager_execution, tf.GradientTape and tf.function."
    ),
    r"(python\.|contrib\.)?distribute": (
        "penstock has no strategies in the 1.x API, only in that of TensorFlow 2: `import penstock as tf`. Here, place "
        "variables with tf.train.replica_device_setter and start the tasks with `penstock launch`; "
        "tf.train.SyncReplicasOptimizer makes the training synchronous."
    ),
    r"compat\.v2": (
        "penstock has no API of TensorFlow 2 inside of a program for TensorFlow 1, since its ops run at once. `import "
        "penstock as tf` has it, and `penstock run --api 2` runs the whole program with it."
    ),
}
_ROOTS = re.compile(r"(penstock\.v1|tensorflow)\.(compat\.v1\.)?")


def gap(path: str) -> str | None:
    """The message for a missing name that belongs to a part of TensorFlow that is missing as a whole.

    >>> gap("tensorflow.keras.layers")
    'penstock has no Keras in the 1.x API. Build the model with tf.layers ...'
    """
    name = _ROOTS.sub("", path, count=1)
    return next((told for names, told in _GAPS.items() if re.match(rf"({names})(\.|\Z)", name)), None)
