"""Models in the scope of a strategy train as Keras alone trains them on the same batches."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from keras_models import keras, one_device, tf

from penstock.graph.indexed_slices import IndexedSlices
from penstock.keras.variables import BackedVariable


def _images() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.RandomState(0)
    images = generator.rand(96, 8, 8, 1).astype("f")
    return images, (images.mean((1, 2, 3)) > 0.5).astype("int32")


def _words() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.RandomState(0)
    ids = generator.randint(0, 20, [96, 5])
    return ids, (ids.min(1) < 2).astype("f")[:, None]


def _image_model() -> Any:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Conv2D(4, 3, activation="relu", use_bias=False),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dropout(0.25, seed=3),
            layers.Dense(2, kernel_regularizer="l2"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def _word_model() -> Any:
    layers = keras.layers
    words = keras.Input([5], dtype="int32")
    table = layers.Embedding(20, 4, mask_zero=True)(words)
    output = layers.Dense(1, activation="sigmoid")(layers.GlobalAveragePooling1D()(table))
    model = keras.Model(words, output)
    model.compile(keras.optimizers.RMSprop(0.01), "binary_crossentropy", metrics=["auc"])
    return model


@pytest.mark.parametrize(
    ("make", "data"),
    [pytest.param(_image_model, _images, marks=pytest.mark.long), (_word_model, _words)],
    ids=["cnn", "embedding"],
)
def test_fit_gives_the_history_of_keras(make: Any, data: Any) -> None:
    x, y = data()
    settings = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0, "validation_split": 0.25}
    keras.utils.set_random_seed(1)
    expected = make().fit(x, y, **settings).history
    keras.utils.set_random_seed(1)
    with one_device().scope():
        model = make()
    found = model.fit(x, y, **settings).history
    assert all(isinstance(v, BackedVariable) for v in model.variables)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-3, atol=1e-3, err_msg=name)


def test_without_a_strategy_keras_trains_by_itself() -> None:
    x, y = _images()
    model = _image_model()
    model.fit(x, y, verbose=0)
    assert not any(isinstance(v, BackedVariable) for v in model.variables)


def _linear(strategy: Any, **settings: Any) -> Any:
    keras.utils.set_random_seed(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", **settings)
    return model


def _points() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.RandomState(4).rand(24, 3).astype("f")
    return x, x.sum(1, keepdims=True)


@pytest.mark.parametrize("settings", [{"run_eagerly": True}, {"steps_per_execution": 3}], ids=["eagerly", "executions"])
def test_ways_to_run_steps_agree(settings: dict[str, Any]) -> None:
    x, y = _points()
    plain, other = _linear(one_device()), _linear(one_device(), **settings)
    for model in (plain, other):
        model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(other.get_weights()[0], plain.get_weights()[0], rtol=1e-4)


def test_fit_takes_datasets_and_functions_that_make_them() -> None:
    x, y = _points()

    def make(context: Any = None) -> Any:
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)

    on_arrays, on_dataset, on_creator = (_linear(one_device()) for _ in range(3))
    on_arrays.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    on_dataset.fit(make(), epochs=2, verbose=0)
    creator = tf.keras.utils.experimental.DatasetCreator(lambda context: make(context).repeat())
    on_creator.fit(creator, epochs=2, steps_per_epoch=6, verbose=0)
    for model in (on_dataset, on_creator):
        np.testing.assert_allclose(model.get_weights()[0], on_arrays.get_weights()[0], rtol=1e-4)
    assert on_dataset.evaluate(make(), verbose=0) == pytest.approx(on_arrays.evaluate(x, y, verbose=0), rel=1e-5)
    np.testing.assert_allclose(on_dataset.predict(make(), verbose=0), on_arrays.predict(x, verbose=0), rtol=1e-5)


def test_callbacks_see_batches_and_epochs_in_order() -> None:
    seen: list[Any] = []

    class Notes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            seen.append(("epoch", epoch))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            assert isinstance(logs["loss"], float)
            seen.append(batch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(sorted(logs))

    x, y = _points()
    _linear(one_device()).fit(x, y, batch_size=8, epochs=2, verbose=0, validation_data=(x, y), callbacks=[Notes()])
    one = [0, 1, 2, ["loss", "val_loss"]]
    assert seen == [("epoch", 0), *one, ("epoch", 1), *one]


@pytest.mark.long
def test_early_stopping_and_learning_rates(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = _points()
    model = _linear(one_device())
    rates: list[float] = []
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    notes = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rates.append(float(model.optimizer.learning_rate.numpy()))
    )
    stop = keras.callbacks.EarlyStopping("loss", min_delta=10.0, patience=1)
    history = model.fit(x, y, batch_size=8, epochs=9, callbacks=[schedule, notes, stop], verbose=2)
    assert len(history.history["loss"]) == len(rates) == 2
    assert rates == pytest.approx([0.05, 0.025])
    assert "Epoch 1/9" in capsys.readouterr().out


def test_train_step_can_be_overridden() -> None:
    class Custom(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"squares": loss}

    x, y = _points()
    with one_device().scope():
        model = Custom()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(x, y, batch_size=24, epochs=3, verbose=0).history
    assert list(history) == ["squares"]
    assert history["squares"][2] < history["squares"][0]


def test_weights_and_models_are_saved(tmp_path: Any) -> None:
    x, y = _points()
    model = _linear(one_device())
    path = str(tmp_path / "model.keras")
    saver = keras.callbacks.ModelCheckpoint(path)
    model.fit(x, y, epochs=1, verbose=0, callbacks=[saver])
    again = keras.models.load_model(path)
    np.testing.assert_allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-5)
    model.save_weights(str(tmp_path / "w.weights.h5"))
    other = _linear(one_device())
    other.load_weights(str(tmp_path / "w.weights.h5"))
    assert isinstance(other.weights[0], BackedVariable)
    np.testing.assert_array_equal(other.get_weights()[0], model.get_weights()[0])


def test_a_training_goes_on_from_its_backup(tmp_path: Any) -> None:
    class Fail(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise InterruptedError("as if the process had ended")

    x, y = _points()

    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))

    with pytest.raises(InterruptedError):
        _linear(one_device()).fit(x, y, epochs=4, shuffle=False, verbose=0, callbacks=[backup(), Fail()])
    second = _linear(one_device())
    history = second.fit(x, y, epochs=4, shuffle=False, verbose=0, callbacks=[backup()])
    assert len(history.history["loss"]) == 2
    whole = _linear(one_device())
    whole.fit(x, y, epochs=4, shuffle=False, verbose=0)
    np.testing.assert_allclose(second.get_weights()[0], whole.get_weights()[0], rtol=1e-5)


def test_gradients_of_embeddings_are_rows() -> None:
    with one_device().scope():
        model = keras.Sequential([keras.layers.Embedding(50, 3), keras.layers.GlobalAveragePooling1D()])
    ids = tf.constant([[1, 2, 2], [7, 1, 0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(ids))
    gradient = tape.gradient(loss, model.trainable_variables)[0]
    assert isinstance(gradient, IndexedSlices)
    dense = np.zeros([50, 3], "f")
    np.add.at(dense, gradient.indices.numpy(), gradient.values.numpy())
    expected = np.zeros([50, 3], "f")
    np.add.at(expected, [1, 2, 2, 7, 1, 0], np.full([6, 3], 1 / 3, "f"))
    np.testing.assert_allclose(dense, expected, rtol=1e-6)


def test_ids_that_depend_on_weights_take_the_whole_table() -> None:
    class Chosen(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.score, self.table = keras.layers.Dense(5), keras.layers.Embedding(5, 2)

        def call(self, x: Any) -> Any:
            return self.table(keras.ops.argmax(self.score(x), axis=-1))

    with one_device().scope():
        model = Chosen()
    x = np.eye(3, dtype="f")
    rows = model(tf.constant(x)).numpy()
    chosen = (x @ model.score.get_weights()[0] + model.score.get_weights()[1]).argmax(-1)
    np.testing.assert_array_equal(rows, model.table.get_weights()[0][chosen])


def test_configs_are_plain() -> None:
    json.dumps(_linear(one_device()).get_config())
