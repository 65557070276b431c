"""Helpers: decide the samples of a decoder at each step, its next inputs, and when a row is finished."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.ops.array.creation import fill, zeros_like
from penstock.ops.array.indexing import get_item
from penstock.ops.array.joining import concat
from penstock.ops.array.reshaping import shape, size
from penstock.ops.array.selection import where
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.math.argmax import argmax
from penstock.ops.math.arithmetic import add, divide, maximum, minimum
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import equal, greater, greater_equal, less
from penstock.ops.nn.embedding import embedding_lookup
from penstock.ops.random.stateful import categorical, random_uniform
from penstock.rnn.base import size_at
from penstock.rnn.dynamic import transpose_batch_time


class Helper(ABC):
    """The interface that a decoder uses: samples, next inputs, and finished rows."""

    maximum_time: Any = None  # a bound for the number of steps, if the helper knows one

    @property
    @abstractmethod
    def batch_size(self) -> Any:
        """The batch size, a scalar tensor."""

    @property
    @abstractmethod
    def sample_ids_shape(self) -> Any:
        """The shape of a sample without its batch dimension."""

    @property
    @abstractmethod
    def sample_ids_dtype(self) -> Any:
        """The type of samples."""

    @abstractmethod
    def initialize(self, name: str | None = None) -> Any:
        """Returns a mask of rows that are finished before the first step, and its inputs."""

    @abstractmethod
    def sample(self, time: TensorLike, outputs: Any, state: Any, name: str | None = None) -> Any:
        """Samples from the outputs of a step."""

    @abstractmethod
    def next_inputs(
        self, time: TensorLike, outputs: Any, state: Any, sample_ids: TensorLike, name: str | None = None
    ) -> Any:
        """Returns a mask of finished rows, the inputs of the next step, and its state."""


class CustomHelper(Helper):
    """A helper made of three functions."""

    def __init__(
        self,
        initialize_fn: Callable[[], Any],
        sample_fn: Callable[..., Any],
        next_inputs_fn: Callable[..., Any],
        sample_ids_shape: ShapeLike = None,
        sample_ids_dtype: DTypeLike | None = None,
    ) -> None:
        self._initialize_fn, self._sample_fn, self._next_inputs_fn = initialize_fn, sample_fn, next_inputs_fn
        self._batch_size: Any = None
        self._shape = TensorShape(sample_ids_shape or [])
        self._dtype = sample_ids_dtype or dt.int32

    @property
    def batch_size(self) -> Any:
        if self._batch_size is None:
            raise ValueError("batch_size accessed before initialize was called")
        return self._batch_size

    @property
    def sample_ids_shape(self) -> Any:
        return self._shape

    @property
    def sample_ids_dtype(self) -> Any:
        return self._dtype

    def initialize(self, name: str | None = None) -> Any:
        """Calls the first function."""
        finished, inputs = self._initialize_fn()
        if self._batch_size is None:
            self._batch_size = size(finished)
        return finished, inputs

    def sample(self, time: TensorLike, outputs: Any, state: Any, name: str | None = None) -> Any:
        """Calls the second function."""
        return self._sample_fn(time=time, outputs=outputs, state=state)

    def next_inputs(
        self, time: TensorLike, outputs: Any, state: Any, sample_ids: TensorLike, name: str | None = None
    ) -> Any:
        """Calls the third function."""
        return self._next_inputs_fn(time=time, outputs=outputs, state=state, sample_ids=sample_ids)


class TrainingHelper(Helper):
    """Feeds the contents of `inputs`, regardless of the decoder's outputs.

    >>> tf.contrib.seq2seq.TrainingHelper(embedded_targets, lengths)
    """

    def __init__(
        self, inputs: TensorLike, sequence_length: TensorLike, time_major: bool = False, name: str | None = None
    ) -> None:
        with name_scope(name, "TrainingHelper", [*nest.flatten(inputs), sequence_length]):
            inputs = nest.map_structure(convert_to_tensor, inputs)
            self._inputs = inputs
            if not time_major:
                inputs = nest.map_structure(transpose_batch_time, inputs)
            self._arrays = nest.map_structure(_unstacked, inputs)
            self._sequence_length = convert_to_tensor(sequence_length, name="sequence_length")
            if self._sequence_length.shape.rank != 1:
                raise ValueError(
                    f"Expected vector for sequence_length, but received shape: {self._sequence_length.shape}"
                )
            self._batch_size = size(self._sequence_length)
            first = nest.flatten(inputs)[0]
            steps = first.shape.as_list()[0]
            self.maximum_time = size_at(first, 0) if steps is None else steps

    @property
    def inputs(self) -> Any:
        return self._inputs

    @property
    def sequence_length(self) -> Any:
        return self._sequence_length

    @property
    def batch_size(self) -> Any:
        return self._batch_size

    @property
    def sample_ids_shape(self) -> Any:
        return TensorShape([])

    @property
    def sample_ids_dtype(self) -> Any:
        return dt.int32

    def _read(self, time: Any) -> Any:
        # After the last step the inputs are not used, so the last ones are returned again.
        at = minimum(time, self.maximum_time - 1)
        return nest.map_structure(lambda a: a.read(at), self._arrays)

    def initialize(self, name: str | None = None) -> Any:
        """Rows of length 0 are finished; the inputs are the first ones."""
        with name_scope(name, "TrainingHelperInitialize"):
            return equal(0, self._sequence_length), self._read(0)

    def sample(self, time: TensorLike, outputs: Any, state: Any, name: str | None = None) -> Any:
        """The most likely class."""
        with name_scope(name, "TrainingHelperSample", [time, outputs]):
            return cast(argmax(outputs, axis=-1), dt.int32)

    def next_inputs(
        self, time: TensorLike, outputs: Any, state: Any, sample_ids: TensorLike, name: str | None = None
    ) -> Any:
        """The inputs of the next time step."""
        with name_scope(name, "TrainingHelperNextInputs", [time, outputs]):
            later = add(time, 1)
            return greater_equal(later, cast(self._sequence_length, dt.int32)), self._read(later), state


def _unstacked(tensor: Tensor) -> TensorArray:
    count = size_at(tensor, 0) if tensor.shape.as_list()[0] is None else tensor.shape.as_list()[0]
    return TensorArray(tensor.dtype.base_dtype, size=count).unstack(tensor)


def lookup(embedding: Any) -> Callable[[Any], Any]:
    """An embedding as a function of ids; it may be a function already, or a table."""
    return embedding if callable(embedding) else lambda ids: embedding_lookup(embedding, ids)


def _drawn_ids(samples: Any) -> Any:
    return cast(get_item(samples, (slice(None), 0)), dt.int32)


def _drawn(probability: Any, like: Any, seed: int | None) -> Any:
    """True with the given probability, for each row of `like`."""
    return less(random_uniform(shape(like), seed=seed), convert_to_tensor(probability, dtype=dt.float32))


class ScheduledEmbeddingTrainingHelper(TrainingHelper):
    """Feeds, with some probability, the embedding of the decoder's samples (Bengio et al. 2015)."""

    def __init__(
        self,
        inputs: TensorLike,
        sequence_length: TensorLike,
        embedding: TensorLike,
        sampling_probability: TensorLike,
        time_major: bool = False,
        seed: int | None = None,
        scheduling_seed: int | None = None,
        name: str | None = None,
    ) -> None:
        self._lookup = lookup(embedding)
        self._probability = convert_to_tensor(sampling_probability, name="sampling_probability")
        if self._probability.shape.rank not in (0, 1):
            raise ValueError(
                f"sampling_probability must be either a scalar or a vector. saw shape: {self._probability.shape}"
            )
        self._seed, self._scheduling_seed = seed, scheduling_seed
        super().__init__(inputs, sequence_length, time_major, name)

    def sample(self, time: TensorLike, outputs: Any, state: Any, name: str | None = None) -> Any:
        """Ids drawn from the outputs, or -1 where the true input is fed."""
        with name_scope(name, "ScheduledEmbeddingTrainingHelperSample", [time, outputs, state]):
            ids = _drawn_ids(categorical(outputs, 1, seed=self._seed))
            chosen = _drawn(self._probability, ids, self._scheduling_seed)
            return where(chosen, ids, fill(shape(ids), -1))

    def next_inputs(
        self, time: TensorLike, outputs: Any, state: Any, sample_ids: TensorLike, name: str | None = None
    ) -> Any:
        """The next inputs; in rows with a sample they are its embedding."""
        finished, base, state = super().next_inputs(time, outputs, state, sample_ids, name)
        sampled = self._lookup(maximum(sample_ids, 0))
        return finished, where(greater(sample_ids, -1), sampled, base), state


class ScheduledOutputTrainingHelper(TrainingHelper):
    """Feeds, with some probability, the decoder's own outputs, through `next_inputs_fn` if there is one."""

    def __init__(
        self,
        inputs: TensorLike,
        sequence_length: TensorLike,
        sampling_probability: TensorLike,
        time_major: bool = False,
        seed: int | None = None,
        next_inputs_fn: Callable[[Any], Any] | None = None,
        auxiliary_inputs: Any = None,
        name: str | None = None,
    ) -> None:
        self._probability = convert_to_tensor(sampling_probability, name="sampling_probability")
        self._seed, self._function, self._has_auxiliary = seed, next_inputs_fn, auxiliary_inputs is not None
        super().__init__(inputs, sequence_length, time_major, name)
        if auxiliary_inputs is not None:
            extra = convert_to_tensor(auxiliary_inputs)
            self._auxiliary = _unstacked(extra if time_major else transpose_batch_time(extra))

    @property
    def sample_ids_dtype(self) -> Any:
        return dt.bool

    def _with_auxiliary(self, inputs: Any, time: Any) -> Any:
        if not self._has_auxiliary:
            return inputs
        return concat([inputs, self._auxiliary.read(minimum(time, self.maximum_time - 1))], -1)

    def initialize(self, name: str | None = None) -> Any:
        """The first inputs."""
        finished, inputs = super().initialize(name)
        return finished, self._with_auxiliary(inputs, 0)

    def sample(self, time: TensorLike, outputs: Any, state: Any, name: str | None = None) -> Any:
        """Tells if each row is fed its own output."""
        rows = zeros_like(self._sequence_length, dtype=dt.float32)
        return _drawn(self._probability, rows, self._seed)

    def next_inputs(
        self, time: TensorLike, outputs: Any, state: Any, sample_ids: TensorLike, name: str | None = None
    ) -> Any:
        """The next inputs, or the outputs in sampled rows."""
        finished, base, state = super().next_inputs(time, outputs, state, sample_ids, name)
        own = self._function(outputs) if self._function else outputs
        return finished, self._with_auxiliary(where(sample_ids, own, base), add(time, 1)), state


class GreedyEmbeddingHelper(Helper):
    """Feeds the embedding of the most likely class; a row is finished at `end_token`.

    >>> tf.contrib.seq2seq.GreedyEmbeddingHelper(table, start_tokens=tf.fill([32], GO), end_token=EOS)
    """

    def __init__(self, embedding: TensorLike, start_tokens: TensorLike, end_token: TensorLike) -> None:
        self._lookup = lookup(embedding)
        self._start_tokens = convert_to_tensor(start_tokens, dtype=dt.int32, name="start_tokens")
        self._end_token = convert_to_tensor(end_token, dtype=dt.int32, name="end_token")
        if self._start_tokens.shape.rank != 1:
            raise ValueError("start_tokens must be a vector")
        if self._end_token.shape.rank != 0:
            raise ValueError("end_token must be a scalar")
        self._batch_size = size(self._start_tokens)
        self._start_inputs = self._lookup(self._start_tokens)

    @property
    def batch_size(self) -> Any:
        return self._batch_size

    @property
    def sample_ids_shape(self) -> Any:
        return TensorShape([])

    @property
    def sample_ids_dtype(self) -> Any:
        return dt.int32

    def initialize(self, name: str | None = None) -> Any:
        """No row is finished; the inputs are the start tokens."""
        return fill(shape(self._start_tokens), False), self._start_inputs

    def sample(self, time: TensorLike, outputs: Any, state: Any, name: str | None = None) -> Any:
        """The most likely class."""
        if not isinstance(outputs, Tensor):
            raise TypeError(f"Expected outputs to be a single Tensor, got: {type(outputs)}")
        return argmax(outputs, axis=-1, output_type=dt.int32)

    def next_inputs(
        self, time: TensorLike, outputs: Any, state: Any, sample_ids: TensorLike, name: str | None = None
    ) -> Any:
        """The embedding of the samples."""
        return equal(sample_ids, self._end_token), self._lookup(sample_ids), state


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Feeds the embedding of a class drawn from the outputs, which are logits."""

    def __init__(
        self,
        embedding: TensorLike,
        start_tokens: TensorLike,
        end_token: TensorLike,
        softmax_temperature: TensorLike = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(embedding, start_tokens, end_token)
        self._temperature, self._seed = softmax_temperature, seed

    def sample(self, time: TensorLike, outputs: Any, state: Any, name: str | None = None) -> Any:
        """A class drawn per row."""
        if not isinstance(outputs, Tensor):
            raise TypeError(f"Expected outputs to be a single Tensor, got: {type(outputs)}")
        logits = outputs if self._temperature is None else divide(outputs, self._temperature)
        return _drawn_ids(categorical(logits, 1, seed=self._seed))


class InferenceHelper(Helper):
    """A helper that feeds the samples back, through a function if there is one."""

    def __init__(
        self,
        sample_fn: Callable[[Any], Any],
        sample_shape: ShapeLike,
        sample_dtype: DTypeLike,
        start_inputs: Any,
        end_fn: Callable[[Any], Any],
        next_inputs_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        self._sample_fn, self._end_fn, self._next_inputs_fn = sample_fn, end_fn, next_inputs_fn
        self._shape, self._dtype = TensorShape(sample_shape), sample_dtype
        self._start_inputs = convert_to_tensor(start_inputs, name="start_inputs")
        self._batch_size = size_at(start_inputs, 0)

    @property
    def batch_size(self) -> Any:
        return self._batch_size

    @property
    def sample_ids_shape(self) -> Any:
        return self._shape

    @property
    def sample_ids_dtype(self) -> Any:
        return self._dtype

    def initialize(self, name: str | None = None) -> Any:
        """No row is finished; the inputs are the given ones."""
        return fill([self._batch_size], False), self._start_inputs

    def sample(self, time: TensorLike, outputs: Any, state: Any, name: str | None = None) -> Any:
        """Calls the sampling function."""
        return self._sample_fn(outputs)

    def next_inputs(
        self, time: TensorLike, outputs: Any, state: Any, sample_ids: TensorLike, name: str | None = None
    ) -> Any:
        """The samples, or the result of the function on them."""
        following = sample_ids if self._next_inputs_fn is None else self._next_inputs_fn(sample_ids)
        return self._end_fn(sample_ids), following, state
