"""Whole programs: merging, memory, writes in place and refusals; models and their gradients."""

from __future__ import annotations

import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jaxpr_agreement import by_jax, check, check_same, program, spec

from penstock.jaxprs.errors import NoRule
from penstock.jaxprs.flat import FlatJaxpr
from penstock.jaxprs.numpy_block import Block


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)


def test_no_rule_for_a_callback() -> None:
    def function(x: Any) -> Any:
        jax.debug.callback(lambda y: None, x)
        return x + 1

    with pytest.raises(NoRule, match="debug_callback"):
        program(function, spec(normal(2)))


def test_no_rule_in_a_loop_body_shows_before_the_first_call() -> None:
    def body(i: Any, x: Any) -> Any:
        return jax.pure_callback(np.sin, x, x)

    with pytest.raises(NoRule, match="pure_callback") as caught:
        program(lambda x: lax.fori_loop(0, 3, body, x), spec(normal(2)))
    assert caught.value.primitive == "pure_callback"


def test_no_rule_for_random_keys() -> None:
    with pytest.raises(NoRule):
        program(lambda x: jax.random.normal(jax.random.key(0), (3,)) + x, spec(normal(3)))


def test_the_branch_for_the_cpu_is_taken() -> None:
    check(lambda x: lax.platform_dependent(x, tpu=jnp.sin, cpu=jnp.cos, default=jnp.tan), normal(3))
    check(lambda x: lax.platform_dependent(x, tpu=jnp.sin, default=jnp.tan), normal(3))
    check(lambda x: jnp.searchsorted(jnp.sort(x), x, method="sort"), normal(5))


def test_equal_equations_are_merged_and_unused_ones_removed() -> None:
    def function(x: Any) -> Any:
        unused = jnp.tanh(x)
        return jnp.sin(x) + jax.jit(jnp.sin)(x), (unused,)[:0]

    nodes = FlatJaxpr(jax.make_jaxpr(function)(1.0)).nodes
    assert [node.primitive for node in nodes] == ["sin", "add"]


def test_results_are_arrays_of_their_own_or_arguments() -> None:
    constant = np.arange(3.0)

    def function(x: Any, y: Any) -> Any:
        double = x * 2
        return x, y, x.T, double, double, double.T, jnp.broadcast_to(y, (2, 3)), constant, jnp.zeros(3), y[:2], 3.0

    made = check(function, normal(2, 3), normal(3))
    x, y = normal(2, 3), normal(3)
    results = made([x, y])
    assert results[0] is x and results[1] is y
    for position, result in enumerate(results[2:], 2):
        assert result.flags.writeable
        for other in [x, y, constant, *results[:position]]:
            assert not np.shares_memory(result, other)
    results[7][:] = results[8][:] = 99
    check_same(made([x, y]), by_jax(function, x, y))


def test_constants_of_a_loop_stay_as_they_are() -> None:
    start = np.zeros((3, 2), np.float32)

    def function(x: Any) -> Any:
        def body(i: Any, carry: Any) -> Any:
            memory, other = carry
            return memory.at[i].set(x * i), other + memory

        return lax.fori_loop(0, 3, body, (jnp.asarray(start), jnp.asarray(start)))

    made = check(function, normal(2))
    check_same(made([normal(2)]), by_jax(function, normal(2)))


def test_carried_values_that_change_places() -> None:
    def function(x: Any, y: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, a, b, c = carry
            return i + 1, b, a.at[i].add(1.0), jnp.sin(c) + a

        return lax.while_loop(lambda carry: carry[0] < n, body, (0, x, y, x))

    for count in (0, 1, 2, 5):
        check(function, normal(3, 2), normal(3, 2, seed=1), np.asarray(count))


def test_carried_values_that_are_views() -> None:
    def function(x: Any, y: Any, n: Any) -> Any:
        def body(carry: Any) -> Any:
            i, a, b, c = carry
            a, b, c = jnp.exp(a * y), jnp.exp(b * y), jnp.exp(c * y)
            return i + 1, jnp.broadcast_to(a[:1], a.shape), b.T, jnp.concatenate([c, c])[1:4]

        return lax.while_loop(lambda carry: carry[0] < n, body, (0, x, x, x))

    for count in (0, 1, 4):
        check(function, normal(3, 3), normal(3, 3, seed=1) / 9, np.asarray(count))


def test_in_place_work_leaves_views_alone() -> None:
    def function(x: Any) -> Any:
        a = x * 2
        turned = a.T
        rows = a.reshape(-1)
        b = jnp.exp(a)
        c = rows + 1
        return turned + b.T, c * 2, jnp.cumsum(b, 0), jnp.sin(b) + jnp.broadcast_to(b[:1], b.shape)

    check(function, normal(3, 4))


def test_no_warnings_and_no_compilation() -> None:
    import logging

    made = program(lambda x: jnp.log(x) / 0 + jnp.exp(x * 1000), spec(normal(4)))
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("jax")
    logger.addHandler(handler)
    try:
        with jax.log_compiles():
            made([normal(4)])
    finally:
        logger.removeHandler(handler)
    assert messages == []


def with_row(x: np.ndarray, y: np.ndarray, combine: Any) -> np.ndarray:
    x = x.copy()
    x[1] = combine(x[1], y[0])
    return x


# Operations on two matrices of (4, 4), in jax and in plain NumPy.
OPERATIONS: list[tuple[Any, Any]] = [
    (lambda x, y: jnp.sin(x), lambda x, y: np.sin(x)),
    (lambda x, y: -x, lambda x, y: -x),
    (lambda x, y: x + y, lambda x, y: x + y),
    (lambda x, y: x * y, lambda x, y: x * y),
    (lambda x, y: x - y[0], lambda x, y: x - y[0]),
    (lambda x, y: y[:, :1] - x, lambda x, y: y[:, :1] - x),
    (lambda x, y: x.T, lambda x, y: x.T),
    (lambda x, y: x @ y, lambda x, y: x @ y),
    (lambda x, y: jnp.sin(x.reshape(2, 8)).reshape(4, 4), lambda x, y: np.sin(x)),
    (lambda x, y: x.reshape(16)[::-1].reshape(4, 4), lambda x, y: x.reshape(16)[::-1].reshape(4, 4)),
    (lambda x, y: jnp.concatenate([x[1:], y[:1]]), lambda x, y: np.concatenate([x[1:], y[:1]])),
    (lambda x, y: jnp.broadcast_to(x[2:3], (4, 4)), lambda x, y: np.broadcast_to(x[2:3], (4, 4))),
    (lambda x, y: lax.dynamic_update_slice(x, y[:1], (1, 0)), lambda x, y: with_row(x, y, lambda a, b: b)),
    (lambda x, y: x.at[1].add(y[0]), lambda x, y: with_row(x, y, np.add)),
    (lambda x, y: lax.cond(jnp.sum(y) > 0, lambda x: x, jnp.cos, x), lambda x, y: x if y.sum() > 0 else np.cos(x)),
    (
        lambda x, y: lax.fori_loop(0, 3, lambda i, s: jnp.cos(s) + y, x),
        lambda x, y: np.cos(np.cos(np.cos(x) + y) + y) + y,
    ),
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12),
    st.lists(st.integers(0, 13), min_size=1, max_size=4),
)
def test_any_program_writes_only_into_what_nobody_needs(nodes: Any, outputs: list[int]) -> None:
    """Operands are numbered from the last value back, so that many values are used once, as temporaries are."""

    def run(which: int, values: list[Any]) -> list[Any]:
        for operation, *back in nodes:
            x, y = (values[-1 - min(step, len(values) - 1)] for step in back)
            values.append(operation[which](x, y))
        return [values[min(output, len(values) - 1)] for output in outputs]

    arguments = [np.random.RandomState(seed).randn(4, 4) for seed in range(2)]
    before = [argument.copy() for argument in arguments]
    made = program(lambda *values: run(0, list(values)), *map(spec, arguments))
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = run(1, list(before))
    for _ in range(2):
        check_same(made(arguments), wanted, tolerance=1e-9)
    for argument, same in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(argument, same)


def test_threads_share_a_program() -> None:
    (rows,) = jax.export.symbolic_shape("rows")
    made = program(lambda x: jnp.cumsum(jnp.sin(x) * 2, 0), jax.ShapeDtypeStruct((rows, 3), np.float32))
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for size in range(40):
                x = normal(size, 3, seed=seed)
                np.testing.assert_allclose(made([x])[0], np.cumsum(np.sin(x) * 2, 0), rtol=1e-6, atol=1e-6)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def loss(weights: Any, x: Any, y: Any) -> Any:
    w1, b1, w2, b2 = weights
    hidden = jax.nn.relu(x @ w1 + b1)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(hidden @ w2 + b2), y[:, None], 1)
    return -jnp.mean(chosen)


def test_gradients_of_a_network_of_any_batch_size() -> None:
    weights = [normal(7, 5), normal(5), normal(5, 3, seed=1), normal(3)]
    (batch,) = jax.export.symbolic_shape("batch")
    made = program(
        jax.value_and_grad(loss),
        [spec(w) for w in weights],
        jax.ShapeDtypeStruct((batch, 7), np.float32),
        jax.ShapeDtypeStruct((batch,), np.int32),
    )
    for size in (1, 2, 5, 2):
        x, y = normal(size, 7), np.arange(size, dtype=np.int32) % 3
        wanted = by_jax(jax.value_and_grad(loss), weights, x, y)
        check_same(made([*weights, x, y]), wanted)


def lstm_by_scan(weights: Any, inputs: Any, state: Any) -> Any:
    def cell(carry: Any, x: Any) -> Any:
        h, c = carry
        i, f, o, g = jnp.split(jnp.concatenate([x, h], 1) @ weights, 4, axis=1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    (h, _), series = lax.scan(cell, (state, state), inputs)
    return jnp.sum(h) + jnp.sum(series**2)


def test_gradients_of_an_lstm_by_scan_of_any_length() -> None:
    weights, state = normal(7, 16) * 0.3, normal(2, 4)
    (length,) = jax.export.symbolic_shape("length")
    gradient = jax.value_and_grad(lstm_by_scan, argnums=(0, 1, 2))
    made = program(gradient, spec(weights), jax.ShapeDtypeStruct((length, 2, 3), np.float32), spec(state))
    for size in (1, 4):
        inputs = normal(size, 2, 3)
        check_same(made([weights, inputs, state]), by_jax(gradient, weights, inputs, state))


def lstm_cell(weights: Any, x: Any, h: Any, c: Any) -> Any:
    i, f, o, g = jnp.split(jnp.concatenate([x, h], 1) @ weights, 4, axis=1)
    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


@jax.custom_vjp
def lstm_by_while(weights: Any, inputs: Any, h: Any, c: Any) -> Any:
    return lstm_forward(weights, inputs, h, c)[0]


def lstm_forward(weights: Any, inputs: Any, h: Any, c: Any) -> Any:
    """Remembers the states of all iterations, a row for each."""

    def body(carry: Any) -> Any:
        i, h, c, hs, cs = carry
        hs, cs = (lax.dynamic_update_index_in_dim(rows, row, i, 0) for rows, row in ((hs, h), (cs, c)))
        return i + 1, *lstm_cell(weights, inputs[i], h, c), hs, cs

    length = inputs.shape[0]
    rows = jnp.zeros((length, *h.shape), h.dtype)
    _, h, c, hs, cs = lax.while_loop(lambda carry: carry[0] < length, body, (0, h, c, rows, rows))
    return (h, c), (weights, inputs, hs, cs)


def lstm_backward(kept: Any, gradients: Any) -> Any:
    weights, inputs, hs, cs = kept

    def body(carry: Any) -> Any:
        i, of_h, of_c, of_weights, of_inputs = carry
        _, back = jax.vjp(lstm_cell, weights, inputs[i], hs[i], cs[i])
        more, of_x, of_h, of_c = back((of_h, of_c))
        return i - 1, of_h, of_c, of_weights + more, of_inputs.at[i].set(of_x)

    start = (inputs.shape[0] - 1, *gradients, jnp.zeros_like(weights), jnp.zeros_like(inputs))
    _, of_h, of_c, of_weights, of_inputs = lax.while_loop(lambda carry: carry[0] >= 0, body, start)
    return of_weights, of_inputs, of_h, of_c


lstm_by_while.defvjp(lstm_forward, lstm_backward)


def test_gradients_of_an_lstm_by_while_of_any_length() -> None:
    def loss(*arguments: Any) -> Any:
        h, c = lstm_by_while(*arguments)
        return jnp.sum(jnp.sin(h) * c)

    gradient = jax.value_and_grad(loss, argnums=(0, 1, 2, 3))
    (length,) = jax.export.symbolic_shape("length")
    weights, h, c = normal(7, 16) * 0.3, normal(2, 4), normal(2, 4, seed=1)
    made = program(gradient, spec(weights), jax.ShapeDtypeStruct((length, 2, 3), np.float32), spec(h), spec(c))
    for size in (1, 5):
        arguments = [weights, normal(size, 2, 3), h, c]
        check_same(made(arguments), by_jax(gradient, *arguments))


def test_the_memory_of_a_loop_is_written_in_place() -> None:
    """Otherwise each iteration would copy all rows."""
    rows, x = np.zeros((5, 3), np.float32), normal(3)

    def function(rows: Any, x: Any) -> Any:
        return lax.fori_loop(0, 5, lambda i, rows: rows.at[i].set(x * i), rows)

    block = Block(jax.jit(function).trace(rows, x).jaxpr)
    loop = next(entry.node for entry in block._entries if entry.node.primitive in ("while", "scan"))
    assert loop.blocks["written"] == [position for position, value in enumerate(loop.outputs) if value.shape == (5, 3)]
