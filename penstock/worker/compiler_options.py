"""Sets options of XLA's compiler that make programs faster on a device."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

# XLA sends float32 convolutions to YNNPACK, which runs each on one thread (50 to 140 GFLOP/s). Left out of this list
# they go to Eigen, which uses all (150 to 280 on two cores); dots and sums stay with YNNPACK, as by default.
_CPU_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"}


@functools.cache
def cpu_compiler_options() -> dict[str, str]:
    """Returns the `compiler_options` of `jax.jit` for programs on the CPU that have convolutions in them.

    Without them results are the same, but most convolutions take twice as long. Empty if XLA does not know them.

    >>> step = jax.jit(jnp.negative, compiler_options=cpu_compiler_options())
    """
    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            jax.jit(jnp.negative, compiler_options=_CPU_OPTIONS)(0)
    except RuntimeError:
        return {}
    return _CPU_OPTIONS
