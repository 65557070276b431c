"""Transformations of Optax as optimizers give what they give in plain JAX."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from loopback import free_addresses

import penstock
import penstock.v1 as tf

START = {"a": np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3), "b": np.array([0.5, -2.0], np.float32)}
TRANSFORMATIONS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(0.1),
    "adamw": lambda: optax.adamw(0.1, weight_decay=0.3),
    "schedule": lambda: optax.adam(optax.cosine_decay_schedule(0.3, 4)),
    "lamb": lambda: optax.lamb(0.1),
    "lion": lambda: optax.lion(0.1),
    "adafactor": lambda: optax.adafactor(0.1, min_dim_size_to_factor=2),
    "global_norm": lambda: optax.chain(optax.clip_by_global_norm(0.2), optax.adam(0.1)),
    "if_finite": lambda: optax.apply_if_finite(optax.sgd(0.1), 3),
    "accumulated": lambda: optax.MultiSteps(optax.adam(0.1), every_k_schedule=2),
    "by_name": lambda: optax.masked(optax.adam(0.1), lambda params: {name: name == "a" for name in params}),
    "by_mask": lambda: optax.masked(optax.adam(0.1), {"a": False, "b": True}),
    "labels": lambda: optax.multi_transform({"x": optax.sgd(0.1), "y": optax.adam(0.3)}, {"a": "x", "b": "y"}),
    "starts_at_parameters": lambda: optax.contrib.schedule_free_sgd(0.1),
    "noise": lambda: optax.chain(optax.add_noise(0.1, 0.5, 7), optax.sgd(0.1)),
}
ONE_UPDATE = {"global_norm", "if_finite", "by_mask", "labels", "noise"}


def loss_of(params: Any, to: float) -> Any:
    return ((params["a"] - to) ** 2).sum() + ((params["b"] * 0.5 + 1.0) ** 2).sum()


def transforms() -> list[Any]:
    """The nodes that run the transformation."""
    return [op for op in tf.get_default_graph().get_operations() if op.type == "JaxCall" and "transform" in op.name]


def in_jax(transformation: Any, steps: int) -> list[dict[str, Any]]:
    """The variables after each step."""
    found = []
    with jax.enable_x64(False):
        params = jax.tree.map(jnp.asarray, START)
        state = transformation.init(params)
        for number in range(steps):
            grads = jax.grad(loss_of)(params, float(number))
            updates, state = transformation.update(grads, state, params)
            params = optax.apply_updates(params, updates)
            found.append(jax.tree.map(np.asarray, params))
    return found


@pytest.mark.parametrize(
    ("name", "use_resource"), [*((name, True) for name in TRANSFORMATIONS), ("adam", False), ("global_norm", False)]
)
def test_trajectories(name: str, use_resource: bool) -> None:
    with tf.Graph().as_default(), tf.Session() as sess:
        variables = {key: tf.get_variable(key, initializer=v, use_resource=use_resource) for key, v in START.items()}
        to = tf.placeholder(tf.float32, [])
        loss = tf.reduce_sum((variables["a"] - to) ** 2) + tf.reduce_sum((variables["b"] * 0.5 + 1.0) ** 2)
        optimizer = penstock.from_optax(TRANSFORMATIONS[name]())
        train = optimizer.minimize(loss)
        sess.run(tf.global_variables_initializer())
        for number, expected in enumerate(in_jax(TRANSFORMATIONS[name](), 6)):
            sess.run(train, {to: number})
            for key, found in sess.run(variables).items():
                np.testing.assert_allclose(found, expected[key], rtol=2e-5, atol=2e-6)
        calls = [
            op for op in tf.get_default_graph().get_operations() if op.type == "JaxCall" and "transform" in op.name
        ]
        assert len(calls) == (1 if name in ONE_UPDATE else 2)


def test_gradients_of_rows_and_none() -> None:
    with tf.Graph().as_default(), tf.Session() as sess:
        table, other = tf.get_variable("table", initializer=tf.ones([4, 2])), tf.get_variable("other", [3])
        loss = tf.reduce_sum(tf.gather(table, [1, 3, 1]))
        train = penstock.from_optax(optax.sgd(0.5)).minimize(loss, var_list=[table, other])
        sess.run(tf.global_variables_initializer())
        sess.run(train)
        assert sess.run(table)[:, 0].tolist() == [1.0, 0.0, 1.0, 0.5]


def test_the_state_is_kept_beside_the_variables_and_saved(tmp_path: Any) -> None:
    def program() -> tuple[Any, Any]:
        with tf.device("/job:ps/task:1"):
            weight = tf.get_variable("weight", initializer=tf.constant(2.0))
        optimizer = penstock.from_optax(optax.adam(0.1))
        train = optimizer.minimize(weight * weight)
        slots = [optimizer.get_slot(weight, name) for name in optimizer.get_slot_names()]
        assert [slot.op.name for slot in slots] == ["weight/Optax/0_count", "weight/Optax/0_mu", "weight/Optax/0_nu"]
        assert {slot.device for slot in slots} == {"/job:ps/task:1"}
        (call,) = [
            op for op in tf.get_default_graph().get_operations() if op.type == "JaxCall" and "init" not in op.name
        ]
        assert call.device == "/job:ps/task:1"
        return weight, train

    addresses = free_addresses(3)
    cluster = {"ps": addresses[:2], "worker": addresses[2:]}
    tasks = [("ps", 0), ("ps", 1), ("worker", 0)]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(tf.train.Server(cluster, job_name=j, task_index=i)) for j, i in tasks]
        found = []
        for first in (True, False):
            with tf.Graph().as_default():
                weight, train = program()
                saver = tf.train.Saver()
                with tf.Session(servers[2].target) as sess:
                    if first:
                        sess.run(tf.global_variables_initializer())
                    else:
                        saver.restore(sess, str(tmp_path / "kept-3"))
                    for number in range(6):
                        if number == 3 and first:
                            saver.save(sess, str(tmp_path / "kept"), 3)
                        if first or number >= 3:
                            sess.run(train)
                    found.append(sess.run(weight))
    assert found[0] == found[1]
    state = optax.adam(0.1)
    expected, kept = jnp.float32(2.0), state.init(jnp.float32(2.0))
    for _ in range(6):
        update, kept = state.update(2 * expected, kept, expected)
        expected += update
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)


def test_what_is_no_transformation_is_refused() -> None:
    with pytest.raises(TypeError, match="with `init` and `update`, received <function sgd"):
        penstock.from_optax(optax.sgd)
