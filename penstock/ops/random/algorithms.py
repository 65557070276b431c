"""Algorithms of random numbers: TensorFlow has several, of which Philox is the one for CPUs and GPUs."""

from __future__ import annotations

import enum
from typing import Any

from penstock.graph.checks import require
from penstock.graph.operation import Tensor
from penstock.kernel.types import Array


class Algorithm(enum.Enum):
    """The algorithms by which random numbers can be made: `tf.random.Algorithm.PHILOX`."""

    PHILOX = 1
    THREEFRY = 2
    AUTO_SELECT = 3


def algorithm_number(alg: Any) -> Any:
    """The number of an algorithm that is given as a name, a number, an Algorithm or a tensor; None selects one.

    >>> algorithm_number("philox")
    1
    """
    if alg is None:
        return Algorithm.AUTO_SELECT.value
    if isinstance(alg, Algorithm):
        return alg.value
    if isinstance(alg, (int, Tensor)):
        return alg
    if not isinstance(alg, str):
        raise TypeError(f"Can't convert argument `alg` (of value {alg} and type {type(alg)}) to int.")
    plain = alg.strip().upper().replace("-", "").replace("_", "")
    for each in Algorithm:
        if each.name.replace("_", "") == plain:
            return each.value
    raise unknown_algorithm(alg)


def unknown_algorithm(alg: Any) -> ValueError:
    """The error for an `alg` that does not exist."""
    return ValueError(f"Argument `alg` got unsupported value {alg}. Use 'philox', 'threefry' or 'auto_select'.")


def require_philox(alg: Array) -> None:
    """Demands that an op is to use Philox, or may select it."""
    allowed = (alg == Algorithm.PHILOX.value) | (alg == Algorithm.AUTO_SELECT.value)
    require(allowed, "Random numbers are made by Philox (alg = 1 or 3) alone, received alg = {}", alg)
