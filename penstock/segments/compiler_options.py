"""Sets options of XLA's compiler by the kind of device: for speed on a CPU, and for TensorFlow's numbers elsewhere."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

# XLA sends float32 convolutions to YNNPACK, which runs each on one thread (50 to 140 GFLOP/s). Left out of this list
# they go to Eigen, which uses all (150 to 280 on two cores); dots and sums stay with YNNPACK, as by default.
_CPU_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"}

# XLA would leave out a cast to a 16-bit float and back, so that nothing is rounded. The CPU's compiler never does.
_OPTIONS_ELSEWHERE = {"xla_allow_excess_precision": False}


def compiler_options(platform: str) -> dict[str, Any]:
    """Returns the `compiler_options` of `jax.jit` for programs on devices of a kind: "cpu" or "gpu".

    >>> step = jax.jit(jnp.negative, compiler_options=compiler_options("cpu"))
    """
    return _cpu_options() if platform == "cpu" else _OPTIONS_ELSEWHERE


@functools.cache
def _cpu_options() -> dict[str, str]:
    """Returns the options for programs that have convolutions in them.

    Without them results are the same, but most convolutions take twice as long. Empty if XLA does not know them.
    """
    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            jax.jit(jnp.negative, compiler_options=_CPU_OPTIONS)(0)
    except RuntimeError:
        return {}
    return _CPU_OPTIONS
