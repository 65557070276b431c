"""Cells run over time by a loop in the graph: dynamic_rnn, bidirectional_dynamic_rnn, raw_rnn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.graph import dtype as dt
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.graph.scopes import control_dependencies, name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.array.arranging import reverse, reverse_sequence, transpose
from penstock.ops.array.creation import constant, zeros
from penstock.ops.array.joining import concat
from penstock.ops.array.passthrough import identity
from penstock.ops.array.ranges import range as range_of
from penstock.ops.array.reshaping import rank, shape
from penstock.ops.array.selection import where
from penstock.ops.control.flow import while_loop
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.debugging.assertion import Assert
from penstock.ops.math.arithmetic import add, maximum, minimum
from penstock.ops.math.casting import cast
from penstock.ops.math.compare import equal, greater_equal, less, logical_not, logical_or
from penstock.ops.math.reduce import reduce_all, reduce_max
from penstock.rnn.base import assert_like_rnncell, size_at, static_shape, with_batch
from penstock.variables.scope import variable_scope


def transpose_batch_time(x: Tensor) -> Tensor:
    """`x` with its first two dimensions exchanged; unchanged if it has fewer."""
    known = x.shape
    if known.rank is not None and known.rank < 2:
        return x
    if known.rank is not None:
        return transpose(x, [1, 0, *range(2, known.rank)])
    return transpose(x, concat(([1, 0], range_of(2, rank(x))), axis=0))


def batch_size_of(inputs: list[Tensor], axis: int) -> Any:
    """The batch size: an int if the shape of an input tells it, else a tensor."""
    for tensor in inputs:
        if tensor.shape.rank is not None and tensor.shape.rank > axis:
            size = tensor.shape.as_list()[axis]
            if size is not None:
                return size
    return size_at(inputs[0], axis)


def checked_lengths(sequence_length: Any, batch_size: Any) -> Tensor:
    """The lengths as int32, checked to be one per row of the batch."""
    lengths = cast(convert_to_tensor(sequence_length, name="sequence_length"), dt.int32)
    if lengths.shape.rank not in (None, 1):
        raise ValueError(f"sequence_length must be a vector of length batch_size, but saw shape: {lengths.shape}")
    lengths = identity(lengths, name="sequence_length")
    if isinstance(batch_size, int) and lengths.shape.is_fully_defined() and lengths.shape.as_list() == [batch_size]:
        return lengths
    expected = convert_to_tensor([batch_size] if isinstance(batch_size, int) else with_batch(batch_size, []))
    fits = reduce_all(equal(shape(lengths), expected))
    message = [f"Expected shape for Tensor {lengths.name} is ", expected, " but saw shape: ", shape(lengths)]
    with control_dependencies([Assert(fits, message)]):
        return identity(lengths, name="CheckSeqLen")


def start_state(cell: Any, initial_state: Any, batch_size: Any, dtype: Any) -> Any:
    """`initial_state`, or the initial state of the cell."""
    if initial_state is not None:
        return initial_state
    if not dtype:
        raise ValueError("If there is no initial_state, you must give a dtype.")
    if getattr(cell, "get_initial_state", None) is not None:
        return cell.get_initial_state(inputs=None, batch_size=batch_size, dtype=dtype)
    return cell.zero_state(batch_size, dtype)


def chosen(condition: Tensor, first: Any, second: Any) -> Any:
    """Rows of `first` where `condition` holds, else of `second`. A value without rows is taken from `second`."""
    if isinstance(first, TensorArray) or first.shape.rank == 0:
        return second
    result = where(condition, first, second)
    result.set_shape(second.shape)
    return result


def dynamic_rnn(
    cell: Any,
    inputs: TensorLike,
    sequence_length: TensorLike = None,
    initial_state: Any = None,
    dtype: DTypeLike | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> Any:
    """Runs `cell` over the time steps of `inputs`; returns all outputs and the last state.

    `inputs` is [batch, time, ...], or [time, batch, ...] with `time_major`. Past a row's `sequence_length` its outputs
    are zero and its state stays.

    >>> outputs, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(64), x, dtype=tf.float32)
    """
    assert_like_rnncell("cell", cell)
    with variable_scope(scope or "rnn"):
        flat = [convert_to_tensor(i) for i in nest.flatten(inputs)]
        if not time_major:
            flat = [transpose_batch_time(i) for i in flat]
        batch_size = batch_size_of(flat, 1)
        lengths = None if sequence_length is None else checked_lengths(sequence_length, batch_size)
        state = start_state(cell, initial_state, batch_size, dtype)
        outputs, final = _over_time(cell, inputs, flat, state, lengths, dtype, batch_size)
        return outputs if time_major else nest.map_structure(transpose_batch_time, outputs), final


def _over_time(
    cell: Any, structure: Any, flat: list[Tensor], state: Any, lengths: Tensor | None, dtype: Any, batch_size: Any
) -> Any:
    steps = next((t.shape.as_list()[0] for t in flat if t.shape.rank and t.shape.as_list()[0] is not None), None)
    for tensor in flat:
        known = tensor.shape
        if known.rank is None or not all(d is not None for d in known.as_list()[2:]):
            raise ValueError("Input size (depth of inputs) must be accessible via shape inference, but saw value None.")
        if known.rank < 2:
            raise ValueError(f"inputs must have time and batch as their first dimensions, received shape {known}.")
        if steps is not None and known.as_list()[0] not in (None, steps):
            raise ValueError(f"Time steps is not the same for all the elements in the input: {steps} and {known}.")
    count = size_at(flat[0], 0) if steps is None else constant(steps, dtype=dt.int32)
    sizes = nest.flatten(cell.output_size)
    state = nest.map_structure(lambda s: s if isinstance(s, TensorArray) else convert_to_tensor(s), state)
    first = next((t for t in nest.flatten(state) if isinstance(t, Tensor)), flat[0])
    types = nest.flatten(dtype) if nest.is_nested(dtype) else [dtype or first.dtype.base_dtype] * len(sizes)
    zero = [] if lengths is None else [zeros(with_batch(batch_size, s), t) for s, t in zip(sizes, types, strict=True)]
    time = constant(0, dtype=dt.int32, name="time")
    with name_scope("dynamic_rnn"):
        written = [
            TensorArray(t, size=count, element_shape=static_shape(batch_size, s), name=f"output_{i}")
            for i, (s, t) in enumerate(zip(sizes, types, strict=True))
        ]
        read = [TensorArray(t.dtype.base_dtype, size=count, name=f"input_{i}").unstack(t) for i, t in enumerate(flat)]
    bound = count if lengths is None else minimum(count, maximum(1, reduce_max(lengths)))

    def step(time: Tensor, written: list[TensorArray], state: Any) -> Any:
        now = [a.read(time) for a in read]
        for value, whole in zip(now, flat, strict=True):
            value.set_shape(TensorShape(whole.shape.as_list()[1:]))
        output, new_state = cell(nest.pack_sequence_as(structure, now), state)
        nest.assert_same_structure(cell.output_size, output, check_types=False)
        nest.assert_same_structure(state, new_state)
        outputs = [convert_to_tensor(o) for o in nest.flatten(output)]
        if lengths is not None:
            over = greater_equal(time, lengths)
            outputs = [chosen(over, z, o) for z, o in zip(zero, outputs, strict=True)]
            new_state = nest.map_structure(lambda old, new: chosen(over, old, new), state, new_state)
        written = [a.write(time, o) for a, o in zip(written, outputs, strict=True)]
        return add(time, 1), written, new_state

    _, written, final = while_loop(
        lambda time, *_: less(time, bound),
        step,
        (time, written, state),
        maximum_iterations=count,
        return_same_structure=True,
    )
    outputs = []
    for array, size in zip(written, sizes, strict=True):
        output = array.stack()
        output.set_shape(TensorShape([steps]).concatenate(static_shape(batch_size, size)))
        outputs.append(output)
    return nest.pack_sequence_as(cell.output_size, outputs), final


def bidirectional_dynamic_rnn(
    cell_fw: Any,
    cell_bw: Any,
    inputs: TensorLike,
    sequence_length: TensorLike = None,
    initial_state_fw: Any = None,
    initial_state_bw: Any = None,
    dtype: DTypeLike | None = None,
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    time_major: bool = False,
    scope: Any = None,
) -> Any:
    """One cell forwards and one backwards over time; returns a pair of outputs and a pair of last states.

    >>> (fw, bw), states = tf.nn.bidirectional_dynamic_rnn(cell_fw, cell_bw, x, dtype=tf.float32)
    """
    assert_like_rnncell("cell_fw", cell_fw)
    assert_like_rnncell("cell_bw", cell_bw)
    time_axis, batch_axis = (0, 1) if time_major else (1, 0)

    def backwards(value: Tensor) -> Tensor:
        if sequence_length is None:
            return reverse(value, [time_axis])
        return reverse_sequence(value, sequence_length, seq_axis=time_axis, batch_axis=batch_axis)

    with variable_scope(scope or "bidirectional_rnn"):
        with variable_scope("fw") as fw_scope:
            fw, fw_state = dynamic_rnn(
                cell_fw, inputs, sequence_length, initial_state_fw, dtype, time_major=time_major, scope=fw_scope
            )
        with variable_scope("bw") as bw_scope:
            reversed_inputs = nest.map_structure(lambda i: backwards(convert_to_tensor(i)), inputs)
            bw, bw_state = dynamic_rnn(
                cell_bw,
                reversed_inputs,
                sequence_length,
                initial_state_bw,
                dtype,
                time_major=time_major,
                scope=bw_scope,
            )
    return (fw, nest.map_structure(backwards, bw)), (fw_state, bw_state)


def raw_rnn(
    cell: Any,
    loop_fn: Callable[..., Any],
    parallel_iterations: int | None = None,
    swap_memory: bool = False,
    scope: Any = None,
) -> Any:
    """Runs `cell` as `loop_fn` says; returns the outputs as a TensorArray, the last state and the last loop state.

    `loop_fn(time, output, state, loop_state)` returns (finished, next_input, next_state, emitted, next_loop_state).
    In the first call all arguments but time are None.

    >>> emitted, state, _ = tf.nn.raw_rnn(cell, loop_fn)
    """
    assert_like_rnncell("cell", cell)
    if not callable(loop_fn):
        raise TypeError("loop_fn must be a callable")
    with variable_scope(scope or "rnn"):
        time = constant(0, dtype=dt.int32)
        finished, next_input, state, emitted, loop_state = loop_fn(time, None, None, None)
        flat_input = [convert_to_tensor(i) for i in nest.flatten(next_input)]
        batch_size = batch_size_of(flat_input, 0)
        nest.assert_same_structure(state, cell.state_size)
        state = nest.map_structure(lambda s: s if isinstance(s, TensorArray) else convert_to_tensor(s), state)
        if emitted is None:
            structure = cell.output_size
            sizes = nest.flatten(structure)
            types = [nest.flatten(state)[0].dtype.base_dtype] * len(sizes)
        else:
            structure = nest.map_structure(convert_to_tensor, emitted)
            leaves = nest.flatten(structure)
            sizes = [e.shape if e.shape.is_fully_defined() else shape(e) for e in leaves]
            types = [e.dtype.base_dtype for e in leaves]
        arrays = nest.pack_sequence_as(
            structure,
            [
                TensorArray(
                    t, size=0, dynamic_size=True, element_shape=static_shape(batch_size, s), name=f"rnn_output_{i}"
                )
                for i, (t, s) in enumerate(zip(types, sizes, strict=True))
            ],
        )
        zero = nest.pack_sequence_as(
            structure, [zeros(with_batch(batch_size, s), t) for t, s in zip(types, sizes, strict=True)]
        )

        def step(time: Tensor, finished: Tensor, now: Any, arrays: Any, state: Any, carried: Any) -> Any:
            output, cell_state = cell(now, state)
            nest.assert_same_structure(state, cell_state)
            nest.assert_same_structure(cell.output_size, output)
            later = add(time, 1)
            done, next_input, next_state, emit, next_carried = loop_fn(later, output, cell_state, carried)
            nest.assert_same_structure(state, next_state)
            nest.assert_same_structure(now, next_input)
            nest.assert_same_structure(arrays, emit)
            carried = carried if next_carried is None else next_carried
            emit = nest.map_structure(lambda z, e: chosen(finished, z, convert_to_tensor(e)), zero, emit)
            next_state = nest.map_structure(lambda old, new: chosen(finished, old, new), state, next_state)
            arrays = nest.map_structure(lambda a, e: a.write(time, e), arrays, emit)
            return later, logical_or(finished, done), next_input, arrays, next_state, carried

        start = constant(0, dtype=dt.int32) if loop_state is None else loop_state
        result = while_loop(
            lambda _, finished, *__: logical_not(reduce_all(finished)),
            step,
            (time, convert_to_tensor(finished), nest.pack_sequence_as(next_input, flat_input), arrays, state, start),
            return_same_structure=True,
        )
        arrays, final, carried = result[-3:]
        return arrays, final, None if loop_state is None else carried
