"""Models and their gradients, padded: the loss and each gradient are those of the exact size."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from padding_cases import check

F = "float32"


def cross_entropy(logits: Any, labels: Any) -> Any:
    return jnp.mean(-jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))


def test_mlp() -> None:
    def loss(first: Any, bias: Any, second: Any, x: Any, labels: Any) -> Any:
        hidden = jax.nn.relu(x @ first + bias)
        return cross_entropy(hidden @ second, labels)

    arguments = ("4, 5", F), ("5", F), ("5, 4", F), ("b, 4", F), ("b", "int32")
    check(jax.value_and_grad(loss, (0, 1, 2)), *arguments)


def test_scan_over_symbolic_time() -> None:
    def loss(x: Any, weights: Any, recurrent: Any) -> Any:
        def cell(state: Any, row: Any) -> Any:
            h, c = state
            i, f, o, g = jnp.split(row @ weights + h @ recurrent, 4, 1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], 3))
        _, outputs = lax.scan(cell, (zeros, zeros), x)
        return jnp.mean(outputs**2)

    check(jax.value_and_grad(loss, (0, 1, 2)), ("t, b, 2", F), ("2, 12", F), ("3, 12", F))


def test_while_loop_over_symbolic_time() -> None:
    def last_state(x: Any, weights: Any) -> Any:
        def body(state: Any) -> Any:
            i, h, seen = state
            h = jnp.tanh(x[i] + h @ weights)
            return i + 1, h, lax.dynamic_update_index_in_dim(seen, h, i, 0)

        start = (0, jnp.zeros((x.shape[1], 3)), jnp.zeros(x.shape))
        return lax.while_loop(lambda state: state[0] < x.shape[0], body, start)

    check(last_state, ("t, b, 3", F), ("3, 3", F))


def conv(x: Any, w: Any, padding: str = "VALID") -> Any:
    return lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def max_pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def test_conv_net_with_symbolic_batch() -> None:
    def loss(first: Any, second: Any, x: Any, labels: Any) -> Any:
        y = max_pool(jax.nn.relu(conv(x, first, padding="SAME")))
        return cross_entropy(y.reshape(y.shape[0], -1) @ second, labels)

    arguments = ("3, 3, 2, 3", F), ("27, 4", F), ("b, 6, 6, 2", F), ("b", "int32")
    check(jax.value_and_grad(loss, (0, 1, 2)), *arguments, rtol=1e-4)


@pytest.mark.long
def test_conv_net_with_symbolic_image() -> None:
    def loss(first: Any, second: Any, x: Any) -> Any:
        y = max_pool(jax.nn.relu(conv(x, first, padding="SAME")))
        y = conv(y, second)
        return jnp.mean(y**2)

    bounds = {"b": 3, "h": 9, "w": 8}
    sizes = [bounds, {"b": 1, "h": 6, "w": 6}, {"b": 2, "h": 8, "w": 7}, {"b": 1, "h": 7, "w": 8}]
    arguments = ("3, 3, 2, 3", F), ("3, 2, 3, 2", F), ("b, h, w, 2", F)
    constraints = ["h >= 6", "w >= 6"]
    step = jax.value_and_grad(loss, (0, 1, 2))
    check(step, *arguments, bounds=bounds, sizes=sizes, constraints=constraints, rtol=1e-4)


def test_embedding_with_segment_sums() -> None:
    def loss(table: Any, words: Any, segments: Any, weights: Any) -> Any:
        rows = table[words] * weights[:, None]
        return jnp.mean(jax.ops.segment_sum(rows, segments, 4) ** 2)

    arguments = ("4, 3", F), ("b", "int32"), ("b", "int32"), ("b", F)
    check(jax.value_and_grad(loss, (0, 3)), *arguments)


def test_attention() -> None:
    def loss(x: Any, query: Any, key: Any, value: Any) -> Any:
        q, k, v = x @ query, x @ key, x @ value
        scores = jnp.einsum("bik,bjk->bij", q, k) / 2
        causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9))
        return jnp.mean((weights @ v) ** 2)

    check(jax.value_and_grad(loss, (0, 1, 2, 3)), ("b, t, 4", F), ("4, 4", F), ("4, 4", F), ("4, 4", F))


def test_batch_normalization() -> None:
    def loss(x: Any, scale: Any) -> Any:
        y = (x - jnp.mean(x, (0, 1))) * lax.rsqrt(jnp.var(x, (0, 1)) + 1e-3) * scale
        return jnp.sum(jnp.sin(y))

    check(jax.value_and_grad(loss, (0, 1)), ("b, t, 3", F), ("3", F), rtol=2e-4)


def test_dropout_draws_the_same_numbers() -> None:
    def dropped(x: Any, seed: Any) -> Any:
        keep = jax.random.bernoulli(jax.random.key(seed[0]), 0.5, x.shape)
        return jnp.where(keep, x, 0), jax.random.normal(jax.random.key(seed[1]), x.shape[::-1])

    check(dropped, ("b, t", F), ("2", "int32"))


@pytest.mark.long
def test_philox_draws_the_same_numbers() -> None:
    philox = lax.RandomAlgorithm.RNG_PHILOX

    def bits(x: Any, key: Any) -> Any:
        _, words = lax.rng_bit_generator(key, x.shape, np.uint32, algorithm=philox)
        return words

    def halves_of_long_words(x: Any, key: Any) -> Any:
        _, words = lax.rng_bit_generator(key, ((x.size + 1) // 2,), np.uint64, algorithm=philox)
        halves = jnp.concatenate([words.astype(np.uint32), (words >> np.uint64(32)).astype(np.uint32)])
        return halves[: x.size].reshape(x.shape)

    check(bits, ("b, 3", F), ("4", "uint32"))
    check(halves_of_long_words, ("b, t, 3", F), ("4", "uint32"))
