"""Decoders and the loop that runs them: BasicDecoder, dynamic_decode."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import namedtuple
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import TensorLike
from penstock.ops.array.creation import constant, fill, zeros, zeros_like
from penstock.ops.array.indexing import get_item
from penstock.ops.array.reshaping import shape
from penstock.ops.array.selection import where
from penstock.ops.control.flow import while_loop
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.math.arithmetic import add, minimum
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import greater_equal, logical_not, logical_or
from penstock.ops.math.reduce import reduce_all
from penstock.rnn.base import assert_like_rnncell, static_shape, with_batch
from penstock.rnn.dynamic import chosen, transpose_batch_time
from penstock.variables.scope import variable_scope


class Decoder(ABC):
    """The interface that `dynamic_decode` runs."""

    maximum_time: Any = None  # a bound for the number of steps, if the decoder knows one

    @property
    @abstractmethod
    def batch_size(self) -> Any:
        """The batch size."""

    @property
    @abstractmethod
    def output_size(self) -> Any:
        """Sizes of the outputs of a step, without the batch dimension."""

    @property
    @abstractmethod
    def output_dtype(self) -> Any:
        """Types of the outputs of a step."""

    @abstractmethod
    def initialize(self, name: str | None = None) -> Any:
        """Returns a mask of finished rows, the first inputs and the first state."""

    @abstractmethod
    def step(self, time: TensorLike, inputs: TensorLike, state: Any, name: str | None = None) -> Any:
        """Returns outputs, the next state, the next inputs, and a mask of finished rows."""

    def finalize(self, outputs: Any, final_state: Any, sequence_lengths: TensorLike) -> Any:
        """Converts the outputs of all steps and the last state to the form that the caller gets."""
        raise NotImplementedError

    @property
    def tracks_own_finished(self) -> bool:
        """Tells if the decoder itself keeps finished rows finished."""
        return False


class BasicDecoderOutput(namedtuple("BasicDecoderOutput", ("rnn_output", "sample_id"))):
    """The outputs of a step: those of the cell (or output layer), and the samples."""

    __slots__ = ()


class BasicDecoder(Decoder):
    """A cell, a helper that feeds it, and an optional layer on its outputs.

    >>> tf.contrib.seq2seq.BasicDecoder(cell, helper, initial_state, output_layer=tf.layers.Dense(vocabulary))
    """

    def __init__(self, cell: Any, helper: Any, initial_state: Any, output_layer: Any = None) -> None:
        assert_like_rnncell("cell", cell)
        if not hasattr(helper, "next_inputs"):
            raise TypeError(f"helper must be a Helper, received: {helper}")
        if output_layer is not None and not callable(output_layer):
            raise TypeError(f"output_layer must be a Layer, received: {output_layer}")
        self._cell, self._helper, self._initial_state, self._output_layer = cell, helper, initial_state, output_layer
        self.maximum_time = getattr(helper, "maximum_time", None)

    @property
    def batch_size(self) -> Any:
        return self._helper.batch_size

    def _rnn_output_size(self) -> Any:
        return layered_size(self._cell.output_size, self._output_layer)

    @property
    def output_size(self) -> Any:
        return BasicDecoderOutput(rnn_output=self._rnn_output_size(), sample_id=self._helper.sample_ids_shape)

    @property
    def output_dtype(self) -> Any:
        kind = nest.flatten(self._initial_state)[0].dtype.base_dtype
        kinds = nest.map_structure(lambda _: kind, self._rnn_output_size())
        return BasicDecoderOutput(kinds, self._helper.sample_ids_dtype)

    def initialize(self, name: str | None = None) -> Any:
        """The helper's finished rows and inputs, and the initial state."""
        return (*self._helper.initialize(), self._initial_state)

    def step(self, time: TensorLike, inputs: TensorLike, state: Any, name: str | None = None) -> Any:
        """Runs one step of the cell, and asks the helper for samples and next inputs."""
        with name_scope(name, "BasicDecoderStep", [time, *nest.flatten(inputs)]):
            outputs, state = self._cell(inputs, state)
            if self._output_layer is not None:
                outputs = self._output_layer(outputs)
            ids = self._helper.sample(time=time, outputs=outputs, state=state)
            finished, following, state = self._helper.next_inputs(
                time=time, outputs=outputs, state=state, sample_ids=ids
            )
            return BasicDecoderOutput(outputs, ids), state, following, finished


def layered_size(output_size: Any, layer: Any) -> Any:
    """The size of a cell's outputs after a layer."""
    if layer is None:
        return output_size

    def one(part: Any) -> TensorShape:
        known = TensorShape([None]).concatenate(static_shape(None, part)[1:])
        return TensorShape(layer.compute_output_shape(known).as_list()[1:])

    return nest.map_structure(one, output_size)


def dynamic_decode(
    decoder: Any,
    output_time_major: bool = False,
    impute_finished: bool = False,
    maximum_iterations: TensorLike = None,
    parallel_iterations: int = 32,
    swap_memory: bool = False,
    scope: Any = None,
    **kwargs: Any,
) -> Any:
    """Runs a decoder until all rows are finished; returns outputs, last state and lengths.

    With `impute_finished` finished rows give zeros and keep their state.

    >>> outputs, state, lengths = tf.contrib.seq2seq.dynamic_decode(decoder, maximum_iterations=50)
    """
    if not hasattr(decoder, "step"):
        raise TypeError(f"Expected decoder to be type Decoder, but saw: {type(decoder)}")
    with variable_scope(scope, "decoder"):
        limit = None
        if maximum_iterations is not None:
            limit = convert_to_tensor(maximum_iterations, dtype=dt.int32, name="maximum_iterations")
            if limit.shape.rank != 0:
                raise ValueError("maximum_iterations must be a scalar")
        finished, inputs, state = decoder.initialize(**kwargs)
        return _Decoding(decoder, impute_finished, limit).run(finished, inputs, state, output_time_major)


class _Decoding:
    """One run of a decoder."""

    def __init__(self, decoder: Any, impute_finished: bool, limit: Tensor | None) -> None:
        self.decoder, self.impute, self.limit = decoder, impute_finished, limit
        known = getattr(decoder, "maximum_time", None)
        # With a bound the outputs are allocated at the start, and the loop compiles; without one they grow.
        self.bound = known if limit is None else limit if known is None else minimum(known, limit)
        sizes, types = nest.flatten(decoder.output_size), nest.flatten(decoder.output_dtype)
        self.structure = decoder.output_dtype
        self.shapes = [static_shape(decoder.batch_size, s) for s in sizes]
        self.types = types
        self.zero = [zeros(with_batch(decoder.batch_size, s), t) for s, t in zip(sizes, types, strict=True)]

    def _array(self, dtype: Any, element_shape: Any) -> TensorArray:
        grows = self.bound is None
        return TensorArray(dtype, size=0 if grows else self.bound, dynamic_size=grows, element_shape=element_shape)

    def run(self, finished: Any, inputs: Any, state: Any, time_major: bool) -> Any:
        """Runs the loop."""
        arrays = [self._array(t, s) for t, s in zip(self.types, self.shapes, strict=True)]
        state = nest.map_structure(self._preallocated, state)
        if self.limit is not None:
            finished = logical_or(finished, greater_equal(0, self.limit))
        lengths = zeros_like(finished, dtype=dt.int32)
        loop_vars = (constant(0, dtype=dt.int32), arrays, state, inputs, finished, lengths)
        time, arrays, state, _, _, lengths = while_loop(
            lambda time, arrays, state, inputs, finished, lengths: logical_not(reduce_all(finished)),
            self._step,
            loop_vars,
            maximum_iterations=self.bound,
            return_same_structure=True,
        )
        stacked = [self._trimmed(a, time) for a in arrays]
        for tensor, known in zip(stacked, self.shapes, strict=True):
            tensor.set_shape(TensorShape([None]).concatenate(known))
        state = nest.map_structure(lambda s: self._shortened(s, time), state)
        outputs = nest.pack_sequence_as(self.structure, stacked)
        try:
            outputs, state = self.decoder.finalize(outputs, state, lengths)
        except NotImplementedError:
            pass
        return outputs if time_major else nest.map_structure(transpose_batch_time, outputs), state, lengths

    def _step(self, time: Tensor, arrays: Any, state: Any, inputs: Any, finished: Any, lengths: Any) -> Any:
        decoder = self.decoder
        outputs, new_state, next_inputs, now_finished = decoder.step(time, inputs, state)
        nest.assert_same_structure(state, new_state)
        nest.assert_same_structure(self.structure, outputs)
        nest.assert_same_structure(inputs, next_inputs)
        own = getattr(new_state, "lengths", None) if decoder.tracks_own_finished else None
        if not decoder.tracks_own_finished:
            now_finished = logical_or(now_finished, finished)
        if own is not None:
            lengths = cast(own, dt.int32)
        else:
            lengths = where(finished, lengths, fill(shape(lengths), add(time, 1)))
        emitted = nest.flatten(outputs)
        if self.impute:
            emitted = [chosen(finished, z, e) for z, e in zip(self.zero, emitted, strict=True)]
            new_state = nest.map_structure(lambda old, new: chosen(finished, old, new), state, new_state)
        arrays = [a.write(time, e) for a, e in zip(arrays, emitted, strict=True)]
        return add(time, 1), arrays, new_state, next_inputs, now_finished, lengths

    def _preallocated(self, leaf: Any) -> Any:
        """A growing TensorArray of the state, allocated at the start if there is a bound."""
        if isinstance(leaf, TensorArray) and leaf.dynamic_size and self.bound is not None:
            return self._array(leaf.dtype, leaf.element_shape)
        return leaf if isinstance(leaf, TensorArray) else convert_to_tensor(leaf)

    def _trimmed(self, array: TensorArray, time: Tensor) -> Tensor:
        stacked = array.stack()
        return stacked if self.bound is None else get_item(stacked, slice(None, time))

    def _shortened(self, leaf: Any, time: Tensor) -> Any:
        if not isinstance(leaf, TensorArray) or self.bound is None:
            return leaf
        known = leaf.element_shape
        return TensorArray(leaf.dtype, size=time, element_shape=known).unstack(self._trimmed(leaf, time))
