"""Closures: a function with its arguments, which some worker runs; and the value that the caller gets for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.data.iterator_ops import iterator_get_numbered
from penstock.data.structure import Carried
from penstock.distribute.synchronous import GradientExchange
from penstock.eager.concrete import ConcreteFunction
from penstock.eager.graph import PROCESS
from penstock.eager.runtime import runtime
from penstock.eager.tensor import Handle
from penstock.errors import CancelledError, OpError
from penstock.graph import nest
from penstock.graph.convert import convert_to_tensor
from penstock.graph.dtype import int64, variant
from penstock.graph.function import bodies_in
from penstock.graph.graph import get_default_graph
from penstock.graph.opdef import op_of
from penstock.graph.shape import TensorShape
from penstock.ops.control.tensor_array import TensorArray
from penstock.ops.lookup.table_ops import hash_table_v2
from penstock.passes.ir import Node, Subgraph, rewritten, without_unused
from penstock.passes.prune import arg, prune


class RemoteValue:
    """The result of a scheduled function, there once a worker has run it.

    >>> loss = coordinator.schedule(step, args=(iterator,))
    >>> loss.fetch()
    """

    def __init__(self, wait: Callable[[Callable[[], bool]], None] | None = None) -> None:
        self._wait = wait  # None: nobody asks for the result
        self._values: Sequence[Any] | None = None
        self._pack: Callable[[Sequence[Any]], Any] = list
        self._error: BaseException | None = None
        self.is_ready = False

    def _set(self, values: Sequence[Any]) -> None:
        self._values, self.is_ready = values, True

    def _fail(self, error: BaseException) -> None:
        self._error, self.is_ready = error, True

    def get(self) -> Any:
        """Waits for the result, and returns it as tensors; raises the error of the function."""
        if not self.is_ready:
            assert self._wait is not None
            self._wait(lambda: self.is_ready)
        if self._error is not None:
            raise self._error
        assert self._values is not None
        return self._pack(self._values)

    def fetch(self) -> Any:
        """Waits for the result, and returns it as NumPy arrays."""
        return nest.map_structure(lambda t: t.numpy() if hasattr(t, "numpy") else t, self.get())


class SentFunction:
    """A traced function in the form in which workers get it: each registers it once."""

    def __init__(self, concrete: ConcreteFunction) -> None:
        self.concrete = concrete
        self._require_travelling()
        graph = concrete.graph
        whole = prune(graph.inputs, concrete.outputs, graph.targets)
        self.exchanges = list(dict.fromkeys(held for held in graph.held if isinstance(held, GradientExchange)))
        whole = _with_constants(whole, [t._value for t in graph.captured])  # type: ignore[attr-defined]
        whole, self.tables = _with_own_tables(whole)
        self.subgraph, self._visiting = _with_numbers(whole)
        # The iterators of which a closure visits elements: a name for each element.
        self.iterators: list[str] = [node.inputs[0][0].attrs["shared_name"] for node in self._visiting]

    @property
    def name(self) -> str:
        """The name that the function has in the program."""
        return self.concrete.name.removeprefix("__inference_").rpartition("_")[0]

    def _require_travelling(self) -> None:
        """Raises TypeError if the function takes or returns what cannot go from one process to another."""
        for tensor in self.concrete.graph.captured:
            if tensor.dtype.base_dtype is variant:
                raise TypeError(
                    f"The function '{self.name}' uses {tensor!r:.200} of this process, such as a dataset, which cannot "
                    "go to a worker: only numbers and strings can. Make it in the function, or have each worker make "
                    "its own dataset by create_per_worker_dataset."
                )
        for leaf in nest.flatten(self.concrete.structured_outputs):
            if isinstance(leaf, (Carried, TensorArray)):
                raise TypeError(
                    f"The function '{self.name}' returns a {type(leaf).__name__}, which cannot come back from a "
                    "worker: only numbers and strings can. Return tensors, such as those of TensorArray.stack()."
                )

    def visit_of(self, error: OpError) -> int | None:
        """Tells for which of the elements an error was raised, if it was for one."""
        name = (error.op_name or "").rpartition("::")[2]
        return next((i for i, node in enumerate(self._visiting) if node.name == name), None)

    def pack(self, values: Sequence[Any]) -> Any:
        """The results in their structure, as tensors."""
        return self.concrete.packed(get_default_graph(), values)


def _with_constants(subgraph: Subgraph, captured: Sequence[Any]) -> Subgraph:
    """A function with the values that it has captured, its last parameters, as constants."""
    if not captured:
        return subgraph
    own = len(subgraph.feeds) - len(captured)
    constant = op_of("Const")
    values = dict(zip(subgraph.feeds[own:], captured, strict=True))

    def change(node: Node) -> list[Node]:
        if node not in values:
            return [node]
        return [Node(node.name, constant, {"dtype": node.dtypes[0], "value": values[node]}, node.dtypes)]

    return rewritten(dataclasses.replace(subgraph, feeds=subgraph.feeds[:own]), change)


def _with_own_tables(subgraph: Subgraph) -> tuple[Subgraph, dict[str, Handle]]:
    """A function that uses tables of the worker in place of those of this process; and these, by the names there.

    Tables that can change stay where they are, as do those that the program has put on another task.
    """
    found: dict[str, Handle] = {}

    def change(node: Node) -> list[Node]:
        if node.op is not hash_table_v2 or not node.device:
            return [node]
        table = Handle(node.op, node.attrs, node.device)
        if not runtime.holds(table):
            return [node]
        name = f"{PROCESS}_{node.attrs['shared_name']}"
        found[name] = table
        return [dataclasses.replace(node, attrs={**node.attrs, "shared_name": name}, device="")]

    return rewritten(subgraph, change), found


def _with_numbers(subgraph: Subgraph) -> tuple[Subgraph, list[Node]]:
    """A function whose last parameters are the numbers of the elements that it visits, and the nodes for them."""
    found: list[Node] = []
    feeds = list(subgraph.feeds)

    def change(node: Node) -> list[Node]:
        for body in bodies_in(node.attrs):
            if any(operation.op_def is iterator_get_numbered for operation in body.get_operations()):
                raise NotImplementedError(
                    f"{node.name} takes the next element of a dataset with visit_once=True in a branch, a loop or "
                    "another function. A closure visits the same number of elements each time: call next() outside, "
                    "and use the element inside."
                )
        if node.op is not iterator_get_numbered:
            return [node]
        attrs = {"T": int64, "shape": TensorShape.of(()), "index": len(feeds)}
        number = Node(f"_arg/{node.name}", arg, attrs, (int64,))
        feeds.append(number)
        found.append(dataclasses.replace(node, inputs=[node.inputs[0], (number, 0)]))
        return [number, found[-1]]

    changed = rewritten(subgraph, change)
    return without_unused(dataclasses.replace(changed, feeds=feeds)), found


class Closure:
    """A function with its arguments, and where its result goes."""

    __slots__ = ("arguments", "elements", "function", "number", "result", "sent_at", "step", "was_sent", "worker")

    def __init__(
        self, function: SentFunction, arguments: Sequence[Any], result: RemoteValue, worker: int | None = None
    ) -> None:
        self.function = function
        self.arguments = arguments  # values, or PerWorker with one for each worker
        self.result = result
        self.worker = worker  # the only one that may run it
        self.number = 0
        self.step = 0  # that of the worker that runs it
        self.was_sent = False
        self.sent_at = 0.0  # time.monotonic(), when the worker that has it got it
        self.elements: list[int] | None = None  # the numbers of the elements that it visits, once it was sent

    def again(self, result: RemoteValue) -> Closure:
        """The same closure once more, with the elements that it has visited."""
        copy = Closure(self.function, self.arguments, result)
        copy.elements = self.elements
        return copy

    def is_for(self, worker: int) -> bool:
        """Tells if a worker may run it. Values for each worker may be from before it joined."""
        return all(worker < len(a.values) for a in self.arguments if isinstance(a, PerWorker))

    def values_for(self, worker: int) -> list[Any]:
        """The values that a worker gets."""
        own = [a.values[worker] if isinstance(a, PerWorker) else a for a in self.arguments]
        return [*own, *(np.asarray(number, np.int64) for number in self.elements or ())]


class PerWorker:
    """One value for each worker, as workers get it."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values


class PerWorkerValue:
    """One tensor for each worker. A scheduled function that gets it as an argument sees that of its worker.

    >>> rates = tf.distribute.coordinator.PerWorkerValue([0.1, 0.2])
    >>> coordinator.schedule(step, args=(rates,))
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.tensors = [convert_to_tensor(value) for value in values]
        first = self.tensors[0]
        if any(t.dtype != first.dtype or t.shape != first.shape for t in self.tensors):
            raise ValueError(f"The values of all workers must have one type and shape, received {self.tensors}.")


def cancelled_by(error: BaseException) -> OpError:
    """The error of closures that were scheduled and have not run, after another has failed."""
    return CancelledError(f"The function was cancelled, since another one has failed: {error}")
