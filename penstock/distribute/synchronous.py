"""Synchronous training on parameter servers: the mean of the gradients of several workers makes one update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.eager.function import function
from penstock.graph.convert import convert_to_tensor
from penstock.graph.graph import Graph, get_default_graph
from penstock.graph.indexed_slices import IndexedSlices
from penstock.graph.scopes import device, init_scope
from penstock.ops.math.segments import unsorted_segment_sum
from penstock.ops.queue.accumulator import ConditionalAccumulator
from penstock.variables.creation import Kinds

Apply = Callable[[list[Any]], None]


class GradientExchange:
    """Collects the gradients of one round beside their variables, and applies their mean.

    Workers add gradients with the number of the update that they have seen; those that come after the next update are
    dropped. The coordinator calls `apply` when a round is over, and `restart` when it has restored lost variables.
    """

    def __init__(self, strategy: Any, variables: Sequence[Any], apply: Apply) -> None:
        self._variables = list(variables)
        self._accumulators = []
        with init_scope():
            for variable in variables:
                with device(None), device(variable.device):
                    self._accumulators.append(ConditionalAccumulator(variable.dtype, variable.shape))
            self._step = strategy.extended._create_on(
                variables[0].device, Kinds.eager, initial_value=0, dtype="int64", trainable=False, name="updates"
            )

        def update(count: Any) -> None:
            means = []
            for accumulator, variable in zip(self._accumulators, self._variables, strict=True):
                with device(None), device(variable.device):
                    means.append(accumulator.take_grad(count))
            apply(means)
            step = self._step.assign_add(1).read_value()
            for accumulator, variable in zip(self._accumulators, self._variables, strict=True):
                with device(None), device(variable.device):
                    accumulator.set_global_step(step)

        self._update = function(update, autograph=False)

    def add(self, gradients: Sequence[Any]) -> None:
        """Adds the gradients of one worker, in a function that is scheduled."""
        seen = self._step.read_value()
        for gradient, variable, accumulator in zip(gradients, self._variables, self._accumulators, strict=True):
            with device(None), device(variable.device):
                accumulator.apply_grad(_dense(gradient, variable), seen)
        graph: Graph | None = get_default_graph()
        while graph is not None and not graph.is_eager:  # any of the functions around may be scheduled
            if self not in graph.held:
                graph.held.append(self)
            graph = graph.outer_graph

    def apply(self, count: int) -> None:
        """Applies the mean of the gradients that have been added, at least `count` of them."""
        self._update(convert_to_tensor(count))

    def restart(self) -> None:
        """Drops the gradients that have been added, since the functions run again that have made them."""
        step = self._step.read_value()
        for accumulator, variable in zip(self._accumulators, self._variables, strict=True):
            with device(None), device(variable.device):
                added = int(np.asarray(accumulator.num_accumulated()))
                if added:
                    accumulator.take_grad(added)
                accumulator.set_global_step(step)

    @property
    def updates(self) -> int:
        """The number of updates so far."""
        return int(self._step.numpy())


def _dense(gradient: Any, variable: Any) -> Any:
    """A gradient of some rows as one of all, made where the variable is: only the rows travel."""
    if isinstance(gradient, IndexedSlices):
        return unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
    return gradient


def synchronized(strategy: Any, key: Any, gradients: Sequence[Any], variables: Sequence[Any], apply: Apply) -> None:
    """Has the mean of the workers' gradients applied by `apply(means)`, once a round, instead of each by itself.

    `key` names the place in the program, so that functions which are traced again use the same accumulators.
    """
    exchanges: dict[Any, GradientExchange] = strategy.extended.exchanges
    found = exchanges.get(key)
    if found is None:
        found = exchanges[key] = GradientExchange(strategy, variables, apply)
    found.add(gradients)
