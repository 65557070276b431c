"""Resources survive being packed, and what they do afterwards is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.elastic.packing import Packed, can_move, packed, unpacked
from penstock.errors import DataLossError
from penstock.graph import dtype as dt
from penstock.graph.shape import TensorShape
from penstock.ops.lookup.table_ops import StaticTable, Table
from penstock.ops.queue.accumulator_resources import Accumulator, SparseAccumulator
from penstock.ops.queue.queue_resources import PaddedQueue, Queue, ShuffledQueue, SortedQueue
from penstock.segments.stored_variable import StoredVariable
from penstock.worker.cancellation import Cancellation
from penstock.worker.devices import local_devices
from penstock.worker.step import Step

DEVICE = local_devices()[0]
SCALAR, ROW = TensorShape.of(()), TensorShape.of((None, 2))


def moved(resource: Any) -> Any:
    assert can_move(resource)
    content = packed(resource)
    for array in content.arrays:
        if array.flags.owndata:
            array.flags.writeable = False  # as in memory that another process has lent
    return unpacked(resource.name, content, DEVICE)


def step() -> Step:
    return Step(Cancellation())


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (dt.float32, np.float32([[1, 2]])),
        (dt.string, np.array([b"a", b"bc"], object)),
        (dt.int64, np.int64(7)),
        (dt.float32, None),
    ],
)
def test_variables(dtype: dt.DType, value: Any) -> None:
    variable = StoredVariable("v", dtype, TensorShape.of(None), True)
    variable.value = value
    found = moved(variable)
    assert (found.name, found.dtype, found.shape.rank) == ("v", dtype, None)
    if value is None:
        assert found.value is None
    else:
        np.testing.assert_array_equal(found.copy(), value)


@pytest.mark.parametrize("kind", [Queue, PaddedQueue, SortedQueue, ShuffledQueue])
def test_queues(kind: type[Queue]) -> None:
    further = {"min_after_dequeue": 1, "seed": 3, "seed2": 4} if kind is ShuffledQueue else {}
    queue = kind("q", [dt.int64, dt.string], [SCALAR, SCALAR], 10, **further)
    for number in (5, 3, 8, 3):
        queue.enqueue([(np.int64(number), np.array(str(number).encode(), object))], step())
    if kind is ShuffledQueue:
        queue.dequeue(1, step())
    found = moved(queue)
    assert (found.capacity, found.size(), found.is_closed) == (10, queue.size(), False)
    assert type(found) is kind
    queue.seal(False, step())
    assert moved(queue).is_closed
    found.seal(False, step())
    before, after = ([[np.asarray(part).item() for part in e] for e in q.dequeue(3, step())] for q in (queue, found))
    assert before == after


def test_accumulators() -> None:
    dense = Accumulator("a", dt.float32, TensorShape.of((2,)), "MEAN")
    dense.set_global_step(4)
    dense.apply(4, np.float32([1, 2]))
    sparse = SparseAccumulator("s", dt.float32, TensorShape.of((5, 1)), "MEAN")
    sparse.apply(0, np.array([1, 3]), np.float32([[1], [2]]), None)
    for accumulator, gradient in ((dense, [np.float32([3, 4])]), (sparse, [np.array([3]), np.float32([[4]]), None])):
        found = moved(accumulator)
        assert (found.global_step, found.count, found.reduction) == (accumulator.global_step, 1, "MEAN")
        for each in (accumulator, found):
            each.apply(4, *gradient)
        before, after = accumulator.take(2, step()), found.take(2, step())
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other)


def test_tables() -> None:
    table = Table("t", dt.string, dt.float32, TensorShape.of((2,)))
    table.insert(np.array([b"a", b"b"], object), np.float32([[1, 2], [3, 4]]))
    static = StaticTable("s", dt.int64, dt.string)
    assert not moved(static).initialized
    static.initialize([(1, b"x")])
    np.testing.assert_array_equal(moved(table).find(np.array([b"b"], object), np.float32([0, 0])), [[3, 4]])
    assert moved(static).find(np.array([1, 2]), np.array(b"-", object)).tolist() == [b"x", b"-"]
    assert moved(static).initialized


def test_what_cannot_be_read_is_an_error() -> None:
    assert not can_move(object())
    for kind, settings in (("Nothing", "{}"), ("Queue", "{}"), ("Queue", "nonsense")):
        with pytest.raises(DataLossError, match="'q' arrived as"):
            unpacked("q", Packed(kind, settings, []), DEVICE)
