"""optimize_loss: an optimizer, clipping, decay and summaries in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.contrib.layers.summaries import _tag
from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.keys import GraphKeys
from penstock.graph.operation import Tensor
from penstock.graph.scopes import get_collection
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation, reshaping
from penstock.ops.control import grouping
from penstock.ops.debugging.check_ops import assert_rank
from penstock.ops.io import summary
from penstock.ops.math import arithmetic, casting, unary
from penstock.ops.math.clip import clip_by_global_norm, global_norm
from penstock.ops.random import stateful as random
from penstock.optim.adagrad import AdagradOptimizer
from penstock.optim.adam import AdamOptimizer
from penstock.optim.ftrl import FtrlOptimizer
from penstock.optim.gradient_descent import GradientDescentOptimizer
from penstock.optim.momentum import MomentumOptimizer
from penstock.optim.optimizer import Optimizer
from penstock.optim.rmsprop import RMSPropOptimizer
from penstock.variables.global_step import assert_global_step, get_global_step
from penstock.variables.initialize import trainable_variables
from penstock.variables.initializers import Constant, Zeros
from penstock.variables.scope import get_variable, variable_scope
from penstock.variables.updates import assign

OPTIMIZER_CLS_NAMES: dict[str, Callable[..., Any]] = {
    "Adagrad": AdagradOptimizer,
    "Adam": AdamOptimizer,
    "Ftrl": FtrlOptimizer,
    "Momentum": lambda learning_rate: MomentumOptimizer(learning_rate, momentum=0.9),
    "RMSProp": RMSPropOptimizer,
    "SGD": GradientDescentOptimizer,
}
OPTIMIZER_SUMMARIES = ["learning_rate", "loss", "gradients", "gradient_norm", "global_gradient_norm"]


def optimize_loss(
    loss: TensorLike,
    global_step: TensorLike,
    learning_rate: TensorLike,
    optimizer: Any,
    gradient_noise_scale: float | None = None,
    gradient_multipliers: Any = None,
    clip_gradients: Any = None,
    learning_rate_decay_fn: Any = None,
    update_ops: Any = None,
    variables: Any = None,
    name: str | None = None,
    summaries: Any = None,
    colocate_gradients_with_ops: bool = False,
    increment_global_step: bool = True,
) -> Any:
    """A training step that returns the loss.

    `optimizer` is a name such as "Adam", a class, an Optimizer, or a function of the learning rate. `clip_gradients`
    is a global norm, or a function of gradients and variables.

    >>> train = tf.contrib.layers.optimize_loss(loss, tf.train.get_global_step(), 0.01, "SGD", clip_gradients=5.0)
    """
    loss = convert_to_tensor(loss)
    assert_rank(loss, 0)
    step = get_global_step() if global_step is None else global_step
    if step is not None:
        assert_global_step(step)
    wanted = ["loss", "learning_rate", "global_gradient_norm"] if summaries is None else list(summaries)
    for each in wanted:
        if each not in OPTIMIZER_SUMMARIES:
            raise ValueError(f"Summaries should be one of [{', '.join(OPTIMIZER_SUMMARIES)}], you provided {each}.")
    with variable_scope(name, "OptimizeLoss", [loss, step]):
        updates = get_collection(GraphKeys.UPDATE_OPS) if update_ops is None else list(update_ops)
        if updates:
            loss = grouping.with_dependencies(updates, loss)
        rate = _rate(learning_rate)
        if rate is not None and learning_rate_decay_fn is not None:
            if step is None:
                raise ValueError("global_step is required for learning_rate_decay_fn.")
            rate = learning_rate_decay_fn(rate, step)
            if "learning_rate" in wanted:
                summary.scalar("learning_rate", rate)
        rule = _optimizer(optimizer, rate)
        chosen = trainable_variables() if variables is None else variables
        gradients = rule.compute_gradients(loss, chosen, colocate_gradients_with_ops=colocate_gradients_with_ops)
        if gradient_noise_scale is not None:
            gradients = _noisy(gradients, gradient_noise_scale)
        if gradient_multipliers is not None:
            gradients = multiply_gradients(gradients, gradient_multipliers)
        if "global_gradient_norm" in wanted or "gradient_norm" in wanted:
            summary.scalar("global_norm/gradient_norm", global_norm([g for g, _ in gradients]))
        if isinstance(clip_gradients, float):
            gradients = _clipped(gradients, clip_gradients)
        elif callable(clip_gradients):
            gradients = clip_gradients(gradients)
        elif clip_gradients is not None:
            raise ValueError(f"Unknown type {type(clip_gradients).__name__} for clip_gradients")
        if "loss" in wanted:
            summary.scalar("loss", loss)
        for gradient, variable in gradients:
            if gradient is not None:
                _summarize(gradient, variable, wanted)
        if clip_gradients is not None and ("global_gradient_norm" in wanted or "gradient_norm" in wanted):
            summary.scalar("global_norm/clipped_gradient_norm", global_norm([g for g, _ in gradients]))
        train = rule.apply_gradients(gradients, global_step=step if increment_global_step else None, name="train")
        return grouping.with_dependencies([train], loss)


def _rate(learning_rate: Any) -> Any:
    if learning_rate is None:
        return None
    if isinstance(learning_rate, Tensor):
        if learning_rate.shape.rank != 0:
            raise ValueError(f"Invalid learning_rate {learning_rate}: it must be a scalar.")
        return learning_rate
    if isinstance(learning_rate, float):
        if learning_rate < 0.0:
            raise ValueError(f"Invalid learning_rate {learning_rate}.")
        return get_variable("learning_rate", [], trainable=False, initializer=Constant(learning_rate))
    raise ValueError(f"Learning rate should be 0d Tensor or float. Got {learning_rate} of type {type(learning_rate)}")


def _optimizer(optimizer: Any, rate: Any) -> Any:
    if isinstance(optimizer, str):
        if rate is None:
            raise ValueError(f"Learning rate is None, but should be specified if optimizer is string ({optimizer}).")
        if optimizer not in OPTIMIZER_CLS_NAMES:
            raise ValueError(
                f"Optimizer name should be one of [{', '.join(OPTIMIZER_CLS_NAMES)}], you provided {optimizer}."
            )
        return OPTIMIZER_CLS_NAMES[optimizer](learning_rate=rate)
    if isinstance(optimizer, type) and issubclass(optimizer, Optimizer):
        if rate is None:
            raise ValueError(f"Learning rate is None, but should be specified if optimizer is class ({optimizer}).")
        return optimizer(learning_rate=rate)  # type: ignore[call-arg]
    if isinstance(optimizer, Optimizer):
        return optimizer
    if callable(optimizer):
        made = optimizer(rate) if rate is not None else optimizer()
        if not isinstance(made, Optimizer):
            raise ValueError(f"Optimizer function should return an instance of Optimizer, but got {made!r}.")
        return made
    raise ValueError(f"Optimizer should be a name, a class, an Optimizer or a function. Got {optimizer!r}.")


def _noisy(gradients: Any, scale: float) -> list[Any]:
    """Adds Gaussian noise to each gradient."""
    noisy: list[Any] = []
    for gradient, variable in gradients:
        if gradient is None:
            noisy.append((None, variable))
            continue
        sizes = gradient.dense_shape if isinstance(gradient, IndexedSlices) else reshaping.shape(gradient)
        noise: Any = random.truncated_normal(sizes)
        noisy.append((arithmetic.add(gradient, noise * scale), variable))
    return noisy


def multiply_gradients(grads_and_vars: Any, gradient_multipliers: Any) -> list[Any]:
    """Multiplies each gradient by the number given for its variable, or for the name of its variable."""
    if not isinstance(gradient_multipliers, dict):
        raise ValueError("`gradient_multipliers` must be a dict.")
    result = []
    for gradient, variable in grads_and_vars:
        by = gradient_multipliers.get(variable, gradient_multipliers.get(variable.op.name))
        if by is not None and gradient is None:
            raise ValueError("Requested multiple of `None` gradient.")
        if by is not None:
            factor = convert_to_tensor(by, dtype=gradient.dtype.base_dtype)
            if isinstance(gradient, IndexedSlices):
                gradient = IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
            else:
                gradient = gradient * factor
        result.append((gradient, variable))
    return result


def _clipped(gradients: Any, norm: float) -> list[Any]:
    if not gradients:
        return []
    values, variables = zip(*gradients, strict=True)
    return list(zip(clip_by_global_norm(list(values), norm)[0], variables, strict=True))


def _summarize(gradient: Any, variable: Any, wanted: list[str]) -> None:
    values = gradient.values if isinstance(gradient, IndexedSlices) else gradient
    name = variable.name.replace(":", "_")
    if "gradients" in wanted:
        summary.histogram(f"gradients/{name}", values)
    if "gradient_norm" in wanted:
        summary.scalar(f"gradient_norm/{name}", global_norm([values]))


def adaptive_clipping_fn(
    std_factor: float = 2.0,
    decay: float = 0.95,
    static_max_norm: float | None = None,
    global_step: TensorLike = None,
    report_summary: bool = False,
    epsilon: float = 1e-8,
    name: str | None = None,
) -> Callable[[Any], Any]:
    """A function for `clip_gradients` that clips gradients far above the usual norm."""

    def clip(grads_and_vars: Any) -> Any:
        values, variables = zip(*grads_and_vars, strict=True)
        norm: Any = global_norm(list(values))
        limit = _usual_norm(norm, std_factor, decay, global_step, epsilon, name)
        if report_summary:
            summary.scalar(_tag(limit, "global_norm/adaptive_max_gradient_norm"), limit)
        # No clipping if the norm itself is the limit.
        factor: Any = arithmetic.minimum(limit / norm, creation.ones_like(norm))
        if static_max_norm is not None:
            factor = arithmetic.minimum(factor, static_max_norm / norm)
        clipped = [
            None
            if g is None
            else IndexedSlices(g.values * factor, g.indices, g.dense_shape)
            if isinstance(g, IndexedSlices)
            else g * factor
            for g in values
        ]
        return list(zip(clipped, variables, strict=True))

    return clip


def _usual_norm(norm: Any, factor: float, decay: float, step: Any, epsilon: float, name: str | None) -> Any:
    """exp(mean + factor * deviation) of the logarithm of norms, by moving averages."""
    with variable_scope(name, "AdaptiveMaxNorm", [norm]):
        log_norm: Any = unary.log(norm + epsilon)

        def average(what: str, value: Any) -> Any:
            kept = get_variable(what, shape=value.shape, dtype=value.dtype, initializer=Zeros(), trainable=False)
            share: Any = decay
            if step is not None:
                # The first steps have more weight, until there are enough of them.
                count: Any = casting.cast(step, dt.float32)
                share = arithmetic.minimum(decay, count / (count + 1.0))
            return assign(kept, share * convert_to_tensor(kept) + (1.0 - share) * value)

        mean = average("mean", log_norm)
        square = average("sq_mean", unary.square(log_norm))
        deviation = unary.sqrt(arithmetic.maximum(epsilon, square - unary.square(mean)))
        return unary.exp(mean + factor * deviation)
