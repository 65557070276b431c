"""Gradient descent: `var -= learning_rate * grad`."""

from __future__ import annotations

from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Tensor
from penstock.graph.typing import TensorLike
from penstock.ops.math.casting import cast
from penstock.ops.state.scatter import SCATTER
from penstock.ops.state.training import apply_gradient_descent
from penstock.optim.optimizer import Optimizer


class GradientDescentOptimizer(Optimizer):
    """Gradient descent with a fixed rate: a number, a tensor, or a function that returns one.

    >>> train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    """

    def __init__(self, learning_rate: TensorLike, use_locking: bool = False, name: str = "GradientDescent") -> None:
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._learning_rate_tensor: Any = None

    def _prepare(self) -> None:
        rate = self._call_if_callable(self._learning_rate)
        self._learning_rate_tensor = convert_to_tensor(rate, name="learning_rate")

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        rate = cast(self._learning_rate_tensor, var.dtype.base_dtype)
        return apply_gradient_descent.ref(var, rate, grad, use_locking=self._use_locking)

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        rate = cast(self._learning_rate_tensor, grad.dtype.base_dtype)
        return apply_gradient_descent.resource(handle.handle, rate, grad, use_locking=self._use_locking)

    def _apply_sparse_duplicate_indices(self, grad: IndexedSlices, var: Any) -> Any:
        step = grad.values * cast(self._learning_rate_tensor, var.dtype.base_dtype)
        return var.scatter_sub(IndexedSlices(step, grad.indices, grad.dense_shape), use_locking=self._use_locking)

    def _resource_apply_sparse_duplicate_indices(self, grad: Any, handle: Any, indices: Tensor) -> Any:
        step = -grad * cast(self._learning_rate_tensor, grad.dtype.base_dtype)
        return SCATTER["Add"][1](handle.handle, indices, step)
