"""Pooling by fractional ratios: windows of two sizes, in random order."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import InvalidArgumentError
from penstock.graph import dtype as dt
from penstock.graph.opdef import OpDef, Types, op
from penstock.graph.operation import Operation
from penstock.graph.scopes import get_seed
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.kernel.shapes import from_value, require_rank, same_as
from penstock.ops.array import reshaping

_TYPES = Types(dt.float32, dt.float64, dt.int32, dt.int64)
_SIGNATURE = "T -> output: T, row_pooling_sequence: int64, col_pooling_sequence: int64"


class FractionalPool(NamedTuple):
    """The pooled images, and where the rows and columns of windows begin."""

    output: Any
    row_pooling_sequence: Any
    col_pooling_sequence: Any


def _shape(op: Operation) -> list[TensorShape]:
    image = require_rank(op.input_list[0].shape, 4).as_list()
    ratios = op.attrs["pooling_ratio"]
    if len(ratios) != 4 or any(r < 1 for r in ratios) or ratios[0] != 1 or ratios[3] != 1:
        raise ValueError(f"pooling_ratio must be 4 numbers >= 1, with 1 for batch and channels, received {ratios}")
    sizes = [None if n is None else int(n / r) for n, r in zip(image, ratios, strict=True)]
    edges = [TensorShape.of((None if n is None else n + 1,)) for n in sizes[1:3]]
    return [TensorShape.of(tuple(sizes)), *edges]


class _Draws:
    kind = "FractionalPool"

    def __init__(self, seeds: tuple[int, int]) -> None:
        self.random = np.random.default_rng(seeds if any(seeds) else None)


def _edges(size: int, ratio: float, pseudo: bool, random: np.random.Generator) -> np.ndarray:
    """The starts of windows of sizes floor(ratio) and one more, and the end of the last."""
    count = int(size / ratio)
    if count < 1:
        raise InvalidArgumentError(f"pooling {size} pixels by {ratio} leaves none")
    least = size // count
    if least * count == size:
        return np.arange(0, size + 1, least, dtype=np.int64)
    if pseudo:
        # ceil(alpha * (i + u)): the sizes of the first and the last window bound u.
        alpha = size / count
        whole = int(alpha)
        highest = min((whole + 2) / alpha - 1, (size + 1 - whole) / alpha - (count - 1))
        start = random.random() * highest
        places = [int(np.ceil(alpha * (i + start))) - int(np.ceil(alpha * start)) for i in range(count)]
        return np.array([*places, size], np.int64)
    steps = np.full(count, least)
    steps[: size - least * count] += 1
    random.shuffle(steps)
    return np.concatenate([[0], np.cumsum(steps)]).astype(np.int64)


def _windows(edges: np.ndarray, overlapping: bool, size: int) -> list[slice]:
    more = 1 if overlapping else 0  # neighbours share the pixel at their border
    return [slice(int(a), min(int(b) + more, size)) for a, b in itertools.pairwise(edges)]


def _declare(name: str, reduce: Any) -> OpDef:
    def gradient(op: Operation, dy: Any, *_: Any) -> list[Any]:
        rows, columns = op.outputs[1:]
        if op.type == "FractionalMaxPool":
            inputs = (op.input_list[0], op.outputs[0], dy, rows, columns)
            return [fractional_max_pool_grad(*inputs, overlapping=op.attrs["overlapping"])]
        shape = reshaping.shape(op.input_list[0], out_type=dt.int64)
        return [fractional_avg_pool_grad(shape, dy, rows, columns, overlapping=op.attrs["overlapping"])]

    @op(name, _SIGNATURE, host=True, stateful=True, shape=_shape, grad=gradient, T=_TYPES)
    def pool(
        value: np.ndarray,
        *,
        pooling_ratio: list[float],
        pseudo_random: bool = False,
        overlapping: bool = False,
        deterministic: bool = False,
        seed: int = 0,
        seed2: int = 0,
        resource: Any,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if value.ndim != 4:
            raise InvalidArgumentError(f"value must be 4-dimensional, received shape {value.shape}")
        # Deterministic means the same windows in every step.
        draws = _Draws((seed, seed2)) if deterministic else resource(lambda _: _Draws((seed, seed2)))
        rows, columns = (_edges(value.shape[a], pooling_ratio[a], pseudo_random, draws.random) for a in (1, 2))
        across, down = _windows(columns, overlapping, value.shape[2]), _windows(rows, overlapping, value.shape[1])
        lines = [np.stack([reduce(value[:, r, c]) for c in across], 1) for r in down]
        return np.stack(lines, 1).astype(value.dtype), rows, columns

    return pool


fractional_max_pool_op = _declare("FractionalMaxPool", lambda window: window.max((1, 2)))
fractional_avg_pool_op = _declare("FractionalAvgPool", lambda window: window.mean((1, 2)))


@op("FractionalMaxPoolGrad", "T, T, T, int64, int64 -> output: T", host=True, shape=same_as(0), T=_TYPES)
def fractional_max_pool_grad(
    orig_input: np.ndarray,
    orig_output: np.ndarray,
    out_backprop: np.ndarray,
    row_pooling_sequence: np.ndarray,
    col_pooling_sequence: np.ndarray,
    *,
    overlapping: bool = False,
) -> np.ndarray:
    """Sends the gradient of each window to its first maximum."""
    result = np.zeros_like(orig_input)
    batch, height, width, channels = orig_input.shape
    images, depths = np.arange(batch)[:, None], np.arange(channels)[None]
    for i, r in enumerate(_windows(row_pooling_sequence, overlapping, height)):
        for j, c in enumerate(_windows(col_pooling_sequence, overlapping, width)):
            window = orig_input[:, r, c]
            first = window.reshape(batch, -1, channels).argmax(1)
            row, column = np.divmod(first, window.shape[2])
            np.add.at(result, (images, r.start + row, c.start + column, depths), out_backprop[:, i, j])
    return result


@op("FractionalAvgPoolGrad", "int64, T, int64, int64 -> output: T", host=True, shape=from_value(0), T=_TYPES)
def fractional_avg_pool_grad(
    orig_input_tensor_shape: np.ndarray,
    out_backprop: np.ndarray,
    row_pooling_sequence: np.ndarray,
    col_pooling_sequence: np.ndarray,
    *,
    overlapping: bool = False,
) -> np.ndarray:
    result = np.zeros(orig_input_tensor_shape, out_backprop.dtype)
    _, height, width, _ = result.shape
    for i, r in enumerate(_windows(row_pooling_sequence, overlapping, height)):
        for j, c in enumerate(_windows(col_pooling_sequence, overlapping, width)):
            pixels = (r.stop - r.start) * (c.stop - c.start)
            result[:, r, c] += (out_backprop[:, i, j] / pixels)[:, None, None].astype(result.dtype)
    return result


def _pooled(
    raw: OpDef,
    value: Any,
    ratio: Any,
    pseudo_random: bool,
    overlapping: bool,
    deterministic: bool,
    seed: int | None,
    seed2: int,
    name: str | None,
) -> FractionalPool:
    first, second = (seed or 0, seed2) if deterministic else (s or 0 for s in get_seed(seed or None))
    return FractionalPool(
        *raw(
            value,
            pooling_ratio=[float(r) for r in ratio],
            pseudo_random=pseudo_random,
            overlapping=overlapping,
            deterministic=deterministic,
            seed=first,
            seed2=second,
            name=name,
        )
    )


def fractional_max_pool(
    value: TensorLike,
    pooling_ratio: Any,
    pseudo_random: bool = False,
    overlapping: bool = False,
    deterministic: bool = False,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> FractionalPool:
    """The largest value of windows whose sizes differ by one, so that images shrink by any ratio.

    >>> smaller, rows, columns = tf.nn.fractional_max_pool(images, [1.0, 1.44, 1.73, 1.0])
    """
    return _pooled(
        fractional_max_pool_op, value, pooling_ratio, pseudo_random, overlapping, deterministic, seed, seed2, name
    )


def fractional_avg_pool(
    value: TensorLike,
    pooling_ratio: Any,
    pseudo_random: bool = False,
    overlapping: bool = False,
    deterministic: bool = False,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> FractionalPool:
    """The mean of windows whose sizes differ by one, so that images shrink by any ratio.

    >>> smaller, rows, columns = tf.nn.fractional_avg_pool(images, [1.0, 1.44, 1.73, 1.0])
    """
    return _pooled(
        fractional_avg_pool_op, value, pooling_ratio, pseudo_random, overlapping, deterministic, seed, seed2, name
    )
