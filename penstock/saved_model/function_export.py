"""Concrete functions as the FunctionDefs of a SavedModel: what they use from outside becomes arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorboard.compat.proto.saved_object_graph_pb2 import SavedConcreteFunction

from penstock.data.structure import TensorSpec
from penstock.eager.concrete import ConcreteFunction
from penstock.graph import nest
from penstock.graph.attrs import Library
from penstock.graph.effects import bodies_of
from penstock.graph.function import Function
from penstock.graph.graph import Graph
from penstock.graph.graphdef import function_def
from penstock.graph.operation import Tensor
from penstock.saved_model.structures import encode

# Op types of penstock that TensorFlow does not have. One of them in the library of a SavedModel, and TensorFlow loads
# none of the model.
_OWN = frozenset(
    [
        "Absent",
        "AddToMemory",
        "BetaincGrad",
        "FusedBatchNormGradGrad",
        "GatherTree",
        "IterationMemory",
        "JaxCall",
        "MatrixSquareRootGrad",
        "MemoryOfRows",
        "Recall",
        "RecallGradient",
        "Remember",
        "RowsInMemory",
        "RowsOfMemory",
        "SegmentExtremeGrad",
        "SegmentProdGrad",
        "SegmentSqrtN",
        "SelfAdjointEigGrad",
        "SumDuplicateRows",
        "SumDuplicateRowsOnHost",
        "TensorListAddItem",
        "TensorListAddRows",
        "TensorListTakeItem",
        "TopKGrad",
        "UnravelRows",
        "Vjp",
        "WhileTripCount",
    ]
)


class FunctionExport:
    """Collects concrete functions, each under a name of its own."""

    def __init__(self, number_of: Callable[[Tensor], int]) -> None:
        self._number_of = number_of  # the number of the saved object that a captured tensor is the value of
        self._library = Library()
        self._names: dict[int, str] = {}
        self._kept: list[ConcreteFunction] = []
        self.concrete: dict[str, Any] = {}  # SavedConcreteFunctions by name

    def add(self, concrete: ConcreteFunction, form: Callable[[], ConcreteFunction]) -> str:
        """Adds a concrete function, in the form in which it is saved, and returns its name."""
        known = self._names.get(id(concrete))
        if known is not None:
            return known
        number, self._kept = id(concrete), [*self._kept, concrete]
        concrete = form()
        graph = concrete.graph
        foreign = _own_ops(graph)
        if foreign:
            raise ValueError(
                f"Function '{concrete.name}' cannot be saved: TensorFlow, whose format a SavedModel has, does not have "
                f"its ops {sorted(foreign)}. Some gradients have them: take these in functions that are not saved."
            )
        own = len(graph.inputs) - len(graph.captured)
        inputs = [*_in_order(concrete, graph.inputs[:own]), *graph.inputs[own:], *(node for _, node in graph.resources)]
        saved = SavedConcreteFunction()
        saved.canonicalized_input_signature.CopyFrom(encode(concrete.structured_input_signature))
        saved.output_signature.CopyFrom(encode(concrete.structured_outputs))
        saved.bound_inputs.extend(
            self._number_of(t) for t in (*graph.captured, *(outer for outer, _ in graph.resources))
        )
        name = self._library.name(Function(concrete.name, graph, inputs, list(graph.outputs)))
        self._names[number] = name
        self.concrete[name] = saved
        return name

    def write(self, target: Any) -> None:
        """Adds the FunctionDefs to the library of a GraphDef."""
        done = 0
        # A body may use further bodies, which are added to the library while it is written.
        while done < len(self._library.functions):
            name, function = list(self._library.functions.items())[done]
            proto = function_def(name, function, self._library)
            for node in proto.node_def:
                node.device = ""  # the devices of this process mean nothing where the model is loaded
                for attr in [a for a in node.attr if a.startswith("_")]:
                    del node.attr[attr]
            target.function.append(proto)
            done += 1


def _own_ops(graph: Graph) -> set[str]:
    """The op types in a graph, and in the bodies of its branches and loops, that TensorFlow does not have."""
    found = set()
    for operation in graph.get_operations():
        if operation.type in _OWN or operation.type.startswith("_"):
            found.add(operation.type)
        for body in bodies_of(operation):
            found |= _own_ops(body.graph)
    return found


def _in_order(concrete: ConcreteFunction, inputs: list[Tensor]) -> list[Tensor]:
    """The parameters in the order of the canonical form of calls: positional arguments, then keywords by name."""
    own = [leaf for leaves in concrete.argument_leaves.values() for leaf in leaves if isinstance(leaf, TensorSpec)]
    position = {id(spec): i for i, spec in enumerate(own)}
    wanted = [leaf for leaf in nest.flatten(concrete.structured_input_signature) if isinstance(leaf, TensorSpec)]
    if len(own) != len(inputs) or len(wanted) != len(inputs) or not all(id(spec) in position for spec in wanted):
        return inputs
    return [inputs[position[id(spec)]] for spec in wanted]
