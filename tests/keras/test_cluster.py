"""Keras models on a cluster: variables on parameter servers, steps on workers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from distribute.golden import clusters
from keras_models import devices_of, keras, tf

from penstock.distribute.partitioners import FixedShardsPartitioner
from penstock.distribute.resolvers import SimpleClusterResolver
from penstock.graph.indexed_slices import IndexedSlices

WORDS = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with clusters() as known:
        yield known.spec(workers=2, servers=2)


def _strategy(cluster: Any, **settings: Any) -> Any:
    resolver = SimpleClusterResolver(cluster, task_type="chief", task_id=0, rpc_layer="grpc")
    return tf.distribute.ParameterServerStrategy(resolver, **settings)


def _examples() -> dict[str, list[Any]]:
    random.seed(0)
    features = [random.sample(WORDS, 3) for _ in range(200)]
    return {"features": features, "label": [["yes"] if "avenger" in f else ["no"] for f in features]}


def test_a_custom_loop_learns_words(cluster: Any) -> None:
    strategy = _strategy(cluster, variable_partitioner=FixedShardsPartitioner(2))
    with strategy.scope():
        feature_lookup = tf.keras.layers.StringLookup(vocabulary=WORDS, mask_token=None)
        label_lookup = tf.keras.layers.StringLookup(vocabulary=["yes", "no"], num_oov_indices=0, mask_token=None)
        raw_features = tf.keras.layers.Input(shape=(3,), dtype=tf.string, name="features")
        feature_stage = tf.keras.Model({"features": raw_features}, feature_lookup(raw_features))
        raw_label = tf.keras.layers.Input(shape=(1,), dtype=tf.string, name="label")
        label_stage = tf.keras.Model({"label": raw_label}, label_lookup(raw_label))

        model_input = tf.keras.layers.Input(shape=(3,), dtype=tf.int64, name="features")
        table = tf.keras.layers.Embedding(input_dim=len(feature_lookup.get_vocabulary()), output_dim=16)
        mean = tf.reduce_mean(table(model_input), axis=1)
        model = tf.keras.Model({"features": model_input}, tf.keras.layers.Dense(1, activation="sigmoid")(mean))
        optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.1)
        accuracy = tf.keras.metrics.Accuracy()

    assert len(table.weights) == 2
    assert [w.shape for w in table.weights] == [(4, 16), (4, 16)]
    assert [w.device for w in table.weights] == [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(2)]
    examples = _examples()

    def dataset_fn(_: Any) -> Any:
        return (
            tf.data.Dataset.from_tensor_slices(examples)
            .map(lambda x: ({"features": feature_stage(x["features"])}, label_stage(x["label"])))
            .shuffle(200)
            .batch(32)
            .repeat()
        )

    @tf.function
    def step_fn(iterator: Any) -> Any:
        def replica_fn(batch: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                pred = model(batch, training=True)
                none = tf.keras.losses.Reduction.NONE
                each = tf.keras.losses.BinaryCrossentropy(reduction=none)(labels, pred)
                loss = tf.nn.compute_average_loss(each)
                gradients = tape.gradient(loss, model.trainable_variables)
            assert isinstance(gradients[0], IndexedSlices)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            accuracy.update_state(labels, tf.cast(tf.greater(pred, 0.5), tf.int64))
            return loss

        batch, labels = next(iterator)
        losses = strategy.run(replica_fn, args=(batch, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
    dataset = coordinator.create_per_worker_dataset(
        tf.function(lambda: strategy.distribute_datasets_from_function(dataset_fn))
    )
    iterator = iter(dataset)
    found = []
    for _ in range(4):
        accuracy.reset_states()
        for _ in range(5):
            coordinator.schedule(step_fn, args=(iterator,))
        coordinator.join()
        found.append(float(accuracy.result().numpy()))
    assert found[-1] > 0.9
    assert int(optimizer.iterations.numpy()) == 20
    # Each slot is beside the shard that it belongs to.
    assert devices_of(optimizer._velocities[:2]) == devices_of(table.weights)
    assert [v.device for v in optimizer._velocities[:2]] == [w.device for w in table.weights]
    # No server asks another for the count of steps or the learning rate: each has its own copy.
    for shared in (optimizer._iterations, optimizer._learning_rate):
        assert {shared.device, *shared.copies} == devices_of(model.trainable_variables)
    assert {int(copy.numpy()) for copy in optimizer._iterations.copies.values()} == {20}
    assert float(coordinator.schedule(step_fn, args=(iterator,)).fetch()) < 0.4


def _points() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.RandomState(0).rand(64, 3).astype("f")
    return x, x.sum(1, keepdims=True)


def _linear(strategy: Any, **settings: Any) -> Any:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"], **settings)
    return model


def test_fit_on_workers(cluster: Any, tmp_path: Any) -> None:
    x, y = _points()

    def dataset_fn(context: Any) -> Any:
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).repeat()
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id).batch(8)

    model = _linear(_strategy(cluster), steps_per_execution=2)
    seen: list[int] = []
    notes = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    history = model.fit(
        tf.keras.utils.experimental.DatasetCreator(dataset_fn),
        epochs=3,
        steps_per_epoch=8,
        verbose=0,
        validation_data=(x, y),
        callbacks=[notes, tf.keras.callbacks.ModelCheckpoint(str(tmp_path / "ckpt"))],
    ).history
    assert sorted(history) == ["loss", "mae", "val_loss", "val_mae"]
    assert history["loss"][-1] < history["loss"][0]
    assert seen == [1, 3, 5, 7] * 3
    assert int(model.optimizer.iterations.numpy()) == 24
    assert {v.device[:9] for v in model.weights} == {"/job:ps/r"}
    expected = x @ model.get_weights()[0] + model.get_weights()[1]
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-5)
    assert model.evaluate(x, y, verbose=0)[0] == pytest.approx(float(((expected - y) ** 2).mean()), rel=1e-4)
    again = _linear(_strategy(cluster))
    again.build([None, 3])
    again.load_weights(str(tmp_path / "ckpt"))
    np.testing.assert_allclose(again.get_weights()[0], model.get_weights()[0], rtol=1e-6)


def test_fit_takes_arrays_and_finite_datasets(cluster: Any) -> None:
    x, y = _points()
    model = _linear(_strategy(cluster))
    model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 8
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), epochs=2, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 24


def test_a_checkpoint_is_the_same_for_any_number_of_shards(cluster: Any, tmp_path: Any) -> None:
    ids = np.random.RandomState(0).randint(0, 9, [32, 3])
    labels = (ids.sum(1, keepdims=True) > 12).astype("f")

    def made(strategy: Any) -> Any:
        keras.utils.set_random_seed(2)
        with strategy.scope():
            layers = [keras.Input([3], dtype="int32"), keras.layers.Embedding(9, 4), keras.layers.Flatten()]
            model = keras.Sequential([*layers, keras.layers.Dense(1, "sigmoid")])
            model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy")
        return model

    def train(model: Any, epochs: int) -> None:
        model.fit(ids, labels, batch_size=32, epochs=epochs, shuffle=False, verbose=0)

    sharded = made(_strategy(cluster, variable_partitioner=FixedShardsPartitioner(2)))
    train(sharded, 3)
    sharded.save_weights(str(tmp_path / "ckpt"))
    train(sharded, 2)
    expected = sharded.predict(ids, verbose=0)
    alone, other = (made(s) for s in (tf.distribute.OneDeviceStrategy("/cpu:0"), _strategy(cluster)))
    other.optimizer.build(other.trainable_variables)
    for model in (alone, other):
        model.load_weights(str(tmp_path / "ckpt"))
        assert int(model.optimizer.iterations.numpy()) == 3
        train(model, 2)  # with the slots of the checkpoint
        np.testing.assert_allclose(model.predict(ids, verbose=0), expected, rtol=1e-4)


def test_synchronous_training_applies_the_mean(cluster: Any) -> None:
    x, y = _points()
    model = _linear(_strategy(cluster, synchronous=True))
    model.build([None, 3])
    start = [w.copy() for w in model.get_weights()]
    model.fit(x, y, batch_size=32, epochs=1, shuffle=False, verbose=0)
    alone = _linear(tf.distribute.OneDeviceStrategy("/cpu:0"))
    alone.build([None, 3])
    alone.set_weights(start)
    alone.fit(x, y, batch_size=64, epochs=1, shuffle=False, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], alone.get_weights()[0], rtol=1e-4)
