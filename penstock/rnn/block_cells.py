"""The cells of `tf.contrib.rnn` that are other forms of LSTM and GRU: block cells, fused cells, layer normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.graph.convert import convert_to_tensor
from penstock.graph.typing import DTypeLike, ShapeLike, TensorLike
from penstock.ops.array.arranging import reverse, reverse_sequence
from penstock.ops.array.joining import concat, split, stack, unstack
from penstock.ops.linalg.matmul import matmul
from penstock.ops.math.arithmetic import add, multiply
from penstock.ops.math.unary import sigmoid, tanh
from penstock.ops.nn.layer_parts import bias_add, dropout
from penstock.ops.nn.normalization import batch_normalization, moments
from penstock.rnn.base import RNNCell, last_dimension
from penstock.rnn.cells import BIAS, KERNEL, GRUCell, LSTMCell, LSTMStateTuple
from penstock.rnn.dynamic import dynamic_rnn
from penstock.rnn.static import static_rnn
from penstock.variables.initializers import constant_initializer, zeros_initializer
from penstock.variables.scope import get_variable, variable_scope


class LSTMBlockCell(LSTMCell):
    """An LSTM under TensorFlow's names for its fused kernel; the compiler fuses every cell alike.

    >>> tf.contrib.rnn.LSTMBlockCell(128)
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        dtype: DTypeLike | None = None,
        reuse: bool | None = None,
        name: str = "lstm_cell",
    ) -> None:
        clip = cell_clip if cell_clip is not None and cell_clip > 0 else None
        super().__init__(
            num_units,
            use_peepholes=use_peephole,
            cell_clip=clip,
            forget_bias=forget_bias,
            reuse=reuse,
            name=name,
            dtype=dtype,
        )

    def build(self, inputs_shape: ShapeLike) -> None:
        """Makes kernel and bias, and the weights of peepholes where there are any."""
        units = self._num_units
        self._kernel = self.add_variable(KERNEL, shape=[last_dimension(inputs_shape, self.name) + units, 4 * units])
        self._bias = self.add_variable(BIAS, shape=[4 * units], initializer=constant_initializer(0.0))
        if self._use_peepholes:
            self._w_i_diag, self._w_f_diag, self._w_o_diag = (
                self.add_variable(f"w_{gate}_diag", shape=[units]) for gate in "ifo"
            )
        self.built = True


class GRUBlockCellV2(GRUCell):
    """A GRU under TensorFlow's names for its fused kernel."""

    _names = ("gates/kernel", "gates/bias", "candidate/kernel", "candidate/bias")

    def __init__(
        self,
        num_units: int | None = None,
        cell_size: int | None = None,
        reuse: bool | None = None,
        name: str = "gru_cell",
    ) -> None:
        size = num_units or cell_size
        if size is None:
            raise ValueError(f"{type(self).__name__}: num_units is required.")
        super().__init__(size, reuse=reuse, name=name)

    def build(self, inputs_shape: ShapeLike) -> None:
        """Makes kernel and bias of the gates and of the candidate."""
        units = self._num_units
        rows = last_dimension(inputs_shape, self.name) + units
        gate_kernel, gate_bias, kernel, bias = self._names
        self._gate_kernel = self.add_variable(gate_kernel, shape=[rows, 2 * units])
        self._gate_bias = self.add_variable(gate_bias, shape=[2 * units], initializer=constant_initializer(1.0))
        self._candidate_kernel = self.add_variable(kernel, shape=[rows, units])
        self._candidate_bias = self.add_variable(bias, shape=[units], initializer=constant_initializer(0.0))
        self.built = True


class GRUBlockCell(GRUBlockCellV2):
    """A GRU under the older of TensorFlow's names for its fused kernel."""

    _names = ("w_ru", "b_ru", "w_c", "b_c")


class FusedRNNCell:
    """Base class of cells that run over all time steps at once: inputs and outputs are [time, batch, size]."""

    def __call__(
        self,
        inputs: TensorLike,
        initial_state: Any = None,
        dtype: DTypeLike | None = None,
        sequence_length: TensorLike = None,
        scope: Any = None,
    ) -> Any:
        """All outputs and the last state."""
        raise NotImplementedError("Abstract method")


class FusedRNNCellAdaptor(FusedRNNCell):
    """An ordinary cell as a fused one."""

    def __init__(self, cell: Any, use_dynamic_rnn: bool = False) -> None:
        self._cell, self._dynamic = cell, use_dynamic_rnn

    def __call__(
        self,
        inputs: TensorLike,
        initial_state: Any = None,
        dtype: DTypeLike | None = None,
        sequence_length: TensorLike = None,
        scope: Any = None,
    ) -> Any:
        """All outputs and the last state."""
        steps = inputs if isinstance(inputs, list) else None
        if self._dynamic:
            whole = convert_to_tensor(inputs if steps is None else stack(steps))
            outputs, state = dynamic_rnn(
                self._cell, whole, sequence_length, initial_state, dtype, time_major=True, scope=scope
            )
            return (outputs if steps is None else unstack(outputs)), state
        parts = unstack(inputs) if steps is None else steps
        outputs, state = static_rnn(self._cell, parts, initial_state, dtype, sequence_length, scope=scope)
        return (stack(outputs) if steps is None else outputs), state


class TimeReversedFusedRNN(FusedRNNCell):
    """A fused cell that runs from the last time step to the first."""

    def __init__(self, cell: Callable[..., Any]) -> None:
        self._cell = cell

    def __call__(
        self,
        inputs: TensorLike,
        initial_state: Any = None,
        dtype: DTypeLike | None = None,
        sequence_length: TensorLike = None,
        scope: Any = None,
    ) -> Any:
        """All outputs and the state after the first time step."""

        def backwards(tensor: Any) -> Any:
            if sequence_length is None:
                return reverse(tensor, [0])
            return reverse_sequence(tensor, sequence_length, seq_axis=0, batch_axis=1)

        outputs, state = self._cell(
            backwards(inputs), initial_state=initial_state, dtype=dtype, sequence_length=sequence_length, scope=scope
        )
        return backwards(outputs), state


class LSTMBlockFusedCell(LSTMBlockCell):
    """An LSTM over all time steps at once: `outputs, state = cell(inputs)` with inputs [time, batch, size].

    >>> tf.contrib.rnn.LSTMBlockFusedCell(128)(x_time_major, dtype=tf.float32)
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        reuse: bool | None = None,
        dtype: DTypeLike | None = None,
        name: str = "lstm_fused_cell",
    ) -> None:
        super().__init__(num_units, forget_bias, cell_clip, use_peephole, dtype, reuse, name)

    @property
    def num_units(self) -> int:
        return self._num_units

    def __call__(  # type: ignore[override]
        self,
        inputs: TensorLike,
        initial_state: Any = None,
        dtype: DTypeLike | None = None,
        sequence_length: TensorLike = None,
        scope: Any = None,
    ) -> Any:
        """All outputs and the last state."""
        steps = inputs if isinstance(inputs, list) else None
        whole = convert_to_tensor(inputs if steps is None else stack(steps))
        if self._scope is None:
            self._settle_scope(None if scope is None else _entered(scope))
        run = _Steps(self)
        with variable_scope(self._scope, reuse=True if self.built else self._reuse, auxiliary_name_scope=False):
            outputs, state = dynamic_rnn(
                run, whole, sequence_length, initial_state, dtype or whole.dtype, time_major=True, scope=self._scope
            )
        return (outputs if steps is None else unstack(outputs)), LSTMStateTuple(*state)


def _entered(scope: Any) -> Any:
    with variable_scope(scope) as found:
        return found


class _Steps(RNNCell):
    """One step of a fused cell."""

    def __init__(self, fused: LSTMBlockFusedCell) -> None:
        self._fused = fused

    @property
    def state_size(self) -> Any:
        return self._fused.state_size

    @property
    def output_size(self) -> Any:
        return self._fused.output_size

    def __call__(self, inputs: Any, state: Any, scope: Any = None, *args: Any, **kwargs: Any) -> Any:
        fused = self._fused
        fused._outer_scope = fused._scope
        return RNNCell.__call__(fused, inputs, state)


class LayerNormBasicLSTMCell(RNNCell):
    """LSTM with layer normalisation (Ba et al. 2016) and recurrent dropout (Semeniuta et al. 2016).

    >>> tf.contrib.rnn.LayerNormBasicLSTMCell(128, dropout_keep_prob=0.9)
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        input_size: Any = None,
        activation: Any = tanh,
        layer_norm: bool = True,
        norm_gain: float = 1.0,
        norm_shift: float = 0.0,
        dropout_keep_prob: TensorLike = 1.0,
        dropout_prob_seed: int | None = None,
        reuse: bool | None = None,
    ) -> None:
        super().__init__(_reuse=reuse)
        self._num_units, self._forget_bias, self._activation = num_units, forget_bias, activation
        self._layer_norm, self._gain, self._shift = layer_norm, norm_gain, norm_shift
        self._keep_prob, self._seed = dropout_keep_prob, dropout_prob_seed

    @property
    def state_size(self) -> Any:
        return LSTMStateTuple(self._num_units, self._num_units)

    @property
    def output_size(self) -> Any:
        return self._num_units

    def _norm(self, value: Any, scope: str) -> Any:
        if not self._layer_norm:
            return value
        with variable_scope(scope):
            size = value.shape.as_list()[-1:]
            gamma = get_variable("gamma", size, value.dtype, initializer=constant_initializer(self._gain))
            beta = get_variable("beta", size, value.dtype, initializer=constant_initializer(self._shift))
            mean, variance = moments(value, [1], keep_dims=True)
            return batch_normalization(value, mean, variance, beta, gamma, 1e-12)

    def call(self, inputs: TensorLike, state: Any) -> Any:
        """One step."""
        c, h = state
        joined = concat([inputs, h], 1)
        units = self._num_units
        product = matmul(joined, get_variable(KERNEL, [joined.shape.as_list()[-1], 4 * units], joined.dtype))
        if not self._layer_norm:
            product = bias_add(product, get_variable(BIAS, [4 * units], product.dtype, initializer=zeros_initializer()))
        i, j, f, o = split(product, 4, 1)
        names = ("input", "transform", "forget", "output")
        i, j, f, o = (self._norm(v, n) for v, n in zip((i, j, f, o), names, strict=True))
        g = self._activation(j)
        if not isinstance(self._keep_prob, float) or self._keep_prob < 1:
            g = dropout(g, keep_prob=self._keep_prob, seed=self._seed)
        forget = sigmoid(add(f, convert_to_tensor(self._forget_bias, dtype=f.dtype)))
        new_c = self._norm(add(multiply(c, forget), multiply(sigmoid(i), g)), "state")
        new_h = multiply(self._activation(new_c), sigmoid(o))
        return new_h, LSTMStateTuple(new_c, new_h)
