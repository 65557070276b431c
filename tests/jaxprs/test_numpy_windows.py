"""Convolutions, pooling, special functions, Fourier transforms, linear algebra, random bits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxpr_agreement import BFLOAT16, by_jax, check, check_same, program, spec

from penstock.jaxprs.errors import NoRule


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randn(*shape).astype(dtype)


IMAGES = ("NHWC", "HWIO", "NHWC")
CONVOLUTIONS = [
    # image, kernel, options
    ((2, 7, 6, 3), (3, 2, 3, 4), dict(window_strides=(1, 1), padding="SAME", dimension_numbers=IMAGES)),
    ((2, 7, 6, 3), (3, 2, 3, 4), dict(window_strides=(2, 3), padding="VALID", dimension_numbers=IMAGES)),
    ((2, 7, 6, 3), (1, 1, 3, 4), dict(window_strides=(1, 1), padding="VALID", dimension_numbers=IMAGES)),
    (
        (2, 7, 6, 3),
        (3, 2, 3, 4),
        dict(
            window_strides=(1, 2),
            padding=((-1, 2), (1, 0)),
            rhs_dilation=(2, 1),
            lhs_dilation=(1, 3),
            dimension_numbers=IMAGES,
        ),
    ),
    (
        (2, 7, 6, 4),
        (3, 2, 2, 6),
        dict(window_strides=(1, 1), padding="SAME", feature_group_count=2, dimension_numbers=IMAGES),
    ),
    (
        (2, 7, 6, 4),
        (3, 2, 1, 8),
        dict(window_strides=(2, 1), padding="SAME", feature_group_count=4, dimension_numbers=IMAGES),
    ),
    (
        (4, 7, 6, 3),
        (3, 2, 3, 6),
        dict(window_strides=(1, 1), padding="SAME", batch_group_count=2, dimension_numbers=IMAGES),
    ),
    ((2, 3, 5, 6), (4, 3, 2, 2), dict(window_strides=(1, 1), padding="SAME")),
    ((2, 3, 9), (4, 3, 3), dict(window_strides=(2,), padding="SAME")),
    (
        (2, 4, 4, 4, 2),
        (2, 2, 2, 2, 3),
        dict(window_strides=(1, 1, 1), padding="SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")),
    ),
    ((0, 7, 6, 3), (3, 2, 3, 4), dict(window_strides=(1, 1), padding="SAME", dimension_numbers=IMAGES)),
]


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16, np.float64])
def test_convolutions(dtype: Any) -> None:
    arrays = [normal(*shape, dtype=dtype) for image, kernel, _ in CONVOLUTIONS for shape in (image, kernel)]

    def function(*arrays: Any) -> Any:
        cases = zip(arrays[::2], arrays[1::2], CONVOLUTIONS, strict=True)
        return [lax.conv_general_dilated(x, w, **options) for x, w, (_, _, options) in cases]

    check(function, *arrays, tolerance=0.1 if dtype == BFLOAT16 else 1e-5)


def test_convolutions_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.jaxprs.numpy_rules_contract._PATCHES_BYTES", 1)
    check(
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=IMAGES, batch_group_count=2),
        normal(6, 5, 4, 3),
        normal(2, 2, 3, 4),
        tolerance=1e-5,
    )


WINDOWS = [
    dict(window_dimensions=(1, 2, 2, 1), window_strides=(1, 2, 2, 1), padding="VALID"),
    dict(window_dimensions=(1, 3, 3, 1), window_strides=(1, 2, 1, 1), padding="SAME"),
    dict(
        window_dimensions=(1, 2, 3, 2),
        window_strides=(1, 1, 1, 1),
        padding=((0, 0), (1, 0), (2, 1), (0, 1)),
        window_dilation=(1, 2, 1, 1),
        base_dilation=(1, 1, 2, 1),
    ),
]


@pytest.mark.parametrize("dtype", [np.float32, np.int32, BFLOAT16])
def test_windows(dtype: Any) -> None:
    whole = np.dtype(dtype).kind == "i"

    def function(x: Any) -> Any:
        low = jnp.iinfo(dtype).min if whole else -jnp.inf
        high = jnp.iinfo(dtype).max if whole else jnp.inf
        results = []
        for options in WINDOWS:
            for first, combine in ((0, lax.add), (low, lax.max), (high, lax.min), (1, lax.mul)):
                results.append(
                    lax.reduce_window(
                        x,
                        jnp.asarray(first, dtype)[()] if combine is lax.mul else np.asarray(first, dtype),
                        combine,
                        **options,
                    )
                )
        return results

    x = np.random.RandomState(0).randint(-3, 4, (2, 5, 6, 3)).astype(dtype)
    if not whole:
        x[0, 2, 2, 1] = np.nan
    check(function, x)


def max_pool(x: Any, options: Any) -> Any:
    return lax.reduce_window(x, -np.inf, lax.max, **options)


@pytest.mark.parametrize("options", WINDOWS[:2])
def test_gradients_of_pooling(options: Any) -> None:
    def function(x: Any, weights: Any) -> Any:
        def loss(x: Any) -> Any:
            pooled = max_pool(x, options)
            return jnp.sum(pooled * weights[: pooled.size].reshape(pooled.shape))

        return jax.grad(loss)(x), jax.jvp(lambda x: max_pool(x, options), (x,), (jnp.sin(x),))

    # Many elements are equal: the first of a window gets the gradient.
    x = np.random.RandomState(0).randint(0, 3, (2, 5, 6, 3)).astype(np.float32)
    check(function, x, normal(200))


def test_gradients_of_a_convolutional_network_of_any_batch_size() -> None:
    def loss(w1: Any, w2: Any, w3: Any, x: Any, y: Any) -> Any:
        h = jax.nn.relu(lax.conv_general_dilated(x, w1, (1, 1), "SAME", dimension_numbers=IMAGES))
        h = max_pool(h, dict(window_dimensions=(1, 2, 2, 1), window_strides=(1, 2, 2, 1), padding="SAME"))
        h = jax.nn.relu(lax.conv_general_dilated(h, w2, (2, 2), "SAME", dimension_numbers=IMAGES))
        logits = h.reshape(x.shape[0], -1) @ w3
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * y, 1))

    weights = [normal(3, 3, 2, 4), normal(3, 3, 4, 5), normal(20, 3)]
    (n,) = jax.export.symbolic_shape("n")
    gradient = jax.value_and_grad(loss, argnums=(0, 1, 2))
    images, labels = jax.ShapeDtypeStruct((n, 7, 7, 2), np.float32), jax.ShapeDtypeStruct((n, 3), np.float32)
    made = program(gradient, *map(spec, weights), images, labels)
    for size in (1, 4):
        arguments = [*weights, normal(size, 7, 7, 2), np.eye(3, dtype=np.float32)[np.arange(size) % 3]]
        check_same(made(arguments), by_jax(gradient, *arguments), tolerance=5e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, BFLOAT16])
def test_special_functions(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        results = [f(x) for f in (lax.erf, lax.erfc, lax.bessel_i0e, lax.bessel_i1e)]
        positive = abs(y) + 0.5
        results += [lax.erf_inv(jnp.tanh(x)), lax.lgamma(positive), lax.digamma(positive)]
        results += [f(positive, abs(x)) for f in (lax.igamma, lax.igammac)]
        results += [lax.polygamma(jnp.ones_like(x), positive), lax.zeta(positive + 1, positive)]
        return [*results, lax.betainc(positive, positive + 1, jax.nn.sigmoid(x)), jax.nn.gelu(x), jax.nn.softplus(x)]

    narrow = dtype == BFLOAT16
    tolerance = 5e-2 if narrow else 3e-5 if dtype == np.float32 else 1e-9
    check(function, normal(20, dtype=dtype), normal(20, dtype=dtype, seed=1), tolerance=tolerance)


def test_special_functions_where_they_end() -> None:
    x = np.array([0, 1, -1, np.inf, -np.inf, np.nan], np.float32)
    check(lambda x: (lax.erf(x), lax.erfc(x), lax.erf_inv(x), lax.lgamma(x)), x)
    check(lambda x: lax.digamma(jnp.abs(x)), x[1:])  # the value at 0 depends on jax's version


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fourier_transforms(dtype: Any) -> None:
    def function(x: Any) -> Any:
        z = lax.complex(x, jnp.sin(x))
        results = [jnp.fft.fft(z), jnp.fft.ifft2(z), jnp.fft.rfft(x), jnp.fft.irfft(z), jnp.fft.irfft(z, 5)]
        return [*results, jnp.fft.rfft2(x), jnp.fft.irfft2(z), jnp.fft.fftn(z)]

    check(function, normal(3, 4, 6, dtype=dtype), tolerance=1e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_linear_algebra(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        definite = x @ jnp.conj(jnp.swapaxes(x, -1, -2)) + 3 * jnp.eye(3, dtype=dtype)
        results = [jnp.linalg.cholesky(definite), jnp.linalg.solve(definite, y), jnp.linalg.inv(definite)]
        results += [jnp.linalg.det(x), *lax.linalg.lu(y), *jnp.linalg.qr(y), jnp.linalg.eigvalsh(definite)]
        results += [jnp.linalg.svd(y, compute_uv=False)]
        for left in (True, False):
            for lower in (True, False):
                for turned in (True, False):
                    right = y if left else jnp.swapaxes(y, -1, -2)
                    results.append(
                        lax.linalg.triangular_solve(
                            definite,
                            right,
                            left_side=left,
                            lower=lower,
                            transpose_a=turned,
                            conjugate_a=turned,
                            unit_diagonal=not lower,
                        )
                    )
        vectors, values = lax.linalg.eigh(definite)
        left, kept, right = jnp.linalg.svd(y, full_matrices=False)
        # Their signs are not defined.
        rebuilt = [(vectors * values[..., None, :]) @ jnp.conj(jnp.swapaxes(vectors, -1, -2))]
        return [*results, *rebuilt, (left * kept[..., None, :]) @ right]

    check(function, normal(2, 3, 3).astype(dtype), normal(2, 3, 2, seed=1).astype(dtype), tolerance=2e-5)


def test_cholesky_of_what_is_not_definite() -> None:
    check(lambda x: jnp.linalg.cholesky(x), np.float32([[[1, 2], [2, 1]], [[2, 0], [0, 2]]]))


def test_decompositions_of_what_is_not_finite() -> None:
    check(lambda x: (jnp.linalg.eigvalsh(x), jnp.linalg.svd(x, compute_uv=False)), np.float32([[1, np.nan], [2, 1]]))


@pytest.mark.parametrize("size", [1, 4])
def test_tridiagonal_systems(size: int) -> None:
    def function(below: Any, diagonal: Any, above: Any, b: Any) -> Any:
        return lax.linalg.tridiagonal_solve(below.at[..., 0].set(0), diagonal + 4, above.at[..., -1].set(0), b)

    check(function, *(normal(2, size, seed=seed) for seed in range(3)), normal(2, size, 3), tolerance=1e-5)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_random_bits_are_the_same_bits(dtype: Any) -> None:
    def function(key: Any) -> Any:
        philox = lax.RandomAlgorithm.RNG_PHILOX
        return [lax.rng_bit_generator(key, shape, dtype, algorithm=philox) for shape in ((3, 3), (8,), (), (0,), (70,))]

    for key in ([1, 2, 0, 0], [1, 2, 3, 4], [7, 9, 0xFFFFFFFE, 0xFFFFFFFF], [2**32 - 1, 2**32 - 1, 5, 2**32 - 1]):
        check(function, np.array(key, np.uint32))


def test_no_rule_for_other_random_bits() -> None:
    threefry = lax.RandomAlgorithm.RNG_THREE_FRY
    with pytest.raises(NoRule, match="THREE_FRY"):
        program(lambda key: lax.rng_bit_generator(key, (3,), algorithm=threefry), spec(np.zeros(4, np.uint32)))
