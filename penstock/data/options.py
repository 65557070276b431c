"""Options of datasets: settings that are part of a pipeline. The runner ignores those that it does not need."""

from __future__ import annotations

import enum
from typing import Any

_FIELDS = {
    "options": (
        "autotune",
        "dataset_name",
        "deterministic",
        "experimental_service",
        "experimental_symbolic_checkpoint",
        "experimental_warm_start",
        "framework_type",
        "threading",
        "experimental_deterministic",
        "experimental_distribute",
        "experimental_external_state_policy",
        "experimental_optimization",
        "experimental_slack",
        "experimental_stateful_whitelist",
        "experimental_stats",
        "experimental_threading",
        "experimental_autotune",
        "experimental_numa_aware",
    ),
    "autotune": ("autotune_algorithm", "cpu_budget", "enabled", "initial_parallelism", "min_parallelism", "ram_budget"),
    "distribute": ("auto_shard", "auto_shard_policy", "num_devices"),
    "optimization": (
        "apply_default_optimizations",
        "autotune",
        "autotune_algorithm",
        "autotune_buffers",
        "autotune_cpu_budget",
        "filter_fusion",
        "filter_parallelization",
        "inject_prefetch",
        "seq_interleave_prefetch",
        "filter_with_random_uniform_fusion",
        "hoist_random_uniform",
        "map_and_batch_fusion",
        "map_and_filter_fusion",
        "map_fusion",
        "map_parallelization",
        "map_vectorization",
        "noop_elimination",
        "parallel_batch",
        "reorder_data_discarding_ops",
        "shuffle_and_repeat_fusion",
    ),
    "threading": ("max_intra_op_parallelism", "private_threadpool_size"),
    "stats": ("aggregator", "prefix", "counter_prefix", "latency_all_edges"),
}


class AutoShardPolicy(enum.IntEnum):
    """Says how a dataset is divided among workers: `tf.data.experimental.AutoShardPolicy`."""

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


class _Settings:
    """Settings with fixed names, None if not set."""

    _kind = ""

    def __init__(self) -> None:
        for field in _FIELDS[self._kind]:
            object.__setattr__(self, field, None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _FIELDS[self._kind]:
            raise AttributeError(f"Cannot set the property {name} on {type(self).__name__}: it has no such option.")
        object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]

    def merge(self, other: Any) -> Any:
        """These settings, overridden by those that `other` sets."""
        merged = type(self)()
        for field in _FIELDS[self._kind]:
            mine, new = getattr(self, field), getattr(other, field)
            if isinstance(mine, _Settings) and isinstance(new, _Settings):
                new = mine.merge(new)
            object.__setattr__(merged, field, mine if new is None else new)
        return merged


class AutotuneOptions(_Settings):
    """`tf.data.experimental.AutotuneOptions`."""

    _kind = "autotune"


class DistributeOptions(_Settings):
    """`tf.data.experimental.DistributeOptions`."""

    _kind = "distribute"


class OptimizationOptions(_Settings):
    """`tf.data.experimental.OptimizationOptions`."""

    _kind = "optimization"


class ThreadingOptions(_Settings):
    """`tf.data.experimental.ThreadingOptions`."""

    _kind = "threading"


class StatsOptions(_Settings):
    """`tf.data.experimental.StatsOptions`."""

    _kind = "stats"


class Options(_Settings):
    """Options for `dataset.with_options(options)`.

    >>> options = tf.data.Options(); options.deterministic = False
    """

    _kind = "options"

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "autotune", AutotuneOptions())
        object.__setattr__(self, "threading", ThreadingOptions())
        object.__setattr__(self, "experimental_distribute", DistributeOptions())
        object.__setattr__(self, "experimental_optimization", OptimizationOptions())
        object.__setattr__(self, "experimental_stats", StatsOptions())
        object.__setattr__(self, "experimental_threading", ThreadingOptions())
