"""Trains a Keras model by a loop of its own on parameter servers. One script for all tasks, told apart by TF_CONFIG.

    penstock launch --ps 2 --workers 2 --chief --evaluator examples/ps_custom_loop.py

Heroes come in threes; the model learns which of them decides. Words become numbers on the workers, as they read the
data; the table of embeddings is cut in two, one part on each parameter server, and only rows of it travel. The chief
writes a checkpoint after each epoch, in the folder that TRAIN_DIR names, or in a new one for each job; the evaluator
reads them.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import penstock as tf

HEROES = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]
EPOCHS, STEPS, SIZE = 4, 20, 64
# All tasks of a job have one parent, the launcher.
FOLDER = Path(os.environ.get("TRAIN_DIR") or f"/tmp/ps_custom_loop_{os.getuid()}_{os.getppid()}")
WAIT_SECS = 300.0  # for the next checkpoint


def examples(count: int = 200) -> dict[str, list[list[str]]]:
    """Threes of heroes, and if an avenger is among them."""
    threes = [random.sample(HEROES, 3) for _ in range(count)]
    return {"features": threes, "label": [["yes" if "avenger" in three else "no"] for three in threes]}


def word_models() -> tuple[Any, Any]:
    """Models from words to indices, for features and labels."""
    feature_lookup = tf.keras.layers.StringLookup(vocabulary=HEROES, mask_token=None)
    label_lookup = tf.keras.layers.StringLookup(vocabulary=["no", "yes"], num_oov_indices=0, mask_token=None)
    words = tf.keras.layers.Input(shape=(3,), dtype=tf.string, name="features")
    label = tf.keras.layers.Input(shape=(1,), dtype=tf.string, name="label")
    features = tf.keras.Model({"features": words}, feature_lookup(words))
    return features, tf.keras.Model({"label": label}, label_lookup(label))


def dataset_of(data: dict[str, list[list[str]]], feature_stage: Any, label_stage: Any) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(data)
    return dataset.map(lambda x: ({"features": feature_stage(x["features"])}, label_stage(x["label"])))


def embedding_model(words: int) -> tuple[Any, Any]:
    """The model, and its layer with the table."""
    ids = tf.keras.layers.Input(shape=(3,), dtype=tf.int64, name="features")
    table = tf.keras.layers.Embedding(input_dim=words, output_dim=SIZE)
    mean = tf.reduce_mean(table(ids), axis=1)
    return tf.keras.Model({"features": ids}, tf.keras.layers.Dense(1, activation="sigmoid")(mean)), table


def coordinate(resolver: Any) -> None:
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(num_shards=2)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    with strategy.scope():
        feature_stage, label_stage = word_models()
        model, table = embedding_model(len(HEROES) + 1)
        optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.01)
        accuracy = tf.keras.metrics.Accuracy()
    # Eight rows: the seven heroes and one for all other words.
    assert [part.shape for part in table.weights] == [(4, SIZE), (4, SIZE)]
    assert [part.device for part in table.weights] == [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(2)]
    for part in table.weights:
        print(f"{part.path} {part.shape} is on {part.device}")
    data = examples()

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return dataset_of(data, feature_stage, label_stage).shuffle(200).batch(32).repeat()

    cross_entropy = tf.keras.losses.BinaryCrossentropy(reduction=tf.keras.losses.Reduction.NONE)

    @tf.function
    def step_fn(iterator: Any) -> Any:
        def replica_fn(features: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                predicted = model(features, training=True)
                loss = tf.nn.compute_average_loss(cross_entropy(labels, predicted))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            accuracy.update_state(labels, tf.cast(tf.greater(predicted, 0.5), tf.int64))
            return loss

        losses = strategy.run(replica_fn, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def per_worker_dataset_fn() -> Any:
        return strategy.distribute_datasets_from_function(dataset_fn)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, FOLDER, max_to_keep=2)
    for epoch in range(EPOCHS):
        accuracy.reset_state()
        for _ in range(STEPS):
            coordinator.schedule(step_fn, args=(iterator,))
        coordinator.join()
        manager.save()
        print(f"epoch {epoch + 1}: accuracy {accuracy.result().numpy():.3f}", flush=True)
    print(f"trained, final loss {coordinator.schedule(step_fn, args=(iterator,)).fetch():.3f}", flush=True)


def evaluate() -> None:
    """Evaluates the checkpoints of the chief as they appear, until that of the last epoch."""
    model, _ = embedding_model(len(HEROES) + 1)
    model.compile(loss="binary_crossentropy", metrics=["accuracy"])
    evaluator = tf.keras.utils.SidecarEvaluator(
        model,
        dataset_of(examples(), *word_models()).batch(50),
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
