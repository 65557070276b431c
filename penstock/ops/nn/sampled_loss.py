"""Losses over a sample of the classes, for vocabularies that are too large for all logits."""

from __future__ import annotations

from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.opdef import op_of
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import TensorLike
from penstock.ops.array import creation, joining, passthrough, reshaping, slicing
from penstock.ops.linalg import matmul
from penstock.ops.math import arithmetic, casting, unary
from penstock.ops.nn import cross_entropy
from penstock.ops.nn.embedding import embedding_lookup
from penstock.ops.random.accidental_hits import compute_accidental_hits
from penstock.ops.random.candidate_sampling import log_uniform_candidate_sampler


def nce_loss(
    weights: TensorLike,
    biases: TensorLike,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = False,
    partition_strategy: str = "mod",
    name: str | None = "nce_loss",
) -> Tensor:
    """Noise-contrastive estimation: each row's labels against `num_sampled` random, most likely wrong, classes.

    >>> tf.nn.nce_loss(weights, biases, labels, embedded, num_sampled=64, num_classes=10000)
    """
    logits, targets = _sampled_logits(
        weights,
        biases,
        labels,
        inputs,
        num_sampled,
        num_classes,
        num_true,
        sampled_values,
        remove_accidental_hits,
        partition_strategy,
        name,
        None,
    )
    losses = cross_entropy.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits, name="sampled_losses")
    return _row_sums(losses)


def sampled_softmax_loss(
    weights: TensorLike,
    biases: TensorLike,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = True,
    partition_strategy: str = "mod",
    name: str | None = "sampled_softmax_loss",
    seed: int | None = None,
) -> Tensor:
    """The softmax cross-entropy of each row's labels among themselves and `num_sampled` other classes.

    For training; to evaluate, use the whole softmax.

    >>> tf.nn.sampled_softmax_loss(weights, biases, labels, hidden, num_sampled=64, num_classes=10000)
    """
    logits, targets = _sampled_logits(
        weights,
        biases,
        labels,
        inputs,
        num_sampled,
        num_classes,
        num_true,
        sampled_values,
        remove_accidental_hits,
        partition_strategy,
        name,
        seed,
    )
    targets = passthrough.stop_gradient(targets, name="labels_stop_gradient")
    return cross_entropy.softmax_cross_entropy_with_logits_v2(labels=targets, logits=logits)


def _row_sums(rows: Any) -> Tensor:
    """Row sums by a product with a column of ones, which was faster than a reduction on older devices."""
    shape: Any = reshaping.shape(rows)
    ones = creation.ones(joining.stack([shape[1], 1]), rows.dtype)
    return reshaping.reshape(matmul.matmul(rows, ones), [-1])


def _sampled_logits(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: Any,
    remove_accidental_hits: bool,
    partition_strategy: str,
    name: str | None,
    seed: int | None,
) -> tuple[Tensor, Tensor]:
    """Logits of the true and of the sampled classes side by side, less the logs of how often each is expected."""
    if hasattr(weights, "_get_variable_list"):
        weights = list(weights)
    weights = list(weights) if isinstance(weights, (list, tuple)) else [weights]
    with name_scope(name, "compute_sampled_logits", [*weights, biases, inputs, labels]):
        if labels.dtype.base_dtype is not dt.int64:
            labels = casting.cast(labels, dt.int64)
        flat = reshaping.reshape(labels, [-1])
        if sampled_values is None:
            sampled_values = log_uniform_candidate_sampler(
                labels, num_true=num_true, num_sampled=num_sampled, unique=True, range_max=num_classes, seed=seed
            )
        sampled, true_counts, sampled_counts = (passthrough.stop_gradient(value) for value in sampled_values)
        sampled = casting.cast(sampled, dt.int64)
        ids = joining.concat([flat, sampled], 0)
        true_weights, sampled_weights = _split(_rows(weights, ids, partition_strategy, inputs), flat)
        sampled_logits: Any = matmul.matmul(inputs, sampled_weights, transpose_b=True)
        both = _rows(biases, ids, partition_strategy, inputs)
        true_biases = slicing.slice(both, [0], reshaping.shape(flat))
        sampled_biases = slicing.slice(both, reshaping.shape(flat), [-1])
        shape: Any = reshaping.shape(true_weights)
        size = shape[1:2]
        true_shape = joining.concat([[-1, num_true], size], 0)
        products = arithmetic.multiply(reshaping.expand_dims(inputs, 1), reshaping.reshape(true_weights, true_shape))
        dots = _row_sums(reshaping.reshape(products, joining.concat([[-1], size], 0)))
        true_logits: Any = reshaping.reshape(dots, [-1, num_true])
        true_logits += reshaping.reshape(true_biases, [-1, num_true])
        sampled_logits += sampled_biases
        if remove_accidental_hits:
            sampled_logits += _ruled_out(labels, sampled, num_true, num_sampled, sampled_logits.dtype)
        # Q is how often the sampler draws a class.
        true_logits -= _log(true_counts, true_logits)
        sampled_logits -= _log(sampled_counts, sampled_logits)
        logits = joining.concat([true_logits, sampled_logits], 1)
        ones: Any = creation.ones_like(true_logits)
        return logits, joining.concat([ones / num_true, creation.zeros_like(sampled_logits)], 1)


def _log(counts: Tensor, logits: Tensor) -> Any:
    return casting.cast(unary.log(counts), logits.dtype)


def _rows(table: Any, ids: Tensor, partition_strategy: str, inputs: Any) -> Tensor:
    rows: Tensor = casting.cast(embedding_lookup(table, ids, partition_strategy=partition_strategy), inputs.dtype)
    return rows


def _split(rows: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
    """Splits values into those of the labels and those of the sample."""
    first: Any = reshaping.shape(flat)
    head = slicing.slice(rows, [0, 0], joining.stack([first[0], -1]))
    second: Any = reshaping.shape(flat)
    return head, slicing.slice(rows, joining.stack([second[0], 0]), [-1, -1])


def _ruled_out(labels: Tensor, sampled: Tensor, num_true: int, num_sampled: int, dtype: Any) -> Tensor:
    """The lowest number wherever the sample has one of the row's labels, else 0."""
    rows, positions, weights = compute_accidental_hits(labels, sampled, num_true=num_true)
    pairs = joining.concat(
        [reshaping.reshape(rows, [-1, 1]), reshaping.reshape(casting.cast(positions, dt.int32), [-1, 1])],
        1,
        "sparse_indices",
    )
    shape: Any = reshaping.shape(labels)
    dense_shape = joining.concat([shape[:1], reshaping.expand_dims(num_sampled, 0)], 0)
    weights = casting.cast(weights, dtype)
    zeros: Tensor = op_of("SparseToDense")(
        pairs, dense_shape, weights, 0.0, validate_indices=False, name="SparseToDense"
    )
    return zeros
