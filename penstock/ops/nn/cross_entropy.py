"""Losses: cross-entropies of logits, L2 and Poisson."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from penstock.graph import dtype as dt
from penstock.graph.checks import require_in_range
from penstock.graph.convert import convert_to_tensor
from penstock.graph.opdef import op
from penstock.graph.operation import Operation, Tensor
from penstock.graph.scopes import control_dependencies, name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.jaxprs.symbols import broadcast_shapes
from penstock.kernel import shapes
from penstock.kernel.types import FLOATS, INDEX64, Array, platform
from penstock.ops.array import arranging, creation, joining, passthrough, ranges, reshaping, selection, slicing
from penstock.ops.debugging import assertion
from penstock.ops.linalg import matmul
from penstock.ops.math import arithmetic, casting, compare, reduce, unary
from penstock.ops.math.reduce import renamed
from penstock.ops.nn import activation, layer_parts


@op("L2Loss", "T -> output: T", shape=shapes.scalar, T=FLOATS, grad=lambda op, dy: [op.input_list[0] * dy])
def l2_loss(t: Array) -> Array:
    return jnp.sum(t * t) / 2


# Softmax cross-entropy. The second output of the forward op is the gradient of the logits.


def _shifted(features: Array) -> tuple[Array, Array]:
    """Logits less their largest, and the log of the sum of their exponentials."""
    shifted = features - jnp.max(features, axis=1, keepdims=True, initial=-jnp.inf)
    return shifted, jnp.log(jnp.sum(jnp.exp(shifted), axis=1, keepdims=True))


def _is_zero(gradient: Any) -> bool:
    return gradient is None or gradient.op.type in ("ZerosLike", "Zeros")


def _logits_gradient(op: Operation, d_loss: Any, d_backprop: Any) -> Any:
    """`d_loss` times the backprop output, plus the gradient through that output if it is differentiated."""
    result = _times_rows(d_loss, op.outputs[1])
    if not _is_zero(d_backprop):
        softmax = layer_parts.softmax(op.input_list[0])
        product = matmul.matmul(reshaping.expand_dims(d_backprop, 1), reshaping.expand_dims(softmax, 2))
        result += (d_backprop - reshaping.squeeze(product, axis=[1])) * softmax
    return result


def _times_rows(column: Any, rows: Any) -> Any:
    wide: Any = reshaping.expand_dims(column, -1)
    return wide * rows


def _dense_gradient(op: Operation, d_loss: Tensor, d_backprop: Any) -> list[Any]:
    first = _logits_gradient(op, d_loss, d_backprop)
    return [first, _times_rows(d_loss, unary.negative(layer_parts.log_softmax(op.input_list[0])))]


def _sparse_gradient(op: Operation, d_loss: Tensor, d_backprop: Any) -> list[Any]:
    return [_logits_gradient(op, d_loss, d_backprop), None]


def _dense_shape(op: Operation) -> list[TensorShape]:
    features, labels = (t.shape.with_rank(2) for t in op.input_list)
    both = shapes.broadcast_pair(features, labels)
    return [TensorShape.of((both.as_list()[0],)), both]


@op("SoftmaxCrossEntropyWithLogits", "T, T -> loss: T, backprop: T", shape=_dense_shape, grad=_dense_gradient, T=FLOATS)
def softmax_cross_entropy(features: Array, labels: Array) -> tuple[Array, Array]:
    if features.ndim != 2 or labels.ndim != 2:
        raise ValueError(f"logits and labels must be matrices, received shapes {features.shape} and {labels.shape}")
    both = broadcast_shapes(features.shape, labels.shape)
    features, labels = jnp.broadcast_to(features, both), jnp.broadcast_to(labels, both)
    shifted, log_sum = _shifted(features)
    return jnp.sum(labels * (log_sum - shifted), axis=1), jnp.exp(shifted - log_sum) - labels


def _sparse_shape(op: Operation) -> list[TensorShape]:
    features = op.input_list[0].shape.with_rank(2)
    rows = TensorShape.of((features.as_list()[0],)).merge_with(op.input_list[1].shape.with_rank(1))
    return [rows, TensorShape.of((rows.as_list()[0], features.as_list()[1]))]


@op(
    "SparseSoftmaxCrossEntropyWithLogits",
    "T, Tlabels -> loss: T, backprop: T",
    shape=_sparse_shape,
    grad=_sparse_gradient,
    T=FLOATS,
    Tlabels=INDEX64,
)
def sparse_softmax_cross_entropy(features: Array, labels: Array) -> tuple[Array, Array]:
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(
            f"logits must be a matrix with a row for each label, received shapes {features.shape} and {labels.shape}"
        )
    classes = features.shape[1]
    shifted, log_sum = _shifted(features)
    log_softmax = shifted - log_sum
    hit = jnp.arange(classes)[None, :] == labels[:, None]
    loss = -jnp.sum(jnp.where(hit, log_softmax, 0), axis=1)
    backprop = jnp.exp(log_softmax) - hit.astype(features.dtype)
    if platform() == "cpu":
        _require_labels(labels, classes)
        return loss, backprop
    # As in TensorFlow, a label out of range is an error on the CPU and NaN elsewhere: a check costs kernels there.
    valid = (labels >= 0) & (labels < classes)
    return jnp.where(valid, loss, jnp.nan), jnp.where(valid[:, None], backprop, jnp.nan)


def _require_labels(labels: Array, classes: int) -> None:
    message = "Received a label value of {} which is outside the valid range of [0, " + f"{classes})."
    require_in_range(labels, classes, message=message)


def softmax_cross_entropy_with_logits(
    labels: TensorLike = None,
    logits: TensorLike = None,
    dim: int = -1,
    name: str | None = None,
    axis: int | None = None,
) -> Tensor:
    """Cross-entropy of `softmax(logits)` against label probabilities; no gradient reaches the labels.

    >>> tf.nn.softmax_cross_entropy_with_logits(labels=one_hot, logits=logits)
    """
    axis = dim if axis is None else axis
    _require_both("softmax_cross_entropy_with_logits", labels, logits)
    with name_scope(name, "softmax_cross_entropy_with_logits_sg", [logits, labels]) as name:
        labels = passthrough.stop_gradient(labels, name="labels_stop_gradient")
    return softmax_cross_entropy_with_logits_v2(labels, logits, axis=axis, name=name)


def softmax_cross_entropy_with_logits_v2(
    labels: TensorLike, logits: TensorLike, axis: int | None = None, name: str | None = None, dim: int | None = None
) -> Tensor:
    """Cross-entropy of `softmax(logits)` against label probabilities, with gradients for both.

    >>> tf.nn.softmax_cross_entropy_with_logits_v2(labels=one_hot, logits=logits)
    """
    axis = renamed(axis, "axis", dim, "dim")
    axis = -1 if axis is None else axis
    _require_both("softmax_cross_entropy_with_logits", labels, logits)
    with name_scope(name, "softmax_cross_entropy_with_logits", [logits, labels]) as name:
        logits = convert_to_tensor(logits, name="logits")
        labels = convert_to_tensor(labels, name="labels")
        # Half precision is too coarse for the sum of exponentials.
        half = logits.dtype.base_dtype in (dt.float16, dt.bfloat16)
        precise = casting.cast(logits, dt.float32) if half else logits
        labels = casting.cast(labels, precise.dtype.base_dtype)
        rank = reshaping.rank(precise)
        if axis != -1:
            precise = _move_to_end(precise, axis, rank)
            labels = _move_to_end(labels, axis, rank)
        shape = reshaping.shape(precise)
        loss, _ = softmax_cross_entropy(_as_rows(precise), _as_rows(labels), name=name)
        result: Tensor = reshaping.reshape(loss, slicing.slice(shape, [0], [arithmetic.subtract(rank, 1)]))
        if logits.shape.rank is not None:
            dims = logits.shape.as_list()
            del dims[axis]
            result.set_shape(dims)
        return casting.cast(result, logits.dtype.base_dtype) if half else result


def _require_both(what: str, labels: Any, logits: Any) -> None:
    if labels is None or logits is None:
        raise ValueError(f"{what}: both `labels` and `logits` must be provided.")


def _move_to_end(tensor: Tensor, axis: int, rank: Tensor) -> Tensor:
    order = joining.concat([ranges.range(axis), ranges.range(axis + 1, rank), [axis]], 0)
    result: Tensor = arranging.transpose(tensor, order)
    return result


def _as_rows(tensor: Tensor) -> Tensor:
    """Merges all dimensions but the last into one."""
    rank = reshaping.rank(tensor)
    last = slicing.slice(reshaping.shape(tensor), [arithmetic.subtract(rank, 1)], [1])
    rows: Tensor = reshaping.reshape(tensor, joining.concat([[-1], last], 0))
    if tensor.shape.rank:
        rows.set_shape([TensorShape(tensor.shape.as_list()[:-1]).num_elements(), tensor.shape.as_list()[-1]])
    return rows


def sparse_softmax_cross_entropy_with_logits(
    labels: TensorLike = None, logits: TensorLike = None, name: str | None = None
) -> Tensor:
    """Cross-entropy of `softmax(logits)` against class numbers.

    >>> tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[3, 7], logits=logits)
    """
    _require_both("sparse_softmax_cross_entropy_with_logits", labels, logits)
    with name_scope(name, "SparseSoftmaxCrossEntropyWithLogits", [labels, logits]):
        labels = convert_to_tensor(labels)
        logits = convert_to_tensor(logits)
        half = logits.dtype.base_dtype in (dt.float16, dt.bfloat16)
        precise = casting.cast(logits, dt.float32) if half else logits
        labels_shape = reshaping.shape(labels)
        _check_sparse_shapes(labels.shape, logits.shape)
        result: Tensor
        if logits.shape.rank == 2:
            result, _ = sparse_softmax_cross_entropy(precise, labels, name=name)
            return casting.cast(result, logits.dtype.base_dtype) if half else result
        shape: Any
        checks = []
        if labels.shape.rank is None or logits.shape.rank is None:
            at_run_time, shape = reshaping.shape(labels), reshaping.shape(logits)
            checks.append(_same_shapes(at_run_time, shape[:-1]))
        with control_dependencies(checks):
            shape, rank = reshaping.shape(logits), reshaping.rank(logits)
            rows = reshaping.reshape(precise, [-1, shape[arithmetic.sub(rank, 1, name="sub")]])
            flat, _ = sparse_softmax_cross_entropy(rows, reshaping.reshape(labels, [-1]), name=name)
            result = reshaping.reshape(flat, labels_shape)
            result.set_shape(labels.shape)
            return casting.cast(result, logits.dtype.base_dtype) if half else result


def _same_shapes(labels: Tensor, rows: Tensor) -> Operation:
    """The check of `_check_sparse_shapes` for shapes that are known only when the graph runs."""
    with name_scope("assert_equal_1"):
        same = reduce.reduce_all(compare.equal(labels, rows))
        return assertion.Assert(same, ["labels must have the shape of logits less its last dimension:", labels, rows])


def _check_sparse_shapes(labels: TensorShape, logits: TensorShape) -> None:
    if logits.rank == 0:
        raise ValueError(f"`logits` cannot be a scalar. Received logits.shape={logits}")
    if logits.rank is None or labels.rank is None:
        return
    if labels.rank != logits.rank - 1:
        raise ValueError(
            "`labels.shape.rank` must equal `logits.shape.rank - 1`. "
            f"Received: labels.shape={labels} of rank {labels.rank} and logits.shape={logits} of rank {logits.rank}"
        )
    if not labels.is_compatible_with(logits[:-1]):
        raise ValueError(
            "`labels.shape` must equal `logits.shape` except for the last dimension. "
            f"Received: labels.shape={labels} and logits.shape={logits}"
        )


# Losses of independent classes.


def _same_shape(what: str, logits: Tensor, labels: Tensor) -> None:
    try:
        labels.shape.assert_is_compatible_with(logits.shape)
    except ValueError:
        raise ValueError(
            f"{what}: `logits` and `labels` must have the same shape, received {logits.shape} vs {labels.shape}."
        ) from None


def sigmoid_cross_entropy_with_logits(
    labels: TensorLike = None, logits: TensorLike = None, name: str | None = None
) -> Tensor:
    """Cross-entropy of `sigmoid(logits)` against independent label probabilities, elementwise.

    >>> tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits)
    """
    _require_both("sigmoid_cross_entropy_with_logits", labels, logits)
    with name_scope(name, "logistic_loss", [logits, labels]) as name:
        logits = convert_to_tensor(logits, name="logits")
        labels = convert_to_tensor(labels, name="labels")
        _same_shape("sigmoid_cross_entropy_with_logits", logits, labels)
        # max(x, 0) - x * z + log(1 + exp(-|x|)) never overflows, and has a gradient at 0.
        zeros = creation.zeros_like(logits, dtype=logits.dtype.base_dtype)
        positive = logits >= zeros
        largest = selection.where(positive, logits, zeros)
        minus_size = selection.where(positive, -logits, logits)
        return arithmetic.add(largest - logits * labels, unary.log1p(unary.exp(minus_size)), name=name)


def weighted_cross_entropy_with_logits(
    labels: TensorLike = None,
    logits: TensorLike = None,
    pos_weight: TensorLike = None,
    name: str | None = None,
    targets: TensorLike = None,
) -> Tensor:
    """`sigmoid_cross_entropy_with_logits` with positive labels counting `pos_weight` times.

    >>> tf.nn.weighted_cross_entropy_with_logits(labels=y, logits=logits, pos_weight=2.0)
    """
    labels = renamed(labels, "labels", targets, "targets")
    with name_scope(name, "logistic_loss", [logits, labels]) as name:
        logits = convert_to_tensor(logits, name="logits")
        labels = convert_to_tensor(labels, name="labels")
        _same_shape("weighted_cross_entropy_with_logits", logits, labels)
        weight = 1 + (pos_weight - 1) * labels
        return arithmetic.add(
            (1 - labels) * logits,
            weight * (unary.log1p(unary.exp(-unary.abs(logits))) + activation.relu(-logits)),  # type: ignore[operator]
            name=name,
        )


def log_poisson_loss(
    targets: TensorLike, log_input: TensorLike, compute_full_loss: bool = False, name: str | None = None
) -> Tensor:
    """Minus the log-likelihood of Poisson counts `targets` with log rates `log_input`, elementwise.

    Without `compute_full_loss` the term that depends only on the targets (Stirling's log of the factorial) is left out.

    >>> tf.nn.log_poisson_loss(counts, log_rates)
    """
    with name_scope(name, "log_poisson_loss", [log_input, targets]):
        log_input = convert_to_tensor(log_input, name="log_input")
        targets = convert_to_tensor(targets, name="targets")
        _same_shape("log_poisson_loss", log_input, targets)
        result = unary.exp(log_input) - log_input * targets
        if compute_full_loss:
            half = convert_to_tensor(0.5, dtype=targets.dtype.base_dtype)
            two_pi = convert_to_tensor(2 * np.pi, dtype=targets.dtype.base_dtype)
            stirling = targets * unary.log(targets) - targets + half * unary.log(two_pi * targets)
            zeros, ones = creation.zeros_like(targets), creation.ones_like(targets)
            small = compare.logical_and(targets >= zeros, targets <= ones)
            result += selection.where(small, zeros, stirling)
        total: Tensor = result
        return total
