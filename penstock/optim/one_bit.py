"""1-bit SGD: gradients travel as their signs, and what that loses is added to the next ones (Seide et al., 2014)."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.operation import Tensor
from penstock.graph.scopes import colocate_with, control_dependencies
from penstock.ops.array.creation import zeros, zeros_like
from penstock.ops.array.joining import concat, stack
from penstock.ops.array.passthrough import identity
from penstock.ops.array.reshaping import reshape
from penstock.ops.array.selection import where_v2 as where
from penstock.ops.math.arithmetic import maximum
from penstock.ops.math.bitwise import bitwise_and, left_shift, right_shift
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import greater_equal, logical_not
from penstock.ops.math.reduce import reduce_sum
from penstock.optim.compression import CompressingOptimizer
from penstock.optim.optimizer import Optimizer, op_of
from penstock.optim.rule import require_whole

_PLACES = np.arange(8, dtype=np.uint8)[:, None]  # of the bits in a byte


def pack_bits(bits: Tensor, size: int) -> Any:
    """`size` booleans as bytes of eight each. Bits that are far apart share a byte, so that rows are added up."""
    width = -(-size // 8)
    padded = concat([cast(bits, dt.uint8), zeros([8 * width - size], dt.uint8)], 0)
    return reduce_sum(left_shift(reshape(padded, [8, width]), _PLACES), 0)


def unpack_bits(packed: Any, size: int) -> Any:
    """The booleans that `pack_bits` has packed."""
    bits: Any = reshape(bitwise_and(right_shift(packed[None, :], _PLACES), np.uint8(1)), [-1])
    return cast(bits[:size], dt.bool)


class OneBitOptimizer(CompressingOptimizer):
    """Sends the sign of each element, with the means of the positive and of the negative ones; `opt` applies these.

    The worker keeps the difference between what it wanted to send and what it sent, and adds it to its next gradient
    (error feedback), so that in the long run nothing is lost: F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, 2014, "1-Bit
    Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech DNNs". Each column
    (each index of the last dimension) has its own two means, or with `per_column=False` each variable, as those of one
    dimension have.

    Variables with fewer than `dense_below` elements, and sparse gradients, travel as they are.

    >>> rule = tf.train.OneBitOptimizer(tf.train.AdagradOptimizer(0.1))
    >>> train = rule.minimize(loss, global_step=step)
    """

    def __init__(self, opt: Optimizer, per_column: bool = True, dense_below: int = 256, name: str = "OneBit") -> None:
        super().__init__(opt, name)
        require_whole(0, dense_below=dense_below)
        self._per_column, self._dense_below = per_column, dense_below

    def _restored(self, grad: Tensor, var: Any) -> Any:
        size, shape = self._size(var), var.get_shape().as_list()
        if size < max(self._dense_below, 1):
            return grad
        columns = shape[-1] if self._per_column and len(shape) > 1 else 1
        residual = self._local(var, "residual", [size // columns, columns])
        wanted: Any = residual.read_value() + reshape(grad, [-1, columns])
        is_up = greater_equal(wanted, 0)
        up, down = _mean(wanted, is_up), _mean(wanted, logical_not(is_up))
        kept = op_of(residual.assign(wanted - where(is_up, up, down)))
        with control_dependencies([kept]):
            signs = identity(pack_bits(reshape(is_up, [-1]), size))
            scales: Any = identity(stack([up, down]))
        with colocate_with(var):
            arrived = reshape(unpack_bits(signs, size), [-1, columns])
            return reshape(where(arrived, scales[0], scales[1]), shape)


def _mean(values: Any, chosen: Any) -> Any:
    """The mean of the chosen values of each column, or 0 where there are none."""
    count = reduce_sum(cast(chosen, values.dtype), 0)
    return reduce_sum(where(chosen, values, zeros_like(values)), 0) / maximum(count, 1)
