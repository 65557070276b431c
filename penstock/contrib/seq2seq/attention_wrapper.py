"""AttentionWrapper: a cell that attends to a memory at each step."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

from penstock.contrib.seq2seq.attention import AttentionMechanism, Projection
from penstock.graph import dtype as dt
from penstock.graph import nest
from penstock.graph.constant import constant_value
from penstock.graph.operation import Tensor
from penstock.graph.scopes import control_dependencies, name_scope
from penstock.graph.shape import TensorShape
from penstock.graph.typing import DTypeLike, TensorLike
from penstock.ops.array.creation import zeros
from penstock.ops.array.joining import concat
from penstock.ops.array.passthrough import identity
from penstock.ops.array.reshaping import expand_dims, squeeze
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.debugging.check_ops import assert_equal
from penstock.ops.linalg.matmul import matmul
from penstock.ops.math.arithmetic import add
from penstock.rnn.base import RNNCell, assert_like_rnncell, size_at, static_shape, zero_tensors


class AttentionWrapperState(
    namedtuple(
        "AttentionWrapperState",
        ("cell_state", "attention", "time", "alignments", "alignment_history", "attention_state"),
    )
):
    """The state of an AttentionWrapper."""

    __slots__ = ()

    def clone(self, **kwargs: Any) -> AttentionWrapperState:
        """This state with some parts replaced.

        >>> cell.zero_state(batch, tf.float32).clone(cell_state=encoder_state)
        """

        def fitting(old: Any, new: Any) -> Any:
            if isinstance(old, Tensor) and isinstance(new, Tensor):
                new.set_shape(old.shape)
            return new

        replaced = self._replace(**kwargs)
        result: AttentionWrapperState = nest.map_structure(fitting, self, replaced)
        return result


def _attended(mechanism: Any, cell_output: Any, state: Any, layer: Any) -> Any:
    """The attention, the alignments and the next state of one mechanism."""
    alignments, next_state = mechanism(cell_output, state=state)
    context = squeeze(matmul(expand_dims(alignments, 1), mechanism.values), [1])
    return (context if layer is None else layer(concat([cell_output, context], 1))), alignments, next_state


class AttentionWrapper(RNNCell):
    """A cell whose inputs are joined with the attention of the previous step, and whose output is the next query.

    >>> tf.contrib.seq2seq.AttentionWrapper(cell, mechanism, attention_layer_size=128)
    """

    def __init__(
        self,
        cell: Any,
        attention_mechanism: Any,
        attention_layer_size: Any = None,
        alignment_history: bool = False,
        cell_input_fn: Callable[[Any, Any], Any] | None = None,
        output_attention: bool = True,
        initial_cell_state: Any = None,
        name: str | None = None,
        attention_layer: Any = None,
        attention_fn: Callable[..., Any] | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        assert_like_rnncell("cell", cell)
        self._is_multi = isinstance(attention_mechanism, (list, tuple))
        self._mechanisms = list(attention_mechanism) if self._is_multi else [attention_mechanism]
        for mechanism in self._mechanisms:
            if not isinstance(mechanism, AttentionMechanism) and not callable(mechanism):
                raise TypeError(f"attention_mechanism must be an AttentionMechanism, saw: {mechanism!r}")
        self._layers: list[Any]
        if attention_layer_size is not None and attention_layer is not None:
            raise ValueError("Only one of attention_layer_size and attention_layer should be set")
        if attention_layer_size is not None:
            sizes = list(attention_layer_size) if nest.is_nested(attention_layer_size) else [attention_layer_size]
            if len(sizes) != len(self._mechanisms):
                raise ValueError(
                    "If provided, attention_layer_size must contain exactly one integer per attention_mechanism, "
                    f"saw: {len(sizes)} vs {len(self._mechanisms)}"
                )
            self._layers = [Projection(s, "attention_layer", dtype) for s in sizes]
            self._size = sum(sizes)
        elif attention_layer is not None:
            self._layers = list(attention_layer) if nest.is_nested(attention_layer) else [attention_layer]
            self._size = sum(self._width(x, m) for x, m in zip(self._layers, self._mechanisms, strict=True))
        else:
            self._layers = [None] * len(self._mechanisms)
            self._size = sum(m.values.shape.as_list()[-1] for m in self._mechanisms)
        self._cell, self._history, self._output_attention = cell, alignment_history, output_attention
        self._cell_input_fn = cell_input_fn or (lambda inputs, attention: concat([inputs, attention], -1))
        self._attention_fn = attention_fn or _attended
        self._initial_cell_state = initial_cell_state

    def _width(self, layer: Any, mechanism: Any) -> int:
        given = getattr(layer, "units", None)
        if given is not None:
            return int(given)
        return int(layer.compute_output_shape([None, mechanism.values.shape.as_list()[-1]]).as_list()[-1])

    def _item_or_tuple(self, parts: list[Any]) -> Any:
        return tuple(parts) if self._is_multi else parts[0]

    @property
    def output_size(self) -> Any:
        return self._size if self._output_attention else self._cell.output_size

    @property
    def state_size(self) -> Any:
        sizes = [m.alignments_size for m in self._mechanisms]
        return AttentionWrapperState(
            cell_state=self._cell.state_size,
            time=TensorShape([]),
            attention=self._size,
            alignments=self._item_or_tuple(sizes),
            attention_state=self._item_or_tuple([m.state_size for m in self._mechanisms]),
            alignment_history=self._item_or_tuple([s if self._history else () for s in sizes]),
        )

    def zero_state(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """The state before the first step."""
        with name_scope(f"{type(self).__name__}ZeroState", values=[batch_size]):
            if self._initial_cell_state is not None:
                cell_state = nest.map_structure(identity, self._initial_cell_state)
                batch_size = size_at(nest.flatten(cell_state)[-1], 0)
            else:
                cell_state = self._cell.get_initial_state(batch_size=batch_size, dtype=dtype)
            with control_dependencies(self._batch_checks(batch_size)):
                cell_state = nest.map_structure(lambda s: identity(s, name="checked_cell_state"), cell_state)
            start = [m.initial_alignments(batch_size, dtype) for m in self._mechanisms]
            return AttentionWrapperState(
                cell_state=cell_state,
                time=zeros([], dtype=dt.int32),
                attention=zero_tensors(self._size, batch_size, dtype),
                alignments=self._item_or_tuple(start),
                attention_state=self._item_or_tuple([m.initial_state(batch_size, dtype) for m in self._mechanisms]),
                alignment_history=self._item_or_tuple(
                    [self._empty_history(m, batch_size, dtype) if self._history else () for m in self._mechanisms]
                ),
            )

    def _batch_checks(self, batch_size: Any) -> list[Any]:
        """Checks that memory and state have one batch size, if that is not known."""
        message = (
            "The batch size of the state does not match that of the memory of the attention mechanism. With beam "
            "search, tile the memory and its lengths with tf.contrib.seq2seq.tile_batch."
        )
        checks = []
        for mechanism in self._mechanisms:
            other = mechanism.batch_size
            known = constant_value(batch_size) if isinstance(batch_size, Tensor) else batch_size
            if isinstance(other, int) and known is not None:
                if int(known) != other:
                    raise ValueError(f"{message} Received {known} and {other}.")
                continue
            checks.append(assert_equal(batch_size, other, message=message))
        return checks

    def _empty_history(self, mechanism: Any, batch_size: Any, dtype: Any) -> TensorArray:
        known = static_shape(batch_size, mechanism.alignments_size)
        return TensorArray(dtype, size=0, dynamic_size=True, element_shape=known)

    def call(self, inputs: TensorLike, state: Any) -> Any:
        """One step of the cell, and attention with its output."""
        if not isinstance(state, AttentionWrapperState):
            raise TypeError(f"Expected state to be instance of AttentionWrapperState. Received type {type(state)}.")
        output, cell_state = self._cell(self._cell_input_fn(inputs, state.attention), state.cell_state)
        if self._is_multi:
            before, histories = list(state.attention_state), list(state.alignment_history)
        else:
            before, histories = [state.attention_state], [state.alignment_history]
        attentions, alignments, after, written = [], [], [], []
        for i, mechanism in enumerate(self._mechanisms):
            attention, aligned, following = self._attention_fn(mechanism, output, before[i], self._layers[i])
            attentions.append(attention)
            alignments.append(aligned)
            after.append(following)
            written.append(histories[i].write(state.time, aligned) if self._history else ())
        attention = attentions[0] if len(attentions) == 1 else concat(attentions, 1)
        next_state = AttentionWrapperState(
            cell_state=cell_state,
            time=add(state.time, 1),
            attention=attention,
            alignments=self._item_or_tuple(alignments),
            attention_state=self._item_or_tuple(after),
            alignment_history=self._item_or_tuple(written),
        )
        return (attention if self._output_attention else output), next_state
