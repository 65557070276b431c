"""Deep Gradient Compression: of each gradient only the largest elements travel (Lin et al., arXiv:1712.01887)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.operation import Tensor
from penstock.graph.scopes import colocate_with, control_dependencies
from penstock.ops.array.creation import zeros_like
from penstock.ops.array.gathering import gather, scatter_nd, tensor_scatter_nd_update
from penstock.ops.array.passthrough import identity
from penstock.ops.array.reshaping import expand_dims, reshape
from penstock.ops.math.casting import cast
from penstock.ops.math.clip import clip_by_global_norm
from penstock.ops.math.compare import greater_equal
from penstock.ops.math.reduce import reduce_sum
from penstock.ops.math.unary import abs
from penstock.ops.nn.layer_parts import top_k
from penstock.optim.compression import CompressingOptimizer
from penstock.optim.optimizer import Optimizer, op_of
from penstock.optim.rule import require_positive, require_whole


class DeepGradientCompressionOptimizer(CompressingOptimizer):
    """Sends the elements of largest magnitude and keeps the others until they have grown; `opt` applies what arrives.

    Y. Lin, S. Han, H. Mao, Y. Wang, W. J. Dally, 2018, "Deep Gradient Compression: Reducing the Communication Bandwidth
    for Distributed Training", arXiv:1712.01887. In each step a worker does for each variable

        u = momentum * u + gradient;  v = v + u  (momentum correction: velocities add up, not gradients)
        the largest |v|, a share of 1 - sparsity, travel with their indices
        u = v = 0 where they were                (momentum factor masking)

    Since momentum is dealt with here, `opt` has none as a rule: gradient descent. An element that has waited for long
    moves by all that has added up at once, so small networks may need a clip or a smaller rate than otherwise.

    - `sparsity` is one number, or a list of them for a warm-up: `sparsity[i]` while the global step is below
      `boundaries[i]`, then the last one. `DeepGradientCompressionOptimizer.WARM_UP` has the paper's, an epoch each.
    - `clip_norm` limits the norm of all gradients together, before they are added up. It is the limit for the sum of
      `num_workers` gradients, so that for one of them is smaller by the root of this number.
    - Variables with fewer than `dense_below` elements travel whole, as velocities; sparse gradients as they are.

    >>> rule = tf.train.GradientDescentOptimizer(0.1)
    >>> rule = tf.train.DeepGradientCompressionOptimizer(rule, momentum=0.9, clip_norm=5.0, num_workers=4)
    >>> train = rule.minimize(loss, global_step=step)
    """

    WARM_UP: ClassVar[tuple[float, ...]] = (0.75, 0.9375, 0.984375, 0.996, 0.999)

    def __init__(
        self,
        opt: Optimizer,
        sparsity: float | Sequence[float] = 0.999,
        boundaries: Sequence[int] = (),
        momentum: float = 0.9,
        use_nesterov: bool = False,
        clip_norm: float | None = None,
        num_workers: int = 1,
        dense_below: int = 256,
        name: str = "DeepGradientCompression",
    ) -> None:
        super().__init__(opt, name)
        self._sparsity, self._boundaries = _schedule(sparsity, boundaries)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and less than 1, received {momentum!r}.")
        if clip_norm is not None:
            require_positive(clip_norm=clip_norm)
        require_whole(1, num_workers=num_workers)
        require_whole(0, dense_below=dense_below)
        self._momentum, self._use_nesterov = momentum, use_nesterov
        self._clip_norm = None if clip_norm is None else clip_norm / math.sqrt(num_workers)
        self._dense_below = dense_below
        self._stage: Any = None

    def _prepared(self, pairs: list[tuple[Any, Any]], global_step: Any) -> list[tuple[Any, Any]]:
        if self._boundaries:
            if global_step is None:
                raise ValueError("global_step is required: `boundaries` are steps of it.")
            self._stage = reduce_sum(cast(greater_equal(cast(global_step, dt.int64), self._boundaries), dt.int32))
        if self._clip_norm is None:
            return pairs
        clipped, _ = clip_by_global_norm([grad for grad, _ in pairs], self._clip_norm)
        return [(grad, var) for grad, (_, var) in zip(clipped, pairs, strict=True)]

    def _restored(self, grad: Tensor, var: Any) -> Any:
        size, shape = self._size(var), var.get_shape().as_list()
        gradient: Any = reshape(grad, [-1])
        velocity = self._local(var, "velocity", [size]) if self._momentum else None
        moved, step = self._moved(velocity, gradient)
        if size < max(self._dense_below, 1):
            with control_dependencies([] if velocity is None else [op_of(velocity.assign(moved))]):
                return reshape(identity(step), shape)
        residual = self._local(var, "residual", [size])
        total = residual.read_value() + step
        # XLA's CPU has a quick selection for float32 alone: 4 ms for a million elements, and sorts others in a second.
        at = top_k(cast(abs(total), dt.float32), self._count(size), sorted=False).indices
        sent = gather(total, at)

        def keep(held: Any, value: Any) -> Any:
            return op_of(held.assign(tensor_scatter_nd_update(value, expand_dims(at, 1), zeros_like(sent))))

        kept = [keep(residual, total), *([] if velocity is None else [keep(velocity, moved)])]
        with control_dependencies(kept):
            indices, values = identity(at), identity(sent)
        with colocate_with(var):
            return reshape(scatter_nd(expand_dims(indices, 1), values, [size]), shape)

    def _moved(self, velocity: Any, gradient: Any) -> tuple[Any, Any]:
        """The velocity after a gradient, and the step that it gives."""
        if velocity is None:
            return None, gradient
        if self._use_nesterov:
            ahead = self._momentum * (velocity.read_value() + gradient)
            return ahead, ahead + gradient
        moved = self._momentum * velocity.read_value() + gradient
        return moved, moved

    def _count(self, size: int) -> Any:
        """The number of elements that travel in this step, of `size`."""
        counts = [max(1, round(size * (1 - share))) for share in self._sparsity]
        return gather(np.array(counts, np.int32), self._stage) if self._boundaries else counts[0]


def _schedule(sparsity: Any, boundaries: Any) -> tuple[list[float], list[int]]:
    """Both as lists, checked."""
    if not isinstance(boundaries, Sequence):
        raise TypeError(f"boundaries must be a list of steps, received {boundaries!r}.")
    shares = list(sparsity) if isinstance(sparsity, Sequence) else [sparsity]
    steps = list(boundaries)
    for share in shares:
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
            raise ValueError(f"sparsity must be at least 0 and less than 1, received {sparsity!r}.")
    if any(isinstance(step, bool) or not isinstance(step, int) or step < 1 for step in steps):
        raise ValueError(f"boundaries must be whole numbers of at least 1, received {boundaries!r}.")
    if any(later <= step for step, later in itertools.pairwise(steps)):
        raise ValueError(f"boundaries must increase, received {boundaries!r}.")
    if len(steps) != len(shares) - 1:
        raise ValueError(
            f"boundaries must be one fewer than the numbers in sparsity, received {len(steps)} for {len(shares)}: "
            f"{boundaries!r} and {sparsity!r}."
        )
    return shares, steps
