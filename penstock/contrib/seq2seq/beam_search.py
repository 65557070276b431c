"""Beam search: BeamSearchDecoder, tile_batch and gather_tree."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from penstock.contrib.seq2seq.decoder import Decoder
from penstock.contrib.seq2seq.helper import lookup
from penstock.graph import dtype as dt
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import fill, zeros
from penstock.ops.array.gathering import batch_gather
from penstock.ops.array.indexing import get_item
from penstock.ops.array.joining import concat, tile
from penstock.ops.array.reshaping import expand_dims, reshape, shape, size
from penstock.ops.array.selection import one_hot, where
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.math.arithmetic import add, divide, floordiv, floormod, multiply, pow
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import equal, logical_not, logical_or
from penstock.ops.math.reduce import reduce_max
from penstock.ops.nn.gather_tree import gather_tree_op
from penstock.ops.nn.layer_parts import log_softmax, top_k
from penstock.rnn.base import assert_like_rnncell


class BeamSearchDecoderState(
    namedtuple(
        "BeamSearchDecoderState", ("cell_state", "log_probs", "finished", "lengths", "accumulated_attention_probs")
    )
):
    """The state of a beam search."""

    __slots__ = ()


class BeamSearchDecoderOutput(namedtuple("BeamSearchDecoderOutput", ("scores", "predicted_ids", "parent_ids"))):
    """The outputs of a step: scores, ids and the beams that they come from."""

    __slots__ = ()


class FinalBeamSearchDecoderOutput(
    namedtuple("FinalBeamDecoderOutput", ("predicted_ids", "beam_search_decoder_output"))
):
    """The outputs of a beam search: the ids of each beam from best to worst, and those of the steps."""

    __slots__ = ()


def tile_batch(t: TensorLike, multiplier: int, name: str | None = None) -> Any:
    """Repeats each row `multiplier` times, in all tensors of a structure.

    >>> tf.contrib.seq2seq.tile_batch(encoder_state, beam_width)
    """

    def one(tensor: Any) -> Tensor:
        tensor = convert_to_tensor(tensor, name="t")
        if tensor.shape.rank is None or tensor.shape.rank < 1:
            raise ValueError("t must have statically known rank and at least a batch dimension.")
        rest = tensor.shape.as_list()[1:]
        tiled = tile(expand_dims(tensor, 1), [1, multiplier] + [1] * len(rest))
        result: Tensor = reshape(tiled, concat(([-1], get_item(shape(tensor), slice(1, None))), 0))
        first = tensor.shape.as_list()[0]
        result.set_shape([None if first is None else first * multiplier, *rest])
        return result

    with name_scope(name, "tile_batch", [*nest.flatten(t), multiplier]):
        return nest.map_structure(one, t)


def gather_tree(
    step_ids: TensorLike,
    parent_ids: TensorLike,
    max_sequence_lengths: TensorLike,
    end_token: TensorLike,
    name: str | None = None,
) -> Tensor:
    """The ids of whole beams from those of the steps, all [time, batch, beam]."""
    result: Tensor = gather_tree_op(step_ids, parent_ids, max_sequence_lengths, end_token, name=name)
    return result


class BeamSearchDecoder(Decoder):
    """Keeps the `beam_width` best sequences; the initial state is tiled with `tile_batch`.

    >>> tf.contrib.seq2seq.BeamSearchDecoder(cell, table, start_tokens, end_token, tiled_state, beam_width=10)
    """

    def __init__(
        self,
        cell: Any,
        embedding: TensorLike,
        start_tokens: TensorLike,
        end_token: TensorLike,
        initial_state: Any,
        beam_width: int,
        output_layer: Any = None,
        length_penalty_weight: float = 0.0,
        coverage_penalty_weight: float = 0.0,
        reorder_tensor_arrays: bool = True,
    ) -> None:
        assert_like_rnncell("cell", cell)
        if coverage_penalty_weight:
            raise ValueError("BeamSearchDecoder: coverage_penalty_weight is not supported, leave it at 0.")
        self._cell, self._output_layer, self._beam_width = cell, output_layer, beam_width
        self._lookup, self._penalty = lookup(embedding), length_penalty_weight
        tokens = convert_to_tensor(start_tokens, dtype=dt.int32, name="start_tokens")
        if tokens.shape.rank != 1:
            raise ValueError("start_tokens must be a vector")
        self._end_token = convert_to_tensor(end_token, dtype=dt.int32, name="end_token")
        if self._end_token.shape.rank != 0:
            raise ValueError("end_token must be a scalar")
        known = tokens.shape.as_list()[0]
        self._batch_size: Any = size(tokens) if known is None else known
        self._start_inputs = self._lookup(tile(expand_dims(tokens, 1), [1, beam_width]))
        self._initial_cell_state = nest.map_structure(self._apart, initial_state)

    @property
    def batch_size(self) -> Any:
        return self._batch_size

    @property
    def tracks_own_finished(self) -> bool:
        return True

    @property
    def output_size(self) -> Any:
        return BeamSearchDecoderOutput(*[TensorShape([self._beam_width])] * 3)

    @property
    def output_dtype(self) -> Any:
        return BeamSearchDecoderOutput(self._dtype, dt.int32, dt.int32)

    @property
    def _dtype(self) -> Any:
        return next(
            t.dtype.base_dtype for t in nest.flatten(self._initial_cell_state) if isinstance(t, Tensor) and t.shape.rank
        )

    # Tensors are [batch, beam, ...] in the search and [batch * beam, ...] in the cell.

    def _apart(self, value: Any) -> Any:
        if isinstance(value, TensorArray):
            raise TypeError("BeamSearchDecoder: a state with TensorArrays (alignment_history=True) is not supported.")
        value = convert_to_tensor(value)
        if value.shape.rank == 0:
            return value
        rest = value.shape.as_list()[1:]
        both = [self._batch_size, self._beam_width]
        result = reshape(value, concat((both, get_item(shape(value), slice(1, None))), 0))
        first = self._batch_size if isinstance(self._batch_size, int) else None
        result.set_shape([first, self._beam_width, *rest])
        return result

    def _merged(self, value: Any) -> Any:
        if value.shape.rank == 0:
            return value
        rest = value.shape.as_list()[2:]
        result = reshape(value, concat(([-1], get_item(shape(value), slice(2, None))), 0))
        known = self._batch_size * self._beam_width if isinstance(self._batch_size, int) else None
        result.set_shape([known, *rest])
        return result

    def initialize(self, name: str | None = None) -> Any:
        """Starts with one live beam per row, since all are equal at first."""
        first = zeros([self._batch_size], dt.int32)
        finished = one_hot(first, self._beam_width, on_value=False, off_value=True, dtype=dt.bool)
        kind = self._dtype
        chances = one_hot(
            first, self._beam_width, on_value=kind.as_numpy_dtype(0), off_value=kind.as_numpy_dtype(-np.inf), dtype=kind
        )
        lengths = zeros([self._batch_size, self._beam_width], dt.int64)
        state = BeamSearchDecoderState(self._initial_cell_state, chances, finished, lengths, ())
        return finished, self._start_inputs, state

    def step(self, time: TensorLike, inputs: TensorLike, state: Any, name: str | None = None) -> Any:
        """Runs one step of the cell in all beams, and selects the best continuations."""
        with name_scope(name, "BeamSearchDecoderStep", [time]):
            cell_state = nest.map_structure(self._merged, state.cell_state)
            outputs, cell_state = self._cell(nest.map_structure(self._merged, inputs), cell_state)
            if self._output_layer is not None:
                outputs = self._output_layer(outputs)
            logits = self._apart(outputs)
            output, next_state = self._best(logits, nest.map_structure(self._apart, cell_state), state)
            return output, next_state, self._lookup(output.predicted_ids), next_state.finished

    def _best(self, logits: Any, cell_state: Any, state: Any) -> Any:
        words = logits.shape.as_list()[-1]
        if words is None:
            raise ValueError("BeamSearchDecoder: the number of classes must be known while the graph is built.")
        kind = logits.dtype.base_dtype
        # A finished beam continues with end tokens, at no cost.
        only_end = one_hot(
            self._end_token,
            words,
            on_value=kind.as_numpy_dtype(0),
            off_value=np.finfo(kind.as_numpy_dtype).min,
            dtype=kind,
        )
        done = tile(expand_dims(state.finished, 2), [1, 1, words])
        rows = multiply(fill(shape(logits), convert_to_tensor(1, dtype=kind)), only_end)
        total = add(expand_dims(state.log_probs, 2), where(done, rows, log_softmax(logits)))
        not_end = one_hot(self._end_token, words, on_value=0, off_value=1, dtype=dt.int64)
        alive = cast(logical_not(state.finished), dt.int64)
        lengths = add(multiply(expand_dims(alive, 2), not_end), expand_dims(state.lengths, 2))
        scores, positions = top_k(reshape(self._scores(total, lengths), [self._batch_size, -1]), k=self._beam_width)
        chances = batch_gather(reshape(total, [self._batch_size, -1]), positions)
        ids = cast(floormod(positions, words), dt.int32)
        parents = cast(floordiv(positions, words), dt.int32)
        for tensor in (scores, chances, ids, parents):
            tensor.set_shape(state.log_probs.shape)
        before = batch_gather(state.finished, parents)
        finished = logical_or(before, equal(ids, self._end_token))
        lengths = add(batch_gather(state.lengths, parents), cast(logical_not(before), dt.int64))
        cell_state = nest.map_structure(lambda s: self._from_parents(s, parents), cell_state)
        next_state = BeamSearchDecoderState(cell_state, chances, finished, lengths, ())
        return BeamSearchDecoderOutput(scores, ids, parents), next_state

    def _from_parents(self, value: Any, parents: Any) -> Any:
        if value.shape.rank == 0:
            return value
        result = batch_gather(value, parents)
        result.set_shape(value.shape)
        return result

    def _scores(self, chances: Any, lengths: Any) -> Any:
        if not self._penalty:
            return chances
        return divide(chances, pow(divide(add(cast(lengths, chances.dtype), 5.0), 6.0), self._penalty))

    def finalize(self, outputs: Any, final_state: Any, sequence_lengths: TensorLike) -> Any:
        """The ids of whole beams."""
        longest = cast(reduce_max(final_state.lengths, axis=1), dt.int32)
        ids = gather_tree(outputs.predicted_ids, outputs.parent_ids, longest, self._end_token)
        return FinalBeamSearchDecoderOutput(ids, outputs), final_state
