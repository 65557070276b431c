"""Optimizers of tf.contrib.opt make the same steps as TensorFlow's, under the same names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden_programs import GOLDEN, load

import penstock.v1 as tf

_INDEX = load("contrib_optimizers/index.json")
_DATA = np.load(GOLDEN / "contrib_optimizers/trajectories.npz")
_COMMON = np.load(GOLDEN / "optimizers/trajectories.npz")

# In these rows the excess of a row over the limit is taken off as often as its index occurs in the gradient, so the row
# ends up shorter than the limit. That is a slip: ours clips a row once, and test_contrib_rules.py has the values.
_CLIPPED_TWICE = {
    f"variable_clipping_{rule}_{kind}" for rule in ("sgd", "momentum", "adam") for kind in ("ref", "resource")
}


def _named(name: str) -> Any:
    found: Any = tf
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


def _rule(case: dict[str, Any], step: Any, variables: dict[str, Any]) -> Any:
    kwargs = {key: step if value == "the global step" else value for key, value in case["kwargs"].items()}
    kwargs.pop("apply_gradients", None)
    if "opt" in kwargs:
        kwargs["opt"] = _named(kwargs["opt"]["optimizer"])(**kwargs["opt"]["kwargs"])
    if "sign_decay_fn" in kwargs:
        kwargs["sign_decay_fn"] = _named(kwargs["sign_decay_fn"]["fn"])(**kwargs["sign_decay_fn"]["kwargs"])
    if "vars_to_clip_dims" in kwargs:
        kwargs["vars_to_clip_dims"] = {variables[name]: dims for name, dims in kwargs["vars_to_clip_dims"].items()}
    return _named(case["optimizer"])(**kwargs)


def _build(case: dict[str, Any]) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """The values to record under the keys of the golden file, the training op and the placeholders."""
    dtype = getattr(tf, case["dtype"])
    step = tf.train.get_or_create_global_step()
    variables = {
        name: tf.Variable(tf.constant(_COMMON[f"common/{name}0"], dtype), name=name, use_resource=case["use_resource"])
        for name in ("w", "e")
    }
    fed = {
        "dense_grads": tf.placeholder(dtype, [3, 2]),
        "sparse_values": tf.placeholder(dtype, [4, 2]),
        "sparse_indices": tf.placeholder(tf.int32, [4]),
    }
    rule = _rule(case, step, variables)
    sparse = tf.IndexedSlices(fed["sparse_values"], fed["sparse_indices"], tf.constant([6, 2]))
    pairs = [(fed["dense_grads"], variables["w"]), (sparse, variables["e"])]
    more = case["kwargs"].get("apply_gradients", {})
    if "decay_var_list" in more:
        more = {"decay_var_list": [variables[name] for name in more["decay_var_list"]]}
    # AddSign and PowerSign of TensorFlow refuse sparse gradients of resource variables, by an oversight: they have a
    # rule for those of references. Ours take both; test_contrib_rules.py has the values.
    train = rule.apply_gradients(pairs[: len(case["applied_to"])], global_step=step, **more)
    assert train.name == case["train_op"] and train.type == case["train_op_type"]
    made = {v.op.name: v for v in tf.global_variables()}
    assert list(made) == [name for name, *_ in case["global_variables"]]
    if "moving_average" not in case["id"]:  # TensorFlow's does not show the slots of the optimizer that it wraps
        assert rule.get_slot_names() == case["slot_names"]
    if "default_name" in case:
        assert rule.get_name() == case["default_name"]
    recorded = {"global_step": step, **variables}
    for key in case["keys"]:
        kind, _, name = key.partition("/")
        if kind == "slot":
            of, _, slot = name.partition("/")
            recorded[key] = rule.get_slot(variables[of], slot)
            assert recorded[key].op.name == case["slot_variables"][of][slot]
        elif kind == "nonslot":
            recorded[key] = made[name]
    return recorded, train, fed


@pytest.mark.parametrize("case", _INDEX["cases"], ids=lambda case: case["id"])
def test_trajectories(case: dict[str, Any]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        recorded, train, fed = _build(case)
        session.run(tf.global_variables_initializer())
        rows = [session.run(recorded)]
        for t in range(_INDEX["steps"]):
            session.run(train, {tensor: _COMMON[f"common/{name}"][t] for name, tensor in fed.items()})
            rows.append(session.run(recorded))
    # Roots of matrices by other methods round differently.
    rtol = 1e-3 if "shampoo" in case["id"] else 1e-5
    for key, name in case["keys"].items():
        if key == "e" and case["id"] in _CLIPPED_TWICE:
            continue
        np.testing.assert_allclose([row[key] for row in rows], _DATA[name], rtol=rtol, atol=rtol / 10, err_msg=key)


@pytest.mark.parametrize("case", _INDEX["sign_decay"], ids=lambda case: f"{case['fn']}{case['kwargs']}")
def test_sign_decays(case: dict[str, Any]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.placeholder(tf.int64, [])
        value = _named(case["fn"])(**case["kwargs"])(step)
        found = [session.run(value, {step: s}) for s in case["steps"]]
    np.testing.assert_allclose(found, case["values"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", load("contrib_optimizers/swapping_saver.json")["rows"], ids=lambda row: str(row["opt"]))
def test_swapping_saver(row: dict[str, Any], tmp_path: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        w = tf.Variable(_COMMON["common/w0"], name="w", use_resource=row["use_resource"])
        grad = tf.placeholder(tf.float32, [3, 2])
        rule = tf.contrib.opt.MovingAverageOptimizer(
            _named(row["opt"]["optimizer"])(**row["opt"]["kwargs"]), average_decay=row["average_decay"]
        )
        with pytest.raises(RuntimeError, match="after apply_gradients"):
            rule.swapping_saver()
        train = rule.apply_gradients([(grad, w)], global_step=step)
        saver = rule.swapping_saver()
        state = {v.op.name: v for v in tf.global_variables()}
        session.run(tf.global_variables_initializer())
        for t in range(20):
            session.run(train, {grad: _COMMON["common/dense_grads"][t]})
        _agree(session.run(state), row["in_session"])
        path = saver.save(session, str(tmp_path / "model"))
        reader = tf.train.NewCheckpointReader(path)
        _agree({name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}, row["in_checkpoint"])
        session.run(tf.global_variables_initializer())
        saver.restore(session, path)
        _agree(session.run(state), row["after_restore"])


def _agree(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
