"""SidecarEvaluator: it evaluates checkpoints as they appear, and ends with the last one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_models import keras, one_device, tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

DEADLINE = 60.0
_POINTS = np.random.RandomState(0).rand(32, 3).astype("f")
_SUMS = _POINTS.sum(1, keepdims=True)


def _model(seed: int = 0) -> Any:
    keras.utils.set_random_seed(seed)
    with one_device().scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


def _data() -> Any:
    return tf.data.Dataset.from_tensor_slices((_POINTS, _SUMS)).batch(8)


class _Evaluated(keras.callbacks.Callback):
    """Lets a thread wait until a checkpoint was evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.times = threading.Semaphore(0)

    def on_test_end(self, logs: Any = None) -> None:
        self.times.release()


def test_checkpoints_are_evaluated_as_they_appear(tmp_path: Path) -> None:
    trained, written = _model(), tmp_path / "checkpoints"
    evaluated, expected = _Evaluated(), []

    def train() -> None:
        saver = tf.keras.callbacks.ModelCheckpoint(str(written / "ckpt-{epoch}"), save_weights_only=True)
        for epoch in range(3):
            if epoch > 0:  # the evaluator waits for this one while it is made
                assert evaluated.times.acquire(timeout=DEADLINE)
            trained.fit(
                _POINTS, _SUMS, batch_size=8, initial_epoch=epoch, epochs=epoch + 1, verbose=0, callbacks=[saver]
            )
            expected.append(trained.evaluate(_POINTS, _SUMS, batch_size=8, verbose=0))

    trainer = threading.Thread(target=train)
    trainer.start()
    board = tf.keras.callbacks.TensorBoard(str(tmp_path / "log"))
    evaluator = tf.keras.utils.SidecarEvaluator(
        _model(seed=1), _data(), written, max_evaluations=3, callbacks=[evaluated, board], wait_secs=DEADLINE
    )
    found = evaluator.start()
    trainer.join(DEADLINE)
    assert [result["loss"] for result in found] == pytest.approx(expected, rel=1e-5)
    events = EventAccumulator(str(tmp_path / "log" / "validation"))
    events.Reload()
    losses = events.Tensors("evaluation_loss_vs_iterations")
    assert [event.step for event in losses] == [4, 8, 12]
    assert [float(event.tensor_proto.float_val[0]) for event in losses] == pytest.approx(expected, rel=1e-5)


def test_checkpoints_of_a_custom_loop(tmp_path: Path) -> None:
    trained = _model()
    checkpoint = tf.train.Checkpoint(model=trained, optimizer=trained.optimizer)
    manager = tf.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=1)
    for _ in range(2):
        trained.fit(_POINTS, _SUMS, verbose=0)
        manager.save()
    # Only the last one is there, and its number is the last one too.
    evaluator = tf.keras.experimental.SidecarEvaluator(_model(1), _data(), tmp_path, steps=2, max_evaluations=2)
    (found,) = evaluator.start()
    assert found["loss"] == pytest.approx(trained.evaluate(_POINTS[:16], _SUMS[:16], batch_size=8, verbose=0), rel=1e-5)


def test_an_evaluation_ends_when_no_checkpoint_comes(tmp_path: Path) -> None:
    assert tf.keras.utils.SidecarEvaluator(_model(), _data(), tmp_path, wait_secs=0).start() == []
    _model().save_weights(str(tmp_path / "weights"))
    assert len(tf.keras.utils.SidecarEvaluator(_model(), _data(), tmp_path, wait_secs=0).start()) == 1


def test_a_checkpoint_of_another_model_is_an_error(tmp_path: Path) -> None:
    with one_device().scope():
        other = keras.Sequential([keras.Input([3]), keras.layers.Dense(1), keras.layers.Dense(1)])
    _model().save_weights(str(tmp_path / "ckpt-1"))
    other.compile("sgd", "mse")
    with pytest.raises(AssertionError, match="not bound to checkpointed values"):
        tf.keras.utils.SidecarEvaluator(other, _data(), tmp_path, max_evaluations=1).start()


def test_an_optimizer_is_restored_when_it_gets_its_slots(tmp_path: Path) -> None:
    first, second = _model(), _model(seed=1)
    first.fit(_POINTS, _SUMS, epochs=2, verbose=0)
    path = tf.train.Checkpoint(model=first, optimizer=first.optimizer).save(str(tmp_path / "ckpt"))
    assert not second.optimizer.built
    tf.train.Checkpoint(model=second, optimizer=second.optimizer).restore(path)
    assert int(second.optimizer.iterations.numpy()) == 2
    for model in (first, second):
        model.fit(_POINTS, _SUMS, shuffle=False, verbose=0)
    np.testing.assert_allclose(second.get_weights()[0], first.get_weights()[0], rtol=1e-6)
