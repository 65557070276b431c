"""Cells run over a Python list of time steps: static_rnn, static_bidirectional_rnn, static_state_saving_rnn."""

from __future__ import annotations

from typing import Any

from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import control_dependencies
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.array.arranging import reverse_sequence
from penstock.ops.array.creation import zeros
from penstock.ops.array.joining import concat, stack, unstack
from penstock.ops.array.passthrough import identity
from penstock.ops.math.compare import greater_equal
from penstock.rnn.base import assert_like_rnncell, with_batch
from penstock.rnn.dynamic import batch_size_of, checked_lengths, chosen, start_state
from penstock.variables.scope import variable_scope


def static_rnn(
    cell: Any,
    inputs: Any,
    initial_state: Any = None,
    dtype: DTypeLike | None = None,
    sequence_length: TensorLike = None,
    scope: Any = None,
) -> Any:
    """Runs `cell` over a list of inputs; returns the list of outputs and the last state.

    >>> outputs, state = tf.nn.static_rnn(cell, tf.unstack(x, axis=1), dtype=tf.float32)
    """
    assert_like_rnncell("cell", cell)
    if not nest.is_nested(inputs) or isinstance(inputs, dict):
        raise TypeError("inputs must be a sequence")
    if not inputs:
        raise ValueError("inputs must not be empty")
    with variable_scope(scope or "rnn") as found:
        steps = [nest.map_structure(convert_to_tensor, i) for i in inputs]
        first = nest.flatten(steps[0])
        for tensor in first:
            if tensor.shape.rank not in (None, 1) and any(d is None for d in tensor.shape.as_list()[1:]):
                raise ValueError(f"static_rnn: the size of inputs must be known, received shape {tensor.shape}.")
        batch_size = batch_size_of(first, 0)
        state = start_state(cell, initial_state, batch_size, dtype)
        lengths = None if sequence_length is None else checked_lengths(sequence_length, batch_size)
        zero: Any = None
        outputs = []
        for time, now in enumerate(steps):
            if time > 0:
                found.reuse_variables()
            output, new_state = cell(now, state)
            if lengths is not None:
                if zero is None:
                    kinds = [o.dtype.base_dtype for o in nest.flatten(output)]
                    sizes = nest.flatten(cell.output_size)
                    flat = [zeros(with_batch(batch_size, s), k) for s, k in zip(sizes, kinds, strict=True)]
                    zero = nest.pack_sequence_as(output, flat)
                over = greater_equal(time, lengths)
                output = nest.map_structure(lambda z, o, over=over: chosen(over, z, o), zero, output)
                new_state = nest.map_structure(lambda old, new, over=over: chosen(over, old, new), state, new_state)
            state = new_state
            outputs.append(output)
        return outputs, state


def static_state_saving_rnn(
    cell: Any, inputs: Any, state_saver: Any, state_name: Any, sequence_length: TensorLike = None, scope: Any = None
) -> Any:
    """`static_rnn` that starts from `state_saver.state(name)` and saves the last state there."""
    state_size = cell.state_size
    if nest.is_nested(state_size) != nest.is_nested(state_name):
        raise ValueError(f"state_name {state_name!r} does not fit the state {state_size!r} of the cell.")
    names = nest.flatten(state_name)
    if len(names) != len(nest.flatten(state_size)):
        raise ValueError(f"state_name must have one name per part of the state, received {state_name!r}.")
    initial = nest.pack_sequence_as(state_size, [state_saver.state(n) for n in names])
    outputs, state = static_rnn(cell, inputs, initial_state=initial, sequence_length=sequence_length, scope=scope)
    saved = [state_saver.save_state(n, s) for n, s in zip(names, nest.flatten(state), strict=True)]
    with control_dependencies(saved):
        outputs[-1] = nest.map_structure(identity, outputs[-1])
    return outputs, state


def _reversed(inputs: list[Any], lengths: Any) -> list[Any]:
    """The steps in reverse order; each row is reversed only up to its length."""
    if lengths is None:
        return list(reversed(inputs))
    columns = []
    for sequence in zip(*[nest.flatten(i) for i in inputs], strict=True):
        joined = stack(list(sequence))
        columns.append(unstack(reverse_sequence(joined, lengths, seq_axis=0, batch_axis=1), num=len(inputs)))
        for before, after in zip(sequence, columns[-1], strict=True):
            after.set_shape(TensorShape(before.shape))
    return [nest.pack_sequence_as(i, parts) for i, parts in zip(inputs, zip(*columns, strict=True), strict=True)]


def static_bidirectional_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: Any,
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: DTypeLike | None = None,
    sequence_length: TensorLike = None,
    scope: Any = None,
) -> Any:
    """One cell forwards and one backwards over a list of inputs; returns joined outputs and both last states.

    >>> outputs, fw, bw = tf.nn.static_bidirectional_rnn(cell_fw, cell_bw, steps, dtype=tf.float32)
    """
    assert_like_rnncell("cell_fw", cell_fw)
    assert_like_rnncell("cell_bw", cell_bw)
    if not nest.is_nested(inputs):
        raise TypeError("inputs must be a sequence")
    if not inputs:
        raise ValueError("inputs must not be empty")
    with variable_scope(scope or "bidirectional_rnn"):
        steps = [nest.map_structure(convert_to_tensor, i) for i in inputs]
        with variable_scope("fw") as fw_scope:
            fw, fw_state = static_rnn(cell_fw, steps, initial_state_fw, dtype, sequence_length, scope=fw_scope)
        with variable_scope("bw") as bw_scope:
            backwards = _reversed(steps, sequence_length)
            bw, bw_state = static_rnn(cell_bw, backwards, initial_state_bw, dtype, sequence_length, scope=bw_scope)
    pairs = zip(fw, _reversed(bw, sequence_length), strict=True)
    return [nest.map_structure(_joined, f, b) for f, b in pairs], fw_state, bw_state


def _joined(forward: Tensor, backward: Tensor) -> Tensor:
    return concat([forward, backward], 1)
