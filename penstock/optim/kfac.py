"""K-FAC: natural gradients by Kronecker factors, shared by the workers of a cluster (arXiv:1503.05671).

All state is in variables beside the weights: for each layer the factors A and G, running means of what workers see in
their batches; their damped inverses; and one counter of steps. The counter gives each step of each worker a number, and
the worker with a number that `invert_every` divides is asked to invert the factors. The others go on with the inverses
that are there (Ba, Grosse & Martens 2017, "Distributed Second-Order Optimization using Kronecker-Factored
Approximations"). A worker that dies while it inverts leaves the old inverses; the next number is somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice, starmap
from typing import Any

from penstock.autodiff import gradients
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.nest import flatten
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import colocate_with, control_dependencies, init_scope, name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import zeros
from penstock.ops.array.passthrough import identity
from penstock.ops.array.selection import where_v2
from penstock.ops.control.flow import cond
from penstock.ops.control.grouping import group, no_op, tuple_
from penstock.ops.linalg.diag import eye
from penstock.ops.linalg.matmul import matmul
from penstock.ops.math.arithmetic import add_n, floormod, maximum
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import equal
from penstock.ops.math.reduce import reduce_all, reduce_sum
from penstock.ops.math.unary import is_finite, sqrt
from penstock.optim.kfac_layers import Layer, LayerCollection, damped_inverses
from penstock.optim.kfac_search import find_layers
from penstock.optim.momentum import MomentumOptimizer
from penstock.optim.optimizer import op_of
from penstock.optim.rule import require_not_negative, require_positive, require_whole
from penstock.variables import updates
from penstock.variables.initialize import trainable_variables

_FACTORS = ("A", "G")
_INVERSES = ("A_inverse", "G_inverse")


class KFACOptimizer(MomentumOptimizer):
    """Momentum on natural gradients: `v = momentum * v + A^-1 grad G^-1; w -= learning_rate * v` for each layer.

    Layers are those of `layer_collection`, or else the products and convolutions with trainable variables in the graph
    of the loss. All other variables are trained by momentum on their plain gradients, at the same rate; so are layers
    until the first inverses are there.

    The loss must be a mean over the batch. With `estimation_mode="empirical"` G is made of its own gradients. With
    "gradients" it is made of those for targets drawn from the distributions that `layer_collection` has: this is the
    true Fisher matrix, and takes a second backward pass.

    Every `cov_update_every` steps the factors of the batch go into running means, the k-th with the weight
    `max(1 / k, 1 - cov_ema_decay)`. Every `invert_every` steps the worker whose step it is inverts them with `damping`,
    before its own update. `norm_constraint` bounds `learning_rate^2 * n F n` for the natural gradients n of all layers
    together: larger ones are scaled down ("KL clipping").

    Computing gradients updates the factors, so that it works inside other optimizers, such as SyncReplicasOptimizer.

    >>> rule = tf.contrib.opt.KFACOptimizer(0.1, damping=0.01, norm_constraint=0.01)
    >>> train = rule.minimize(loss, global_step=step)
    >>> with tf.train.MonitoredTrainingSession(server.target, is_chief) as sess:
    ...     sess.run(train)
    """

    def __init__(
        self,
        learning_rate: TensorLike,
        cov_ema_decay: float = 0.95,
        damping: TensorLike = 0.001,
        layer_collection: LayerCollection | None = None,
        momentum: TensorLike = 0.9,
        norm_constraint: float | None = None,
        name: str = "KFAC",
        estimation_mode: str = "empirical",
        cov_update_every: int = 1,
        invert_every: int = 10,
        use_locking: bool = False,
    ) -> None:
        super().__init__(learning_rate, momentum, use_locking, name)
        if not 0.0 <= cov_ema_decay <= 1.0:
            raise ValueError(f"cov_ema_decay must be from 0 to 1, received {cov_ema_decay}.")
        if isinstance(damping, (int, float)):
            require_not_negative(damping=damping)
        if norm_constraint is not None:
            require_positive(norm_constraint=norm_constraint)
        if layer_collection is not None and not isinstance(layer_collection, LayerCollection):
            raise TypeError(f"layer_collection must be a LayerCollection, received {layer_collection!r}.")
        if estimation_mode not in ("empirical", "gradients"):
            raise ValueError(f"estimation_mode must be 'empirical' or 'gradients', received {estimation_mode!r}.")
        require_whole(1, cov_update_every=cov_update_every, invert_every=invert_every)
        self._decay, self._damping, self._norm_constraint = cov_ema_decay, damping, norm_constraint
        self._collection = layer_collection or LayerCollection()
        self._draws_targets = estimation_mode == "gradients"
        self._cov_update_every, self._invert_every = cov_update_every, invert_every
        self._layers: dict[Operation, Layer] = {}  # by the op of the weight

    def compute_gradients(
        self, loss: TensorLike, var_list: Any = None, *args: Any, **kwargs: Any
    ) -> list[tuple[Any, Any]]:
        """See the base class. Whoever computes the gradients updates the factors and, when asked to, the inverses."""
        loss = convert_to_tensor(loss() if callable(loss) else loss)
        variables = trainable_variables() if var_list is None else flatten(var_list)
        sampled = self._collection.sampled_loss() if self._draws_targets else None
        if self._draws_targets and sampled is None:
            raise ValueError(
                "estimation_mode='gradients' needs a layer_collection with a predictive distribution, such as "
                "register_categorical_predictive_distribution(logits)."
            )
        trained = {var.op for var in variables}
        layers = self._collection.layers or find_layers(loss, variables)
        layers = [layer for layer in layers if all(var.op in trained for var in layer.variables)]
        outputs = [output for layer in layers for output in layer.outputs]
        pairs = super().compute_gradients(loss, [*variables, *outputs], *args, **kwargs)
        pairs, by_output = pairs[: len(variables)], [grad for grad, _ in pairs[len(variables) :]]
        if sampled is not None and outputs:
            by_output = gradients(sampled, outputs)
        observed = self._observed(layers, by_output)
        if not observed:
            raise ValueError(
                f"loss: '{loss.name}' has no layer whose variables are all trained. K-FAC needs tf.matmul or "
                f"tf.nn.conv2d (NHWC) with some of {[str(var.name) for var in variables]}, or a layer_collection."
            )
        with init_scope():
            zero = convert_to_tensor(0, dtype=dt.int64)
            steps = self._create_non_slot_variable(zero, f"{self._name}_steps", observed[0][0].weights)
        with name_scope(None, f"{self._name}/curvature"):
            updated = self._update_curvature(observed, steps)
        waiting = tuple_([grad for grad, _ in pairs], control_inputs=[updated])
        return list(zip(waiting, variables, strict=True))

    def _observed(self, layers: list[Layer], output_grads: list[Any]) -> list[tuple[Layer, list[Tensor]]]:
        """The layers with the gradients by their outputs, and with slots; uses without a gradient are left out."""
        observed, remaining = [], iter(output_grads)
        for layer in layers:
            found = list(zip(layer.uses, islice(remaining, len(layer.uses)), strict=True))
            used = [(use, convert_to_tensor(grad)) for use, grad in found if grad is not None]
            if len(used) < len(found) and self._collection.layers:
                raise ValueError(
                    f"layer_collection has outputs of '{layer.weights.name}' on which the loss, or what the registered "
                    "distributions predict, does not depend."
                )
            if used:
                observed.append((replace(layer, uses=[use for use, _ in used]), [grad for _, grad in used]))
        with init_scope():
            for layer, _ in observed:
                self._make_slots(layer)
                self._layers[layer.weights.op] = layer
        return observed

    def _make_slots(self, layer: Layer) -> None:
        dtype = layer.weights.dtype.base_dtype
        values = {"statistics": zeros([], dtype)}
        for factor, inverse in zip(_FACTORS, _INVERSES, strict=True):
            size = layer.sizes[factor]
            values.update({factor: zeros([size, size], dtype), inverse: eye(size, dtype=dtype)})
        for name, value in values.items():
            self._get_or_make_slot(layer.weights, value, name, f"{self._name}/{name}")

    # The factors and their inverses

    def _update_curvature(self, observed: list[tuple[Layer, list[Tensor]]], steps: Any) -> Operation:
        """The operation that updates the factors and, if this worker is asked to, their inverses."""
        with colocate_with(steps):
            # The difference is computed together with the update, so that no two workers get one number.
            number: Any = updates.assign_add(steps, convert_to_tensor(1, dtype=dt.int64)) - 1

        def every(interval: int, do: Callable[[], Operation]) -> Operation:
            if interval == 1:
                return do()
            with colocate_with(steps):
                due = equal(floormod(number, interval), 0)
            return op_of(cond(due, do, no_op))

        with control_dependencies([every(self._cov_update_every, lambda: group(*starmap(self._observe, observed)))]):
            return every(self._invert_every, lambda: group(*(self._invert(layer) for layer, _ in observed)))

    def _observe(self, layer: Layer, output_grads: list[Tensor]) -> Operation:
        """Moves the factors towards those of the batch."""
        seen = layer.statistics(output_grads)
        with colocate_with(layer.weights):
            seen = {factor: identity(value) for factor, value in seen.items()}
            # Workers come at the same time: the means are read when all is there, in one piece with their update.
            with control_dependencies(list(seen.values())):
                count: Any = updates.assign_add(self.get_slot(layer.weights, "statistics"), 1.0)
                weight: Any = maximum(1.0 / count, 1.0 - self._decay)
                moved = []
                for factor, value in seen.items():
                    slot = self.get_slot(layer.weights, factor)
                    old: Any = slot.read_value()
                    moved.append(op_of(updates.assign(slot, old + weight * (value - old))))
            return group(op_of(count), *moved)

    def _invert(self, layer: Layer) -> Operation:
        """Inverts the factors here and puts the inverses beside the weights; those that are not finite are left out."""
        with colocate_with(layer.weights):
            a, g = (self.get_slot(layer.weights, factor).read_value() for factor in _FACTORS)
        damping, dtype = self._damping, a.dtype
        damping = cast(damping, dtype) if isinstance(damping, Tensor) else convert_to_tensor(damping, dtype=dtype)
        inverses = damped_inverses(a, g, damping)
        written = []
        with colocate_with(layer.weights):
            for name, new in inverses.items():
                slot = self.get_slot(layer.weights, name)
                written.append(
                    op_of(updates.assign(slot, where_v2(reduce_all(is_finite(new)), new, slot.read_value())))
                )
        return group(*written)

    # The update

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], global_step: TensorLike = None, name: str | None = None
    ) -> Operation:
        """See the base class. Gradients of layers become natural ones, where the layers' variables are."""
        pairs = list(grads_and_vars)
        given = {var.op: grad for grad, var in pairs if grad is not None}
        layers = [layer for op, layer in self._layers.items() if op in given]
        if not layers:
            raise ValueError(
                "grads_and_vars has no gradient of a layer: call compute_gradients() first, which finds the layers."
            )
        with name_scope(None, f"{self._name}/natural"):
            given.update(self._natural(layers, given))
        return super().apply_gradients([(given.get(var.op), var) for _, var in pairs], global_step, name)

    def _natural(self, layers: list[Layer], given: dict[Operation, Any]) -> dict[Operation, Tensor]:
        """The natural gradients of all variables of the layers, by the ops of the variables."""
        matrices, lengths = [], []
        for layer in layers:
            lacking = [str(var.name) for var in layer.variables if var.op not in given]
            if lacking:
                raise ValueError(f"grads_and_vars has a gradient of '{layer.weights.name}' but none of {lacking}.")
            with colocate_with(layer.weights):
                plain: Any = layer.joined([convert_to_tensor(given[var.op]) for var in layer.variables])
                with control_dependencies([plain]):  # these gradients may have waited for new inverses
                    left, right = (self.get_slot(layer.weights, inverse).read_value() for inverse in _INVERSES)
                matrices.append(matmul(matmul(left, plain), right))
                lengths.append(reduce_sum(matrices[-1] * plain))
        if self._norm_constraint is not None:
            with colocate_with(layers[0].weights):
                rate: Any = cast(self._call_if_callable(self._settings["lr"][0]), lengths[0].dtype)
                total: Any = maximum(add_n([cast(length, lengths[0].dtype) for length in lengths]), 0.0)
                scale = 1.0 / maximum(rate * sqrt(total / self._norm_constraint), 1.0)
        natural: dict[Operation, Tensor] = {}
        for layer, matrix in zip(layers, matrices, strict=True):
            with colocate_with(layer.weights):
                scaled = matrix if self._norm_constraint is None else cast(scale, matrix.dtype) * matrix
                natural.update(zip((var.op for var in layer.variables), layer.parted(scaled), strict=True))
        return natural
