"""Gradients of every differentiable op type against differences of its values. New op types are included automatically.

The derivative along a random direction is compared with that direction times the gradient, in float64 if the op
supports it. `gradient_cases` has what an op needs beyond its declaration.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from gradient_cases import BUILT, CASES, EXCUSED, R

import penstock.v1 as tf
from penstock.graph.function import Function
from penstock.graph.opdef import ArgDef, OpDef, all_ops
from penstock.ops.array.passthrough import refuse_gradient
from penstock.ops.engine.vjp import differentiable


def _may_differ(op: OpDef, args: tuple[ArgDef, ...]) -> bool:
    """True if one of `args` can have a type with derivatives."""
    types = [[arg.type] if arg.type else op.attrs[arg.type_attr or arg.type_list_attr].allowed for arg in args]
    return any(not allowed or any(differentiable(t) for t in allowed if t) for allowed in types)


def is_differentiable(op: OpDef) -> bool:
    """True if `tf.gradients` can differentiate a node of this type, by a rule or by jax."""
    declared_here = op.kernel.__module__.startswith("penstock.")  # declared by the library, not by a test
    if not declared_here or not (_may_differ(op, op.inputs) and _may_differ(op, op.outputs)):
        return False
    if op.grad is not None:
        return op.grad is not refuse_gradient
    return not (op.no_gradient or op.random or op.writes or op.host or op.control_flow)


OPS = sorted(op.name for op in all_ops() if is_differentiable(op))


class _Inputs:
    """Values for the inputs of one node, and placeholders for those to differentiate by."""

    def __init__(self, op: OpDef) -> None:
        self.case = CASES.get(op.name, {})
        self.rng = np.random.default_rng(zlib.crc32(op.name.encode()))
        self.types = {a.name: self._type(op, a) for a in op.attrs.values() if a.kind == "type"}
        self.feeds: dict[Any, np.ndarray] = {}
        self.moving: list[Any] = []
        self.arguments = {arg.name: self._argument(arg) for arg in op.inputs}

    def _type(self, op: OpDef, attr: Any) -> Any:
        if attr.name in self.case:
            return self.case[attr.name]
        for dtype in (tf.float64, tf.float32, tf.complex128, tf.complex64, tf.int32, tf.int64):
            if not attr.allowed or dtype in attr.allowed:
                return dtype
        pytest.fail(f"{op.name}: no type for the attr {attr.name}")

    def _argument(self, arg: ArgDef) -> Any:
        dtype = arg.type or self.types.get(arg.type_attr)
        if arg.is_list:
            given = self.case.get(arg.name, [R(), R()])
            return [self._value(arg, v, dtype or tf.float64) for v in given]
        return self._value(arg, self.case.get(arg.name, R()), dtype)

    def _value(self, arg: ArgDef, given: Any, dtype: Any) -> Any:
        if not isinstance(given, R):
            own = tf.as_dtype(np.asarray(given).dtype)
            return tf.constant(given, dtype if dtype is not None and dtype.is_floating and own.is_floating else None)
        if dtype is None or not (dtype.is_floating or dtype.is_complex):
            pytest.fail(f"the input '{arg.name}' is not a float: say in gradient_cases.CASES what it is")
        value = self._random(given)
        if dtype.is_complex:
            value = value + 1j * self._random(given)
        tensor = tf.placeholder(dtype, value.shape)
        self.feeds[tensor] = value.astype(dtype.as_numpy_dtype)
        if arg.name in self.case.get("_wrt", [arg.name]):
            self.moving.append(tensor)
        return tensor

    def _random(self, given: R) -> np.ndarray:
        count = int(np.prod(given.shape))
        # Evenly spread and shuffled: no ties, which have no derivative.
        spread = (given.high - given.low) / (count + 1)
        values = np.linspace(given.low, given.high, count + 2)[1:-1] + spread * self.rng.uniform(0, 0.4)
        self.rng.shuffle(values)
        values = values.reshape(given.shape)
        return values if given.make is None else given.make(values)


def _outputs_of(op: OpDef) -> tuple[list[Any], _Inputs]:
    inputs = _Inputs(op)
    inferred = {a for arg in op.inputs for a in (arg.type_attr, arg.type_list_attr, arg.number_attr)}
    attrs = {n: v for n, v in inputs.case.items() if n in op.attrs and n not in inferred}
    result = getattr(tf.raw_ops, op.name)(**inputs.arguments, **attrs)
    flat = list(result) if isinstance(result, (tuple, list)) else [result]
    flat = [t for item in flat for t in (item if isinstance(item, (tuple, list)) else [item])]
    return [flat[i] for i in inputs.case["_outputs"]] if "_outputs" in inputs.case else flat, inputs


def _built(name: str) -> tuple[list[Any], _Inputs]:
    inputs = _Inputs(OpDef(name, (), (), {}, lambda: None))
    x = inputs._value(ArgDef("x"), R(), tf.float64)
    return [BUILT[name](x)], inputs


def _loss(outputs: list[Any], rng: np.random.Generator) -> Any:
    """A weighted sum of all outputs: a real number."""
    terms = []
    for tensor in outputs:
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            continue
        weights = tf.constant(rng.uniform(0.5, 1.5, 64))
        flat = tf.reshape(tensor, [-1])
        if tensor.dtype.is_complex:
            flat = tf.concat([tf.real(flat), 2.0 * tf.imag(flat)], 0)
        flat = tf.cast(flat, tf.float64)
        repeated = tf.tile(weights, [tf.size(flat) // 64 + 1])[: tf.size(flat)]
        terms.append(tf.reduce_sum(flat * repeated))
    return tf.add_n(terms)


def _types_in(graph: Any) -> set[str]:
    """The op types of the nodes of a graph and of the bodies that they hold."""
    bodies = [v.graph for op in graph.get_operations() for v in op.attrs.values() if isinstance(v, Function)]
    return {op.type for op in graph.get_operations()}.union(*map(_types_in, bodies))


@pytest.mark.parametrize("name", OPS)
def test_gradient_is_the_derivative(name: str) -> None:
    if name in EXCUSED:
        pytest.skip(EXCUSED[name])
    op = next(op for op in all_ops() if op.name == name)
    with tf.Graph().as_default() as graph, tf.Session() as session:
        outputs, inputs = _built(name) if name in BUILT else _outputs_of(op)
        assert name in _types_in(graph)
        loss = _loss(outputs, inputs.rng)
        grads = [None if g is None else tf.convert_to_tensor(g) for g in tf.gradients(loss, inputs.moving)]
        present = [g for g in grads if g is not None]
        _, *values = session.run([loss, *present], inputs.feeds)
        found = iter(values)
        gradient = [np.zeros(1) if g is None else next(found) for g in grads]
        single = any(t.dtype in (tf.float32, tf.complex64) for node in graph.get_operations() for t in node.outputs)
        step, tolerance = (1e-2, 1e-2) if single else (1e-5, 1e-6)
        step = inputs.case.get("_step", step)
        for _ in range(2):
            along = [_direction(t, inputs) for t in inputs.moving]
            ends = []
            for sign in (1, -1):
                moved = dict(inputs.feeds)
                for tensor, d in zip(inputs.moving, along, strict=True):
                    moved[tensor] = (moved[tensor] + sign * step * d).astype(d.dtype)
                ends.append(session.run([loss, *present], moved)[0])
            expected = (ends[0] - ends[1]) / (2 * step)
            actual = sum(float(np.sum(np.conj(g) * d).real) for g, d in zip(gradient, along, strict=True))
            scale = sum(float(np.sum(np.abs(g) * np.abs(d))) for g, d in zip(gradient, along, strict=True))
            limit = inputs.case.get("_tolerance", tolerance) * max(1.0, scale)
            assert abs(actual - expected) <= limit, f"the gradient gives {actual}, differences {expected}"


def _direction(tensor: Any, inputs: _Inputs) -> np.ndarray:
    value = inputs.feeds[tensor]
    direction = inputs.rng.uniform(-1, 1, value.shape)
    if tensor.dtype.is_complex:
        direction = direction + 1j * inputs.rng.uniform(-1, 1, value.shape)
    if inputs.case.get("_symmetric"):
        direction = direction + np.swapaxes(direction, -1, -2)
    return np.asarray(direction, value.dtype)


def test_the_tables_name_ops_that_are_there() -> None:
    names = {op.name for op in all_ops()}
    assert sorted({*CASES, *BUILT, *EXCUSED} - names) == []
    assert not (set(CASES) | set(BUILT)) & set(EXCUSED)
