"""WireFormatOptimizer: gradients travel as numbers of 16 bits."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.dtype import as_dtype
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Tensor
from penstock.graph.scopes import colocate_with
from penstock.graph.typing import DTypeLike
from penstock.ops.math.casting import cast, saturate_cast
from penstock.optim.compression import CompressingOptimizer
from penstock.optim.optimizer import Optimizer

_FORMATS = (dt.bfloat16, dt.float16)


class WireFormatOptimizer(CompressingOptimizer):
    """Casts gradients to `dtype` on the worker, and back where `opt` applies them: half of the bytes travel.

    bfloat16 has the range of float32 with 8 bits of precision; float16 has 11 bits, and values beyond 65504 become
    65504, infinite ones too, while those below 6e-8 become 0. NaN stays NaN. Variables, slots and updates keep their
    type. Of sparse gradients the rows are cast; rows of the same index are summed after they arrived.

    >>> rule = tf.train.WireFormatOptimizer(tf.train.AdamOptimizer(1e-3), tf.bfloat16)
    >>> train = rule.minimize(loss, global_step=step)
    """

    def __init__(self, opt: Optimizer, dtype: DTypeLike = dt.bfloat16, name: str = "WireFormat") -> None:
        super().__init__(opt, name)
        try:
            self._dtype = as_dtype(dtype).base_dtype
        except TypeError as error:
            raise TypeError(f"dtype must be tf.bfloat16 or tf.float16, received {dtype!r}.") from error
        if self._dtype not in _FORMATS:
            raise ValueError(f"dtype must be tf.bfloat16 or tf.float16, received {self._dtype.name}.")

    def _restored(self, grad: Tensor, var: Any) -> Any:
        if grad.dtype.size <= self._dtype.size:
            return grad
        small = saturate_cast(grad, self._dtype)
        with colocate_with(var):
            return cast(small, grad.dtype.base_dtype)

    def _arrived_rows(self, grad: IndexedSlices, var: Any) -> Any:
        return IndexedSlices(self._restored(grad.values, var), grad.indices, grad.dense_shape)
