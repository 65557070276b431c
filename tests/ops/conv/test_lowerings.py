"""Every lowering of convolutions and pools against sums in float64, and max pooling's rules for ties and for NaN."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tolerances import assert_near, unit_roundoff

from penstock.ops.conv import lowerings, pool_lowerings
from penstock.segments.compiler_options import compiler_options

PLATFORMS = ["cpu", "gpu"]  # "gpu" is XLA's own, which also runs on the CPU if there is no other device

# Images and kernel with channels last, and settings.
CONVOLUTIONS = {
    "same": ((2, 7, 6, 9), (3, 3, 9, 5), {"padding": "SAME"}),
    "valid": ((2, 7, 6, 9), (3, 2, 9, 5), {"padding": "VALID"}),
    "explicit": ((2, 7, 6, 9), (3, 3, 9, 5), {"padding": [(2, 0), (1, 3)]}),
    "even window": ((3, 8, 8, 9), (4, 2, 9, 4), {"padding": "SAME"}),
    "one channel": ((4, 9, 9, 1), (5, 5, 1, 6), {"padding": "SAME"}),
    "three channels": ((4, 9, 8, 3), (5, 3, 3, 4), {"padding": "SAME", "strides": (2, 2)}),
    "three channels dilated": ((2, 9, 8, 3), (3, 3, 3, 4), {"padding": "SAME", "dilations": (2, 3)}),
    "1x1": ((2, 5, 5, 9), (1, 1, 9, 7), {"padding": "SAME"}),
    "1x1 strided": ((2, 5, 6, 9), (1, 1, 9, 7), {"padding": "SAME", "strides": (2, 3)}),
    "strided": ((2, 7, 8, 9), (3, 3, 9, 5), {"padding": "SAME", "strides": (2, 2)}),
    "strided valid": ((2, 8, 9, 9), (3, 3, 9, 5), {"padding": "VALID", "strides": (3, 2)}),
    "strided explicit": ((2, 7, 6, 9), (3, 3, 9, 5), {"padding": [(1, 2), (0, 1)], "strides": (2, 1)}),
    "stride over window": ((2, 9, 9, 9), (2, 2, 9, 5), {"padding": "VALID", "strides": (4, 3)}),
    "dilated": ((2, 9, 9, 9), (3, 3, 9, 5), {"padding": "SAME", "dilations": (2, 2)}),
    "strided and dilated": ((2, 9, 10, 9), (3, 2, 9, 5), {"padding": "VALID", "strides": (2, 3), "dilations": (3, 2)}),
    "groups": ((2, 6, 7, 18), (3, 3, 9, 8), {"padding": "SAME"}),
    "small groups": ((2, 6, 7, 6), (3, 3, 2, 9), {"padding": "SAME", "strides": (2, 2)}),
    "depthwise": ((2, 6, 7, 5), (3, 3, 1, 5), {"padding": "SAME"}),
    "depthwise strided": ((2, 7, 7, 3), (3, 2, 1, 6), {"padding": "SAME", "strides": (2, 2)}),
    "depthwise dilated": ((2, 9, 9, 3), (3, 3, 1, 6), {"padding": "VALID", "dilations": (2, 1)}),
    "window of the image": ((3, 4, 4, 9), (4, 4, 9, 5), {"padding": "VALID"}),
    "no images": ((0, 5, 5, 3), (3, 3, 3, 4), {"padding": "SAME"}),
}

POOLS = {
    "2x2": ((2, 6, 8, 3), {"ksize": (2, 2), "strides": (2, 2), "padding": "VALID"}),
    "3x3 by twos": ((2, 7, 8, 3), {"ksize": (3, 3), "strides": (2, 2), "padding": "SAME"}),
    "3x3 by ones": ((2, 5, 6, 3), {"ksize": (3, 3), "strides": (1, 1), "padding": "SAME"}),
    "uneven": ((2, 7, 9, 2), {"ksize": (2, 3), "strides": (3, 2), "padding": "SAME"}),
    "stride over window": ((2, 9, 7, 2), {"ksize": (1, 2), "strides": (2, 3), "padding": "VALID"}),
    "explicit": ((2, 5, 6, 2), {"ksize": (3, 3), "strides": (2, 2), "padding": [(1, 0), (2, 1)]}),
    "whole image": ((2, 4, 5, 3), {"ksize": (4, 5), "strides": (1, 1), "padding": "VALID"}),
    "many taps": ((1, 10, 12, 2), {"ksize": (9, 9), "strides": (2, 3), "padding": "SAME"}),
}

Settings = dict[str, Any]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Lowerings for the CPU run on the CPU, those of the parameter "gpu" on jax's default device."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    default = jax.devices()[0] if parameters.get("platform") == "gpu" else jax.devices("cpu")[0]
    with jax.default_device(default):
        yield


def pads(sizes: tuple[int, ...], ksize: tuple[int, ...], settings: Settings) -> list[tuple[int, int]]:
    """TensorFlow's paddings of height and width; an odd row or column of SAME is at the bottom or right."""
    if settings["padding"] == "VALID":
        return [(0, 0), (0, 0)]
    if settings["padding"] != "SAME":
        return list(settings["padding"])
    result = []
    strides, dilations = settings.get("strides", (1, 1)), settings.get("dilations", (1, 1))
    for size, window, stride, dilation in zip(sizes, ksize, strides, dilations, strict=True):
        around = max((-(-size // stride) - 1) * stride + (window - 1) * dilation + 1 - size, 0)
        result.append((around // 2, around - around // 2))
    return result


def exact(x: np.ndarray, kernel: np.ndarray, dy: np.ndarray, settings: Settings) -> list[np.ndarray]:
    """The convolution, and its gradients for the images and the kernel: tap by tap in float64."""
    (height, width, depth, results), groups = kernel.shape, x.shape[3] // kernel.shape[2]
    strides, dilations = settings.get("strides", (1, 1)), settings.get("dilations", (1, 1))
    around = pads(x.shape[1:3], kernel.shape[:2], settings)
    x = np.pad(x.astype(np.float64), [(0, 0), *around, (0, 0)])
    padded, x = x.shape, x.reshape(*x.shape[:3], groups, depth)
    weights = kernel.astype(np.float64).reshape(height, width, depth, groups, results // groups)
    upstream = dy.astype(np.float64).reshape(*dy.shape[:3], groups, results // groups)
    y, dx, dk = np.zeros_like(upstream), np.zeros_like(x), np.zeros_like(weights)
    for tap in np.ndindex(height, width):
        each = zip(tap, dy.shape[1:3], strides, dilations, strict=True)
        at = (slice(None), *(slice(t * d, t * d + (n - 1) * s + 1, s) for t, n, s, d in each))
        y += np.einsum("nijgc,cgo->nijgo", x[at], weights[tap])
        dx[at] += np.einsum("nijgo,cgo->nijgc", upstream, weights[tap])
        dk[tap] = np.einsum("nijgc,nijgo->cgo", x[at], upstream)
    (above, below), (left, right) = around
    dx = dx.reshape(padded)[:, above : padded[1] - below, left : padded[2] - right]
    return [y.reshape(dy.shape), dx, dk.reshape(kernel.shape)]


def reference(x: Any, kernel: Any, settings: Settings) -> jax.Array:
    """XLA's own convolution: for shapes, for other types, and for second derivatives."""
    return lax.conv_general_dilated(
        x,
        kernel,
        settings.get("strides", (1, 1)),
        pads(x.shape[1:3], kernel.shape[:2], settings),
        rhs_dilation=settings.get("dilations"),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=x.shape[3] // kernel.shape[2],
    )


def pool_reference(x: Any, start: float, reducer: Any, settings: Settings) -> jax.Array:
    window, strides = (1, *settings["ksize"], 1), (1, *settings["strides"], 1)
    padding = [(0, 0), *pads(x.shape[1:3], settings["ksize"], settings), (0, 0)]
    return lax.reduce_window(x, start, reducer, window, strides, padding)


def avg_reference(x: Any, settings: Settings) -> jax.Array:
    return pool_reference(x, 0.0, lax.add, settings) / pool_reference(jnp.ones_like(x), 0.0, lax.add, settings)


def random(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def close(actual: Any, desired: Any, tolerance: float = 1e-5) -> None:
    desired = np.asarray(desired)
    assert actual.dtype == desired.dtype
    scale = max(float(np.abs(desired).max(initial=0)), 1.0)
    np.testing.assert_allclose(actual, desired, rtol=0, atol=tolerance * scale)


def in_format(x: Any, data_format: str) -> Any:
    return x if data_format == "NHWC" else np.transpose(np.asarray(x), (0, 3, 1, 2))


def further(*cases: str) -> list[Any]:
    """Cases for `make long`."""
    return [pytest.param(case, marks=pytest.mark.long) for case in cases]


def arrangements(cases: dict[str, Any], *everywhere: str) -> Any:
    """Each case on the CPU, and those named `everywhere` on each platform and in each format."""
    rest = [(p, f) for p, f in itertools.product(PLATFORMS, ["NHWC", "NCHW"]) if (p, f) != ("cpu", "NHWC")]
    values = [(case, "cpu", "NHWC") for case in cases] + [(case, *at) for case in everywhere for at in rest]
    return pytest.mark.parametrize(("case", "platform", "data_format"), values)


@arrangements(CONVOLUTIONS, "same", "three channels dilated", "strided explicit", "groups", "depthwise strided")
def test_convolution_and_its_gradients(rng: np.random.Generator, case: str, platform: str, data_format: str) -> None:
    x_shape, kernel_shape, plain = CONVOLUTIONS[case]
    x, kernel = random(rng, x_shape), random(rng, kernel_shape)
    dy = random(rng, jax.eval_shape(lambda x, kernel: reference(x, kernel, plain), x, kernel).shape)
    settings = {**plain, "platform": platform, "data_format": data_format}

    @jax.jit
    def actual(x: Any, kernel: Any, dy: Any) -> Any:
        y, pull = jax.vjp(lambda x, kernel: lowerings.conv2d(x, kernel, **settings), x, kernel)
        dx = lowerings.conv2d_input_grad(x.shape, kernel, dy, **settings)
        return y, dx, lowerings.conv2d_filter_grad(x, kernel.shape, dy, **settings), *pull(dy)

    y, *gradients = map(np.asarray, actual(in_format(x, data_format), kernel, in_format(dy, data_format)))
    arrays = (x, kernel, dy)
    desired, sizes = exact(*arrays, plain), exact(*map(np.abs, arrays), plain)
    counts = exact(*map(np.ones_like, arrays), plain)
    for found, i in zip((y, *gradients), (0, 1, 2, 1, 2), strict=True):
        assert found.dtype == np.float32
        wanted = desired[i] if i == 2 else in_format(desired[i], data_format)
        assert_near(found, wanted, terms=counts[i].max(initial=0), magnitude=sizes[i])


@pytest.mark.parametrize(
    "case", ["strided and dilated", *further("same", "three channels", "groups", "depthwise strided")]
)
def test_second_derivatives(rng: np.random.Generator, case: str) -> None:
    x_shape, kernel_shape, settings = CONVOLUTIONS[case]
    x, kernel = random(rng, x_shape), random(rng, kernel_shape)

    def penalty(conv: Any, x: Any, kernel: Any) -> Any:
        def loss(x: Any, kernel: Any) -> Any:
            return (conv(x, kernel) ** 2).sum()

        def squared(x: Any, kernel: Any) -> Any:
            return sum((g**2).mean() for g in jax.grad(loss, (0, 1))(x, kernel))

        return jax.jit(jax.grad(squared, (0, 1)))(x, kernel)

    actual = penalty(lambda x, kernel: lowerings.conv2d(x, kernel, **settings), x, kernel)
    with jax.enable_x64(True):
        wide = (a.astype(np.float64) for a in (x, kernel))
        desired = penalty(lambda x, kernel: reference(x, kernel, settings), *wide)
    # The errors of the sums on the way add up: the convolution, its two gradients, and those of all three again. The
    # magnitudes of random sums are about twice their largest values.
    y = jax.eval_shape(lambda x, kernel: reference(x, kernel, settings), x, kernel)
    counts = exact(np.ones_like(x), np.ones_like(kernel), np.ones(y.shape), settings)
    terms = 2 * sum(float(count.max()) for count in counts)
    for a, d in zip(actual, desired, strict=True):
        assert a.dtype == np.float32
        np.testing.assert_allclose(a, d, rtol=0, atol=2 * terms * unit_roundoff(a.dtype) * float(np.abs(d).max()))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float16", 4e-3), ("bfloat16", 3e-2), ("int32", 0), ("float64", 1e-14)]
)
@pytest.mark.parametrize("case", ["strided", *further("same", "groups", "depthwise")])
def test_other_types(rng: np.random.Generator, case: str, dtype: str, tolerance: float) -> None:
    x_shape, kernel_shape, settings = CONVOLUTIONS[case]
    with jax.enable_x64(dtype == "float64"):
        x, kernel = (jnp.asarray(np.round(random(rng, s) * 8) / 8, dtype) for s in (x_shape, kernel_shape))
        wide = "float64" if dtype == "float64" else "float32"
        desired, pull = jax.vjp(lambda x, k: reference(x, k, settings), x.astype(wide), kernel.astype(wide))
        dx, dk = pull(desired)
        y = jax.jit(lambda x, kernel: lowerings.conv2d(x, kernel, **settings))(x, kernel)
        close(y, desired.astype(dtype), tolerance)
        if dtype != "int32":
            back = jax.jit(lambda kernel, dy: lowerings.conv2d_input_grad(x_shape, kernel, dy, **settings))
            close(back(kernel, y), dx.astype(dtype), tolerance)
            back = jax.jit(lambda x, dy: lowerings.conv2d_filter_grad(x, kernel_shape, dy, **settings))
            close(back(x, y), dk.astype(dtype), tolerance)


@arrangements(POOLS, "3x3 by twos", "explicit")
def test_pools_and_their_gradients(rng: np.random.Generator, case: str, platform: str, data_format: str) -> None:
    shape, settings = POOLS[case]
    # No two values are equal: another test is about ties.
    x = rng.permutation(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape) / 16
    most, pull_most = jax.vjp(lambda x: pool_reference(x, -jnp.inf, lax.max, settings), x)
    mean, pull_mean = jax.vjp(lambda x: avg_reference(x, settings), x)
    dy = random(rng, most.shape)
    desired = (most, *pull_most(dy), *pull_most(dy), mean, *pull_mean(dy), *pull_mean(dy))
    settings = {**settings, "platform": platform, "data_format": data_format}

    @jax.jit
    def actual(x: Any, dy: Any) -> Any:
        most, pull_most = jax.vjp(lambda x: pool_lowerings.max_pool(x, **settings), x)
        mean, pull_mean = jax.vjp(lambda x: pool_lowerings.avg_pool(x, **settings), x)
        most_dx = pool_lowerings.max_pool_grad(x, most, dy, **settings)
        mean_dx = pool_lowerings.avg_pool_grad(x.shape, dy, **settings)
        return most, most_dx, *pull_most(dy), mean, mean_dx, *pull_mean(dy)

    for a, d in zip(actual(in_format(x, data_format), in_format(dy, data_format)), desired, strict=True):
        close(a, in_format(d, data_format))


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("case", POOLS)
def test_gradient_goes_to_the_first_maximum(rng: np.random.Generator, case: str, platform: str) -> None:
    shape, settings = POOLS[case]
    x = rng.integers(0, 2, shape).astype(np.float32)
    y = pool_lowerings.max_pool(x, **settings, platform=platform)
    dy = rng.integers(1, 9, y.shape).astype(np.float32)
    (above, _), (beside, _) = pads(shape[1:3], settings["ksize"], settings)
    desired = np.zeros(shape, np.float32)
    for n, i, j, c in np.ndindex(y.shape):
        rows = [i * settings["strides"][0] - above + r for r in range(settings["ksize"][0])]
        cols = [j * settings["strides"][1] - beside + r for r in range(settings["ksize"][1])]
        seen = [(r, s) for r, s in itertools.product(rows, cols) if 0 <= r < shape[1] and 0 <= s < shape[2]]
        row, col = max(seen, key=lambda place: x[n, place[0], place[1], c])  # the first of equal ones
        desired[n, row, col, c] += dy[n, i, j, c]
    actual = jax.jit(lambda x, y, dy: pool_lowerings.max_pool_grad(x, y, dy, **settings, platform=platform))(x, y, dy)
    np.testing.assert_array_equal(actual, desired)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bfloat16", "float16"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_max_pool_of_other_types(rng: np.random.Generator, dtype: str, platform: str) -> None:
    x = jnp.asarray(rng.integers(0, 99, (2, 5, 5, 3)), dtype)
    desired = pool_reference(x.astype("float32"), -jnp.inf, lax.max, POOLS["3x3 by twos"][1])
    actual = pool_lowerings.max_pool(x, **POOLS["3x3 by twos"][1], platform=platform)
    assert actual.dtype == x.dtype
    np.testing.assert_array_equal(actual.astype("float32"), desired)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("size", [2, 9])  # the second has too many taps, so XLA's own is used
def test_nan_and_infinity_never_win(size: int, platform: str) -> None:
    settings: Any = {"ksize": (size, size), "strides": (size, size), "padding": "VALID", "platform": platform}
    x = np.full((3, size, size, 1), np.nan, np.float32)  # the first has nothing but NaN
    x[1] = -np.inf
    x[2, -1] = 3 - np.arange(size, dtype=np.float32)[:, None]
    y = pool_lowerings.max_pool(x, **settings)
    lowest = np.finfo(np.float32).min
    np.testing.assert_array_equal(np.ravel(y), [lowest, lowest, 3])
    dx = np.asarray(pool_lowerings.max_pool_grad(x, y, np.ones_like(y), **settings))[2]
    desired = np.zeros_like(dx)
    desired[-1, 0] = 1
    np.testing.assert_array_equal(dx, desired)


def test_padding_is_below_every_negative_value() -> None:
    x = np.full((1, 3, 3, 1), -5, np.float32)
    np.testing.assert_array_equal(
        pool_lowerings.max_pool(x, ksize=(2, 2), strides=(2, 2), padding="SAME"), x[:, :2, :2]
    )


def test_compiler_options_change_no_value(rng: np.random.Generator) -> None:
    assert compiler_options("cpu"), "this XLA does not know the option: measure convolutions anew"
    x, kernel = random(rng, (8, 12, 12, 32)), random(rng, (3, 3, 32, 32))

    def conv(x: Any, kernel: Any) -> Any:
        return lowerings.conv2d(x, kernel, padding="SAME")

    fast = jax.jit(conv, compiler_options=compiler_options("cpu"))
    close(fast(x, kernel), reference(x, kernel, {"padding": "SAME"}))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"padding": "HALF"}, "padding must be 'SAME', 'VALID' or two pairs of numbers, received 'HALF'."),
        ({"padding": "SAME", "data_format": "CHWN"}, "data_format must be 'NHWC' or 'NCHW', received 'CHWN'."),
        (
            {"padding": "VALID", "dilations": (3, 1)},
            "windows must fit into the padded height of 4, received windows of 7.",
        ),
    ],
)
def test_wrong_settings(settings: Settings, message: str) -> None:
    with pytest.raises(ValueError) as error:
        lowerings.conv2d(np.ones((1, 4, 4, 3)), np.ones((3, 3, 3, 2)), **settings)
    assert str(error.value) == message


def test_kernel_that_does_not_divide_the_channels() -> None:
    with pytest.raises(ValueError, match="must divide those of the images, received 2 and 3"):
        lowerings.conv2d(np.ones((1, 4, 4, 3)), np.ones((3, 3, 2, 2)), padding="SAME")
