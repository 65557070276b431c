"""Cells made of other cells: stacked, with dropout, residual, on a device."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Callable, Sequence
from typing import Any

from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import device, name_scope
from penstock.graph.shape import as_shape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.array.joining import concat
from penstock.ops.array.slicing import slice as slice_of
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.math.arithmetic import add, divide, multiply
from penstock.ops.math.unary import floor
from penstock.ops.nn.layer_parts import dropout
from penstock.ops.random.stateful import random_uniform
from penstock.rnn.base import RNNCell, assert_like_rnncell, with_batch
from penstock.rnn.cells import LSTMStateTuple
from penstock.variables.scope import variable_scope


class MultiRNNCell(RNNCell):
    """Cells on top of each other, as one.

    >>> tf.nn.rnn_cell.MultiRNNCell([tf.nn.rnn_cell.LSTMCell(n) for n in (128, 64)])
    """

    def __init__(self, cells: Sequence[Any], state_is_tuple: bool = True) -> None:
        super().__init__()
        if not cells:
            raise ValueError("Must specify at least one cell for MultiRNNCell.")
        if not isinstance(cells, (list, tuple)):
            raise TypeError(f"cells must be a list or tuple, but saw: {cells}.")
        for cell in cells:
            assert_like_rnncell("cell", cell)
        if not state_is_tuple and any(nest.is_nested(c.state_size) for c in cells):
            raise ValueError(
                "Some cells return tuples of states, but the flag state_is_tuple is not set. "
                f"State sizes are: {[c.state_size for c in cells]}"
            )
        self._cells = list(cells)
        self._state_is_tuple = state_is_tuple

    def _inner_cells(self) -> list[Any]:
        return self._cells

    @property
    def state_size(self) -> Any:
        sizes = tuple(c.state_size for c in self._cells)
        return sizes if self._state_is_tuple else sum(sizes)

    @property
    def output_size(self) -> Any:
        return self._cells[-1].output_size

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """One state of zeros per cell."""
        if not self._state_is_tuple:
            return super().zero_state(batch_size, dtype)
        with name_scope(f"{type(self).__name__}ZeroState", values=[batch_size]):
            return tuple(c.zero_state(batch_size, dtype) for c in self._cells)

    def call(self, inputs: TensorLike, state: Any) -> Any:
        """One step of each cell, from the first to the last."""
        if self._state_is_tuple:
            if not nest.is_nested(state) or len(state) != len(self._cells):
                raise ValueError(f"Expected state to be a tuple of length {len(self._cells)}, but received: {state}")
            states = list(state)
        else:
            starts = [sum(c.state_size for c in self._cells[:i]) for i in range(len(self._cells))]
            states = [slice_of(state, [0, at], [-1, c.state_size]) for at, c in zip(starts, self._cells, strict=True)]
        after = []
        for i, (cell, before) in enumerate(zip(self._cells, states, strict=True)):
            with variable_scope(f"cell_{i}"):
                inputs, new = cell(inputs, before)
                after.append(new)
        return inputs, tuple(after) if self._state_is_tuple else concat(after, 1)


class CellWrapper(RNNCell):
    """A cell around another one. It has no variables of its own, so the inner cell's names do not change."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        assert_like_rnncell("cell", cell)
        self._cell = cell

    @property
    def wrapped_cell(self) -> Any:
        return self._cell

    @property
    def state_size(self) -> Any:
        return self._cell.state_size

    @property
    def output_size(self) -> Any:
        return self._cell.output_size

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """The inner cell's state of zeros."""
        with name_scope(f"{type(self).__name__}ZeroState", values=[batch_size]):
            return self._cell.zero_state(batch_size, dtype)

    def __call__(self, inputs: TensorLike, state: Any, scope: Any = None, *args: Any, **kwargs: Any) -> Any:
        self.built = True
        return self.wrapped(inputs, state, lambda i, s: self._cell(i, s, scope=scope) if scope else self._cell(i, s))

    def wrapped(self, inputs: TensorLike, state: Any, step: Callable[[Any, Any], Any]) -> Any:
        """Runs the inner cell's `step` with the changes of this wrapper."""
        return step(inputs, state)


def _no_memory(state: Any) -> Any:
    """True for each part of a state that dropout may change: not the memory of an LSTM, and no TensorArrays."""
    if isinstance(state, LSTMStateTuple):
        return LSTMStateTuple(False, True)
    return not isinstance(state, TensorArray)


def _map_chosen(chosen: Any, values: Any, function: Callable[[int, Any], Any]) -> Any:
    """Applies `function(number, leaf)` to the leaves for which `chosen` (a function or structure of bools) is true."""
    count = 0

    def visit(part: Any, of: Any) -> Any:
        nonlocal count
        if callable(of):
            of = of(part)
        if nest.is_nested(of):
            done = [visit(p, o) for p, o in zip(part, of, strict=True)]
            return part._make(done) if hasattr(part, "_make") else type(part)(done)
        if nest.is_nested(part):
            done = [visit(p, chosen if callable(chosen) else of) for p in part]
            return part._make(done) if hasattr(part, "_make") else type(part)(done)
        count += 1
        return function(count - 1, part) if of else part

    return visit(values, chosen)


class DropoutWrapper(CellWrapper):
    """Dropout on inputs, outputs and state of a cell.

    With `variational_recurrent` one mask is drawn per run and used for all time steps (Gal & Ghahramani 2015). This
    needs `dtype`, and `input_size` if inputs are dropped.

    >>> tf.nn.rnn_cell.DropoutWrapper(cell, output_keep_prob=0.5)
    """

    def __init__(
        self,
        cell: Any,
        input_keep_prob: TensorLike = 1.0,
        output_keep_prob: TensorLike = 1.0,
        state_keep_prob: TensorLike = 1.0,
        variational_recurrent: bool = False,
        input_size: Any = None,
        dtype: DTypeLike | None = None,
        seed: int | None = None,
        dropout_state_filter_visitor: Any = None,
        **_: Any,
    ) -> None:
        super().__init__(cell)
        if dropout_state_filter_visitor is not None and not callable(dropout_state_filter_visitor):
            raise TypeError("dropout_state_filter_visitor must be callable")
        self._filter = dropout_state_filter_visitor or _no_memory
        given = {"input": input_keep_prob, "state": state_keep_prob, "output": output_keep_prob}
        self._keep = {what: _probability(f"{what}_keep_prob", value) for what, value in given.items()}
        self._seed, self._variational = seed, variational_recurrent
        self._noise: dict[str, Any] = {}
        if variational_recurrent:
            if dtype is None:
                raise ValueError("When variational_recurrent=True, dtype must be provided")
            self._draw_masks(input_size, dtype)

    def _draw_masks(self, input_size: Any, dtype: Any) -> None:
        sizes = {"input": input_size, "state": self._cell.state_size, "output": self._cell.output_size}
        for what, size in sizes.items():
            if not self._drops(what):
                continue
            if size is None:
                raise ValueError(
                    "When variational_recurrent=True and input_keep_prob < 1.0 or is unknown, input_size must be "
                    "provided"
                )

            def mask(number: int, part: Any, what: str = what) -> Tensor:
                return random_uniform(with_batch(1, part), seed=self._seed_for(what, number), dtype=dtype)

            flat = [mask(i, s) for i, s in enumerate(nest.flatten(size))]
            self._noise[what] = nest.pack_sequence_as(size, flat)

    def _drops(self, what: str) -> bool:
        keep = self._keep[what]
        return not isinstance(keep, float) or keep < 1

    def _seed_for(self, what: str, number: int) -> int | None:
        if self._seed is None:
            return None
        prefix = {"input": "input", "state": "state", "output": "output"}[what]
        text = f"{self._seed}{prefix}_{number}".encode()
        return int(hashlib.md5(text).hexdigest()[:8], 16) & 0x7FFFFFFF

    def _dropped(self, what: str, values: Any) -> Any:
        keep = self._keep[what]
        if not self._drops(what):
            return values
        noise = nest.flatten(self._noise[what]) if self._variational else []

        def one(number: int, value: Any) -> Any:
            if self._variational:
                value = convert_to_tensor(value)
                kept = floor(add(convert_to_tensor(keep, dtype=value.dtype), noise[number]))
                result: Tensor = multiply(divide(value, keep), kept)
                result.set_shape(value.shape)
                return result
            return dropout(value, keep_prob=keep, seed=self._seed_for(what, number))

        return _map_chosen(self._filter if what == "state" else (lambda _: True), values, one)

    def wrapped(self, inputs: TensorLike, state: Any, step: Callable[[Any, Any], Any]) -> Any:
        """The step with dropout before and after it."""
        output, new_state = step(self._dropped("input", inputs), state)
        return self._dropped("output", output), self._dropped("state", new_state)


def _probability(name: str, value: Any) -> Any:
    if isinstance(value, numbers.Real):
        if not 0 <= float(value) <= 1:
            raise ValueError(f"Parameter {name} must be between 0 and 1: {value:g}")
        return float(value)
    return convert_to_tensor(value, name=name)


class ResidualWrapper(CellWrapper):
    """The inputs of a cell added to its outputs, or `residual_fn(inputs, outputs)`.

    >>> tf.nn.rnn_cell.ResidualWrapper(cell)
    """

    def __init__(self, cell: Any, residual_fn: Callable[[Any, Any], Any] | None = None, **_: Any) -> None:
        super().__init__(cell)
        self._residual_fn = residual_fn

    def wrapped(self, inputs: TensorLike, state: Any, step: Callable[[Any, Any], Any]) -> Any:
        """The step with the inputs added."""
        outputs, new_state = step(inputs, state)
        return (self._residual_fn or _sum_alike)(inputs, outputs), new_state


def _sum_alike(inputs: Any, outputs: Any) -> Any:
    nest.assert_same_structure(inputs, outputs)
    for before, after in zip(nest.flatten(inputs), nest.flatten(outputs), strict=True):
        as_shape(before.shape).assert_is_compatible_with(after.shape)
    return nest.map_structure(add, inputs, outputs)


class DeviceWrapper(CellWrapper):
    """A cell that runs on a device of its own.

    >>> tf.nn.rnn_cell.DeviceWrapper(cell, "/gpu:0")
    """

    def __init__(self, cell: Any, device: Any, **_: Any) -> None:
        super().__init__(cell)
        self._device = device

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """The inner cell's state of zeros, on the device."""
        with device(self._device):
            return super().zero_state(batch_size, dtype)

    def wrapped(self, inputs: TensorLike, state: Any, step: Callable[[Any, Any], Any]) -> Any:
        """The step on the device."""
        with device(self._device):
            return step(inputs, state)
