"""One order: which datasets have the same elements in the same order wherever they are made.

The seeds of shuffles are set when an iterator is made (`MakeNumberedIterator`). The functions in a dataset have random
numbers of their own, which nobody can set back.
"""

from __future__ import annotations

from penstock.data.functions import operations_before
from penstock.graph.constant import constant_value
from penstock.graph.function import FuncGraph, bodies_in
from penstock.graph.operation import Operation, Tensor

# The number or the order of their elements depends on what functions return, or on what the elements are.
_BY_CONTENTS = {
    "DirectedInterleaveDataset",
    "FilterDataset",
    "FlatMapDataset",
    "GroupByWindowDataset",
    "IgnoreErrorsDataset",
    "InterleaveDataset",
    "LegacyParallelInterleaveDatasetV2",
    "ParallelInterleaveDatasetV2",
    "TakeWhileDataset",
    "UnbatchDataset",
    "UniqueDataset",
}
_INTERLEAVED = {"InterleaveDataset", "ParallelInterleaveDatasetV2"}
_SEEDED = {"RandomDataset", "ShuffleAndRepeatDataset", "ShuffleDataset"}


def require_one_order(dataset: Tensor) -> None:
    """Raises ValueError for a dataset whose elements may come in another order when it is made again, or elsewhere."""
    operations = operations_before(dataset.op)
    by_contents = next((op for op in operations if op.type in _BY_CONTENTS), None)
    for op in operations:
        if op.type in _INTERLEAVED:
            cycle = constant_value(op.input_list[1 + len(op.attrs["Targuments"])])
            if cycle is not None and cycle < 0:
                raise _refused("interleave chooses cycle_length by the machine. Give it a cycle_length.")
        for body in bodies_in(op.attrs):
            _check_body(op, body, by_contents)


def _check_body(op: Operation, body: FuncGraph, by_contents: Operation | None) -> None:
    for inner in body.get_operations():
        if inner.type in _SEEDED and not any(_seeds(inner)):
            raise _refused(f"a function of {op.type} makes a {inner.type} without a seed. Give it a seed.")
        if inner.op_def.random and by_contents is not None:
            raise _refused(
                f"a function of {op.type} draws random numbers ({inner.type} '{inner.name}'), on which the elements of "
                f"{by_contents.type} may depend. Use tf.random.stateless_uniform and the like, with a seed of the "
                "element."
            )


def _seeds(op: Operation) -> list[bool]:
    """Tells for each of the two seeds of an operation if it is given."""
    inputs = zip(op.op_def.inputs, op.input_list, strict=True)
    return [bool(constant_value(tensor) != 0) for declared, tensor in inputs if declared.name in ("seed", "seed2")]


def _refused(reason: str) -> ValueError:
    return ValueError(
        f"visit_once=True needs a dataset that is the same on all workers, each time it is made: {reason}"
    )
