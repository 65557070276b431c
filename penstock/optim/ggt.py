"""GGT: full-matrix adaptive steps from a window of past gradients (Agarwal et al., arXiv:1806.02958)."""

from __future__ import annotations

from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import zeros, zeros_like
from penstock.ops.array.joining import concat
from penstock.ops.array.reshaping import expand_dims, reshape
from penstock.ops.array.selection import where
from penstock.ops.control.grouping import group
from penstock.ops.linalg.decompose import self_adjoint_eig
from penstock.ops.linalg.diag import eye
from penstock.ops.linalg.matmul import matmul
from penstock.ops.math.arithmetic import floormod, maximum, minimum
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import greater
from penstock.ops.math.reduce import reduce_min
from penstock.ops.math.unary import sqrt
from penstock.optim.dense_rows import DenseRows
from penstock.optim.optimizer import op_of
from penstock.variables import updates


class GGTOptimizer(DenseRows):
    """Adagrad with the full matrix of the last `window` gradients, at the price of a `window` x `window` matrix.

    All variables count as one vector. Its running means `m = beta1 * m + (1 - beta1) * g` of the last steps are the
    columns of a matrix G, each divided by the root of their number. The step is `(G G^T) ** (-1/2) m`, in the span of
    these columns. It is computed as `G (G^T G) ** (-3/2) G^T m`, from the eigenvalues of `G^T G + svd_eps * I`;
    `sigma_eps` is added to their roots. If the smallest root is above `eps`, the rest of m, outside of that span, is
    divided by it and added.

    >>> train = tf.contrib.opt.GGTOptimizer(1e-3, window=20).minimize(loss)
    """

    def __init__(
        self,
        learning_rate: TensorLike = 0.001,
        beta1: TensorLike = 0.9,
        use_locking: bool = False,
        name: str = "GGT",
        window: int = 10,
        eps: float = 1e-4,
        svd_eps: float = 1e-6,
        sigma_eps: float = 1e-2,
    ) -> None:
        super().__init__(use_locking, name)
        if window < 1:
            raise ValueError(f"window must be at least 1, received {window}.")
        self._lr, self._beta1 = learning_rate, beta1
        self._window, self._eps, self._svd_eps, self._sigma_eps = window, eps, svd_eps, sigma_eps
        self._gathered: dict[str, tuple[Any, Tensor]] = {}

    def _create_slots(self, var_list: list[Any]) -> None:
        first = min(var_list, key=lambda v: str(v.name))
        dtype, total = first.dtype.base_dtype, sum(v.get_shape().num_elements() for v in var_list)
        if any(v.dtype.base_dtype != dtype for v in var_list):
            raise ValueError(f"GGTOptimizer needs variables of one type, received {[str(v) for v in var_list]}.")
        self._create_non_slot_variable(cast(0.0, dtype), "steps_made", first)
        self._create_non_slot_variable(zeros([self._window, total], dtype), "grad_buffer", first)
        self._create_non_slot_variable(zeros([total], dtype), "moment1", first)

    def _prepare(self) -> None:
        self._gathered = {}

    def _apply_dense(self, grad: Tensor, var: Any) -> Any:
        self._gathered[var.name] = (var, grad)
        return grad  # all variables move together, in `_finish`

    def _resource_apply_dense(self, grad: Tensor, handle: Any) -> Any:
        return self._apply_dense(grad, handle)

    def _finish(self, update_ops: list[Any], name_scope: str) -> Operation:
        pairs = [self._gathered[name] for name in sorted(self._gathered)]
        count = self._get_non_slot_variable("steps_made")
        with colocate_with(count):
            step = self._step_of(concat([reshape(grad, [-1]) for _, grad in pairs], 0), count)
        moves, start = [], 0
        for var, _ in pairs:
            size = var.get_shape().num_elements()
            with colocate_with(var):
                part = reshape(step[start : start + size], var.get_shape())
                moves.append(op_of(updates.assign_sub(var, part, use_locking=self._use_locking)))
            start += size
        return group(*moves, name=name_scope)

    def _step_of(self, grad: Any, count: Any) -> Any:
        dtype = grad.dtype
        rate: Any = cast(self._call_if_callable(self._lr), dtype)
        beta1: Any = cast(self._call_if_callable(self._beta1), dtype)
        moment, buffer = (self._get_non_slot_variable(name) for name in ("moment1", "grad_buffer"))
        counted: Any = convert_to_tensor(count.assign_add(1.0))
        mean: Any = convert_to_tensor(moment.assign(beta1 * moment + (1.0 - beta1) * grad))
        place = cast(floormod(counted - 1.0, float(self._window)), "int32")
        held: Any = convert_to_tensor(updates.scatter_update(buffer, expand_dims(place, 0), expand_dims(mean, 0)))
        # Rows here are the columns of G.
        rows: Any = held / sqrt(minimum(counted, float(self._window)))
        gram: Any = matmul(rows, rows, transpose_b=True)
        damping: Any = eye(self._window, dtype=dtype)
        squares, vectors = self_adjoint_eig(gram + self._svd_eps * damping)
        # Rounding may leave an eigenvalue below the one that was added.
        squares = maximum(squares, self._svd_eps)
        roots: Any = sqrt(squares)
        seen: Any = matmul(vectors, matmul(rows, expand_dims(mean, 1)), transpose_a=True)

        def back(weights: Any) -> Any:
            """A vector of the span of the rows: `G U diag(weights) U^T G^T m`."""
            return reshape(matmul(rows, matmul(vectors, weights[:, None] * seen), transpose_a=True), [-1])

        inside = back(1.0 / (roots + self._sigma_eps) ** 3)
        smallest: Any = reduce_min(roots)
        outside = (mean - back(1.0 / squares)) / smallest
        return rate * (inside + where(greater(smallest, self._eps), outside, zeros_like(outside)))
