"""The cells of `tf.nn.rnn_cell`: plain, GRU and LSTM."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.shape import as_shape
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.ops.array.joining import concat, split
from penstock.ops.array.slicing import slice as slice_of
from penstock.ops.linalg.matmul import matmul
from penstock.ops.math import unary
from penstock.ops.math.arithmetic import add, multiply, subtract
from penstock.ops.math.clip import clip_by_value
from penstock.ops.math.unary import sigmoid, tanh
from penstock.ops.nn import activation as activations
from penstock.ops.nn.layer_parts import bias_add
from penstock.rnn.base import LayerRNNCell, last_dimension
from penstock.variables.initializers import constant_initializer, zeros_initializer
from penstock.variables.partitioners import fixed_size_partitioner
from penstock.variables.scope import get_variable_scope

KERNEL, BIAS = "kernel", "bias"


class LSTMStateTuple(namedtuple("LSTMStateTuple", ("c", "h"))):
    """The state of an LSTM: the cell's memory `c` and its output `h`."""

    __slots__ = ()

    @property
    def dtype(self) -> Any:
        if self.c.dtype != self.h.dtype:
            raise TypeError(f"Inconsistent internal state: {self.c.dtype} vs {self.h.dtype}")
        return self.c.dtype


def activation_function(given: Any, default: Any = tanh) -> Any:
    """`given` itself if it is a function, the activation of that name, or `default` if nothing is given."""
    if not given:
        return default
    if callable(given):
        return given
    if given == "linear":
        return lambda x: x
    for module in (activations, unary):
        if callable(found := getattr(module, str(given), None)):
            return found
    raise ValueError(f"Unknown activation {given!r}: give a function, such as tf.nn.relu.")


def linear(parts: list[Any], kernel: Any, bias: Any) -> Tensor:
    """The parts joined, times `kernel`, plus `bias`."""
    return bias_add(matmul(concat(parts, 1), kernel), bias)


class BasicRNNCell(LayerRNNCell):
    """The plain cell: `output = new_state = activation(W [input, state] + b)`.

    >>> tf.nn.rnn_cell.BasicRNNCell(64)
    """

    def __init__(
        self,
        num_units: int,
        activation: Any = None,
        reuse: bool | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(_reuse=reuse, name=name, dtype=dtype, **kwargs)
        self._num_units = num_units
        self._activation = activation_function(activation)

    @property
    def state_size(self) -> Any:
        return self._num_units

    @property
    def output_size(self) -> Any:
        return self._num_units

    def build(self, inputs_shape: ShapeLike) -> None:
        """Makes kernel and bias."""
        depth = last_dimension(inputs_shape, self.name)
        self._kernel = self.add_variable(KERNEL, shape=[depth + self._num_units, self._num_units])
        self._bias = self.add_variable(
            BIAS, shape=[self._num_units], initializer=zeros_initializer(dtype=self.dtype or dt.float32)
        )
        self.built = True

    def call(self, inputs: TensorLike, state: Any) -> Any:
        """One step."""
        output = self._activation(linear([inputs, state], self._kernel, self._bias))
        return output, output


class GRUCell(LayerRNNCell):
    """Gated recurrent unit (Cho et al. 2014).

    >>> tf.nn.rnn_cell.GRUCell(64)
    """

    def __init__(
        self,
        num_units: int,
        activation: Any = None,
        reuse: bool | None = None,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(_reuse=reuse, name=name, dtype=dtype, **kwargs)
        self._num_units = num_units
        self._activation = activation_function(activation)
        self._kernel_initializer, self._bias_initializer = kernel_initializer, bias_initializer

    @property
    def state_size(self) -> Any:
        return self._num_units

    @property
    def output_size(self) -> Any:
        return self._num_units

    def build(self, inputs_shape: ShapeLike) -> None:
        """Makes kernel and bias of the gates and of the candidate."""
        rows, units = last_dimension(inputs_shape, self.name) + self._num_units, self._num_units
        given, kernel = self._bias_initializer, self._kernel_initializer
        # The gates start open; otherwise the state would be forgotten in a few steps.
        ones = constant_initializer(1.0, dtype=self.dtype or dt.float32) if given is None else given
        zero = zeros_initializer(dtype=self.dtype or dt.float32) if given is None else given
        self._gate_kernel = self.add_variable("gates/kernel", shape=[rows, 2 * units], initializer=kernel)
        self._gate_bias = self.add_variable("gates/bias", shape=[2 * units], initializer=ones)
        self._candidate_kernel = self.add_variable("candidate/kernel", shape=[rows, units], initializer=kernel)
        self._candidate_bias = self.add_variable("candidate/bias", shape=[units], initializer=zero)
        self.built = True

    def call(self, inputs: TensorLike, state: Any) -> Any:
        """One step."""
        reset, update = split(sigmoid(linear([inputs, state], self._gate_kernel, self._gate_bias)), 2, 1)
        remembered = multiply(reset, state)
        candidate = self._activation(linear([inputs, remembered], self._candidate_kernel, self._candidate_bias))
        new = add(multiply(update, state), multiply(subtract(1.0, update), candidate))
        return new, new


class _LSTM(LayerRNNCell):
    """The base of the two LSTM cells: converts between the forms of their state."""

    _num_units: int
    _state_is_tuple: bool

    def _parts(self, state: Any, output_size: int) -> tuple[Any, Any]:
        if self._state_is_tuple:
            c, h = state
            return c, h
        state = convert_to_tensor(state)
        return slice_of(state, [0, 0], [-1, self._num_units]), slice_of(state, [0, self._num_units], [-1, output_size])

    def _whole(self, c: Any, h: Any) -> Any:
        return LSTMStateTuple(c, h) if self._state_is_tuple else concat([c, h], 1)


class BasicLSTMCell(_LSTM):
    """LSTM without peepholes, projection or clipping (Zaremba et al. 2014). Order of the gates: i, j, f, o.

    >>> tf.nn.rnn_cell.BasicLSTMCell(128)
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Any = None,
        reuse: bool | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(_reuse=reuse, name=name, dtype=dtype, **kwargs)
        self._num_units, self._forget_bias = num_units, forget_bias
        self._state_is_tuple = state_is_tuple
        self._activation = activation_function(activation)

    @property
    def state_size(self) -> Any:
        return LSTMStateTuple(self._num_units, self._num_units) if self._state_is_tuple else 2 * self._num_units

    @property
    def output_size(self) -> Any:
        return self._num_units

    def build(self, inputs_shape: ShapeLike) -> None:
        """Makes kernel and bias."""
        rows, columns = last_dimension(inputs_shape, self.name) + self._num_units, 4 * self._num_units
        self._kernel = self.add_variable(KERNEL, shape=[rows, columns])
        self._bias = self.add_variable(
            BIAS, shape=[columns], initializer=zeros_initializer(dtype=self.dtype or dt.float32)
        )
        self.built = True

    def call(self, inputs: TensorLike, state: Any) -> Any:
        """One step."""
        c, h = self._parts(state, self._num_units)
        i, j, f, o = split(linear([inputs, h], self._kernel, self._bias), 4, 1)
        forget = sigmoid(add(f, convert_to_tensor(self._forget_bias, dtype=f.dtype)))
        new_c = add(multiply(c, forget), multiply(sigmoid(i), self._activation(j)))
        new_h = multiply(self._activation(new_c), sigmoid(o))
        return new_h, self._whole(new_c, new_h)


class LSTMCell(_LSTM):
    """LSTM with optional peepholes, projection and clipping (Sak et al. 2014). Order of the gates: i, j, f, o.

    >>> tf.nn.rnn_cell.LSTMCell(512, use_peepholes=True, num_proj=128)
    """

    def __init__(
        self,
        num_units: int,
        use_peepholes: bool = False,
        cell_clip: float | None = None,
        initializer: Any = None,
        num_proj: int | None = None,
        proj_clip: float | None = None,
        num_unit_shards: int | None = None,
        num_proj_shards: int | None = None,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Any = None,
        reuse: bool | None = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(_reuse=reuse, name=name, dtype=dtype, **kwargs)
        self._num_units, self._num_proj = num_units, num_proj
        self._use_peepholes, self._initializer, self._forget_bias = use_peepholes, initializer, forget_bias
        self._cell_clip, self._proj_clip = cell_clip, proj_clip
        self._unit_shards, self._proj_shards = num_unit_shards, num_proj_shards
        self._state_is_tuple = state_is_tuple
        self._activation = activation_function(activation)

    @property
    def state_size(self) -> Any:
        units, out = self._num_units, self.output_size
        return LSTMStateTuple(units, out) if self._state_is_tuple else units + out

    @property
    def output_size(self) -> Any:
        return self._num_proj or self._num_units

    def build(self, inputs_shape: ShapeLike) -> None:
        """Makes kernel and bias, and the weights of peepholes and projection where there are any."""
        rows, units = last_dimension(inputs_shape, self.name) + self.output_size, self._num_units
        self._kernel = self.add_variable(
            KERNEL, shape=[rows, 4 * units], initializer=self._initializer, partitioner=_shards(self._unit_shards)
        )
        start = None if self.dtype is None else zeros_initializer(dtype=self.dtype)
        self._bias = self.add_variable(BIAS, shape=[4 * units], initializer=start)
        if self._use_peepholes:
            self._w_f_diag, self._w_i_diag, self._w_o_diag = (
                self.add_variable(f"w_{gate}_diag", shape=[units], initializer=self._initializer) for gate in "fio"
            )
        if self._num_proj:
            self._projection = self.add_variable(
                f"projection/{KERNEL}",
                shape=[units, self._num_proj],
                initializer=self._initializer,
                partitioner=_shards(self._proj_shards),
            )
        self.built = True

    def call(self, inputs: TensorLike, state: Any) -> Any:
        """One step."""
        c, h = self._parts(state, self.output_size)
        if as_shape(inputs.shape).as_list()[1] is None:
            raise ValueError("Could not infer input size from inputs.get_shape()[-1]")
        i, j, f, o = split(linear([inputs, h], self._kernel, self._bias), 4, 1)
        f = add(f, convert_to_tensor(self._forget_bias, dtype=f.dtype))
        if self._use_peepholes:
            f, i = add(f, multiply(self._w_f_diag, c)), add(i, multiply(self._w_i_diag, c))
        new_c = add(multiply(sigmoid(f), c), multiply(sigmoid(i), self._activation(j)))
        if self._cell_clip is not None:
            new_c = clip_by_value(new_c, -self._cell_clip, self._cell_clip)
        if self._use_peepholes:
            o = add(o, multiply(self._w_o_diag, new_c))
        new_h = multiply(sigmoid(o), self._activation(new_c))
        if self._num_proj:
            new_h = matmul(new_h, self._projection)
            if self._proj_clip is not None:
                new_h = clip_by_value(new_h, -self._proj_clip, self._proj_clip)
        return new_h, self._whole(new_c, new_h)


def _shards(count: int | None) -> Any:
    return get_variable_scope().partitioner if count is None else fixed_size_partitioner(count)
