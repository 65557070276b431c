"""`tf.contrib.legacy_seq2seq`: losses and decoders over Python lists of time steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.typing import DTypeLike
from penstock.ops.array.reshaping import reshape
from penstock.ops.math.arithmetic import add, add_n, divide, multiply
from penstock.ops.math.casting import cast
from penstock.ops.math.reduce import reduce_sum
from penstock.ops.nn.cross_entropy import sparse_softmax_cross_entropy_with_logits
from penstock.rnn.base import size_at
from penstock.rnn.static import static_rnn
from penstock.variables.scope import get_variable_scope, variable_scope


def sequence_loss_by_example(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Tensor:
    """The weighted cross-entropy of each row over the steps: lists of [batch, classes], [batch] and [batch].

    >>> loss = tf.contrib.legacy_seq2seq.sequence_loss_by_example([logits], [targets], [weights])
    """
    if not len(logits) == len(targets) == len(weights):
        raise ValueError(
            f"Lengths of logits, weights, and targets must be the same {len(logits)}, {len(weights)}, {len(targets)}."
        )
    with name_scope(name, "sequence_loss_by_example", [*logits, *targets, *weights]):
        losses = []
        for logit, target, weight in zip(logits, targets, weights, strict=True):
            target = convert_to_tensor(target)
            if softmax_loss_function is None:
                loss = sparse_softmax_cross_entropy_with_logits(labels=reshape(target, [-1]), logits=logit)
            else:
                loss = softmax_loss_function(labels=target, logits=logit)
            losses.append(multiply(loss, weight))
        total: Tensor = add_n(losses)
        if not average_across_timesteps:
            return total
        # The small number keeps rows without any weight finite.
        result: Tensor = divide(total, add(add_n([convert_to_tensor(w) for w in weights]), 1e-12))
        return result


def sequence_loss(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Tensor:
    """The weighted cross-entropy over steps and rows."""
    with name_scope(name, "sequence_loss", [*logits, *targets, *weights]):
        cost: Tensor = reduce_sum(
            sequence_loss_by_example(logits, targets, weights, average_across_timesteps, softmax_loss_function)
        )
        if not average_across_batch:
            return cost
        result: Tensor = divide(cost, cast(size_at(convert_to_tensor(targets[0]), 0), cost.dtype))
        return result


def rnn_decoder(
    decoder_inputs: Sequence[Any],
    initial_state: Any,
    cell: Any,
    loop_function: Callable[[Any, int], Any] | None = None,
    scope: Any = None,
) -> Any:
    """Runs `cell` over the inputs; `loop_function(output, i)`, if given, makes the next input from the last output."""
    with variable_scope(scope or "rnn_decoder"):
        state, outputs, before = initial_state, [], None
        for i, given in enumerate(decoder_inputs):
            if loop_function is not None and before is not None:
                with variable_scope("loop_function", reuse=True):
                    given = loop_function(before, i)
            if i > 0:
                get_variable_scope().reuse_variables()
            output, state = cell(given, state)
            outputs.append(output)
            if loop_function is not None:
                before = output
    return outputs, state


def basic_rnn_seq2seq(
    encoder_inputs: Sequence[Any],
    decoder_inputs: Sequence[Any],
    cell: Any,
    dtype: DTypeLike = "float32",
    scope: Any = None,
) -> Any:
    """An encoder, and a decoder of the same kind that starts with the encoder's last state."""
    with variable_scope(scope or "basic_rnn_seq2seq"):
        encoder = copy.deepcopy(cell)
        _, state = static_rnn(encoder, list(encoder_inputs), dtype=dtype)
        return rnn_decoder(decoder_inputs, state, cell)
