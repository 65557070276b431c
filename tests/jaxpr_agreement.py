"""Runs functions by NumpyProgram and by jax, and compares the results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from penstock.jaxprs.numpy_program import NumpyProgram

jax.config.update("jax_enable_x64", True)

TOLERANCE = {
    "float64": 1e-12,
    "complex128": 1e-12,
    "float32": 2e-6,
    "complex64": 5e-6,
    "float16": 2e-3,
    "bfloat16": 2e-2,
}
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


# Compiling takes most of the time of these tests, and the code runs only once.
_QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


@functools.cache
def _compiler_options() -> dict[str, Any]:
    try:
        jax.jit(lambda x: x).lower(1).compile(compiler_options=_QUICK_TO_COMPILE)
    except jax.errors.JaxRuntimeError:  # this version of XLA lacks one of them
        return {}
    return _QUICK_TO_COMPILE


def by_jax(function: Callable[..., Any], *arrays: Any) -> list[Any]:
    """The results of `function`, compiled for the CPU."""
    with jax.default_device(jax.devices("cpu")[0]):
        return jax.tree.leaves(jax.jit(function).lower(*arrays).compile(compiler_options=_compiler_options())(*arrays))


def spec(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def program(function: Callable[..., Any], *specs: Any) -> NumpyProgram:
    return NumpyProgram(jax.jit(function).trace(*specs).jaxpr)


def check_same(got: Sequence[Any], wanted: Sequence[Any], tolerance: float | None = None) -> None:
    assert len(got) == len(wanted)
    for position, (ours, theirs) in enumerate(zip(got, map(np.asarray, wanted), strict=True)):
        assert isinstance(ours, np.ndarray) and ours.flags.c_contiguous
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), f"result {position}"
        allowed = TOLERANCE.get(theirs.dtype.name) if tolerance is None else tolerance
        if theirs.dtype.name not in TOLERANCE:
            np.testing.assert_array_equal(ours, theirs, err_msg=f"result {position}")
            continue
        if theirs.dtype.kind == "V" or theirs.dtype == np.float16:
            ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(ours, theirs, rtol=allowed, atol=allowed, err_msg=f"result {position}")


def check(function: Callable[..., Any], *arguments: Any, tolerance: float | None = None) -> NumpyProgram:
    """Runs `function` by NumPy and by jax; the arguments must not change."""
    arrays = [np.asarray(argument) for argument in arguments]
    before = [array.tobytes() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    made = program(function, *map(spec, arrays))
    got = made(arrays)
    assert [array.tobytes() for array in arrays] == before
    check_same(got, by_jax(function, *arrays), tolerance)
    return made
