"""Seeds made of seeds, for stateless random ops, and shuffles that depend on a seed alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.kernel import shapes
from penstock.ops.array import joining
from penstock.ops.random import stateless
from penstock.ops.random.algorithms import algorithm_number, require_philox
from penstock.ops.random.stateful import shuffled_rows


def split(seed: Any, num: int = 2, alg: Any = "auto_select") -> Tensor:
    """`num` new seeds that follow from one, [num, 2]: `a, b = tf.unstack(tf.random.split([1, 2]))`."""
    seed = convert_to_tensor(seed)
    return stateless.stateless_uniform([num, 2], seed, None, None, seed.dtype, alg=alg)


def fold_in(seed: Any, data: TensorLike, alg: Any = "auto_select") -> Tensor:
    """A new seed that follows from one and a number, such as that of a step: `tf.random.fold_in([1, 2], step)`."""
    data = convert_to_tensor(data)
    return joining.stack([stateless.stateless_uniform([], seed, None, None, data.dtype, alg=alg), data])


@op("StatelessShuffle", "T, uint64, uint64, int32 -> output: T", host=True, no_gradient=True, shape=shapes.unchanged)
def stateless_shuffle_op(value: np.ndarray, key: np.ndarray, counter: np.ndarray, alg: np.ndarray) -> np.ndarray:
    require_philox(alg)
    return value[shuffled_rows([key[0], *counter], len(value))] if value.ndim else value


def stateless_shuffle(value: TensorLike, seed: Any, alg: Any = "auto_select", name: str | None = None) -> Tensor:
    """The rows of `value` in an order that depends on `seed` alone."""
    with name_scope(name, "stateless_shuffle", [value, seed]):
        key, counter = stateless.get_key_counter(seed)
        found: Tensor = stateless_shuffle_op(value, key, counter, algorithm_number(alg))
        return found
