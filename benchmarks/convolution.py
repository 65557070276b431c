"""Times `penstock.ops.conv.lowerings` on this machine's CPU, in milliseconds (the best of many runs).

python benchmarks/convolution.py                 # keeps memory as the worker does
python benchmarks/convolution.py --fresh-memory  # every temporary is mapped and faulted in again
"""

from __future__ import annotations

import argparse
import ctypes
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from penstock.ops.conv import lowerings, pool_lowerings
from penstock.ops.conv.lowerings import _DEPTHWISE, _DOT, _GROUPS, _XLA, _Lowering
from penstock.ops.conv.windowing import windows_of
from penstock.segments import compiler_options

# Images, kernel, stride.
LAYERS = [
    ((64, 24, 24, 3), (5, 5, 3, 64), 1),
    ((64, 12, 12, 64), (5, 5, 64, 64), 1),
    ((32, 28, 28, 64), (3, 3, 64, 128), 1),
    ((32, 28, 28, 64), (3, 3, 64, 128), 2),
    ((32, 28, 28, 64), (1, 1, 64, 128), 1),
    ((32, 28, 28, 64), (3, 3, 1, 64), 1),
    ((32, 28, 28, 64), (3, 3, 8, 64), 1),
]
POOLS = [((64, 24, 24, 64), 3, 2), ((32, 56, 56, 64), 2, 2), ((32, 28, 28, 64), 3, 1)]
ROUNDS = 8
Run = Callable[[], Any]


def keep_memory() -> None:
    """Sets glibc's M_MMAP_MAX and M_TRIM_THRESHOLD as `penstock.worker` does."""
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(-4, 0)
    mallopt(-1, 2**31 - 1)


def best(runs: dict[str, Run]) -> dict[str, float]:
    """The best time of each. They run in turns, so that other load on the machine affects all of them."""
    for run in runs.values():
        run()
    times = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            run()
            for _ in range(3):
                start = time.perf_counter()
                run()
                times[name] = min(times[name], (time.perf_counter() - start) * 1e3)
    return times


def compiled(function: Callable[..., Any], *arrays: Any, options: bool = True) -> Run:
    program = jax.jit(function, compiler_options=compiler_options.cpu_compiler_options() if options else None)
    return lambda: jax.block_until_ready(program(*arrays))


def random(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))


def show(name: str, took: dict[str, float], work: float = 0) -> None:
    cells = [
        f"{column} {ms:7.2f}" + (f" ({work / ms / 1e6:3.0f} GFLOP/s)" if work else "") for column, ms in took.items()
    ]
    print(f"  {name:16} " + "   ".join(cells), flush=True)


def times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def layer(x_shape: tuple[int, ...], kernel_shape: tuple[int, ...], stride: int) -> None:
    settings: Any = {"padding": "SAME", "strides": (stride, stride)}
    windows = windows_of(x_shape, kernel_shape[2], ksize=kernel_shape[:2], **settings)
    x, kernel = random(*x_shape), random(*kernel_shape)
    dy = random(x_shape[0], windows.rows.out, windows.cols.out, kernel_shape[3])
    other = _DOT if windows.groups == 1 else _DEPTHWISE if windows.depth == 1 else _GROUPS
    chosen = _Lowering(
        lambda x, kernel, _: lowerings.conv2d(x, kernel, **settings),
        lambda kernel, dy, _: lowerings.conv2d_input_grad(x_shape, kernel, dy, **settings),
        lambda x, dy, _: lowerings.conv2d_filter_grad(x, kernel_shape, dy, **settings),
    )

    def run(function: Callable[..., Any], a: Any, b: Any, options: bool = True) -> Run:
        return compiled(lambda a, b: function(a, b, windows), a, b, options=options)

    print(f"\n{times(kernel_shape)} over {times(x_shape)} by {stride}")
    for which, (a, b) in enumerate([(x, kernel), (kernel, dy), (x, dy)]):
        runs = {
            "plain": run(_XLA[which], a, b, options=False),
            "XLA": run(_XLA[which], a, b),
            "taps": run(other[which], a, b),
            "chosen": run(chosen[which], a, b),
        }
        show(_Lowering._fields[which], best(runs), 2 * dy.size * math.prod(kernel_shape[:3]))


def plain_pool(x: Any, size: int, stride: int) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), "SAME")


def pool(shape: tuple[int, ...], size: int, stride: int) -> None:
    settings: Any = {"ksize": (size, size), "strides": (stride, stride), "padding": "SAME"}
    x = jnp.maximum(random(*shape), 0)
    y = plain_pool(x, size, stride)

    def plain(x: Any) -> Any:
        return plain_pool(x, size, stride)

    def plain_grad(x: Any, dy: Any) -> Any:
        return jax.vjp(plain, x)[1](dy)[0]

    print(f"\n{size}x{size} pool over {times(shape)} by {stride}")
    ours = compiled(lambda x: pool_lowerings.max_pool(x, **settings), x)
    show("max", best({"plain": compiled(plain, x, options=False), "chosen": ours}))
    ours = compiled(lambda x, y: pool_lowerings.max_pool_grad(x, y, y, **settings), x, y)
    show("max's gradient", best({"plain": compiled(plain_grad, x, y, options=False), "chosen": ours}))
    show("mean", best({"chosen": compiled(lambda x: pool_lowerings.avg_pool(x, **settings), x)}))
    ours = compiled(lambda y: pool_lowerings.avg_pool_grad(shape, y, **settings), y)
    show("mean's gradient", best({"chosen": ours}))


def step_with(conv: Callable[..., Any], pool: Callable[..., Any], relu: Callable[..., Any]) -> Callable[..., Any]:
    """One step of descent: two 5x5 convolutions with pools, then two dense layers."""

    def loss(parameters: list[Any], images: Any, labels: Any) -> Any:
        kernel1, bias1, kernel2, bias2, dense1, dense2 = parameters
        hidden = pool(relu(conv(images, kernel1) + bias1))
        hidden = pool(relu(conv(hidden, kernel2) + bias2)).reshape(images.shape[0], -1)
        logits = relu(hidden @ dense1) @ dense2
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))

    def step(parameters: list[Any], images: Any, labels: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, images, labels)
        return [p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)], value

    return step


def plain_conv(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def whole_step() -> None:
    shapes = [(5, 5, 3, 64), (64,), (5, 5, 64, 64), (64,), (2304, 192), (192, 10)]
    images, labels = random(64, 24, 24, 3), jnp.asarray(np.arange(64) % 10)
    ours = step_with(
        lambda x, kernel: lowerings.conv2d(x, kernel, padding="SAME"),
        lambda x: pool_lowerings.max_pool(x, ksize=(3, 3), strides=(2, 2), padding="SAME"),
        jax.nn.relu,
    )
    plain = step_with(plain_conv, lambda x: plain_pool(x, 3, 2), lambda x: jnp.maximum(x, 0))

    def trained(step: Callable[..., Any], options: bool) -> Run:
        chosen = compiler_options.cpu_compiler_options() if options else None
        program = jax.jit(step, donate_argnums=0, compiler_options=chosen)
        parameters = [random(*shape) * 0.05 for shape in shapes]

        def run() -> None:
            nonlocal parameters
            parameters, value = program(parameters, images, labels)
            jax.block_until_ready((parameters, value))

        return run

    print("\nTraining step of the CNN")
    runs = {"plain": trained(plain, False), "taps": trained(ours, False), "taps and options": trained(ours, True)}
    show("step", best(runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh-memory", action="store_true", help="let malloc return memory to the system")
    parser.add_argument("--step-only", action="store_true")
    arguments = parser.parse_args()
    if not arguments.fresh_memory:
        keep_memory()
    print("plain: XLA as it comes; XLA: with cpu_compiler_options(); taps: dots or sums of taps; chosen: what runs")
    if not arguments.step_only:
        for images, kernel, stride in LAYERS:
            layer(images, kernel, stride)
        for images, size, stride in POOLS:
            pool(images, size, stride)
    whole_step()


if __name__ == "__main__":
    main()
