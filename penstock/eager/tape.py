"""GradientTape: records operations as they are made, and walks them backwards."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock import logging
from penstock.autodiff.walk import UnconnectedGradients, Walk, flows
from penstock.eager.jacobians import batch_jacobian, jacobian
from penstock.eager.tensor import EagerOperation
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.function import FuncGraph
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.operation import Operation, Tensor
from penstock.graph.ragged_tensor import Ragged
from penstock.graph.recording import recorders
from penstock.ops.array.creation import zeros_like
from penstock.ops.engine.vjp import differentiable


class GradientTape:
    """Records the operations that depend on watched tensors and variables, for derivatives.

    >>> x = tf.Variable(3.0)
    >>> with tf.GradientTape() as tape:
    ...     y = x * x
    >>> tape.gradient(y, x).numpy()
    6.0
    """

    keeps_operations = True

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._persistent = persistent
        self._watch_accessed_variables = watch_accessed_variables
        self._graph: Graph = get_default_graph()
        self._operations: list[Operation] | None = []
        self._tracked: dict[int, Tensor] = {}  # by id: watched tensors, and all that depend on them
        self._variables: dict[int, Any] = {}
        self._recording = False

    def __enter__(self) -> GradientTape:
        if self._recording:
            raise ValueError("Tape is still recording, which can happen if it is entered twice.")
        if self._operations is None:
            self._operations = []
        self._graph = get_default_graph()
        self._start()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._recording:
            self._stop()

    def _start(self) -> None:
        self._recording = True
        recorders.items = [*recorders.items, self]

    def _stop(self) -> None:
        self._recording = False
        recorders.items = [r for r in recorders.items if r is not self]

    # Recording

    def record(self, operation: Operation) -> None:
        """Notes an operation, if it depends on what is watched."""
        if operation.graph is not self._graph or not self.tracks(operation.input_list):
            return
        outputs = [t for t in operation.outputs if flows(t.dtype)]
        if outputs:
            assert self._operations is not None
            self._operations.append(operation)
            for tensor in outputs:
                self._tracked[id(tensor)] = tensor

    def tracks(self, tensors: Sequence[Tensor]) -> bool:
        """Tells if any of these is watched, or depends on what is."""
        tracked = self._tracked
        return any(id(tensor) in tracked for tensor in tensors)

    def variable_accessed(self, variable: Any) -> None:
        """Watches a trainable variable that is read."""
        if self._watch_accessed_variables and variable.trainable and self._reaches(variable.handle):
            self._watch_variable(variable)

    def _watch_variable(self, variable: Any) -> None:
        if id(variable) not in self._variables:
            self._variables[id(variable)] = variable
            handle = self._here(variable.handle)
            self._tracked[id(handle)] = handle

    def _reaches(self, tensor: Tensor) -> bool:
        """Tells if a tensor can be used in the graph whose operations are recorded."""
        graph = self._graph
        return tensor.graph is graph or (isinstance(graph, FuncGraph) and graph.can_capture(tensor.graph))

    def _here(self, tensor: Tensor) -> Tensor:
        """The tensor that stands for `tensor` in the graph whose operations are recorded."""
        return tensor if tensor.graph is self._graph else self._graph.capture(tensor, "", "GradientTape")

    def watch(self, tensor: Any) -> None:
        """Records what is computed of a tensor, or of each tensor in a structure."""
        for item in nest.flatten(tensor):
            for part in _dense_parts(_backing(item)):
                if hasattr(part, "handle"):
                    self._watch_variable(part)
                    continue
                if not isinstance(part, Tensor):
                    raise ValueError(f"Passed in object {part} of type {type(part).__name__!r}, not tf.Tensor")
                if not differentiable(part.dtype):
                    logging.warning(
                        f"The dtype of the watched tensor must be floating (e.g. tf.float32), got {part.dtype!r}"
                    )
                here = self._here(part)
                self._tracked[id(here)] = here

    @contextmanager
    def stop_recording(self) -> Iterator[None]:
        """A context in which nothing is recorded."""
        if not self._recording:
            raise RuntimeError("Tape is not recording.")
        self._stop()
        try:
            yield
        finally:
            self._start()

    def reset(self) -> None:
        """Forgets everything that was recorded."""
        self._operations, self._tracked, self._variables = [], {}, {}

    def watched_variables(self) -> tuple[Any, ...]:
        """The variables that were watched or accessed, in the order of their first use."""
        return tuple(self._variables.values())

    # Derivatives

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = UnconnectedGradients.NONE,
    ) -> Any:
        """The derivatives of the sum of `target` with respect to `sources`, in the structure of these.

        A tape can be asked once, unless it is persistent.
        """
        unconnected = _unconnected(unconnected_gradients)
        self._check_usable()
        if target is None:
            raise TypeError("Argument `target` should be a list or nested structure of Tensors, received None.")
        flat_sources = [_backing(s) for s in nest.flatten(sources)]
        for source in flat_sources:
            if hasattr(source, "is_sharded_variable"):
                raise AttributeError(f"{source!r} has no gradient of its own: ask for those of its `variables`.")
            if not hasattr(source, "dtype"):
                raise AttributeError(f"A source of a gradient must be a tensor or a variable, received {source!r}.")
            if hasattr(source, "is_sharded_variable"):
                raise AttributeError(f"{source!r} has no gradient of its own: ask for those of its `variables`.")
            if not differentiable(source.dtype):
                logging.warning(f"The dtype of the source tensor must be floating, got {source.dtype!r}")
        targets = _flat_targets(target)
        found = self._walked(targets, flat_sources, _output_gradients(targets, output_gradients))
        if unconnected is UnconnectedGradients.ZERO:
            found = [zeros_like(s) if g is None else g for s, g in zip(flat_sources, found, strict=True)]
        self._used()
        return nest.pack_sequence_as(sources, found) if nest.is_nested(sources) else found[0]

    def _check_usable(self) -> None:
        if self._operations is None:
            raise RuntimeError(
                "A non-persistent GradientTape can only be used to compute one set of gradients (or jacobians)"
            )
        if self._recording and not self._persistent:
            self._stop()

    def _used(self) -> None:
        if not self._persistent:
            self._operations, self._tracked = None, {}

    def _walked(self, targets: list[Any], sources: list[Any], given: list[Any]) -> list[Any]:
        assert self._operations is not None
        walk = Walk(get_default_graph())
        pairs = [
            (self._here(y), g)
            for y, g in zip(targets, given, strict=True)
            if differentiable(y.dtype) or y.dtype.name == "resource"
        ]
        tensors = [y for y, _ in pairs]
        for y, grad in zip(tensors, walk.initial(tensors, [g for _, g in pairs]), strict=True):
            walk.arrived.setdefault(y, []).append(grad)
        # A persistent tape that is asked while it records also records what the walk computes.
        for operation in reversed(list(self._operations)):
            gradient = operation.gradient if isinstance(operation, EagerOperation) else None
            walk.visit(operation, False, gradient)
        return [self._found(walk, s) for s in sources]

    def _found(self, walk: Walk, source: Any) -> Any:
        tensor = source.handle if hasattr(source, "handle") else source
        if not isinstance(tensor, Tensor):
            return None
        if not self._reaches(tensor):
            return None
        return walk.gradient_of(self._here(tensor))

    def jacobian(
        self,
        target: Any,
        sources: Any,
        unconnected_gradients: Any = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """The derivatives of each element of `target`: `target.shape + source.shape`."""
        rows = functools.partial(self._rows, convert_to_tensor(target), nest.flatten(sources))
        self._begin_rows("jacobian", experimental_use_pfor)
        found = jacobian(rows, convert_to_tensor(target), sources, _unconnected(unconnected_gradients))
        self._used()
        return found

    def batch_jacobian(
        self,
        target: Any,
        source: Any,
        unconnected_gradients: Any = UnconnectedGradients.NONE,
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """The jacobian of each example: the first dimension of target and source is the batch."""
        rows = functools.partial(self._rows, convert_to_tensor(target), [source])
        self._begin_rows("batch_jacobian", experimental_use_pfor)
        found = batch_jacobian(rows, convert_to_tensor(target), source, _unconnected(unconnected_gradients))
        self._used()
        return found

    def _begin_rows(self, name: str, use_pfor: bool) -> None:
        if not use_pfor and not self._persistent and get_default_graph().is_eager:
            raise RuntimeError(
                f"{name} with experimental_use_pfor=False and eager execution needs a GradientTape with "
                "persistent=True."
            )
        self._check_usable()

    def _rows(self, target: Tensor, sources: list[Any], output_gradient: Any) -> list[Any]:
        return self._walked([target], sources, [output_gradient])


def _unconnected(value: Any) -> UnconnectedGradients:
    try:
        return UnconnectedGradients(value)
    except ValueError:
        raise ValueError(f"Unknown value for unconnected_gradients: {value!r}") from None


def _backing(value: Any) -> Any:
    """The variable itself; that which holds the value, for a variable of Keras."""
    return getattr(value, "backing", value)


def _dense_parts(value: Any) -> Sequence[Any]:
    """The tensors of a value through which gradients flow: its values, if it is sparse; its shards, if it has any."""
    if isinstance(value, IndexedSlices):
        return [value.values]
    if hasattr(value, "variables") and not isinstance(value, Tensor):
        return list(value.variables)
    if hasattr(value, "dense_shape") and hasattr(value, "values"):
        return [value.values]
    if isinstance(value, Ragged):
        return [value.flat_values]
    return [value]


def _flat_targets(target: Any) -> list[Tensor]:
    flat = []
    for item in nest.flatten(target):
        if item is None:
            raise TypeError("Argument `target` should be a list or nested structure of Tensors, received None.")
        if not hasattr(item, "dtype"):
            raise AttributeError(f"A target of a gradient must be a tensor or a variable, received {item!r}.")
        dense = item.flat_values if isinstance(item, Ragged) else item
        flat.append(item.handle if hasattr(item, "handle") else convert_to_tensor(dense))
    return flat


def _output_gradients(targets: Sequence[Any], given: Any) -> list[Any]:
    if given is None:
        return [None] * len(targets)
    flat = nest.flatten(given)
    if any(g is None for g in flat):
        raise ValueError(f"output_gradients must have a tensor for each target, received None in {given!r:.300}.")
    return flat


@contextmanager
def stop_recording() -> Iterator[None]:
    """A context in which no tape of this thread records."""
    before, recorders.items = recorders.items, [r for r in recorders.items if not r.keeps_operations]
    try:
        yield
    finally:
        recorders.items = before
