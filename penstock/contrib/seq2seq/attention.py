"""Attention mechanisms: score how well a query fits each step of a memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import control_dependencies, name_scope
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.array.creation import ones_like, zeros
from penstock.ops.array.reshaping import expand_dims, squeeze
from penstock.ops.array.selection import one_hot, sequence_mask, where
from penstock.ops.debugging.check_ops import assert_positive
from penstock.ops.linalg.matmul import matmul, tensordot
from penstock.ops.math.argmax import argmax
from penstock.ops.math.arithmetic import add, multiply
from penstock.ops.math.casting import cast
from penstock.ops.math.clip import clip_by_value
from penstock.ops.math.cumulative import cumsum
from penstock.ops.math.reduce import reduce_sum
from penstock.ops.math.unary import exp, log, rsqrt, square, tanh
from penstock.ops.nn.layer_parts import softmax
from penstock.rnn.base import size_at, with_batch
from penstock.variables.initializers import constant_initializer, ones_initializer, zeros_initializer
from penstock.variables.scope import get_variable, variable_scope


def hardmax(logits: TensorLike, name: str | None = None) -> Tensor:
    """One at the largest logit of each row, zero elsewhere."""
    with name_scope(name, "Hardmax", [logits]):
        logits = convert_to_tensor(logits, name="logits")
        depth = logits.shape.as_list()[-1] or size_at(logits, -1)
        return one_hot(argmax(logits, -1), depth, dtype=logits.dtype)


def safe_cumprod(x: TensorLike, *args: Any, **kwargs: Any) -> Tensor:
    """The cumulative product of numbers in [0, 1], computed from their logarithms."""
    with name_scope(None, "SafeCumprod", [x]):
        x = convert_to_tensor(x, name="x")
        result: Tensor = exp(cumsum(log(clip_by_value(x, x.dtype.as_numpy_dtype(1.1754944e-38), 1)), *args, **kwargs))
        return result


class Projection:
    """A matrix that inputs are multiplied by: a dense layer without bias."""

    def __init__(self, units: int, name: str, dtype: Any = None) -> None:
        self.units, self._name, self._dtype = units, name, dtype
        self._kernel: Any = None

    def __call__(self, inputs: Any) -> Tensor:
        inputs = convert_to_tensor(inputs)
        if self._kernel is None:
            with variable_scope(None, default_name=self._name):
                depth = inputs.shape.as_list()[-1]
                self._kernel = get_variable("kernel", [depth, self.units], self._dtype or inputs.dtype)
        if inputs.shape.rank == 2:
            return matmul(inputs, self._kernel)
        result: Tensor = tensordot(inputs, self._kernel, [[inputs.shape.rank - 1], [0]])
        result.set_shape([*inputs.shape.as_list()[:-1], self.units])
        return result


class AttentionMechanism:
    """Base class: computes keys and values from a memory, masked beyond its lengths."""

    def __init__(
        self,
        memory: TensorLike,
        memory_sequence_length: TensorLike,
        probability_fn: Callable[[Any], Any] | None,
        query_layer: Any,
        memory_layer: Any,
        score_mask_value: Any = None,
        name: str = "Attention",
    ) -> None:
        self._name, self.query_layer, self.memory_layer = name, query_layer, memory_layer
        self._probability_fn = probability_fn or softmax
        with name_scope(None, f"{name}MemoryInit", nest.flatten(memory)):
            memory = convert_to_tensor(memory, name="memory")
            if memory.shape.rank is None or any(d is None for d in memory.shape.as_list()[2:]):
                raise ValueError(
                    f"Expected memory {memory.label} to have fully defined inner dims, saw: {memory.shape}"
                )
            self._lengths = None
            if memory_sequence_length is not None:
                lengths = convert_to_tensor(memory_sequence_length, name="memory_sequence_length")
                with control_dependencies(
                    [assert_positive(lengths, message="All values in memory_sequence_length must greater than zero.")]
                ):
                    self._lengths = cast(lengths, dt.int32)
                mask = sequence_mask(self._lengths, maxlen=size_at(memory, 1), dtype=memory.dtype)
                memory = multiply(memory, expand_dims(mask, -1))
            self.values: Any = memory
            self.keys: Any = memory if memory_layer is None else memory_layer(memory)
            first, second = self.keys.shape.as_list()[:2]
            self.batch_size: Any = size_at(self.keys, 0) if first is None else first
            self.alignments_size: Any = size_at(self.keys, 1) if second is None else second
        lowest = -math.inf if score_mask_value is None else score_mask_value
        self._mask_value = lowest

    @property
    def state_size(self) -> Any:
        return self.alignments_size

    def initial_alignments(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """Zeros."""
        return zeros(with_batch(batch_size, self.alignments_size), dtype)

    def initial_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """The initial state: no alignments."""
        return self.initial_alignments(batch_size, dtype)

    def _probabilities(self, score: Any) -> Any:
        if self._lengths is not None:
            mask = sequence_mask(self._lengths, maxlen=size_at(score, 1))
            score = where(mask, score, multiply(ones_like(score), convert_to_tensor(self._mask_value, score.dtype)))
        return self._probability_fn(score)

    def __call__(self, query: TensorLike, state: Any) -> Any:
        """The alignments for a query, and the next state."""
        raise NotImplementedError("Abstract method")


class LuongAttention(AttentionMechanism):
    """Multiplicative attention (Luong et al. 2015); `scale` learns a factor.

    >>> tf.contrib.seq2seq.LuongAttention(128, encoder_outputs, memory_sequence_length=lengths)
    """

    def __init__(
        self,
        num_units: int,
        memory: TensorLike,
        memory_sequence_length: TensorLike = None,
        scale: bool = False,
        probability_fn: Callable[[Any], Any] | None = None,
        score_mask_value: Any = None,
        dtype: DTypeLike | None = None,
        custom_key_value_fn: Callable[..., Any] | None = None,
        name: str = "LuongAttention",
    ) -> None:
        layer = Projection(num_units, "memory_layer", dtype)
        super().__init__(memory, memory_sequence_length, probability_fn, None, layer, score_mask_value, name)
        if custom_key_value_fn is not None:
            self.keys, self.values = custom_key_value_fn(self.keys, self.values)
        self._num_units, self._scale = num_units, scale

    def __call__(self, query: TensorLike, state: Any) -> Any:
        """The alignments for a query, and the next state."""
        with variable_scope(None, "luong_attention", [query]):
            depth, units = query.shape.as_list()[-1], self.keys.shape.as_list()[-1]
            if depth != units:
                raise ValueError(
                    "Incompatible or unknown inner dimensions between query and keys. Query has units: "
                    f"{depth}. Keys have units: {units}. Perhaps you need to set num_units to the keys' dimension?"
                )
            score = squeeze(matmul(expand_dims(query, 1), self.keys, transpose_b=True), [1])
            if self._scale:
                g = get_variable("attention_g", (), query.dtype, initializer=ones_initializer())
                score = multiply(g, score)
            alignments = self._probabilities(score)
            return alignments, alignments


class BahdanauAttention(AttentionMechanism):
    """Additive attention (Bahdanau et al. 2014); `normalize` as in weight normalisation.

    >>> tf.contrib.seq2seq.BahdanauAttention(128, encoder_outputs, memory_sequence_length=lengths)
    """

    def __init__(
        self,
        num_units: int,
        memory: TensorLike,
        memory_sequence_length: TensorLike = None,
        normalize: bool = False,
        probability_fn: Callable[[Any], Any] | None = None,
        score_mask_value: Any = None,
        dtype: DTypeLike | None = None,
        custom_key_value_fn: Callable[..., Any] | None = None,
        name: str = "BahdanauAttention",
    ) -> None:
        query_layer = Projection(num_units, "query_layer", dtype)
        memory_layer = Projection(num_units, "memory_layer", dtype)
        super().__init__(
            memory, memory_sequence_length, probability_fn, query_layer, memory_layer, score_mask_value, name
        )
        if custom_key_value_fn is not None:
            self.keys, self.values = custom_key_value_fn(self.keys, self.values)
        self._num_units, self._normalize = num_units, normalize

    def __call__(self, query: TensorLike, state: Any) -> Any:
        """The alignments for a query, and the next state."""
        with variable_scope(None, "bahdanau_attention", [query]):
            processed = expand_dims(self.query_layer(query), 1)
            kind, units = query.dtype, self._num_units
            v = get_variable("attention_v", [units], kind)
            total = add(self.keys, processed)
            if self._normalize:
                g = get_variable("attention_g", (), kind, initializer=constant_initializer(math.sqrt(1.0 / units)))
                b = get_variable("attention_b", [units], kind, initializer=zeros_initializer())
                v = multiply(multiply(g, v), rsqrt(reduce_sum(square(v))))
                total = add(total, b)
            alignments = self._probabilities(reduce_sum(multiply(v, tanh(total)), [2]))
            return alignments, alignments
