"""Datasets of Python generators: the generator lives in this process, and the graph calls it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.data import source_ops, structure
from penstock.data.functions import trace
from penstock.graph import dtype as dt
from penstock.graph.arrays import array_of
from penstock.graph.convert import convert_to_tensor
from penstock.graph.operation import Tensor
from penstock.ops.control.python_function import py_func


class _RunningGenerators:
    """The running iterations of one generator function, by number."""

    def __init__(self, generator: Callable[..., Any], spec: Any) -> None:
        self._generator, self._spec = generator, spec
        self._leaves = structure.flatten(spec)
        self._numbers = itertools.count()
        self._iterators: dict[int, Iterator[Any]] = {}
        self._lock = threading.Lock()

    def start(self, *args: Any) -> np.int64:
        with self._lock:
            number = next(self._numbers)
        self._iterators[number] = iter(self._generator(*args))
        return np.int64(number)

    def advance(self, number: Any) -> list[Any]:
        values = next(self._iterators[int(number)])
        try:
            flat = structure.flatten_up_to(self._spec, values)
        except ValueError as error:
            wanted = structure.map_leaves(lambda s: s.dtype.name, self._spec)
            raise TypeError(
                "`generator` yielded an element that did not match the expected structure: expected "
                f"{wanted!r}, received {values!r:.200}."
            ) from error
        return [self._converted(v, leaf) for v, leaf in zip(flat, self._leaves, strict=True)]

    def _converted(self, value: Any, leaf: Any) -> Any:
        try:
            array, _ = array_of(value, leaf.dtype)
        except (TypeError, ValueError) as error:
            raise TypeError(
                "`generator` yielded an element that could not be converted to the expected type: expected "
                f"{leaf.dtype.name}, received {value!r:.200}."
            ) from error
        if not leaf.shape.is_compatible_with(array.shape):
            raise ValueError(
                f"`generator` yielded an element of shape {array.shape} where an element of shape {leaf.shape} was "
                "expected."
            )
        return array

    def finish(self, number: Any) -> np.int64:
        ended = self._iterators.pop(int(number), None)
        close = getattr(ended, "close", None)
        if close is not None:
            close()
        return np.int64(0)


def generator_tensor(
    generator: Callable[..., Any], output_types: Any, output_shapes: Any, args: Any
) -> tuple[Tensor, Any]:
    """The tensor of a dataset of the elements that `generator(*args)` yields, and their structure."""
    if not callable(generator):
        raise TypeError(f"`generator` must be callable, received {generator!r:.200}.")
    spec = structure.from_legacy(output_types, output_shapes)
    types = structure.types_of(spec)
    tensors = [convert_to_tensor(a) for a in args] if args is not None else []
    running = _RunningGenerators(generator, spec)
    state = structure.TensorSpec((), dt.int64)

    def shaped(tensor: Any, shape: Any) -> Any:
        tensor.set_shape(shape)
        return tensor

    def advance(number: Any) -> Any:
        results = py_func(running.advance, [number], types)
        pairs = zip(results, structure.shapes_of(spec), strict=True)
        return tuple(shaped(r, s) for r, s in pairs)

    start = trace(lambda: shaped(py_func(running.start, tensors, dt.int64), ()), "Dataset.from_generator_start")
    proceed = trace(advance, "Dataset.from_generator_next", state)
    finish = trace(lambda n: shaped(py_func(running.finish, [n], dt.int64), ()), "Dataset.from_generator_end", state)
    variant = source_ops.generator_dataset(
        start.captured,
        proceed.captured,
        finish.captured,
        init_func=start.function,
        next_func=proceed.function,
        finalize_func=finish.function,
        output_types=types,
        output_shapes=structure.shapes_of(spec),
    )
    return variant, spec
