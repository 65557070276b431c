"""Runs jaxprs with NumPy, without XLA and without compiling anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from penstock.jaxprs import (  # noqa: F401  (importing the families registers their rules)
    numpy_rules_arrange,
    numpy_rules_contract,
    numpy_rules_control,
    numpy_rules_elementwise,
    numpy_rules_index,
    numpy_rules_linalg,
    numpy_rules_random,
    numpy_rules_reduce,
    numpy_rules_special,
    numpy_rules_windows,
)
from penstock.jaxprs.numpy_block import Block, Bound
from penstock.jaxprs.sizes import Sizes, symbol_places

# The number of sets of sizes for which a program keeps its prepared form.
_KEPT_SIZES = 16


class NumpyProgram:
    """A closed jaxpr as a function from NumPy arrays to NumPy arrays.

    The jaxpr may have symbolic dimensions; each symbol must be a dimension of an argument by itself:

        rows, = jax.export.symbolic_shape("rows")
        traced = jax.jit(lambda x: x.sum(0)).trace(jax.ShapeDtypeStruct((rows, 2), np.float32))
        program = NumpyProgram(traced.jaxpr)
        program([np.ones((3, 2), np.float32)])  # [array([3., 3.], dtype=float32)]

    Raises NoRule when made, not when called, if NumPy has no rule for a primitive of the jaxpr.

    Arguments must have the types and shapes of the jaxpr's. They are not written to, except for those among `donated`
    that `written` lists, which become a result. Each result is a C-contiguous array that nothing else refers to, except
    that an argument which is returned unchanged comes back as the same object. Programs may be called from several
    threads at once.
    """

    def __init__(self, jaxpr: Any, donated: Iterable[int] = ()) -> None:
        self._block = Block(jaxpr)
        self.written = self._block.overwrite(frozenset(donated))  # the arguments that calls write into
        self._places = symbol_places([value.shape for value in self._block.inputs])
        self._readings = list(self._places.values()) if self._block.needs_sizes else []
        self._bound: dict[tuple[int, ...], Bound] = {}
        arguments = {id(value): position for position, value in enumerate(self._block.inputs)}
        outputs = self._block.outputs
        # The results that are arguments, unchanged.
        self._passed_on = [arguments.get(id(value)) for value in outputs]
        self._owned = [self._block.owns(position) for position in range(len(outputs))]

    def __call__(self, arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            sizes = tuple([arguments[position].shape[axis] for position, axis in self._readings])
            bound = self._bound.get(sizes)
            if bound is None:
                bound = self._bind(sizes)
            results = bound(arguments)
        for position, owned in enumerate(self._owned):
            argument = self._passed_on[position]
            if argument is not None:
                results[position] = arguments[argument]
            elif owned:
                results[position] = np.asarray(results[position], order="C")
            else:
                results[position] = np.array(results[position], order="C")
        return results

    def _bind(self, sizes: tuple[int, ...]) -> Bound:
        if len(self._bound) >= _KEPT_SIZES:
            self._bound = {}
        bound = self._bound[sizes] = self._block.bind(Sizes(dict(zip(self._places, sizes, strict=False))))
        return bound
