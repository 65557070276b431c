"""`tf.contrib.rnn`: wrappers with projections, embeddings and attention, and stacks of bidirectional layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.array.joining import concat
from penstock.ops.array.reshaping import expand_dims, reshape
from penstock.ops.array.slicing import slice as slice_of
from penstock.ops.conv.conv2d import conv2d
from penstock.ops.linalg.matmul import matmul
from penstock.ops.math.arithmetic import add, multiply, subtract
from penstock.ops.math.reduce import reduce_sum
from penstock.ops.math.unary import sigmoid, tanh
from penstock.ops.nn.embedding import embedding_lookup
from penstock.ops.nn.layer_parts import bias_add, softmax
from penstock.rnn.base import RNNCell, assert_like_rnncell
from penstock.rnn.dynamic import bidirectional_dynamic_rnn
from penstock.rnn.static import static_bidirectional_rnn
from penstock.rnn.wrappers import CellWrapper
from penstock.variables.initializers import constant_initializer, random_uniform_initializer, zeros_initializer
from penstock.variables.scope import get_variable, get_variable_scope, variable_scope


def linear(
    args: Any, output_size: int, bias: bool, bias_initializer: Any = None, kernel_initializer: Any = None
) -> Tensor:
    """Joins `args`, multiplies by a variable `kernel`, and adds a variable `bias` if requested."""
    parts = [convert_to_tensor(a) for a in nest.flatten(args)]
    joined = parts[0] if len(parts) == 1 else concat(parts, 1)
    depth = joined.shape.as_list()[1] if joined.shape.rank == 2 else None
    if depth is None:
        raise ValueError(f"linear expects matrices whose number of columns is known, received {parts}.")
    product: Tensor = matmul(
        joined, get_variable("kernel", [depth, output_size], joined.dtype, initializer=kernel_initializer)
    )
    if not bias:
        return product
    start = zeros_initializer() if bias_initializer is None else bias_initializer
    return bias_add(product, get_variable("bias", [output_size], joined.dtype, initializer=start))


class _WrapperCell(RNNCell):
    """A cell that wraps another one and has its own variables."""

    def __init__(self, cell: Any, reuse: bool | None = None) -> None:
        super().__init__(_reuse=reuse)
        assert_like_rnncell("cell", cell)
        self._cell = cell

    @property
    def state_size(self) -> Any:
        return self._cell.state_size

    @property
    def output_size(self) -> Any:
        return self._cell.output_size

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """The inner cell's zero state."""
        return self._cell.zero_state(batch_size, dtype)


class EmbeddingWrapper(_WrapperCell):
    """Looks up its inputs, integers, in an embedding.

    >>> tf.contrib.rnn.EmbeddingWrapper(cell, embedding_classes=10000, embedding_size=128)
    """

    def __init__(
        self, cell: Any, embedding_classes: int, embedding_size: int, initializer: Any = None, reuse: bool | None = None
    ) -> None:
        super().__init__(cell, reuse)
        if embedding_classes <= 0 or embedding_size <= 0:
            raise ValueError(
                f"Both embedding_classes and embedding_size must be > 0: {embedding_classes}, {embedding_size}."
            )
        self._classes, self._size, self._initializer = embedding_classes, embedding_size, initializer

    def call(self, inputs: TensorLike, state: Any) -> Any:
        """One step on the looked up inputs."""
        bound = math.sqrt(3)  # the variance is 1
        start = self._initializer or get_variable_scope().initializer or random_uniform_initializer(-bound, bound)
        kind = nest.flatten(state)[0].dtype.base_dtype
        table = get_variable("embedding", [self._classes, self._size], kind, initializer=start)
        return self._cell(embedding_lookup(table, reshape(inputs, [-1])), state)


class InputProjectionWrapper(_WrapperCell):
    """Projects the inputs before the cell sees them."""

    def __init__(
        self, cell: Any, num_proj: int, activation: Any = None, input_size: Any = None, reuse: bool | None = None
    ) -> None:
        super().__init__(cell, reuse)
        self._num_proj, self._activation = num_proj, activation

    def call(self, inputs: TensorLike, state: Any) -> Any:
        """One step on the projected inputs."""
        projected = linear(inputs, self._num_proj, True)
        return self._cell(self._activation(projected) if self._activation else projected, state)


class OutputProjectionWrapper(_WrapperCell):
    """Projects the outputs of a cell."""

    def __init__(self, cell: Any, output_size: int, activation: Any = None, reuse: bool | None = None) -> None:
        super().__init__(cell, reuse)
        if output_size < 1:
            raise ValueError(f"Parameter output_size must be > 0: {output_size}.")
        self._output_size, self._activation = output_size, activation

    @property
    def output_size(self) -> Any:
        return self._output_size

    def call(self, inputs: TensorLike, state: Any) -> Any:
        """One step, its output projected."""
        output, new_state = self._cell(inputs, state)
        projected = linear(output, self._output_size, True)
        return self._activation(projected) if self._activation else projected, new_state


class HighwayWrapper(CellWrapper):
    """A cell whose outputs are mixed with its inputs by a learnt gate (Srivastava et al. 2015)."""

    def __init__(self, cell: Any, couple_carry_transform_gates: bool = True, carry_bias_init: float = 1.0) -> None:
        super().__init__(cell)
        self._coupled, self._carry_bias = couple_carry_transform_gates, carry_bias_init

    def wrapped(self, inputs: TensorLike, state: Any, step: Any) -> Any:
        """Runs the step and mixes its outputs with the inputs."""
        outputs, new_state = step(inputs, state)
        return nest.map_structure(self._mixed, inputs, outputs), new_state

    def _gate(self, name: str, inputs: Any, bias: float) -> Any:
        size = inputs.shape.as_list()[1]
        with variable_scope(name):
            weight = get_variable(f"{name}_w", [size, size], inputs.dtype)
            offset = get_variable(f"{name}_b", [size], inputs.dtype, initializer=constant_initializer(bias))
            return sigmoid(bias_add(matmul(inputs, weight), offset))

    def _mixed(self, inputs: Any, outputs: Any) -> Any:
        carry = self._gate("carry", inputs, self._carry_bias)
        transform = subtract(1.0, carry) if self._coupled else self._gate("transform", inputs, -self._carry_bias)
        return add(multiply(inputs, carry), multiply(outputs, transform))


class AttentionCellWrapper(_WrapperCell):
    """Attention over the last `attn_length` outputs of a cell (Bahdanau et al. 2014)."""

    def __init__(
        self,
        cell: Any,
        attn_length: int,
        attn_size: int | None = None,
        attn_vec_size: int | None = None,
        input_size: int | None = None,
        state_is_tuple: bool = True,
        reuse: bool | None = None,
    ) -> None:
        super().__init__(cell, reuse)
        if nest.is_nested(cell.state_size) and not state_is_tuple:
            raise ValueError(f"Cell returns tuple of states, but state_is_tuple is not set. State: {cell.state_size}")
        if attn_length <= 0:
            raise ValueError(f"attn_length should be greater than zero, got {attn_length}")
        self._length, self._input_size, self._state_is_tuple = attn_length, input_size, state_is_tuple
        self._size = attn_size or cell.output_size
        self._vector_size = attn_vec_size or self._size

    @property
    def state_size(self) -> Any:
        sizes = (self._cell.state_size, self._size, self._size * self._length)
        return sizes if self._state_is_tuple else sum(sizes)

    @property
    def output_size(self) -> Any:
        return self._size

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """Zeros for cell, attention and history."""
        return RNNCell.zero_state(self, batch_size, dtype)

    def call(self, inputs: TensorLike, state: Any) -> Any:
        """One step with attention."""
        if self._state_is_tuple:
            state, attended, history = state
        else:
            size, own = self._cell.state_size, self._size
            history = slice_of(state, [0, size + own], [-1, own * self._length])
            attended = slice_of(state, [0, size], [-1, own])
            state = slice_of(state, [0, 0], [-1, size])
        history = reshape(history, [-1, self._length, self._size])
        width = self._input_size or inputs.shape.as_list()[1]
        output, new_state = self._cell(linear([inputs, attended], width, True), state)
        query = concat(nest.flatten(new_state), 1) if self._state_is_tuple else new_state
        attended, history = self._attention(query, history)
        with variable_scope("attn_output_projection"):
            output = linear([output, attended], self._size, True)
        history = reshape(concat([history, expand_dims(output, 1)], 1), [-1, self._length * self._size])
        parts = (new_state, attended, history)
        return output, parts if self._state_is_tuple else concat(list(parts), 1)

    def _attention(self, query: Any, history: Any) -> tuple[Any, Any]:
        with variable_scope("attention"):
            k = get_variable("attn_w", [1, 1, self._size, self._vector_size])
            v = get_variable("attn_v", [self._vector_size])
            hidden = reshape(history, [-1, self._length, 1, self._size])
            features = conv2d(hidden, k, [1, 1, 1, 1], "SAME")
            y = reshape(linear(query, self._vector_size, True), [-1, 1, 1, self._vector_size])
            weights = softmax(reduce_sum(multiply(v, tanh(add(features, y))), [2, 3]))
            mixed = reduce_sum(multiply(reshape(weights, [-1, self._length, 1, 1]), hidden), [1, 2])
            return reshape(mixed, [-1, self._size]), slice_of(history, [0, 1, 0], [-1, -1, -1])


def _checked_stack(cells_fw: Any, cells_bw: Any, states_fw: Any, states_bw: Any) -> list[tuple[Any, Any]]:
    for name, cells in (("cells_fw", cells_fw), ("cells_bw", cells_bw)):
        if cells is None or not isinstance(cells, Sequence) or not cells:
            raise ValueError(f"{name} must be a list of RNNCells (one per layer), received {cells!r}.")
    if len(cells_fw) != len(cells_bw):
        raise ValueError(f"Forward and Backward cells must have the same depth: {len(cells_fw)}, {len(cells_bw)}.")
    for name, states in (("initial_states_fw", states_fw), ("initial_states_bw", states_bw)):
        if states is not None and (not isinstance(states, Sequence) or len(states) != len(cells_fw)):
            raise ValueError(f"{name} must be a list of state tensors (one per layer), received {states!r}.")
    none = [None] * len(cells_fw)
    return list(zip(states_fw or none, states_bw or none, strict=True))


def stack_bidirectional_rnn(
    cells_fw: Any,
    cells_bw: Any,
    inputs: TensorLike,
    initial_states_fw: Any = None,
    initial_states_bw: Any = None,
    dtype: DTypeLike | None = None,
    sequence_length: TensorLike = None,
    scope: Any = None,
) -> Any:
    """Several bidirectional layers over a list of inputs; each gets the joined outputs of the previous one."""
    starts = _checked_stack(cells_fw, cells_bw, initial_states_fw, initial_states_bw)
    fw, bw = [], []
    with variable_scope(scope or "stack_bidirectional_rnn"):
        for i, (start_fw, start_bw) in enumerate(starts):
            with variable_scope(f"cell_{i}") as cell_scope:
                inputs, state_fw, state_bw = static_bidirectional_rnn(
                    cells_fw[i], cells_bw[i], inputs, start_fw, start_bw, dtype, sequence_length, scope=cell_scope
                )
            fw.append(state_fw)
            bw.append(state_bw)
    return inputs, tuple(fw), tuple(bw)


def stack_bidirectional_dynamic_rnn(
    cells_fw: Any,
    cells_bw: Any,
    inputs: TensorLike,
    initial_states_fw: Any = None,
    initial_states_bw: Any = None,
    dtype: DTypeLike | None = None,
    sequence_length: TensorLike = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: Any = None,
    swap_memory: bool = False,
) -> Any:
    """Several bidirectional layers over time; each gets the joined outputs of the previous one.

    >>> outputs, fw, bw = tf.contrib.rnn.stack_bidirectional_dynamic_rnn(cells_fw, cells_bw, x, dtype=tf.float32)
    """
    starts = _checked_stack(cells_fw, cells_bw, initial_states_fw, initial_states_bw)
    fw, bw = [], []
    with variable_scope(scope or "stack_bidirectional_rnn"):
        for i, (start_fw, start_bw) in enumerate(starts):
            with variable_scope(f"cell_{i}"):
                outputs, (state_fw, state_bw) = bidirectional_dynamic_rnn(
                    cells_fw[i], cells_bw[i], inputs, sequence_length, start_fw, start_bw, dtype, time_major=time_major
                )
                inputs = concat(outputs, 2)
            fw.append(state_fw)
            bw.append(state_bw)
    return inputs, tuple(fw), tuple(bw)
