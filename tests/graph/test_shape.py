"""Static shapes against TensorFlow's, and the laws of merging and broadcasting."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from golden_programs import check, load
from hypothesis import given
from hypothesis import strategies as st

from penstock.graph import dimension, shape
from penstock.graph.dimension import Dimension
from penstock.graph.shape import TensorShape, broadcast_shape

PROGRAMS = {row["id"]: row for row in load("semantics/static_shapes.json")["cases"]}
BROADCASTS = next(row for row in load("semantics/dtypes.json")["cases"] if row["id"] == "broadcast_errors")

sizes = st.integers(0, 4)
dims = st.lists(sizes | st.none(), max_size=4)
shapes = st.builds(TensorShape, dims | st.none())


@st.composite
def masked(draw: st.DrawFn) -> tuple[list[int], list[int | None]]:
    """A concrete shape, and the same with some dimensions forgotten."""
    concrete = draw(st.lists(sizes, max_size=4))
    return concrete, [draw(st.sampled_from([size, None])) for size in concrete]


class Names:
    """The part of the v1 face that the programs use."""

    Dimension, TensorShape = Dimension, TensorShape
    broadcast_static_shape = staticmethod(broadcast_shape)


@pytest.mark.parametrize("name", ["tensorshape_api", "dimension_arithmetic", "broadcast_static_shape"])
def test_golden_program(name: str) -> None:
    check(PROGRAMS[name], Names)


@pytest.mark.parametrize("row", BROADCASTS["result"], ids=lambda row: f"{row[0]}_{row[1]}")
def test_golden_broadcast(row: list[Any]) -> None:
    a, b, expected, _ = row
    if expected == "ValueError":
        with pytest.raises(ValueError, match="do not broadcast"):
            broadcast_shape(a, b)
    else:
        assert broadcast_shape(a, b) == expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([None], [1], [None]),
        ([None], [0], [None]),
        ([None], [5], [5]),
        ([2, None], [None, 3], [2, 3]),
        (None, [2], None),
        ([None, None], [5, 1, 1], [5, None, None]),
    ],
)
def test_broadcast_of_unknown(a: Any, b: Any, expected: Any) -> None:
    assert broadcast_shape(a, b) == TensorShape(expected)
    assert broadcast_shape(b, a) == TensorShape(expected)


@given(st.lists(sizes, max_size=4), st.lists(sizes, max_size=4))
def test_broadcast_agrees_with_numpy(a: list[int], b: list[int]) -> None:
    try:
        expected = np.broadcast_shapes(tuple(a), tuple(b))
    except ValueError:
        with pytest.raises(ValueError, match="do not broadcast"):
            broadcast_shape(a, b)
    else:
        assert broadcast_shape(a, b) == expected


@given(masked(), masked())
def test_broadcast_of_partial_shapes_covers_the_concrete_one(a: Any, b: Any) -> None:
    try:
        concrete = broadcast_shape(a[0], b[0])
    except ValueError:
        return
    assert broadcast_shape(a[1], b[1]).is_compatible_with(concrete)


@given(shapes, shapes)
def test_broadcast_commutes(a: TensorShape, b: TensorShape) -> None:
    def broadcast(x: TensorShape, y: TensorShape) -> TensorShape | None:
        try:
            return broadcast_shape(x, y)
        except ValueError:
            return None

    assert broadcast(a, b) == broadcast(b, a)


@given(shapes, shapes)
def test_merge_commutes_and_exists_iff_compatible(a: TensorShape, b: TensorShape) -> None:
    assert a.is_compatible_with(b) == b.is_compatible_with(a)
    if not a.is_compatible_with(b):
        with pytest.raises(ValueError, match="not compatible"):
            a.merge_with(b)
        return
    merged = a.merge_with(b)
    assert merged == b.merge_with(a)
    assert merged.is_subtype_of(a)
    assert merged.is_subtype_of(b)


@given(shapes)
def test_merge_has_a_unit_and_is_idempotent(a: TensorShape) -> None:
    assert a.merge_with(None) == a
    assert TensorShape(None).merge_with(a) == a
    assert a.merge_with(a) == a


@given(shapes, shapes)
def test_most_specific_compatible_shape_covers_both(a: TensorShape, b: TensorShape) -> None:
    cover = a.most_specific_compatible_shape(b)
    assert a.is_subtype_of(cover)
    assert b.is_subtype_of(cover)


@given(shapes)
def test_shapes_travel(a: TensorShape) -> None:
    assert TensorShape(a.as_proto()) == a
    assert pickle.loads(pickle.dumps(a)) == copy.deepcopy(a) == a
    assert hash(TensorShape(a)) == hash(a)
    assert TensorShape.of(a._dims) == a


@given(dims, dims)
def test_addition_concatenates(a: list[int | None], b: list[int | None]) -> None:
    assert TensorShape(a) + b == a + TensorShape(b) == TensorShape(a + b)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (slice(1, 3), [None, None]),
        (slice(None, 3), [None] * 3),
        (slice(3, 1), []),
        (slice(1, None), None),
        (slice(-1, None), None),
        (slice(None, -1), None),
    ],
    ids=str,
)
def test_slices_of_unknown_rank(key: slice, expected: list[int | None] | None) -> None:
    assert TensorShape(None)[key] == TensorShape(expected)


def test_step_in_slice_of_unknown_rank() -> None:
    with pytest.raises(ValueError, match="step"):
        TensorShape(None)[::2]


def test_other_things_that_make_shapes() -> None:
    assert TensorShape(np.array([1, 2])) == [1, 2]
    assert TensorShape(np.int64(4)) == [4]
    assert TensorShape([np.int64(4)])._dims == (4,)
    assert TensorShape(Dimension(None)) == [None]
    assert TensorShape(range(3)) == [0, 1, 2]
    assert np.zeros(TensorShape([2, 3])).shape == (2, 3)
    with pytest.raises(TypeError, match="'a'"):
        TensorShape("a")
    with pytest.raises(TypeError, match="integer or None"):
        TensorShape([[1]])


def test_shapes_compare_with_what_is_no_shape() -> None:
    assert TensorShape([1]) != "a"
    assert TensorShape([1]) != [-1]
    assert TensorShape(None) == None  # noqa: E711
    assert TensorShape([1]) is not None


def test_assertions() -> None:
    TensorShape(None).assert_same_rank([1, 2])
    TensorShape([None]).assert_is_compatible_with([3])
    TensorShape([2]).assert_is_fully_defined()
    TensorShape(None).assert_has_rank(2)
    with pytest.raises(ValueError, match="same rank"):
        TensorShape([1]).assert_same_rank([1, 2])
    with pytest.raises(ValueError, match="incompatible"):
        TensorShape([1]).assert_is_compatible_with([2])
    with pytest.raises(ValueError, match="fully defined"):
        TensorShape([None]).assert_is_fully_defined()
    with pytest.raises(ValueError, match="rank 2"):
        TensorShape([1]).assert_has_rank(2)


def test_makers() -> None:
    assert shape.unknown_shape() == TensorShape(None)
    assert shape.unknown_shape(rank=2) == [None, None]
    assert (shape.scalar(), shape.vector(None), shape.matrix(2, None)) == ([], [None], [2, None])
    assert shape.as_shape(None).rank is None
    assert dimension.as_dimension(3).value == 3
    assert [shape.dimension_value(d) for d in (Dimension(3), Dimension(None), 3)] == [3, None, 3]
    assert shape.dimension_at_index(TensorShape(None), 2).value is None


def test_dimension_refuses_what_is_no_size() -> None:
    with pytest.raises(TypeError):
        Dimension(3) + "a"
    with pytest.raises(TypeError):
        Dimension(3) + 1.5
    with pytest.raises(ValueError, match=">= 0"):
        Dimension(3) - 5
    with pytest.raises(TypeError):
        hash(Dimension(3))
    with pytest.raises(TypeError, match="integer"):
        Dimension(3) < "a"  # noqa: B015
    assert (Dimension(3) == "a") is False
    assert (Dimension(3) != "a") is True
    assert "a" * Dimension(3) == "aaa"
    assert list(range(5))[Dimension(2)] == 2
