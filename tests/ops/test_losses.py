"""tf.losses gives TensorFlow's values, gradients, names and static shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden_programs import GOLDEN, load

import penstock.v1 as tf

INDEX = load("ops/losses.json")
CASES = [pytest.param(case, id=case["id"].split("/")[1]) for case in INDEX["cases"]]


def build(case: dict[str, Any], mode: str = "full") -> tuple[list[tf.Tensor], tf.Tensor]:
    """The placeholders of `case`, of which `mode` says how much is known, and its loss."""
    shapes = [list(entry["shape"]) for entry in case["inputs"]]
    if mode in ("first_batch", "all_batch"):
        for shape in shapes[:1] if mode == "first_batch" else shapes:
            shape[0] = None
    inputs = [
        tf.placeholder(tf.as_dtype(entry["dtype"]), None if mode == "unknown_rank" else shape, name=f"in{i}")
        for i, (entry, shape) in enumerate(zip(case["inputs"], shapes, strict=True))
    ]

    def given(value: Any) -> Any:
        return inputs[value["$in"]] if isinstance(value, dict) else value

    function = getattr(tf.losses, case["fn"].rpartition(".")[2])
    return inputs, function(*map(given, case["args"]), **{k: given(v) for k, v in case["kwargs"].items()})


@pytest.mark.parametrize("mode", ["full", "unknown_rank"])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: dict[str, Any], mode: str) -> None:
    with np.load(GOLDEN / "ops" / "losses.npz") as arrays, tf.Graph().as_default(), tf.Session() as session:
        inputs, loss = build(case, mode)
        if mode == "full":
            assert loss.name == case["outputs"][0]["tensor_name"]
        feeds = {x: arrays[entry["key"]] for x, entry in zip(inputs, case["inputs"], strict=True)}
        assert session.run(loss, feeds) == pytest.approx(arrays[case["outputs"][0]["key"]], rel=1e-5, abs=1e-6)
        wanted = case["grads"]["dx"]
        found = tf.gradients(loss, [inputs[int(i)] for i in wanted], arrays[case["grads"]["dy"]["0"]])
        for gradient, entry in zip(found, wanted.values(), strict=True):
            if entry is None:
                assert gradient is None
            else:
                assert session.run(gradient, feeds) == pytest.approx(arrays[entry["key"]], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("mode", INDEX["static_shape_modes"])
@pytest.mark.parametrize("case", CASES)
def test_static_shapes(case: dict[str, Any], mode: str) -> None:
    with tf.Graph().as_default():
        shape = build(case, mode)[1].shape
        assert (None if shape.rank is None else shape.as_list()) == case["static_shapes"][mode][0]


def test_collected_losses() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(tf.losses.get_regularization_loss()) == 0.0
        with tf.variable_scope("a"):
            first = tf.losses.mean_squared_error([1.0, 2.0], [1.0, 4.0])
        tf.losses.absolute_difference([1.0], [4.0], loss_collection=None)
        tf.losses.add_loss(tf.constant(5.0))
        tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, tf.constant(0.5))
        assert tf.losses.get_losses("a") == [first]
        assert session.run(tf.losses.get_total_loss()) == 2.0 + 5.0 + 0.5
        assert session.run(tf.losses.get_total_loss(add_regularization_losses=False)) == 2.0 + 5.0


@pytest.mark.parametrize(
    "weights, fits",
    [(np.float32(2), True), (np.ones((3, 1)), True), (np.ones((3, 2)), True), (np.ones((1, 2)), True),
     (np.ones(2), False), (np.ones((2, 1)), False), (np.ones((3, 2, 1)), False), (np.ones((3, 3)), False)],
)  # fmt: skip
def test_weights_must_fit(weights: Any, fits: bool) -> None:
    weights, values = np.asarray(weights, np.float32), np.ones((3, 2), np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        fed = tf.placeholder(tf.float32)
        loss = tf.losses.compute_weighted_loss(values, fed, reduction=tf.losses.Reduction.SUM)
        if fits:
            tf.losses.compute_weighted_loss(values, weights)
            assert session.run(loss, {fed: weights}) == (values * weights).sum()
            return
        with pytest.raises(ValueError, match="Weights must be"):
            tf.losses.compute_weighted_loss(values, weights)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Weights must be"):
            session.run(loss, {fed: weights})


def test_what_is_refused() -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="'most'"):
        tf.losses.compute_weighted_loss([1.0], reduction="most")
    with tf.Graph().as_default(), pytest.raises(ValueError, match="same shape"):
        tf.losses.mean_squared_error(tf.zeros([2]), tf.zeros([3]))
    with tf.Graph().as_default(), pytest.raises(ValueError, match="axis"):
        tf.losses.cosine_distance([1.0], [1.0])
