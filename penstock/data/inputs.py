"""Inputs of dataset ops: converts what programs pass to the tensors that the ops take."""

from __future__ import annotations

from typing import Any

from penstock.data import structure
from penstock.graph import dtype as dt
from penstock.graph.constant import constant_value
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import get_seed, name_scope
from penstock.ops.math import casting

AUTOTUNE = -1


def as_int64(value: Any, name: str, default: int | None = None) -> Tensor:
    """Converts a count to the scalar tensor that dataset ops take."""
    return convert_to_tensor(default if value is None else value, dtype=dt.int64, name=name)


def as_bool(value: Any, name: str) -> Tensor:
    """Converts a setting to the scalar tensor that dataset ops take."""
    return convert_to_tensor(value, dtype=dt.bool, name=name)


def seeds(seed: Any) -> tuple[Tensor, Tensor]:
    """The two seeds of a dataset op, by the rules for random ops; zeros mean that there is no seed."""
    if isinstance(seed, Tensor):
        first, _ = get_seed(0)
        return as_int64(first or 0, "seed"), casting.cast(seed, dt.int64, name="seed2")
    first, second = get_seed(seed)
    return as_int64(first or 0, "seed"), as_int64(second or 0, "seed2")


def normalized(value: Any) -> tuple[Any, list[Tensor]]:
    """Converts a nest of values to its spec and its component tensors, named `component_0` and so on."""
    with name_scope(None, "normalize_element"):
        return structure.to_tensors(value, lambda i: f"component_{i}")


def known_size(size: Tensor, drop: Tensor) -> int | None:
    """The static size of a batch: known only if a smaller last one is dropped."""
    dropped, count = constant_value(drop), constant_value(size)
    return int(count) if dropped is not None and dropped and count is not None else None
