"""Trains a Keras model by Model.fit on parameter servers. One script for all tasks, told apart by TF_CONFIG.

    penstock launch --ps 2 --workers 2 --chief --evaluator examples/ps_keras_fit.py

The chief coordinates: it makes the model, whose variables are on the parameter servers, and has the workers run the
steps. The evaluator reads the checkpoints of the chief, and needs no other task. Files are in the folder that TRAIN_DIR
names, or in a new one for each job.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

import penstock as tf

EPOCHS, STEPS, BATCH = 5, 20, 64
# All tasks of a job have one parent, the launcher.
FOLDER = Path(os.environ.get("TRAIN_DIR") or f"/tmp/ps_keras_fit_{os.getuid()}_{os.getppid()}")
WAIT_SECS = 300.0  # for the next checkpoint


def points() -> tuple[np.ndarray, np.ndarray]:
    """Points in a plane, and the half of the plane that each is in."""
    x = np.random.RandomState(0).uniform(-1, 1, [1024, 2]).astype(np.float32)
    return x, (x.sum(1, keepdims=True) > 0).astype(np.float32)


def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """The dataset of one worker, which is told which of how many it is."""
    batch = context.get_per_replica_batch_size(BATCH)
    dataset = tf.data.Dataset.from_tensor_slices(points()).shuffle(1024).repeat()
    return dataset.shard(context.num_input_pipelines, context.input_pipeline_id).batch(batch).prefetch(2)


def compiled_model() -> Any:
    layers = [tf.keras.Input([2]), tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(1, "sigmoid")]
    model = tf.keras.Sequential(layers)
    model.compile(tf.keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"], steps_per_execution=5)
    return model


def coordinate(resolver: Any) -> None:
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=256 << 10, max_shards=2)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    with strategy.scope():
        model = compiled_model()
    callbacks = [
        tf.keras.callbacks.ModelCheckpoint(str(FOLDER / "ckpt-{epoch}"), save_weights_only=True),
        tf.keras.callbacks.BackupAndRestore(str(FOLDER / "backup")),
        tf.keras.callbacks.TensorBoard(str(FOLDER / "log")),
    ]
    data = tf.keras.utils.experimental.DatasetCreator(dataset_fn)
    history = model.fit(data, epochs=EPOCHS, steps_per_epoch=STEPS, callbacks=callbacks, verbose=2).history
    print(f"trained, final accuracy {history['accuracy'][-1]:.3f}", flush=True)


def evaluate() -> None:
    """Evaluates the checkpoints of the chief as they appear, until that of the last epoch."""
    evaluator = tf.keras.utils.SidecarEvaluator(
        compiled_model(),
        tf.data.Dataset.from_tensor_slices(points()).batch(256),
        FOLDER,
        max_evaluations=EPOCHS,
        callbacks=[tf.keras.callbacks.TensorBoard(str(FOLDER / "log" / "evaluator"))],
        wait_secs=WAIT_SECS,
    )
    results = evaluator.start()
    if not results:
        raise TimeoutError(f"The training has written no checkpoint to {FOLDER} for {WAIT_SECS:.0f} s.")
    print(f"{len(results)} checkpoints evaluated, final accuracy {results[-1]['accuracy']:.3f}", flush=True)


def main() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
        )
        server.join()
    elif resolver.task_type == "evaluator":
        evaluate()
    else:
        coordinate(resolver)


if __name__ == "__main__":
    main()
