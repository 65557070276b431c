"""Each rule of the padded interpreter, at several sizes, with NaN, infinities and large integers in the padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from padding_cases import SIZES, check

F, I = "float32", "int32"  # noqa: E741

Case = tuple[Callable[..., Any], list[tuple[str, str]]]


def _window(x: Any, start: Any, operation: Any, size: int, stride: int, padding: Any, **dilations: Any) -> Any:
    pads = padding if isinstance(padding, str) else [(0, 0), padding, (0, 0)]
    return lax.reduce_window(x, start, operation, (1, size, 1), (1, stride, 1), pads, **dilations)


def _conv1(x: Any, w: Any, stride: int = 1, padding: Any = "VALID", **others: Any) -> Any:
    return lax.conv_general_dilated(x, w, (stride,), padding, dimension_numbers=("NHC", "HIO", "NHC"), **others)


@jax.custom_vjp
def _clipped(x: Any) -> Any:
    return jnp.sum(x * x, 0)


_clipped.defvjp(lambda x: (_clipped(x), x), lambda x, g: (jnp.clip(x * g, -1, 1) / x.shape[0],))


CASES: dict[str, Case] = {
    # Elementwise
    "elementwise": (lambda x, y: (jnp.tanh(x) * y + 1, x > y, jnp.where(x > 0, x, y)), [("b, t", F), ("b, t", F)]),
    "integers": (lambda x, y: (x // (y + 1), x % (y + 1), x << y, ~x), [("b, 3", I), ("b, 3", I)]),
    "broadcasting": (lambda x, y: x[:, None] * y[None] + x.shape[0], [("b", F), ("t", F)]),
    "clamp": (lambda x: (jnp.clip(x, -1, 1), lax.clamp(np.float32(-0.5), x, np.float32(0.5))), [("b, 3", F)]),
    "types": (lambda x: (x.astype(I), lax.bitcast_convert_type(x, np.uint8)), [("b, 3", F)]),
    "complex": (lambda x: jnp.sum(jnp.abs(lax.complex(x, x) ** 2)), [("b, 3", F)]),
    # Reductions
    "sums": (lambda x: (x.sum(), x.sum(0), x.sum(1), x.mean(0), x.var(1), jnp.mean(x)), [("b, t", F)]),
    "extremes": (lambda x: (x.max(0), x.min(1), x.prod(0), jnp.argmax(x, 0), jnp.argmin(x, 1)), [("b, t", F)]),
    "integer extremes": (lambda x: (x.max(0), x.min(1), x.sum(), jnp.argmax(x), jnp.argmin(x, 0)), [("b, t", I)]),
    "all and any": (lambda x: (jnp.all(x > 0, 0), jnp.any(x, 1), x.any()), [("b, t", F)]),
    "bitwise": (lambda x: (lax.reduce_and(x, (0,)), lax.reduce_or(x, (0,)), lax.reduce_xor(x, (0,))), [("b, 3", I)]),
    "general reduce": (lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b * 1.0, (0,)), [("b, 3", F)]),
    "softmax": (lambda x: (jax.nn.softmax(x, 0), jax.nn.logsumexp(x, (0, 1)), jax.nn.log_softmax(x)), [("b, t", F)]),
    "norm": (lambda x: (jnp.linalg.norm(x), x / jnp.linalg.norm(x, axis=0)), [("b, 3", F)]),
    # Cumulative
    "cumulative": (lambda x: (jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x, 0), lax.cummin(x)), [("b, t", F)]),
    "cumulative from the end": (
        lambda x: (
            lax.cumsum(x, 0, reverse=True),
            lax.cumprod(x, 1, reverse=True),
            lax.cummax(x, 0, reverse=True),
            lax.cummin(x, 1, reverse=True),
            lax.cumlogsumexp(x, 0, reverse=True),
        ),
        [("b, t", F)],
    ),
    "cumulative gradient": (jax.grad(lambda x: jnp.sum(jnp.cumsum(x, 0) ** 2)), [("b, 3", F)]),
    # Sorting
    "sort": (
        lambda x: (jnp.sort(x, 0), jnp.sort(x), jnp.argsort(x, 0), jnp.sort(x, 0, descending=True)),
        [("b, t", F)],
    ),
    "sort integers": (lambda x: (jnp.sort(x), jnp.argsort(x)), [("b", I)]),
    "sort several": (lambda x, y: lax.sort((x, y), num_keys=2), [("b", I), ("b", F)]),
    "top_k": (lambda x: (lax.top_k(x.T, 1), lax.top_k(x, 3)), [("b, 4", F)]),
    "top_k of all": (lambda x: lax.top_k(x, x.shape[0]), [("b", I)]),
    "median": (lambda x: jnp.sort(x, 0)[jnp.array(x.shape[0] // 2)], [("b, 3", F)]),
    # Products
    "matmul": (lambda x, y: (x @ y, x.T @ x, x @ x.T), [("b, t", F), ("t, 3", F)]),
    "batched matmul": (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), [("b, 3, t", F), ("b, t, 2", F)]),
    "contracted over two": (lambda x, y: jnp.einsum("bti,btj->ij", x, y), [("b, t, 3", F), ("b, t, 2", F)]),
    "integer matmul": (lambda x: x.T @ x, [("b, 3", I)]),
    "outer": (lambda x, y: jnp.outer(x, y), [("b", F), ("t", F)]),
    # Arranging
    "transpose": (lambda x: jnp.transpose(x, (2, 0, 1)), [("b, 3, t", F)]),
    "iota": (
        lambda x: (jnp.arange(x.shape[0]), lax.broadcasted_iota(I, x.shape, 1), jnp.eye(x.shape[0])),
        [("b, t", F)],
    ),
    "linspace": (lambda x: jnp.linspace(0.0, 1.0, 5) * jnp.full(x.shape, 2.0)[0], [("b, 5", F)]),
    "expand and squeeze": (lambda x: (x[:, None], x[None, :, :, None], jnp.squeeze(x[:, None], 1)), [("b, t", F)]),
    "stack": (lambda x, y: (jnp.stack([x, y]), jnp.stack([x, y], 1), jnp.stack([x, y], 2)), [("b, t", F)] * 2),
    "unstack": (lambda x: [row * 2 for row in x], [("3, b", F)]),
    "reverse": (lambda x: (x[::-1], jnp.flip(x, 1), lax.rev(x, (0, 1))), [("b, t", F)]),
    "concatenate": (
        lambda x, y, z: (jnp.concatenate([x, y, z]), jnp.concatenate([z, x]), jnp.concatenate([x, x])),
        [("b, 3", F), ("t, 3", F), ("2, 3", F)],
    ),
    "concatenate columns": (lambda x, y: jnp.concatenate([x, y, x], 1), [("b, 2", F), ("b, t", F)]),
    "split": (lambda x: (jnp.split(x, 3, 1), lax.split(jnp.concatenate([x, x]), (x.shape[0],) * 2)), [("b, 3", F)]),
    "tile": (lambda x: (jnp.tile(x, (2, 3)), jnp.tile(x, (3, 1)), jnp.repeat(x, 2, 0)), [("b, t", F)]),
    "roll": (lambda x: (jnp.roll(x, 1, 0), jnp.concatenate([x[-1:], x[:-1]])), [("b, 3", F)]),
    "pad": (
        lambda x: (jnp.pad(x, ((1, 2), (0, 1))), lax.pad(x, np.float32(3), ((0, 2, 1), (-1, 1, 0)))),
        [("b, 3", F)],
    ),
    "pad more": (
        lambda x: (
            lax.pad(x, np.float32(3), ((2, -1, 0), (1, 1, 2))),
            lax.pad(x, np.float32(3), ((-1, 2, 0), (0, 0, 0))),
        ),
        [("b, t", F)],
    ),
    "pad by a size": (
        lambda x, y: lax.pad(x, np.float32(0), ((y.shape[0], 1, 0), (0, y.shape[0], 0))),
        [("b, 3", F), ("t", F)],
    ),
    "pad with a mode": (lambda x: jnp.pad(x, ((0, 0), (1, 2)), mode="edge"), [("b, 3", F)]),
    "slice": (lambda x: (x[1:], x[:-1], x[::2], x[1::2], x[:, 1:3], x[-1], x[0]), [("b, 4", F)]),
    "slice from a size": (
        lambda x, y: (jnp.concatenate([y, x])[y.shape[0] :], jnp.concatenate([y, x])[: y.shape[0]]),
        [("b, 3", F), ("t, 3", F)],
    ),
    "lax.slice": (
        lambda x: (
            lax.slice(x, (0, 1), (x.shape[0], 4), (2, 2)),
            lax.slice(x, (x.shape[0] - 1, 0), x.shape),
            lax.slice(x, (0, 0), (1, 2)),
        ),
        [("b, 4", F)],
    ),
    # Reshape
    "reshape": (
        lambda x: (x.reshape(-1), x.reshape(-1, 2), x.reshape(2, -1, 2), x.reshape(x.shape[0], 2, 1, 2)),
        [("b, 4", F)],
    ),
    "reshape two symbols": (
        lambda x: (
            x.reshape(-1, 4),
            x.reshape(x.shape[0], -1),
            x.reshape(-1),
            x.reshape(2, -1),
            x.reshape(x.shape[1], 4, x.shape[0]),
            x.sum(2).reshape(-1),
        ),
        [("b, t, 4", F)],
    ),
    "reshape of a transpose": (lambda x: x.T.reshape(-1).reshape(x.shape[1], 4)[:, 0], [("4, b", F)]),
    "reshape and back": (lambda x: x.reshape(-1, 3).reshape(x.shape) - x, [("b, t, 3", F)]),
    "reshape a scalar": (lambda x: (x.sum().reshape(1, 1), x[:1].reshape(())), [("b", F)]),
    # Sizes as values
    "sizes": (lambda x: (x.shape[0] + jnp.zeros(2), jnp.array(x.size), jnp.float32(x.shape[0] // 2)), [("b, t", F)]),
    # Reading and writing by index
    "gather": (lambda x, i: (x[i], x[:, 0][i], jnp.take(x, i, axis=0, mode="clip")), [("b + 1, 3", F), ("t", I)]),
    "gather columns": (lambda x, i: (x[:, i], jnp.take(x, i, axis=1, fill_value=7.0)), [("3, b + 1", F), ("t", I)]),
    "gather from the end": (lambda x, i: (x[-1 - i], x[i - 2]), [("b + 1, 3", F), ("t", I)]),
    "gather pairs": (lambda x, i: x[i, i // 2], [("b + 1, t + 1", F), ("t", I)]),
    "gather in range": (lambda x, i: x.at[i % x.shape[0]].get(mode="promise_in_bounds"), [("b, 3", F), ("t", I)]),
    "take_along_axis": (
        lambda x, i: (jnp.take_along_axis(x, i, 1), jnp.take_along_axis(x, i, 0)),
        [("b, t", F), ("b, t", I)],
    ),
    "gather gradient": (jax.grad(lambda x, i: jnp.sum(x[i] ** 2)), [("b, 3", F), ("t", I)]),
    "scatter": (
        lambda x, i, y: (
            x.at[i].add(y),
            x.at[i].multiply(y),
            x.at[i].max(y),
            x.at[i].min(y),
            x.at[i].add(y, mode="clip"),
            x.at[i].add(y, mode="drop"),
        ),
        [("b, 3", F), ("t", I), ("t, 3", F)],
    ),
    "scatter one value": (lambda x, i: (x.at[i].set(1.0), x.at[:, i].add(1.0)), [("b, 4", F), ("t", I)]),
    "scatter the last of equals": (
        lambda x, i: jnp.zeros(4).at[i].add(x).at[jnp.minimum(i, 3)].set(5.0),
        [("b", F), ("b", I)],
    ),
    "scatter a slice": (
        lambda x, y: (x.at[1:].set(2.0), x.at[:-1].add(x[1:]), x.at[1:].multiply(3.0), x.at[0].set(y), x.at[-1].set(y)),
        [("b, 3", F), ("3", F)],
    ),
    "scatter rows of another length": (
        lambda x, y: jnp.concatenate([x, y]).at[: y.shape[0]].set(y).at[1 : y.shape[0] + 1].add(y),
        [("b, 3", F), ("t, 3", F)],
    ),
    "scatter everywhere": (lambda x, y: (x.at[:].add(y), x.at[:, 1:].set(y[:, 1:])), [("b, 3", F), ("b, 3", F)]),
    "segments": (
        lambda x, i: (
            jax.ops.segment_sum(x, i, 4),
            jax.ops.segment_max(x, i, 4),
            jax.ops.segment_sum(x, i, x.shape[0]),
            jax.ops.segment_prod(x, i, 3),
        ),
        [("b, 2", F), ("b", I)],
    ),
    "one hot": (lambda i: (jax.nn.one_hot(i, 4), jnp.bincount(i, length=4)), [("b", I)]),
    "dynamic_slice": (
        lambda x, i: (
            lax.dynamic_slice(x, (i[0], i[1]), (1, 2)),
            lax.dynamic_slice(x, (i[1] + 100, i[0]), (1, 4)),
            lax.dynamic_index_in_dim(x, -1, 0),
            x[i[0]],
        ),
        [("b, 4", F), ("2", I)],
    ),
    "dynamic_slice of symbolic size": (
        lambda x, y, i: lax.dynamic_slice(jnp.concatenate([x, y]), (i[0], i[0] * 0), y.shape),
        [("b, 3", F), ("t, 3", F), ("2", I)],
    ),
    "dynamic_update_slice": (
        lambda x, y, i: (
            lax.dynamic_update_slice(jnp.concatenate([x, y]), y, (i[0], i[1])),
            lax.dynamic_update_slice(x, jnp.ones((1, 2), F), (i[1], i[0])),
            lax.dynamic_update_slice(x, x * 2, (i[1], i[0])),
            lax.dynamic_update_slice(x, jnp.ones((1, 2), F), (100, 2)),
        ),
        [("b, 3", F), ("t, 3", F), ("2", I)],
    ),
    # Control flow
    "cond": (
        lambda x: lax.cond(jnp.array(x.shape[0]) > 3, lambda v: v.sum(0), lambda v: v.max(0) * x.shape[1], x),
        [("b, t", F)],
    ),
    "switch": (
        lambda x, i: lax.switch(i[0], [lambda v: v, lambda v: v[::-1], lambda v: v * v.sum()], x),
        [("b, 2", F), ("2", I)],
    ),
    "fori_loop": (lambda x: lax.fori_loop(0, x.shape[0], lambda i, a: a + x[i] * i, jnp.zeros(3)), [("b, 3", F)]),
    "while on values": (lambda x: lax.while_loop(lambda v: jnp.sum(jnp.abs(v)) > 1, lambda v: v / 2, x), [("b, t", F)]),
    "scan of fixed length": (
        lambda x: lax.scan(lambda c, row: (c + row, c * row.sum()), jnp.zeros(x.shape[1]), x),
        [("3, b", F)],
    ),
    "scan": (
        lambda x, y: (
            lax.scan(lambda c, row: (c + row, c.sum()), jnp.zeros(x.shape[1]), x),
            lax.scan(lambda c, row: (c * 0.5 + row, c), y, x, reverse=True),
        ),
        [("t, b", F), ("b", F)],
    ),
    "map": (lambda x: lax.map(lambda row: row / row.sum(), x), [("b, 3", F)]),
    "map gradient": (jax.grad(lambda x: jnp.sum(lax.map(lambda row: row**2 / 3, x))), [("b, 3", F)]),
    "while in a batch": (
        jax.vmap(lambda row: lax.while_loop(lambda v: jnp.sum(v * v) > 1, lambda v: v / 2, row)),
        [("b, t", F)],
    ),
    "custom gradient": (jax.value_and_grad(lambda x: jnp.sum(_clipped(x))), [("b, 3", F)]),
    "checkpoint": (jax.grad(lambda x: jnp.sum(jax.checkpoint(jnp.sin)(x))), [("b, 3", F)]),
    # Windows and convolutions
    "windows": (
        lambda x: (
            _window(x, -jnp.inf, lax.max, 2, 2, "SAME"),
            _window(x, jnp.inf, lax.min, 3, 1, "SAME"),
            _window(x, 0.0, lax.add, 3, 2, (1, 1)),
            _window(x, 0.0, lax.add, 2, 1, (1, 2), base_dilation=(1, 2, 1), window_dilation=(1, 2, 1)),
        ),
        [("b, t, 2", F)],
    ),
    "general windows": (
        lambda x: lax.reduce_window(x, np.float32(1), lambda a, b: a * b, (1, 3, 1), (1, 2, 1), "SAME"),
        [("b, t, 2", F)],
    ),
    "gradient of windows": (
        jax.grad(lambda x: jnp.sum(_window(x, -jnp.inf, lax.max, 2, 2, "SAME") ** 2)),
        [("b, t, 2", F)],
    ),
    "gradient of overlapping windows": (
        jax.grad(lambda x: jnp.sum(_window(x, -jnp.inf, lax.max, 3, 1, (1, 1)) ** 2)),
        [("b, t, 2", F)],
    ),
    "gradient of average": (jax.grad(lambda x: jnp.sum(_window(x, 0.0, lax.add, 3, 1, (1, 1)) ** 2)), [("b, t, 2", F)]),
    "convolution": (
        lambda x, w: (
            _conv1(x, w, padding="SAME"),
            _conv1(x, w, 2, "SAME"),
            _conv1(x, w, 2, [(2, 3)]),
            _conv1(x, w, 1, [(2, 2)], rhs_dilation=(2,)),
            _conv1(x, w, 1, [(1, 2)], lhs_dilation=(2,)),
        ),
        [("b, t, 2", F), ("3, 2, 4", F)],
    ),
    "gradient of convolution": (
        jax.grad(lambda x, w: jnp.sum(_conv1(x, w, padding=[(1, 1)]) ** 2), (0, 1)),
        [("b, t, 2", F), ("3, 2, 4", F)],
    ),
    "gradient of strided convolution over the batch": (
        jax.grad(lambda x, w: jnp.sum(_conv1(x, w, 2, "SAME") ** 2), (0, 1)),
        [("b, 6, 2", F), ("3, 2, 4", F)],
    ),
    "grouped convolution over the batch": (
        jax.grad(lambda x, w: jnp.sum(_conv1(x, w, feature_group_count=2) ** 2), (0, 1)),
        [("b, 6, 4", F), ("3, 2, 4", F)],
    ),
    # Linear algebra and transforms over a batch
    "cholesky": (lambda x: jnp.linalg.cholesky(jnp.einsum("bij,bkj->bik", x, x) + 3 * jnp.eye(3)), [("b, 3, 3", F)]),
    "solve": (lambda x, y: jnp.linalg.solve(x + 4 * jnp.eye(3), y), [("b, 3, 3", F), ("b, 3, t", F)]),
    "eigenvalues": (lambda x: jnp.linalg.eigvalsh(x + jnp.swapaxes(x, 1, 2)), [("b, 3, 3", F)]),
    "singular values": (lambda x: jnp.linalg.svd(x, compute_uv=False), [("b, 3, 3", F)]),
    "determinant": (lambda x: (jnp.linalg.det(x), jnp.linalg.qr(x + 2 * jnp.eye(3))[1] ** 2), [("b, 3, 3", F)]),
    "fourier": (lambda x: jnp.abs(jnp.fft.rfft(x)), [("b, 8", F)]),
}


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    function, arguments = CASES[name]
    check(function, *arguments, sizes=SIZES[:3], rtol=1e-4)
